"""Lines for the user's terminal."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Show a line to the user, beside the progress that goes to standard output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
