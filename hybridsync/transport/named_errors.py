"""Errors as they travel: the name of their class and a text, whatever carries them."""

from __future__ import annotations

import inspect

from hybridsync.core import errors
from hybridsync.core.errors import HybridSyncError, printable

MAX_TEXT = 4000
"""Characters of an error's text that travel."""

KINDS: dict[str, type[HybridSyncError]] = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HybridSyncError) and kind.__module__ == errors.__name__
}
"""Every named error by its name."""


def named(error: HybridSyncError) -> tuple[str, str]:
    """Return the name of an error, or of the nearest base that has one, and its text.

    >>> named(errors.StalePhase("phase 3 is over"))
    ('StalePhase', 'phase 3 is over')
    """
    name = next(kind.__name__ for kind in type(error).__mro__ if KINDS.get(kind.__name__) is kind)
    text = plain(str(error))
    return name, text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 6] + " [cut]"


def raised(name: str, text: str, who: str, what: str) -> HybridSyncError | None:
    """Return the error that a role has answered with; None where no error has that name.

    Args:
      name: name of the error's class.
      text: text of the error.
      who: name of the role that was called, for the text of an error that only its log explains.
      what: the call, for that text.
    """
    kind = KINDS.get(name)
    if kind is HybridSyncError:
        return HybridSyncError(f"{who} failed in {what}: {plain(text)}; see its log")
    return kind(plain(text)) if kind is not None else None


def plain(text: str) -> str:
    """Return an error's text without control characters but its line breaks."""
    return "\n".join(map(printable, text.split("\n")))
