"""Every kind of event, as the code of a run writes it: the page leaves none out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hybridsync.chief.bad_units import Quarantined
from hybridsync.config import PolicyConfig
from hybridsync.interfaces.commands import Order
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_record
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario, Slow
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.phases.run_context import Commit, Measured
from hybridsync.policies.straggler_detector import Decision
from hybridsync.telemetry.events import EVENTS_FILE, FIELDS, MORE, read_events
from hybridsync.telemetry.kinds import KINDS, NUMBER
from hybridsync.telemetry.summary import write_config
from hybridsync.training.run import Run
from hybridsync.workdir.opening import open_run
from tests.lab.simulator.runs import tally_run
from tests.phases.harness import WORKLOAD, Harness, snapshot_of
from tests.roles import hello
from tests.tasks import plain_sgd, tally_task


def _reported(workdir: Path) -> None:
    """Leave every kind of event that a reporter and the opening of a run write, and metrics."""
    workdir.mkdir()
    harness = Harness(workdir, enter=False)
    config = replace(harness.config, unit_size=1)  # of the tally
    reporter, run = harness.reporter, Run(config, tally_task(WORKLOAD), plain_sgd(), None)
    write_config(workdir, harness.config)
    order = Order(1, "asp", 3)
    opening = replace(open_run(run), rolled_back=3, quarantined=((2, "torn"),), orders_dropped=((order, "no room"),))
    opening.announce(harness.recorder, runtime="processes", address="here")
    reporter.entered(harness.bsp, 0, "why", 1)
    lost = RoleEvent("worker", 1, 7, "signal SIGKILL", 5.0)
    judged = Decision(2, True, rate=4.0, centre=10.0, threshold=9.0, rounds=4, workers=8)
    harness.chief.reports.decisions += [judged, replace(judged, flagged=False, rate=float("nan"))]
    harness.chief.orders.give("asp", 4, "slow network")
    harness.after(
        2.0,
        first_leased=101.0,
        num_applied=9,
        rates={0: 3.0},
        reports=replace(
            harness.chief.reports,
            joined=[hello(1, pid=7)],
            quarantined=[Quarantined(7, (1, 2), "signal SIGSEGV")],
            unfit=[replace(lost, quarantined=True)],
            stops=["", "enough"],
            compute_secs={0: 0.5},
        ),
    )
    harness.after(0.1, reports=replace(harness.chief.reports, lost=[lost]))
    reporter.renewed("a worker was lost")
    reporter.not_durable(50, "the disk is full")
    reporter.evaluated(50, 0.5, lambda: Measured({"accuracy": float("nan"), "workers": 4.0}, 0.5))
    reporter.evaluated(60, 0.5, lambda: 1 / 0)
    reporter.suspect_hang("worker", 1, "reading data", 60.0, "fault.read_secs")
    reporter.skipped((100, 200), 310, "a save was under way")
    harness.switch(last_applied=200.0)
    reporter.committed(Commit(50, 1000, 4.0))
    harness.after(0.1, stamps=(203.0, 203.0))
    reporter.broke(snapshot_of(), "a worker was lost", 5)
    reporter.finish("preempted", None)
    harness.recorder.close()


def _simulated(workdir: Path) -> None:
    """Leave a simulated run in which a policy leaves a straggler out and calls it back."""
    run = tally_run("bsp:50%,asp", workload=4000)
    run = replace(run, config=replace(run.config, policy=PolicyConfig(online="elastic")))
    slow = Slow(1, factor=4.0, start_secs=2.0, stop_secs=12.0)
    simulate(run, Scenario(cluster=Cluster(devices=(Device(0.05),)), slow=(slow,)), workdir=workdir)


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    _reported(folder / "reported")
    _simulated(folder / "simulated")
    return [folder / "reported", folder / "simulated"]


def test_page_has_every_kind_of_event_that_a_run_writes(workdirs: list[Path]) -> None:
    kinds = {event["kind"] for workdir in workdirs for event in read_events(workdir)}
    assert kinds == FIELDS.keys(), "write the new kind here as the code of a run writes it"
    for workdir in workdirs:
        record = shown_record(workdir, "run")
        assert record.num_unreadable == 0
        assert len(record.events) == len(read_events(workdir)) and record.metrics
        assert "left out" not in page([record])
    assert "marked as a straggler" in page([shown_record(workdirs[1], "run")])


def test_every_declared_kind_of_value_is_known() -> None:
    assert {kind for fields in (*FIELDS.values(), *MORE.values()) for kind in fields.values()} <= KINDS.keys()
    assert FIELDS.keys() >= MORE.keys() and not any(FIELDS[kind].keys() & MORE[kind].keys() for kind in MORE)


def test_page_bears_null_for_every_number_that_may_be_none(workdirs: list[Path], tmp_path: Path) -> None:
    for number, workdir in enumerate(workdirs):
        config = (workdir / "config.json").read_text()
        for kind in FIELDS:
            folder = tmp_path / f"{number}-{kind}"
            folder.mkdir()
            (folder / "config.json").write_text(config)
            empty = dict.fromkeys((name for name, of in (FIELDS[kind] | MORE.get(kind, {})).items() if of == NUMBER))
            lines = [event | (empty if event["kind"] == kind else {}) for event in read_events(workdir)]
            (folder / EVENTS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            record = shown_record(folder, "run")
            assert record.num_unreadable == 0
            page([record])
