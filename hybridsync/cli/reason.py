"""Checks what a user gives as the reason of a command, before it goes to the chief."""

from __future__ import annotations

from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.messages import MOST_REASON_CHARS


def checked_reason(text: str) -> str:
    """Return the text of --why, which a message can carry.

    Raises:
      ConfigError: the text is too long, or has a control character or a byte that is not UTF-8.
    """
    if len(text) > MOST_REASON_CHARS:
        raise ConfigError(
            f"--why has {len(text):,} characters, above the {MOST_REASON_CHARS:,} of a reason; shorten it"
        )
    for at, char in enumerate(text):
        if not char.isprintable():
            what = "a byte that is no UTF-8" if 0xDC80 <= ord(char) <= 0xDCFF else f"the character {char!r}"
            raise ConfigError(f"--why has {what} in place {at + 1}; write plain text on one line")
    return text
