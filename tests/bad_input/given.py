"""What a case of something wrong is made of: a command, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bad_input.place import Place

FRESH = ("--workdir=FOLDER/fresh",)
HERE = ("--runtime=inprocess",)
GRAMMAR = r"write name\[\(key=value,\.\.\.\)\]\[:length\], separated by commas; for example bsp:12\.5%,asp, .*"
OTHER = "use the earlier value or a fresh workdir"
TRAINS_OTHERWISE = OTHER + r", or pass --accept_changes \(Trainer\(accept_changes=True\)\) to train on with the new one"


@dataclass(frozen=True)
class Given:
    """A command, and its answer.

    Args:
      name: what is wrong, as a test id.
      flags: besides --config and --workdir; a later one of a name counts.
      text: regular expression over the error.
      change: of the folder, before.
    """

    name: str
    flags: tuple[str, ...]
    text: str
    change: Callable[[Place], Any] = lambda place: None


def write_config(text: str) -> Callable[[Place], Any]:
    return lambda place: place.config.write_text(text)


def swap(old: str, new: str) -> Callable[[Place], Any]:
    return lambda place: place.change_config(old, new)


def values(*settings: str) -> tuple[str, ...]:
    return tuple(f"--set={setting}" for setting in settings)
