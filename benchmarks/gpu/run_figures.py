"""The figures of one finished run, from its workdir. Loads no JAX."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.jobs import phase_rates
from hybridsync.telemetry.metrics import read_metrics
from hybridsync.telemetry.summary import read_summary
from hybridsync.telemetry.timeline import TIMELINE_FILE

MOST_SPANS = 8


def run_figures(workdir: Path) -> dict[str, Any]:
    """Return a run's rate, what its workers did with their time, and how well it trained."""
    summary = read_summary(workdir)
    assert summary is not None
    found: dict[str, Any] = {"units/s": round(phase_rates(workdir)[0].steady, 2)}
    lines = read_metrics(workdir)
    losses = [line["loss"] for line in lines if line["loss"] is not None]
    found["loss"] = round(losses[-1], 4) if losses else None
    found |= {name: round(value, 4) for name, value in summary["final"].items() if name == "accuracy"}
    used = [share for line in lines for share in line["mfu"].values()]
    if used:
        found["mfu"] = round(sum(used) / len(used), 4)
    spans: Counter[str] = Counter()
    for span in json.loads((workdir / TIMELINE_FILE).read_bytes())["traceEvents"]:
        if span["ph"] == "X" and span["pid"] >= FIRST_WORKER:
            spans[span["name"]] += span["dur"]
    whole = sum(spans.values()) or 1
    shares = {f"share of {name}": round(micros / whole, 3) for name, micros in spans.most_common(MOST_SPANS)}
    return found | shares


FIRST_WORKER = 10_000
"""Row of worker 0 in a timeline."""
