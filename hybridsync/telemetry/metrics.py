"""metrics.jsonl: how fast and how well the run goes, one line every log interval.

>>> counts = Staleness()
>>> counts.add([0, 1, 1, 2])
>>> counts.summary()
{'mean': 1.0, 'p95': 2, 'max': 2}
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hybridsync.storage.jsonl import LineFile, plain, read_lines
from hybridsync.telemetry.events import EVENTS_FILE, Elapsed
from hybridsync.telemetry.kinds import NUMBER
from hybridsync.telemetry.older_times import training_times

METRICS_FILE = "metrics.jsonl"

FIELDS = {
    **dict.fromkeys(("t", "units", "examples"), "a number"),
    "phase": "a count",
    "protocol": "a text",
    **dict.fromkeys(("loss", "learning_rate", "examples_per_sec"), NUMBER),
    "staleness": "numbers by name",
    "workers": "numbers by count",
}
"""The fields of every line, and their kinds (see `telemetry.kinds`)."""

MORE = {
    **dict.fromkeys(
        ("compute_secs", "read_secs", "wait_secs", "mfu", "sent_bytes", "received_bytes"), "numbers by count"
    ),
    "applied_by": "counts by host and worker",
    "secs": "a number",
}
"""Fields that lines of earlier versions lack."""


class Staleness:
    """Counts how stale updates were: the version they were applied to less the version they were based on."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, values: "Iterable[int] | Staleness") -> None:
        """Count the staleness of some updates, or what was counted elsewhere."""
        self.counts.update(values.counts if isinstance(values, Staleness) else values)

    def summary(self) -> dict[str, float]:
        """Return mean, p95 (nearest rank) and max; zeros when nothing was counted."""
        total = self.counts.total()
        if not total:
            return {"mean": 0.0, "p95": 0, "max": 0}
        rank, seen = math.ceil(0.95 * total), 0
        ordered = sorted(self.counts.items())
        p95 = ordered[-1][0]
        for value, count in ordered:
            seen += count
            if seen >= rank:
                p95 = value
                break
        mean = sum(value * count for value, count in ordered) / total
        return {"mean": mean, "p95": p95, "max": ordered[-1][0]}


@dataclass(frozen=True)
class Metrics:
    """Holds what one line says besides its time.

    Args:
        units: units applied in the whole run.
        examples: units times unit size.
        phase: number of the active phase.
        protocol: protocol of the active phase, as the plan spells it.
        loss: mean over the units whose loss arrived in the interval; None when none did.
        learning_rate: learning rate of the newest update.
        examples_per_sec: examples per second that were applied in the interval.
        staleness: `Staleness.summary()` of the interval.
        workers: worker id to its own examples per second.
        compute_secs: worker id to the seconds that it computed in the interval, as far as it has reported. Lines of
            earlier versions, which lack `read_secs`, count reading as computing.
        read_secs: worker id to those in which its training stood still for the data of a unit.
        wait_secs: worker id to those in which it waited for others or for a transfer.
        mfu: worker id to its model FLOPs utilisation in the interval: the share of the time that its units' gradients
            would have taken at the peak of its devices; without workers whose devices have no known peak.
        sent_bytes, received_bytes: worker id to the gradients and states that it sent and received in the interval.
        applied_by: host to worker id to the units that were applied in the interval while it had them there.
        secs: seconds that `loss`, `examples_per_sec` and `staleness` are of: the interval's. The short rest at the end
            of a run is joined to the interval before it; all other fields are of the rest alone.
    """

    units: int
    examples: int
    phase: int
    protocol: str
    loss: float | None
    learning_rate: float
    examples_per_sec: float
    staleness: Mapping[str, float]
    workers: Mapping[int, float]
    compute_secs: Mapping[int, float] = field(default_factory=dict)
    read_secs: Mapping[int, float] = field(default_factory=dict)
    wait_secs: Mapping[int, float] = field(default_factory=dict)
    mfu: Mapping[int, float] = field(default_factory=dict)
    sent_bytes: Mapping[int, int] = field(default_factory=dict)
    received_bytes: Mapping[int, int] = field(default_factory=dict)
    applied_by: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    secs: float = 0.0


class MetricsSink(Protocol):
    """Takes metrics."""

    def write(self, metrics: Metrics, at: float | None = None) -> None:
        """Write one line.

        Args:
            metrics: the line.
            at: monotonic seconds up to which it counts; None for now.
        """
        ...

    def close(self) -> None:
        """Close what is open; no line follows."""
        ...


class MetricsLog:
    """Appends to metrics.jsonl.

    Args:
        workdir: existing directory.
        elapsed: the run's time, from the event log.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, workdir: str | os.PathLike[str], elapsed: Elapsed) -> None:
        self._file = LineFile(Path(workdir) / METRICS_FILE)
        self._elapsed = elapsed
        if lines := read_metrics(workdir):
            elapsed.not_before(lines[-1]["t"])

    def write(self, metrics: Metrics, at: float | None = None) -> None:
        """Append one line; see `MetricsSink.write`.

        Raises:
            OSError: the disk refuses.
        """
        self._file.append(_line(self._elapsed, metrics, at))

    def close(self) -> None:
        self._file.close()


def _line(elapsed: Elapsed, metrics: Metrics, at: float | None) -> dict[str, Any]:
    t = elapsed() if at is None else elapsed.at(at)
    return {"t": round(t, 6), **asdict(metrics)}


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return a run's lines of metrics in order.

    Raises:
        OSError: a file cannot be read; an absent one has no lines.
        WorkdirError: a line before the last is damaged.
    """
    _, late = training_times(read_lines(Path(workdir) / EVENTS_FILE))
    return moved(read_lines(Path(workdir) / METRICS_FILE), late)


def moved(lines: list[dict[str, Any]], late: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return lines of metrics on the run's time; `late` is what `training_times` says of their phases."""
    return [{**line, "t": line["t"] - late[line["phase"]]} if line.get("phase") in late else line for line in lines]


class NullMetrics:
    """Writes no file: a run without a workdir.

    Args:
        elapsed: the run's time.
        lines: list that takes each line as the file would hold it; None for none.
    """

    def __init__(self, elapsed: Elapsed, lines: list[dict[str, Any]] | None = None) -> None:
        self._elapsed, self._lines = elapsed, lines

    def write(self, metrics: Metrics, at: float | None = None) -> None:
        if self._lines is not None:
            self._lines.append(plain(_line(self._elapsed, metrics, at)))

    def close(self) -> None:
        pass
