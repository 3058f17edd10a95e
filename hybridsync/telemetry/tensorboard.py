"""The same figures for TensorBoard, in workdir/tensorboard, where its writer is installed (the `tensorboard` extra).

Each session of a run writes its hyperparameters, so that TensorBoard's HPARAMS page compares runs by them.

Records are written in the caller's thread by tensorboardX's own file writer: its SummaryWriter hands them to a
thread through a queue of pickles, and would lose a full disk's error there.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from hybridsync.config import RunConfig, flattened, to_json
from hybridsync.storage.durable import FOLDER_MODE, open_file, still_at
from hybridsync.telemetry.metrics import Metrics

TENSORBOARD_FOLDER = "tensorboard"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_SCHEME = "hybridsync"
"""Of the names of record files that `_RecordFile` opens."""


ALWAYS_SHOWN = frozenset({"workload", "unit_size", "workers", "servers", "plan", "seed"})
"""Values of the configuration by which people compare runs, also where they are the defaults."""


def hyperparameters(config: RunConfig, of_optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the HPARAMS page shows of a run: what is always compared, and what is not left at its default.

    Args:
        config: configuration of the run.
        of_optimizer: values of its optimizer, which take the place of the configuration's: `Trainer` is given one.

    >>> config = RunConfig(workload=80, workers=2, plan="asp", min_workers=1)
    >>> hyperparameters(config, {"learning_rate": 0.001})  # doctest: +NORMALIZE_WHITESPACE
    {'workload': 80, 'unit_size': 32, 'workers': 2, 'min_workers': 1, 'servers': 1, 'plan': 'asp', 'seed': 0,
     'learning_rate': 0.001}
    """
    usual = flattened(to_json(RunConfig(workload=config.workload, plan=config.plan)))
    shown = {
        name: value
        for name, value in flattened(to_json(config)).items()
        if not name.startswith("optimizer.") and (name in ALWAYS_SHOWN or value != usual.get(name))
    }
    return {**shown, **{"optimizer" if name == "name" else name: value for name, value in of_optimizer.items()}}


class Board:
    """Takes figures that people look at with TensorBoard; a step is a unit applied. This one shows nothing."""

    def started(self, units: int, hyperparameters: Mapping[str, Any]) -> None:
        """Show the values by which runs are compared; a session begins at `units`."""

    def completed(self, units: int) -> None:
        """Show that the run has ended for good at `units`."""

    def metrics(self, metrics: Metrics) -> None:
        """Show the figures of an interval."""

    def evaluated(self, units: int, figures: Mapping[str, Any]) -> None:
        """Show what a task measured of the state at `units`."""

    def entered(self, units: int, text: str) -> None:
        """Show which phase begins at `units`."""

    def close(self) -> None:
        """Close what is open; nothing follows."""


