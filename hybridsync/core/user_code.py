"""What the user's own code raised, in one line that names the place in it."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from hybridsync.core.errors import described

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def explain(error: BaseException, default: str = "") -> str:
    """Return one line about an error: the user's line that raised or called what raised, its type and first line.

    Args:
      error: an error that code of the user's raised, or that was raised by what it called.
      default: place to name where no line is the user's.
    """
    what, *_ = described(error).splitlines()
    where = users_line(error) or default
    return f"{where}: {what}" if where else what


def users_line(error: BaseException) -> str:
    """Return "FILE, line N" of the last frame in the user's code, "" where there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):  # the import system, generated code
        return False
    path = Path(filename)
    return not filename.startswith(_INSTALLED) and "site-packages" not in path.parts and _PACKAGE not in path.parents
