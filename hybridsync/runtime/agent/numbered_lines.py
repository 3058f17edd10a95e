r"""Numbers lines of text, so that each arrives once and in order, whatever is lost, repeated or overtaken. Pure.

The sender keeps each line until the receiver has acknowledged it. The receiver takes what continues its count.

>>> sent, received = SentLines("orders"), ReceivedLines("orders")
>>> sent.add("a"); sent.add("b")
>>> received.take(*sent.batch()), received.take(*sent.batch())  # its answer was lost: the batch is repeated
(['a', 'b'], [])
>>> sent.acknowledge(received.count); sent.batch()
(2, ())
"""

from __future__ import annotations

from collections import deque

from hybridsync.core.errors import InvalidMessage
from hybridsync.interfaces.agents import MOST_LINE_CHARS, MOST_LINES

MOST_BATCH_CHARS = 1 << 20
"""Characters of the lines of one message: a quarter of what gRPC lets through."""


class SentLines:
    """Keeps lines until the other end has them.

    Args:
      what: the lines are, for errors: "orders".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._waiting: deque[str] = deque()
        self.acknowledged = 0

    @property
    def count(self) -> int:
        """Return the number of lines added so far."""
        return self.acknowledged + len(self._waiting)

    def add(self, line: str) -> None:
        """Send a line after all others.

        Raises:
          InvalidMessage: it is too long, or not plain ASCII; JSON as `json.dumps` writes it is.
        """
        if len(line) > MOST_LINE_CHARS:
            raise InvalidMessage(
                f"a line of the {self._what} has {len(line)} characters, above the {MOST_LINE_CHARS} of a line; "
                "shorten it"
            )
        if not (line.isascii() and line.isprintable()):
            raise InvalidMessage(f"a line of the {self._what} is {line[:80]!r}...; write it as JSON of ASCII alone")
        self._waiting.append(line)

    def check(self, count: int) -> None:
        """Refuse an acknowledgement of lines that were never sent.

        Raises:
          InvalidMessage: `count` is negative, or above the number of lines.
        """
        if not 0 <= count <= self.count:
            raise InvalidMessage(
                f"{count} {self._what} are said to have arrived, but {self.count} were sent; count those of this "
                "session"
            )

    def acknowledge(self, count: int) -> None:
        """Forget the first `count` lines of all. An older acknowledgement, which was overtaken, changes nothing."""
        while self.acknowledged < count:
            self._waiting.popleft()
            self.acknowledged += 1

    def batch(self) -> tuple[int, tuple[str, ...]]:
        """Return the number of the first line that was not acknowledged, and the lines from there on that fit."""
        lines, chars = [], 0
        for line in self._waiting:
            chars += len(line)
            if lines and (chars > MOST_BATCH_CHARS or len(lines) == MOST_LINES):
                break
            lines.append(line)
        return self.acknowledged, tuple(lines)


class ReceivedLines:
    """Counts the lines that have arrived.

    Args:
      what: the lines are, for errors: "events".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.count = 0

    def check(self, first: int) -> None:
        """Refuse a batch that begins behind what has not arrived yet.

        Raises:
          InvalidMessage: the batch begins after such a gap, or its number is negative.
        """
        if not 0 <= first <= self.count:
            raise InvalidMessage(
                f"{self._what} from number {first} on have arrived, but number {self.count} is the next one; send "
                "those that were not acknowledged"
            )

    def take(self, first: int, lines: tuple[str, ...], most: int = MOST_LINES) -> list[str]:
        """Return those lines that are new, up to `most` of them, and count them; the batch passed `check`."""
        new = [*lines[self.count - first :][:most]]
        self.count += len(new)
        return new
