"""Numbers with their nouns, for messages. Pure."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "server"), counted(2, "server"), counted(0, "switch", "switches")
    ('1 server', '2 servers', '0 switches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
