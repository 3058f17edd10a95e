"""timeline.part: spans as they came in, from which a later session builds the timeline where this one is killed.

Its first line contains the number of the writing of timeline.json that it follows; the others are lines as they stand
there.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from hybridsync.core.errors import WorkdirTaken
from hybridsync.storage.durable import Fence, open_file, read_file, unfenced
from hybridsync.storage.jsonl import LineFile, encode

PART_FILE = "timeline.part"
_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


@dataclass(frozen=True)
class Found:
    """Holds what a killed session left.

    Args:
        after: number of the writing of timeline.json that the part follows.
        left_out: number of spans since then that it kept no longer.
        lines: rows and spans.
    """

    after: int
    left_out: int
    lines: Sequence[str]


class TimelinePart:
    """Appends lines that survive this process, not the machine: nothing waits for the disk.

    A disk that refuses them ends nothing: they are in memory as well, and only a kill would lose them.

    Args:
        path: path of the file; created by the first line.
        fence: see `write_durable`; a file that is another chief's by now is given up like a disk that refuses.
    """

    def __init__(self, path: str | os.PathLike[str], fence: Fence = unfenced) -> None:
        self._path, self._fence = Path(path), fence
        self._file: LineFile | None = None
        self._refused = False
        self.num_lines = 0

    def read(self) -> Found | None:
        """Return what is there, up to the first damaged line; None where nothing is."""
        try:
            header, *lines = read_file(self._path).decode(errors="replace").split("\n")
            told = json.loads(header)
            after, left_out = told["after"], told["left_out"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logging.warning("%s is damaged (%s); what it held is not in the timeline", self._path, error)
            return None
        return Found(after, left_out, lines[: _num_whole(lines)])

    def append(self, after: int, lines: Sequence[str]) -> None:
        """Append lines; a file that is new goes on behind writing `after`."""
        if self._refused or not lines:
            return
        try:
            if self._file is None:
                self._file = LineFile(self._path)
            if not self.num_lines:
                lines = [_header(after, 0), *lines]
            self._file.extend(lines)
            self.num_lines += len(lines)
        except OSError as error:
            self._give_up(error)

    def replace(self, after: int, left_out: int, lines: Sequence[str]) -> None:
        """Hold these lines alone from now on."""
        if self._refused:
            return
        other = self._path.with_name(self._path.name + ".tmp")
        try:
            self._fence()
            self._close()
            with open(open_file(other, _REPLACE), "w", encoding="utf-8") as file:
                file.write("\n".join([_header(after, left_out), *lines, ""]))
            self._fence()
            other.replace(self._path)
            self.num_lines = 1 + len(lines)
        except (OSError, WorkdirTaken) as error:
            self._give_up(error)

    def remove(self) -> None:
        """Leave no file: everything is in timeline.json."""
        try:
            self._close()
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)
        self.num_lines = 0

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _give_up(self, error: OSError | WorkdirTaken) -> None:
        logging.error("%s: %s; a killed chief would lose the timeline's spans", self._path, error)
        self._refused = True


def _header(after: int, left_out: int) -> str:
    return encode({"after": after, "left_out": left_out})


def _num_whole(lines: Sequence[str]) -> int:
    for index, line in enumerate(lines):
        try:
            if not isinstance(json.loads(line), dict):
                return index
        except ValueError:
            return index
    return len(lines)