class _RecordFile:
    """A file of records for `register_writer_factory`; it has no `fileno`, so tensorboardX does not sync it.

    A sync at each flush would stop the caller, the chief's loop, for as long as a slow disk takes.
    """

    def __init__(self, path: str) -> None:
        self._path, self._waiting = Path(path), bytearray()
        self._path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        self._descriptor = open_file(self._path, _APPEND)

    @classmethod
    def open(cls, path: str) -> "_RecordFile":
        """Open the file at a path that begins with the scheme."""
        return cls(path.removeprefix(f"{_SCHEME}:"))

    def write(self, data: bytes) -> None:
        """Take a part of a record."""
        self._waiting += data

    def flush(self) -> None:
        """Give all records to the system; a file that was moved or removed is made again for those that follow."""
        with contextlib.suppress(FileNotFoundError):  # the workdir itself is elsewhere
            self._path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        self._descriptor = still_at(self._path, self._descriptor, _APPEND)
        written = os.write(self._descriptor, self._waiting)
        if written < len(self._waiting):
            raise OSError(errno.ENOSPC, f"{written} of {len(self._waiting)} bytes taken", str(self._path))
        self._waiting.clear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class TensorBoard(Board):
    """Writes a file of TensorBoard records; each session of a run has its own.

    A disk that refuses a record does not end the run: the file ends there, because a reader stops at a torn record
    anyway, and metrics.jsonl and events.jsonl have the same figures.

    Args:
        workdir: existing directory.
        wall: returns the unix time of a record, from the event log: without the pauses between sessions.

    Raises:
        Exception: tensorboardX is not installed, or its import raises.
        OSError: the disk refuses.
    """

    def __init__(self, workdir: str | os.PathLike[str], wall: Callable[[], float]) -> None:
        summary, EventsWriter, event_pb2, register_writer_factory = _import()
        self._summary, self._event_pb2, self._wall = summary, event_pb2, wall
        register_writer_factory(_SCHEME, _RecordFile)
        self._writer = EventsWriter(f"{_SCHEME}:{Path(workdir, TENSORBOARD_FOLDER, 'events')}", f".{os.getpid()}")
        self._refused = False

    def started(self, units: int, hyperparameters: Mapping[str, Any]) -> None:
        # Without the description of an experiment TensorBoard makes one of all runs that it shows.
        _, start, _ = self._summary.hparams(hyperparameters, {})
        self._write(units, start)
        self._do(self._writer.flush)

    def completed(self, units: int) -> None:
        _, _, end = self._summary.hparams({}, {})
        self._write(units, end)
        self._do(self._writer.flush)

    def metrics(self, metrics: Metrics) -> None:
        figures: dict[str, float | None] = {
            "train/loss": metrics.loss,
            "train/learning_rate": metrics.learning_rate,
            "examples_per_sec/all": metrics.examples_per_sec,
        }
        figures |= {f"staleness/{name}": value for name, value in metrics.staleness.items()}
        figures |= {f"examples_per_sec/worker_{worker}": rate for worker, rate in metrics.workers.items()}
        self._scalars(metrics.units, figures)

    def evaluated(self, units: int, figures: Mapping[str, Any]) -> None:
        self._scalars(units, {f"eval/{name}": value for name, value in figures.items()})

    def entered(self, units: int, text: str) -> None:
        self._write(units, self._summary.text("phase", text))
        self._do(self._writer.flush)

    def close(self) -> None:
        try:
            self._writer.close()
        except OSError as error:
            self._give_up(error)

    def _scalars(self, units: int, figures: Mapping[str, Any]) -> None:
        for tag, value in figures.items():
            if isinstance(value, int | float):
                self._write(units, self._summary.scalar(tag, value))
        self._do(self._writer.flush)

    def _write(self, units: int, summary: Any) -> None:
        event = self._event_pb2.Event(wall_time=self._wall(), step=units, summary=summary)
        self._do(lambda: self._writer.write_event(event))

    def _do(self, write: Callable[[], object]) -> None:
        if self._refused:
            return
        try:
            write()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._refused:
            logging.error("%s: %s; later figures are in metrics.jsonl alone", TENSORBOARD_FOLDER, error)
        self._refused = True


def open_board(workdir: str | os.PathLike[str], wall: Callable[[], float]) -> Board:
    """Return a board that writes where tensorboardX can be imported, else one that does nothing.

    Raises:
        OSError: the disk refuses.
    """
    try:
        _import()
    except Exception as error:  # noqa: BLE001 a run does not end because nobody can look at it
        if not (isinstance(error, ModuleNotFoundError) and error.name == "tensorboardX"):
            said = " ".join(f"{type(error).__name__}: {error}".split())
            logging.error("no %s is written, tensorboardX cannot be imported: %.300s", TENSORBOARD_FOLDER, said)
        return Board()
    return TensorBoard(workdir, wall)


def _import() -> tuple[Any, Any, Any, Any]:
    """Import tensorboardX without PyTorch, which it would import where it is there: 500 MB and seconds for nothing."""
    hides = "torch" not in sys.modules
    if hides:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]: Python's way to say that there is none
    try:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.record_writer import register_writer_factory
    finally:
        if hides:
            del sys.modules["torch"]
    return summary, EventsWriter, event_pb2, register_writer_factory
