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
from typing import Protocol

from hybridsync.storage.jsonl import LineFile
from hybridsync.telemetry.events import Elapsed
from hybridsync.telemetry.kinds import NUMBER

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
    **dict.fromkeys(("compute_secs", "wait_secs", "sent_bytes", "received_bytes"), "numbers by count"),
    "applied_by": "counts by host and worker",
}
"""Fields that lines of earlier versions lack."""


class Staleness:
    """Counts how stale updates were: the version they were applied to less the version they were based on."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, values: Iterable[int]) -> None:
        """Count the staleness of some updates."""
        self._counts.update(values)

    def clear(self) -> None:
        """Forget what was counted: a new interval begins."""
        self._counts.clear()

    def summary(self) -> dict[str, float]:
        """Return mean, p95 (nearest rank) and max; zeros when nothing was counted."""
        total = self._counts.total()
        if not total:
            return {"mean": 0.0, "p95": 0, "max": 0}
        rank, seen = math.ceil(0.95 * total), 0
        ordered = sorted(self._counts.items())
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
        compute_secs: worker id to the seconds that it computed in the interval, as far as it has reported.
        wait_secs: worker id to those in which it waited for others or for a transfer.
        sent_bytes, received_bytes: worker id to the gradients and states that it sent and received in the interval.
        applied_by: host to worker id to the units that were applied in the interval while it had them there.
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
    wait_secs: Mapping[int, float] = field(default_factory=dict)
    sent_bytes: Mapping[int, int] = field(default_factory=dict)
    received_bytes: Mapping[int, int] = field(default_factory=dict)
    applied_by: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


class MetricsSink(Protocol):
    """Takes metrics."""

    def write(self, metrics: Metrics) -> None:
        """Write one line."""
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
        if self._file.last:
            elapsed.not_before(self._file.last["t"])

    def write(self, metrics: Metrics) -> None:
        """Append one line.

        Raises:
            OSError: the disk refuses.
        """
        self._file.append({"t": round(self._elapsed(), 6), **asdict(metrics)})

    def close(self) -> None:
        self._file.close()


class NullMetrics:
    """Writes nothing: a run without a workdir."""

    def write(self, metrics: Metrics) -> None:
        pass

    def close(self) -> None:
        pass
