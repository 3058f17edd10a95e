"""A small decoder language model over the bytes of a text file; by default one that comes with Python."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridsync.config import OptimizerConfig, RunConfig
from hybridsync.core.errors import DataError

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task


@dataclass(frozen=True)
class DecoderConfig:
    """The network.

    Args:
      dim: width of a token's representation.
      num_layers: decoder blocks.
      num_heads: attention heads; divides `dim`.
      dropout: share of features dropped in training.
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    dropout: float = 0.1


@dataclass(frozen=True)
class TextConfig:
    """The data.

    Args:
      path: the text file; empty for the language reference inside the running Python (pydoc_data/topics.py,
        about 700 kB, another text in every Python version).
      length: bytes predicted in a window.
      test_share: share of the file, at its end, that is held out.
      expected_hash: sha256 of the content; empty accepts any.
    """

    path: str = ""
    length: int = 64
    test_share: float = 0.1
    expected_hash: str = ""


def config() -> RunConfig:
    """Return the run: some five passes over the text."""
    return RunConfig(
        workload=2000,
        unit_size=32,
        workers=4,
        servers=1,
        plan="bsp:12.5%,asp",
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.01, clip=1.0),
        model=DecoderConfig(),
        data=TextConfig(),
    )


def task(config: RunConfig) -> Task:
    """Return the task: the next byte at every position of a window."""
    from hybridsync.data.text import NUM_TOKENS, TextSource
    from hybridsync.losses import language_model
    from hybridsync.models import DecoderLM
    from hybridsync.training.task import Task

    model, data = config.model, config.data
    source = TextSource(
        data.path or _bundled_text(),
        data.length,
        test_share=data.test_share,
        expected_hash=data.expected_hash,
    )

    def make(rngs):
        return DecoderLM(
            NUM_TOKENS,
            dim=model.dim,
            num_layers=model.num_layers,
            num_heads=model.num_heads,
            max_length=data.length,
            dropout=model.dropout,
            rngs=rngs,
        )

    return Task.from_nnx(make, source, language_model)


def _bundled_text() -> str:
    """Return the path of the text that comes with Python."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is None or spec.origin is None:
        raise DataError("this Python comes without pydoc_data/topics.py: set data.path to a text file.")
    return spec.origin


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer the configuration names."""
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
