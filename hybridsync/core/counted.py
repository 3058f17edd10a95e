"""Numbers with their nouns and lengths of time, for messages. Pure."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "server"), counted(2, "server"), counted(0, "switch", "switches")
    ('1 server', '2 servers', '0 switches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(secs: float | None) -> str:
    """Return a length of time; "-" for none.

    >>> duration(0.046), duration(3.8), duration(75.0), duration(7200.0)
    ('0.046 s', '3.8 s', '1:15', '2:00:00')
    """
    if secs is None:
        return "-"
    if secs < 60:
        return f"{secs:.3g} s"
    minutes, rest = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
