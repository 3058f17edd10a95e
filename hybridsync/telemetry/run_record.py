"""What a run left of itself, as values: the files of its workdir, or the lines of a run without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """Holds what a run left, as read.

    Args:
        name: name of the run on the page.
        config: content of config.json; None without one.
        events: lines of events.jsonl.
        metrics: lines of metrics.jsonl.
        summary: content of summary.json; None before the run's first end.
        trace: Chrome trace events of timeline.json; empty without one.
        stall_secs: phase to the stall at its beginning, by the timeline.
        simulation: content of simulation.json; None for a real run.
        num_unreadable: number of lines that were left out, because they hold a text for a number, for instance.
    """

    name: str
    config: Mapping[str, Any] | None
    events: Sequence[Mapping[str, Any]]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any] | None
    trace: Sequence[Mapping[str, Any]] = ()
    stall_secs: Mapping[int, float] = field(default_factory=dict)
    simulation: Mapping[str, Any] | None = None
    num_unreadable: int = 0

    @property
    def values(self) -> dict[str, Any]:
        """Values of the configuration, with the optimizer that trained in place of the configuration's.

        Earlier versions did not name it. There it is the configuration's if the run had a file, and left out of a run
        without one, which was given its optimizer.
        """
        told = self.config or {}
        values = dict(told.get("config") or {})
        if optimizer := (told.get("trained") or {}).get("optimizer"):
            values["optimizer"] = optimizer
        elif not told.get("file"):
            values.pop("optimizer", None)
        return values
