"""The job history: every run of every search for a switch point, and what the searches found, in one SQLite file.

Each run is one transaction, durable when `record` returns: a kill at any moment loses at most the run that was being
made. Several processes may write at once. Every row carries a digest of its values, and the whole file is checked when
it is opened, so that a damaged one is reported instead of trusted.

The file's place: the value of `--history`, else `$HYBRIDSYNC_HISTORY`, else `hybridsync/history.sqlite` in
`$XDG_DATA_HOME` (by default `~/.local/share`): what was found is worth keeping from one working directory to the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from hybridsync.core.clock import Clock
from hybridsync.core.errors import HistoryError
from hybridsync.core.paths import local_path
from hybridsync.lab.tuning.recurring_job import Job
from hybridsync.lab.tuning.search_rules import Outcome
from hybridsync.storage.durable import FILE_MODE, make_directory, sync_directory

PLACE = "HYBRIDSYNC_HISTORY"
FILE = "history.sqlite"
FORMAT = 2
"""Of the file; one of format 1, whose runs do not tell where they converged, is brought to it where it is opened."""
_APPLICATION = 0x48594253
"""Marks the file as a job history in its header: "HYBS"."""
_WAIT_SECS = 30.0

_SCHEMA = """
CREATE TABLE jobs (digest TEXT PRIMARY KEY, name TEXT NOT NULL, signature TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL REFERENCES jobs, runtime TEXT NOT NULL, cluster TEXT NOT NULL,
    share TEXT NOT NULL, seed INTEGER NOT NULL, accuracy REAL, seconds REAL NOT NULL, diverged INTEGER NOT NULL,
    place TEXT NOT NULL, wall REAL NOT NULL, digest TEXT NOT NULL, converged REAL,
    UNIQUE (job, runtime, cluster, share, seed)
);
CREATE TABLE answers (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL REFERENCES jobs, runtime TEXT NOT NULL, cluster TEXT NOT NULL,
    share TEXT NOT NULL, target REAL NOT NULL, accuracy REAL, tolerance REAL NOT NULL, settings INTEGER NOT NULL,
    repeats INTEGER NOT NULL, runs INTEGER NOT NULL, cost REAL, break_even INTEGER, confidence REAL, wall REAL NOT NULL,
    digest TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Where:
    """Identifies runs that are alike: those of one runtime, and when they are simulated, of one cluster.

    Args:
      runtime: "simulator", "inprocess" or "processes".
      cluster: digest of the simulated one, or of what is emulated on a real one.
    """

    runtime: str
    cluster: str = ""


@dataclass(frozen=True)
class RunRecord:
    """One run of a job.

    Args:
      share: share of the workload under BSP.
      seed: random seed of the run.
      accuracy: accuracy at its end; None for a run that diverged.
      seconds: duration of the run, in seconds.
      place: name of the host, or of the simulated cluster.
      converged: accuracy at which it converged; None where it did not, or its evaluations do not show it.
    """

    share: Fraction
    seed: int
    accuracy: float | None
    seconds: float
    place: str
    converged: float | None = None

    def outcome(self, first_seed: int) -> Outcome:
        """Return what a search sees of it.

        Args:
          first_seed: first seed of the search: the seed of the runs with repeat 0.
        """
        return Outcome(self.share, self.seed - first_seed, self.accuracy, self.seconds, self.converged)


@dataclass(frozen=True)
class AnswerRecord:
    """Records what a search found.

    Args:
      share: share of BSP.
      target: accuracy that it had to reach.
      accuracy: mean of the answer's runs; None where pure BSP is the answer and was not run.
      tolerance: largest distance of the answer below the target, absolute.
      settings: number of settings that the search could try.
      repeats: number of runs that it could make of each setting.
      runs: number of runs that the answer rests on.
      cost: cost of these runs, in runs of pure BSP; None if unknown.
      break_even: recurrences after which it has paid for itself; None where it never does, or it is not known.
      confidence: lower bound of the confidence; None if the runs show no spread.
    """

    share: Fraction
    target: float
    accuracy: float | None
    tolerance: float
    settings: int
    repeats: int
    runs: int
    cost: float | None
    break_even: int | None
    confidence: float | None


def default_place(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the history is when nobody names a file."""
    if named := environment.get(PLACE):
        return local_path(named)
    data = environment.get("XDG_DATA_HOME", "")
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"  # as the XDG standard has it
    return base / "hybridsync" / FILE


class History:
    """A job history, opened; use it as a context manager, from one thread.

    Args:
      path: the file; it and its folder are made where they are missing.
      clock: clock for when a run was recorded.

    Raises:
      HistoryError: the file is damaged, another user's, of a newer format, or cannot be made or read.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self._clock = path, clock
        with self._named():
            if not path.exists():
                _make(path)
            self._connection = sqlite3.connect(path, timeout=_WAIT_SECS, isolation_level=None)
            try:
                self._check()
            except BaseException:
                self._connection.close()
                raise

    @classmethod
    def existing(cls, path: Path, clock: Clock) -> History | None:
        """Return the history at `path`, None where there is none: nothing is made.

        Raises:
          HistoryError: as for any history.
        """
        try:
            found = path.exists()
        except OSError:
            found = True  # opening it raises the error
        return cls(path, clock) if found else None

    def record(self, job: Job, where: Where, run: RunRecord) -> None:
        """Write a run down; one of the same share and seed that is there already stands.

        Raises:
          HistoryError: the disk refuses, or the file is locked or damaged.
        """
        row = _row(run) | asdict(where) | {"diverged": int(run.accuracy is None)}
        self._insert("runs", job, row)

    def record_answer(self, job: Job, where: Where, answer: AnswerRecord) -> None:
        """Write down what a search found, unless that is the newest answer there already.

        Raises:
          HistoryError: as `record`.
        """
        if (job_answers := self.answers(job)) and job_answers[0] == (where, answer):
            return
        self._insert("answers", job, _row(answer) | asdict(where))

    def runs(self, job: Job, where: Where) -> list[RunRecord]:
        """Return the runs of a job, in the order of their recording.

        Raises:
          HistoryError: a row is damaged, or the file.
        """
        names = list(RunRecord.__dataclass_fields__)
        rows = self._select("runs", "job = ? AND runtime = ? AND cluster = ?", (job.digest, *_values(where)))
        return [RunRecord(**{name: row[name] for name in names}) for row in rows]

    def answers(self, job: Job) -> list[tuple[Where, AnswerRecord]]:
        """Return what searches for the job have found, the newest first.

        Raises:
          HistoryError: as `runs`.
        """
        names = list(AnswerRecord.__dataclass_fields__)
        return [
            (Where(row["runtime"], row["cluster"]), AnswerRecord(**{name: row[name] for name in names}))
            for row in reversed(self._select("answers", "job = ?", (job.digest,)))
        ]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _insert(self, table: str, job: Job, row: dict[str, Any]) -> None:
        row = {"job": job.digest, **row, "wall": self._clock.wall()}
        row["digest"] = _digest(row)
        names = ", ".join(row)
        with self._named():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                values = (job.digest, job.name, job.text)
                self._connection.execute("INSERT INTO jobs VALUES (?, ?, ?) ON CONFLICT DO NOTHING", values)
                marks = ", ".join("?" * len(row))
                self._connection.execute(
                    f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING", tuple(row.values())
                )
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _select(self, table: str, condition: str, values: Sequence[str]) -> list[dict[str, Any]]:
        with self._named():
            cursor = self._connection.execute(f"SELECT * FROM {table} WHERE {condition} ORDER BY id", values)
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            number, digest = row.pop("id"), row.pop("digest")
            if digest != _digest(row):
                raise self._damaged(f"row {number} of its {table} holds other values than were written")
            row["share"] = Fraction(row["share"])
        return rows

    def _check(self) -> None:
        """Look through the whole file.

        Raises:
          HistoryError: it is damaged, not a history, or a newer one.
        """
        application, version = (self._pragma(name) for name in ("application_id", "user_version"))
        if application != _APPLICATION:
            raise HistoryError(
                f"{self.path} is no job history: its mark is {application}, not {_APPLICATION}; {_OTHER}"
            )
        if version == 1:
            self._add_converged()
        elif version != FORMAT:
            raise HistoryError(
                f"{self.path} has format {version}, this HybridSync reads format {FORMAT}: use the version that wrote "
                "it, or name another file with --history"
            )
        found = self._pragma("quick_check")
        if found != "ok":
            raise self._damaged(str(found))
        self._connection.execute("PRAGMA synchronous = FULL")

    def _add_converged(self) -> None:
        """Bring a file of format 1 to this one, in one step, unless another process has just done so."""
        self._connection.execute("BEGIN IMMEDIATE")
        if self._pragma("user_version") == 1:
            self._connection.execute("ALTER TABLE runs ADD COLUMN converged REAL")
            self._connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._connection.execute("COMMIT")

    def _pragma(self, name: str) -> Any:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

    def _damaged(self, what: str) -> HistoryError:
        return HistoryError(f"the job history {self.path} is damaged: {' '.join(what.split())}; {_OTHER}")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Give the errors of SQLite and the disk a name, and say what to do.

        Raises:
          HistoryError: in place of them.
        """
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise HistoryError(
                    f"the job history {self.path} was locked by another process for {_WAIT_SECS:g} s; end that one, or "
                    "name another file with --history"
                ) from error
            if code in _DISK:
                raise HistoryError(
                    f"the job history {self.path} cannot be used: {error}; free space, mend its rights, or name "
                    "another file with --history"
                ) from error
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise HistoryError(
                f"the job history {self.path} cannot be made or read: {error.strerror}; name another file "
                "with --history"
            ) from error


_OTHER = "move it away or bring a copy back, or name another file with --history"
_REAL = ("accuracy", "converged", "seconds", "target", "tolerance", "cost", "confidence")
_DISK = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)


def _make(path: Path) -> None:
    """Make an empty history in one step: a reader finds none, or a whole one; of two makers one is first."""
    folder = make_directory(path.parent)
    temporary = folder / f".{path.name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.touch(FILE_MODE)  # SQLite's files next to it get the same rights
    with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {FORMAT};"
        made.executescript(f"BEGIN; {_SCHEMA} {marks} COMMIT")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_directory(folder)


def _row(record: RunRecord | AnswerRecord) -> dict[str, Any]:
    """Return a record's columns as they will be read again: SQLite gives a REAL column's whole numbers as floats."""
    row = {name: getattr(record, name) for name in record.__dataclass_fields__} | {"share": str(record.share)}
    return {name: float(value) if name in _REAL and value is not None else value for name, value in row.items()}


def _values(where: Where) -> tuple[str, str]:
    return where.runtime, where.cluster


def _digest(row: Mapping[str, Any]) -> str:
    row = {name: value for name, value in row.items() if name != "converged" or value is not None}  # as in format 1
    return xxhash.xxh3_64_hexdigest(json.dumps(row, sort_keys=True).encode())
