"""What a run's timeline shows of its workers: what lies behind what, and what beside it."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hybridsync import EmulationConfig
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario
from hybridsync.lab.simulator.simulation import simulate
from tests.lab.simulator.runs import tally_run
from tests.trainers import tally_trainer

COMPUTE_SECS = 0.05
SLOW = "worker=1,delay_ms=50,from=0%,to=100%"
WORKERS = ("worker 0", "worker 1")


class Shown(NamedTuple):
    track: str
    name: str
    begin: float
    end: float


def shown(workdir: Path) -> dict[str, list[Shown]]:
    """Return the spans of each role as Perfetto draws them, by start, in seconds."""
    trace: list[dict[str, Any]] = json.loads((workdir / "timeline.json").read_text())["traceEvents"]
    roles = {row["pid"]: row["args"]["name"] for row in trace if row["name"] == "process_name"}
    tracks = {(row["pid"], row["tid"]): row["args"]["name"] for row in trace if row["name"] == "thread_name"}
    spans: dict[str, list[Shown]] = {}
    for event in (event for event in trace if event["ph"] == "X"):
        begin, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
        spans.setdefault(roles[event["pid"]], []).append(
            Shown(tracks[event["pid"], event["tid"]], event["name"], begin, end)
        )
    return {role: sorted(of_it, key=lambda span: span.begin) for role, of_it in spans.items()}


def ran(workdir: Path, plan: str, driver: str, *, straggler: str = "", secs: float = COMPUTE_SECS) -> Path:
    """Leave a run of two workers whose units take 50 ms, in this process or simulated over a slow link."""
    if driver == "simulated":
        link = Link(bytes_per_sec=2 * 4 * 24 / 0.01)  # the tally's parameters take 10 ms
        scenario = Scenario(cluster=Cluster(devices=(Device(secs),), worker_link=link, server_link=link))
        simulate(tally_run(plan, workload=24, workers=2, stragglers=straggler), scenario, workdir=workdir)
    else:
        emulation = EmulationConfig(compute_secs=secs, stragglers=straggler)
        tally_trainer(plan, 24, workers=2, emulation=emulation, workdir=workdir).fit()
    return workdir


def beside(transfer: Shown, computed: list[Shown]) -> float:
    """Return for how long a transfer was under way while its worker computed."""
    return sum(max(0.0, min(transfer.end, unit.end) - max(transfer.begin, unit.begin)) for unit in computed)


@pytest.mark.parametrize("driver", ["in-process", "simulated"])
def test_pushes_and_pulls_of_psplus_go_on_while_their_worker_computes_on_tracks_of_their_own(
    tmp_path: Path, driver: str
) -> None:
    # The server holds each push of the fast worker until the slow one's is here, so that it takes more than no time.
    spans = shown(ran(tmp_path / "run", "psplus(staleness=0)", driver, straggler=SLOW))["worker 0"]
    computed = [span for span in spans if span.name == "compute"]
    pushes, pulls = ([span for span in spans if span.name == name] for name in ("push", "pull"))
    assert min(len(pushes), len(pulls)) > 4
    assert statistics.median(beside(push, computed) for push in pushes) > 0.8 * COMPUTE_SECS
    assert [{span.track for span in of_kind} for of_kind in (pushes, pulls)] == [{"transfer push"}, {"transfer pull"}]
    assert {span.track for span in computed} == {"server"}


@pytest.mark.parametrize("driver", ["in-process", "simulated"])
def test_a_worker_of_ssp_computes_nothing_while_its_push_is_under_way(tmp_path: Path, driver: str) -> None:
    spans = shown(ran(tmp_path / "run", "ssp(staleness=0)", driver, straggler=SLOW))["worker 0"]
    computed = [span for span in spans if span.name == "compute"]
    transfers = [span for span in spans if span.name == "push_pull"]
    assert len(transfers) > 4
    assert max(beside(transfer, computed) for transfer in transfers) < 1e-6


@pytest.mark.parametrize("driver", ["in-process", "simulated"])
@pytest.mark.parametrize("plan", ["psplus", "hsp", "asp", "localsgd(steps=3)", "preduce", "adpsgd", "bsp"])
def test_no_two_spans_of_a_track_cross_each_other(tmp_path: Path, driver: str, plan: str) -> None:
    for role, spans in shown(ran(tmp_path / "run", plan, driver, secs=0.005)).items():
        tracks: dict[str, list[Shown]] = {}
        for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
            inside = tracks.setdefault(span.track, [])
            while inside and inside[-1].end <= span.begin + 1e-6:
                inside.pop()
            assert not inside or span.end <= inside[-1].end + 1e-6, f"{role}: {span} crosses {inside[-1]}"
            inside.append(span)


def test_a_unit_that_hsp_computes_on_what_a_worker_has_begins_before_the_next_update(tmp_path: Path) -> None:
    straggler = "worker=1,delay_ms=250,from=0%,to=100%"
    spans = shown(ran(tmp_path / "run", "hsp(stale=1)", "simulated", straggler=straggler))
    updates = [span.begin for span in spans["server 0"] if span.name == "apply"]
    between = [
        sum(begin <= unit.begin < end for unit in spans["worker 0"] if unit.name == "compute")
        for begin, end in itertools.pairwise(updates)
    ]
    assert max(between) == 2, "the fast worker never computed a unit more while it waited"


def test_a_group_averages_at_the_same_time_and_who_waits_for_it_is_seen_to(tmp_path: Path) -> None:
    straggler = "worker=1,delay_ms=100,from=0%,to=100%"
    spans = shown(ran(tmp_path / "run", "preduce(slowdown=0)", "simulated", straggler=straggler))
    one, other = ([span for span in spans[worker] if span.name == "mix"] for worker in WORKERS)
    assert one and [(span.begin, span.end) for span in one] == [(span.begin, span.end) for span in other]
    waited = {worker: sum(s.end - s.begin for s in spans[worker] if s.name == "meet") for worker in WORKERS}
    assert waited["worker 0"] > 5 * waited["worker 1"]


@pytest.mark.parametrize("driver", ["in-process", "simulated"])
def test_a_partner_of_adpsgd_averages_while_it_computes_on_a_track_of_its_own(tmp_path: Path, driver: str) -> None:
    spans = shown(ran(tmp_path / "run", "adpsgd", driver, straggler=SLOW))["worker 1"]
    computed = [span for span in spans if span.name == "compute"]
    served = [span for span in spans if span.name == "mix" and span.track == "transfer mix"]
    assert len(served) > 4 and sum(beside(average, computed) > 0 for average in served) > 4
    one_thread = shown(ran(tmp_path / "twin", "adpsgd(overlap=false)", driver, straggler=SLOW))["worker 1"]
    computed = [span for span in one_thread if span.name == "compute"]
    assert not any(beside(span, computed) > 1e-6 for span in one_thread if span.name == "mix")
