"""Unit sources: where the examples of a unit come from, as a pure function of (seed, unit)."""

from hybridsync.data.arrays import ArraySource
from hybridsync.data.cifar import CifarSource
from hybridsync.data.digits import DigitsSource
from hybridsync.data.indexed import IndexedSource
from hybridsync.data.source import UnitSource
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.data.tally import TallySource
from hybridsync.data.text import TextSource

__all__ = [
    "ArraySource",
    "CifarSource",
    "DigitsSource",
    "IndexedSource",
    "SyntheticSource",
    "TallySource",
    "TextSource",
    "UnitSource",
]
