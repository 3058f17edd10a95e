"""What a power loss leaves: the journal of a process's calls, replayed on a disk that remembers what was synced.

The model is stricter than any journaling file system. A file has the content of its last fsync, or any part of what
was written since; a folder has the entries of its last fsync, or those after any number of later changes to it; and
nothing that happens to one folder or file makes another one durable, but that a rename from one folder to another is
one change: what has left the one is in the other. (The approach is that of ALICE: Pillai et al.,
"All File Systems Are Not Created Equal", OSDI 2014.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Choice = Callable[[int], int]
"""Picks one of so many ways in which unsynced changes survive; 0 is none of them, the last is all."""


@dataclass
class File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class Folder:
    entries: dict[str, Any] = field(default_factory=dict)
    durable: dict[str, Any] = field(default_factory=dict)
    since: list[tuple[str, Any]] = field(default_factory=list)

    def put(self, name: str, entry: Any) -> None:
        """Set or remove (None) an entry."""
        self.since.append((name, entry))
        _apply(self.entries, [(name, entry)])


def _apply(entries: dict[str, Any], changes: list[tuple[str, Any]]) -> None:
    for name, entry in changes:
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


Tree = tuple[tuple[str, bytes | None], ...]
"""Paths in order, with a file's content or None for a folder."""


class Disk:
    """A disk below `root`, empty and durable at first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = Folder()
        self._by_inode: dict[str, Any] = {}
        self._renames: list[tuple[Folder, str, Folder, str]] = []

    def apply(self, line: str) -> None:
        """Make one call of the journal again."""
        call, *words = line.split("\t")
        if call == "open":
            path, inode, truncated = words
            folder, name = self._place(path)
            if name not in folder.entries:
                folder.put(name, File())
            self._by_inode[inode] = folder.entries[name]
            if truncated == "1":
                folder.entries[name].content.clear()
        elif call == "mkdir":
            folder, name = self._place(words[0])
            folder.put(name, Folder())
            self._by_inode[words[1]] = folder.entries[name]
        elif call == "write":
            content, offset, data = self._by_inode[words[0]].content, int(words[1]), bytes.fromhex(words[2])
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data
        elif call == "truncate":
            content, size = self._by_inode[words[0]].content, int(words[1])
            content[:] = content[:size].ljust(size, b"\0")
        elif call == "fsync":
            self._sync(self._by_inode.get(words[0], self._top))
        elif call == "rename":
            (source, old), (target, new) = self._place(words[0]), self._place(words[1])
            entry = source.entries[old]
            target.put(new, entry)
            source.put(old, None)
            self._renames.append((source, old, target, new))
        elif call == "remove":
            folder, name = self._place(words[0])
            folder.put(name, None)
        else:
            raise AssertionError(f"the journal holds {call!r}")

    def after_power_loss(self, choose: Choice) -> Tree:
        """Return what is found when the power is back."""
        views: dict[int, dict[str, Any]] = {}

        def view(folder: Folder) -> dict[str, Any]:
            if id(folder) not in views:
                views[id(folder)] = dict(folder.durable)
                _apply(views[id(folder)], folder.since[: choose(len(folder.since) + 1)])
            return views[id(folder)]

        for source, old, target, new in self._renames:
            entry = target.entries.get(new)
            if source is target or entry is None:
                continue
            here, there = view(source).get(old) is entry, view(target).get(new) is entry
            if here and there:
                del view(source)[old]
            elif not here and not there:
                view(target)[new] = entry
        return tuple(self._found("", self._top, view, choose))

    def _found(
        self, path: str, folder: Folder, view: Callable[[Folder], dict[str, Any]], choose: Choice
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, entry in sorted(view(folder).items()):
            below = f"{path}/{name}" if path else name
            if isinstance(entry, Folder):
                yield below, None
                yield from self._found(below, entry, view, choose)
            else:
                now = bytes(entry.content)
                ways = [entry.durable, now[: len(now) // 2], bytes(len(now)), now]
                yield below, ways[choose(len(ways)) if now != entry.durable else -1]

    def _place(self, path: str) -> tuple[Folder, str]:
        *parents, name = Path(path).relative_to(self._root).parts
        folder = self._top
        for parent in parents:
            folder = folder.entries[parent]
        return folder, name

    @staticmethod
    def _sync(entry: File | Folder) -> None:
        if isinstance(entry, File):
            entry.durable = bytes(entry.content)
        else:
            entry.durable = dict(entry.entries)
            entry.since.clear()


def nothing(ways: int) -> int:
    """Choose that nothing unsynced survives."""
    return 0


def everything(ways: int) -> int:
    """Choose that everything survives: what a killed process leaves."""
    return ways - 1


def some(seed: int) -> Choice:
    """Choose at random, the same for the same seed."""
    return random.Random(seed).randrange


@dataclass(frozen=True)
class Crash:
    """A disk after a power loss.

    Args:
      call: how many calls were made before it.
      promised: what the process had promised by then, in order.
      tree: what is on the disk.
    """

    call: int
    promised: tuple[str, ...]
    tree: Tree

    def build(self, folder: Path) -> Path:
        """Lay the tree out below a new folder, and return that."""
        folder.mkdir()
        for path, content in self.tree:
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)
        return folder


def crashes(journal: Path, root: Path, *, every: int = 1, seeds: int = 4) -> Iterator[Crash]:
    """Yield the different disks that a power loss before each call, or after the last, can leave.

    Args:
      journal: of a process that began with nothing below `root`.
      root: the folder for which it was armed.
      every: only before each so manieth call.
      seeds: random survivals to try besides none and all.
    """
    disk, promised, calls, seen = Disk(root), [], 0, set()
    lines = journal.read_text().splitlines()
    for line in [*lines, "end"]:
        if line == "end" or (not line.startswith("mark\t") and calls % every == 0):
            for choose in (nothing, everything, *(some(1000 * calls + seed) for seed in range(seeds))):
                tree = disk.after_power_loss(choose)
                if (tuple(promised), tree) not in seen:
                    seen.add((tuple(promised), tree))
                    yield Crash(calls, tuple(promised), tree)
        if line.startswith("mark\t"):
            promised.append(line.removeprefix("mark\t"))
        elif line != "end":
            disk.apply(line)
            calls += 1
