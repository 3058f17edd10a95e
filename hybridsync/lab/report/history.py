"""What a run did, as plain dictionaries and lists: `hybridsync.read_run(folder)` and `FitResult.history`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hybridsync.core.counted import duration
from hybridsync.lab.report.charts import Chart, Line, draw_svg
from hybridsync.lab.report.incidents import incidents
from hybridsync.lab.report.model import ended
from hybridsync.lab.report.scales import number
from hybridsync.telemetry.run_record import Record

Lines = list[dict[str, Any]]

MOST_INCIDENTS = 20
"""Incidents of a run that a notebook lists."""


@dataclass(frozen=True, repr=False)
class RunHistory:
    """One run, read back. Each list is in order of time.

    `secs` of a line is the run's time: seconds from the first unit, without start-up and without the pauses between
    sessions. Where a line has a length of its own (the interval of a line of metrics, the time that a checkpoint
    took), that is `lasted_secs`.

    Args:
        name: folder of the run, as `read_run` was given it, of a `FitResult` its whole path; "" for a run without one.
        config: values of the run's RunConfig, with `optimizer` those of the optimizer that trained.
        summary: content of summary.json; empty until the run has ended.
        metrics: lines of metrics.jsonl.
        evaluations: `units`, `examples`, `phase` and each figure that was measured of a state. `secs` is when the run
            had that state, not when the evaluation, in the background of the training, ended; measuring it took
            `lasted_secs`.
        events: lines of events.jsonl.
    """

    name: str
    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: Lines
    evaluations: Lines
    events: Lines

    def __repr__(self) -> str:
        units = self.summary.get("units", {}).get("applied", self.metrics[-1]["units"] if self.metrics else 0)
        newest = self.evaluations[-1] if self.evaluations else {}
        shown = "".join(f", {key} {number(newest[key])}" for key in ("accuracy", "loss") if newest.get(key) is not None)
        lines = f"{len(self.evaluations)} evaluations, {len(self.metrics)} lines of metrics, {len(self.events)} events"
        return (
            f"RunHistory({self.name or 'in memory'}: {self.exit}, {units:,} of {self.config.get('workload', 0):,} "
            f"units in {duration(self.secs)}{shown}; {lines})"
        )

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>{self.inline_report()}"

    def inline_report(self) -> str:
        """Return the curve, and what went otherwise than planned, as HTML."""
        events = [{**{key: event[key] for key in event if key != "secs"}, "t": event["secs"]} for event in self.events]
        found = incidents(events)
        rows = [f"<li>{duration(incident.t)}: {escape(incident.text)}</li>" for incident in found[:MOST_INCIDENTS]]
        if len(found) > MOST_INCIDENTS:
            rows.append(f"<li>and {len(found) - MOST_INCIDENTS:,} more, in <code>events</code></li>")
        return self.curve() + (f"<ul>{''.join(rows)}</ul>" if rows else "")

    def curve(self) -> str:
        """Return the accuracy, or else the loss, over time as an SVG; "" without an evaluation."""
        for figure in ("accuracy", "loss"):
            points = [(each["secs"], each[figure]) for each in self.evaluations if each.get(figure) is not None]
            if points:
                line = Line(figure, 0, 0, "marked", points)
                rises = figure == "accuracy"
                return draw_svg(Chart(figure.capitalize(), "time", [line], from_zero=not rises, settled=rises))
        return ""

    @property
    def exit(self) -> str:
        """Return how the run ended: the `exit` of its summary, or "unfinished" while it has not."""
        return self.summary.get("exit", "unfinished")

    @property
    def secs(self) -> float:
        """Return the run's time at its end, or at its last line."""
        return self.summary.get("seconds", max([0.0, *(line["secs"] for line in (*self.metrics, *self.events))]))


def history_of(record: Record) -> RunHistory:
    """Return a record as plain values, on the run's time."""
    first, since = _start(record.events)
    events = record.events[first:]
    config = record.values
    evaluations = [event for event in events if event["kind"] == "evaluation"]
    how, _ = ended(record)
    return RunHistory(
        name=record.name,
        config=config,
        summary=dict(record.summary or {}) if how != "unfinished" else {},
        metrics=[_timed(line, since) for line in record.metrics if not first or line["t"] > since],
        evaluations=[_evaluation(event, since, config.get("unit_size")) for event in evaluations],
        events=[_timed(event, since) for event in events],
    )


def _start(events: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return the place and the time of the newest start from unit 0: what stands before it is another run's."""
    starts = [
        (place, event["t"])
        for place, event in enumerate(events)
        if event["kind"] == "run_started" and event.get("reason") != "resume"
    ]
    return starts[-1] if len(starts) > 1 else (0, 0.0)


def _timed(line: Mapping[str, Any], since: float) -> dict[str, Any]:
    lasted = {"lasted_secs": line["secs"]} if "secs" in line else {}
    rest = {key: value for key, value in line.items() if key not in ("t", "secs")}
    return {"secs": round(line["t"] - since, 6), **rest, **lasted}


def _evaluation(event: Mapping[str, Any], since: float, unit_size: int | None) -> dict[str, Any]:
    # Records of earlier versions name the examples alone.
    units = event["units"] if "units" in event else event["examples"] // unit_size if unit_size else None
    rest = {key: value for key, value in event.items() if key not in ("t", "state_t", "units", "kind", "wall", "secs")}
    lasted = {"lasted_secs": event["secs"]} if "secs" in event else {}
    return {"secs": round(event.get("state_t", event["t"]) - since, 6), "units": units, **rest, **lasted}
