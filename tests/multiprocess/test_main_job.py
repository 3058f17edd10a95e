"""The main job, once: digits on 4 processes, lock-step, a live switch, asynchronous; and everything that it leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from hybridsync.storage.jsonl import read_lines
from tests.multiprocess.job import Job

pytestmark = pytest.mark.timeout(600)

WORKLOAD, UNIT_SIZE, SWITCH_AT, WORKERS = 4000, 32, 500, [0, 1, 2, 3]

STAGES = ("drain_secs", "capture_secs", "reserve_secs", "enter_secs", "commit_secs", "compile_secs", "stall_secs")
EVENTS = {
    "run_started": {"runtime": str, "reason": str},
    "role_started": {"role": str, "id": int, "pid": int, "host": str, "address": str},
    "phase_entered": {
        "protocol": str,
        "members": list,
        "reason": str,
        "units": int,
        "learning_rate": float,
        "units_per_update": int,
    },
    "training_started": {"start_up_secs": float},
    "phase_ended": {"units": int, "fingerprint": str},
    "switch": {"from": str, "to": str, "reason": str, "units": int, "fingerprint": str} | dict.fromkeys(STAGES, float),
    "worker_joined": {"worker": int},
    "evaluation": {"examples": int, "accuracy": float, "loss": float},
    "checkpoint": {"units": int, "bytes": int, "secs": float},
    "run_finished": {"exit": str},
}
JUDGED = {"worker": int, "rate": float, "threshold": float}
MACHINES = {"straggler_flagged": JUDGED, "straggler_cleared": JUDGED}
"""Who is slow depends on what else the machine does."""
METRICS = {
    "t": float,
    "units": int,
    "examples": int,
    "phase": int,
    "protocol": str,
    "loss": float | None,
    "learning_rate": float,
    "examples_per_sec": float,
    "staleness": dict,
    "workers": dict,
    "compute_secs": dict,
    "read_secs": dict,
    "wait_secs": dict,
    "mfu": dict,
    "sent_bytes": dict,
    "received_bytes": dict,
    "applied_by": dict,
    "secs": float,
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("main")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_COMPILATION_CACHE_DIR")
        patch.setenv("HYBRIDSYNC_COMPILATION_CACHE", str(folder / "compiled"))  # of no run before
        job = Job(folder / "run", "configs/digits_mlp.py")
    with job:
        assert job.wait() == 0, job.output + job.logs()
        yield job


def check(record: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, kind in fields.items():
        assert isinstance(record[name], kind), f"{name} is {record[name]!r} in {record}"


def test_it_learns_and_applies_the_whole_workload(job: Job) -> None:
    summary = job.summary()
    assert summary["final"]["accuracy"] >= 0.95
    units = summary["units"]
    assert (units["workload"], units["issued"], units["applied"]) == (WORKLOAD, WORKLOAD, WORKLOAD)
    assert (units["dropped"], units["outstanding"], units["rolled_back"]) == (0, 0, 0)


def test_events_hold_every_kind_with_its_fields_in_the_order_of_time(job: Job) -> None:
    events = job.events()
    assert {event["kind"] for event in events} - MACHINES.keys() == EVENTS.keys()
    for event in events:
        check(event, {"t": float, "wall": float, "kind": str, "phase": int} | (EVENTS | MACHINES)[event["kind"]])
    assert all(before["t"] <= after["t"] for before, after in pairwise(events))
    assert all(before["phase"] <= after["phase"] for before, after in pairwise(events))


def test_every_role_is_a_process_of_its_own_that_the_events_name(job: Job) -> None:
    started = job.events("role_started")
    roles = sorted((event["role"], event["id"]) for event in started)
    assert roles == [("chief", 0), ("server", 0), ("supervisor", 0), *(("worker", w) for w in WORKERS)]
    assert len({event["pid"] for event in started}) == len(started)
    assert {event["pid"] for event in started if event["role"] == "supervisor"} == {job.process.pid}
    assert all(event["address"].startswith("unix:") for event in started)


def test_phases_follow_the_plan_with_the_configuration_policy(job: Job) -> None:
    bsp, asp = job.events("phase_entered")
    assert (bsp["protocol"], bsp["units"], bsp["units_per_update"], bsp["reason"]) == ("bsp", 0, 4, "start")
    assert (asp["protocol"], asp["units"], asp["units_per_update"]) == ("asp", SWITCH_AT, 1)
    assert bsp["members"] == asp["members"] == WORKERS
    assert bsp["learning_rate"] == pytest.approx(4 * asp["learning_rate"])


def test_the_switch_is_told_stage_by_stage_and_hands_over_the_same_bits(job: Job) -> None:
    (switch,) = job.events("switch")
    assert (switch["from"], switch["to"], switch["units"]) == ("bsp", "asp", SWITCH_AT)
    assert all(switch[stage] >= 0.0 for stage in STAGES)
    assert switch["compile_secs"] == 0.0, "the switch compiled something"
    assert switch["fingerprint"] == job.events("phase_entered")[1]["fingerprint"]
    assert switch["fingerprint"] == job.events("phase_ended")[0]["fingerprint"]
    assert job.summary()["switches"] == [switch]


def test_a_checkpoint_is_committed_at_unit_0_before_a_phase_at_the_switch_and_at_the_end(job: Job) -> None:
    units = [event["units"] for event in job.events("checkpoint")]
    assert units[0] == 0 and SWITCH_AT in units and units[-1] == WORKLOAD
    kinds = [event["kind"] for event in job.events()]
    assert kinds.index("checkpoint") < kinds.index("phase_entered")
    assert all(event["bytes"] > 0 for event in job.events("checkpoint"))


def test_metrics_have_one_line_an_interval_with_every_field(job: Job) -> None:
    lines = read_lines(job.workdir / "metrics.jsonl")
    for line in lines:
        assert line.keys() == METRICS.keys()
        check(line, METRICS)
        assert line["examples"] == UNIT_SIZE * line["units"]
        assert line["staleness"].keys() == {"mean", "p95", "max"}
        assert line["workers"].keys() <= set(map(str, WORKERS))
    assert lines[-1]["units"] == WORKLOAD
    assert all(a["units"] <= b["units"] for a, b in pairwise(lines))
    # A line may be late, and the next one in time: but no more than one is due a second.
    assert all(line["t"] >= second for second, line in enumerate(lines[:-1], 1))
    asp = [line for line in lines if line["protocol"] == "asp"]
    assert any(line["loss"] is not None for line in asp) and max(line["staleness"]["max"] for line in asp) > 0


def test_the_timeline_is_a_chrome_trace_with_a_row_for_every_role(job: Job) -> None:
    trace = json.loads((job.workdir / "timeline.json").read_text())
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert sorted(names.values()) == ["chief", "server 0", *(f"worker {w}" for w in WORKERS)]
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for span in spans:
        check(span, {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict})
        assert span["dur"] >= 0.0
    rows = {(names[span["pid"]], span["name"]) for span in spans}
    assert {("chief", stage) for stage in ("drain", "capture", "reserve", "enter")} <= rows
    assert ("server 0", "apply") in rows
    assert {(f"worker {w}", name) for w in WORKERS for name in ("compute", "average", "push_pull")} <= rows
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}


def test_the_summary_has_its_fields(job: Job) -> None:
    summary = job.summary()
    fields = {"exit", "units", "examples", "seconds", "plan", "switches", "final", "staleness", "error"}
    fields |= {"quarantined_workers", "units_by_host", "start_up_secs", "stop_reason", "callback_secs"}
    assert summary.keys() == fields
    assert (summary["exit"], summary["error"], summary["plan"]) == ("completed", None, "bsp:12.5%,asp")
    assert summary["examples"] == WORKLOAD * UNIT_SIZE
    assert summary["units_by_host"] == {}  # of several hosts
    assert summary["final"].keys() == {"accuracy", "loss"}
    assert 0 < round(summary["seconds"], 6) <= job.events()[-1]["t"], "as an event rounds its time"
    (started,) = job.events("training_started")
    wall = started["wall"] - job.events()[0]["wall"]
    assert summary["start_up_secs"] == started["start_up_secs"] > wall, "from the command on, before the record"


def test_the_configuration_is_kept_with_the_versions(job: Job) -> None:
    record = json.loads((job.workdir / "config.json").read_text())
    assert record["config"]["workload"] == WORKLOAD
    assert record["config"]["model"] == {"hidden": [128, 64], "dropout": 0.0}
    assert all(record["versions"][package] for package in ("python", "jax", "flax", "optax", "orbax-checkpoint"))


def test_progress_is_plain_lines_when_nobody_sits_at_a_terminal(job: Job) -> None:
    assert "\x1b" not in job.output and "\r" not in job.output
    assert re.search(r"^phase 1 \(stage 1 of 2\): bsp from unit 0 to 500", job.output, re.MULTILINE)
    last = r"^asp: 4,000/4,000 units, [\d,]+ examples/s, loss ([\d.]+|-), .*phase 2$"  # the last interval may have none
    assert re.search(last, job.output, re.MULTILINE)


def test_nothing_but_what_is_documented_lies_in_the_workdir(job: Job) -> None:
    left = {path.name for path in job.workdir.iterdir()}
    assert left == {
        "checkpoints",
        "config.json",
        "phase",
        "events.jsonl",
        "lock",
        "logs",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
        "timeline.json",
    }
    assert job.tracebacks() == []
