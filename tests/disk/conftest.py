"""Processes on a failing disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hybridsync.storage.checkpoints import CheckpointStore
from tests import shims
from tests.disk import faultfs, oracle

ROOT = Path(__file__).parents[2]
ANSWER_SECS = 60.0


class Violation(AssertionError):
    """What the oracle said in the other process."""


class Victim:
    """A process whose disk fails when asked to; see victim.py.

    Args:
      library: the failing disk.
    """

    def __init__(self, library: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.disk.victim"],
            cwd=ROOT,
            env=shims.environment(library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        """Let it do something; raises Violation with what its oracle found."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        hanging = threading.Timer(ANSWER_SECS, self._process.kill)
        hanging.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **words}, default=str) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            hanging.cancel()
        assert line, f"the process died or hung for {ANSWER_SECS:g} s when it was asked to {do} {words}"
        answer = json.loads(line)
        if "violation" in answer:
            raise Violation(f"{do} {words}: {answer['violation']}")
        return answer

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)


@dataclass(frozen=True)
class Buggy:
    """A victim that does everything with a bug planted."""

    victim: Victim
    bug: str

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        return self.victim.ask(do, bug=self.bug, **words)


MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def folders() -> Iterator[Path]:
    """Hold the files of these tests in memory, if this machine can: the faults are injected, and fsync is slow."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(folders: Path) -> Path:
    """Return a new folder among `folders`."""
    return Path(tempfile.mkdtemp(dir=folders))


@pytest.fixture(scope="session")
def library(folders: Path) -> Path:
    """Return the built library of the failing disk."""
    return shims.build(faultfs.SOURCE, folders)


@pytest.fixture
def start_victim(library: Path) -> Iterator[Callable[..., Victim]]:
    """Start victims that end with the test."""
    started: list[Victim] = []

    def start() -> Victim:
        started.append(Victim(library))
        return started[-1]

    yield start
    for victim in started:
        victim.stop()


@pytest.fixture(scope="session")
def victim(library: Path) -> Iterator[Victim]:
    """One for all that do not kill it."""
    shared = Victim(library)
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def one_step(folders: Path) -> Path:
    """Hold state 1; to be copied."""
    folder = folders / "one"
    store = CheckpointStore(folder)
    oracle.save(store, 1)
    store.close()
    return folder
