"""A cluster that is known is simulated; what is fitted to the record of that has to be it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.lab.simulator.calibration import Fitted, fit, read_measured
from hybridsync.lab.simulator.cluster import Cluster, Costs, Death, Device, Link, Scenario
from hybridsync.lab.simulator.simulation import simulate, sizes_of
from tests.access import no_access
from tests.lab.simulator.runs import tally_run

COSTS = Costs(apply_secs=2e-3, step_secs=0.03, commit_secs=0.4, capture_secs=4e-3, restart_secs=1.2)
CLUSTER = Cluster(devices=(Device(0.08, 0.1),), server_link=Link(latency_secs=5e-3), costs=COSTS)


def fitted_to(workdir: Path, scenario: Scenario, plan: str = "bsp:50%,asp", stragglers: str = "") -> Fitted:
    run = tally_run(plan, workload=800, stragglers=stragglers)
    simulate(run, scenario, workdir=workdir)
    return fit(read_measured(workdir), sizes_of(run))


def test_the_fitted_cluster_is_the_one_that_the_run_was_made_on(tmp_path: Path) -> None:
    cluster = fitted_to(tmp_path, Scenario(cluster=CLUSTER)).cluster
    (device,) = cluster.devices
    assert device.secs == pytest.approx(0.08, rel=0.02)
    assert device.spread == pytest.approx(0.1, rel=0.1)
    assert cluster.server_link.latency_secs == pytest.approx(5e-3, rel=0.1)
    for name in ("apply_secs", "step_secs", "commit_secs", "capture_secs"):
        assert getattr(cluster.costs, name) == pytest.approx(getattr(COSTS, name), rel=0.1), name


def test_reading_its_data_is_a_part_of_what_a_unit_takes_a_worker(tmp_path: Path) -> None:
    run = tally_run("bsp:50%,asp", workload=800)
    simulate(run, Scenario(cluster=CLUSTER), workdir=tmp_path / "run")
    whole = fit(read_measured(tmp_path / "run"), sizes_of(run)).cluster
    timeline = json.loads((tmp_path / "run" / "timeline.json").read_text())
    divided = []
    for span in timeline["traceEvents"]:
        if span["name"] == "compute":
            read = {**span, "name": "read", "dur": round(span["dur"] * 0.75, 3)}
            divided.append(read)
            span = {**span, "ts": round(span["ts"] + read["dur"], 3), "dur": round(span["dur"] - read["dur"], 3)}
        divided.append(span)
    (tmp_path / "run" / "timeline.json").write_text(json.dumps({**timeline, "traceEvents": divided}))
    again = fit(read_measured(tmp_path / "run"), sizes_of(run)).cluster
    assert again.devices == whole.devices
    assert again.server_link.latency_secs == pytest.approx(whole.server_link.latency_secs)
    assert again.costs.step_secs == pytest.approx(whole.costs.step_secs)


def test_what_is_fitted_to_one_run_predicts_another_plan_with_another_straggler(tmp_path: Path) -> None:
    fitted = fitted_to(tmp_path, Scenario(cluster=CLUSTER), stragglers="worker=1,delay_ms=40")
    for plan in ("asp", "asp:30%,bsp"):
        other = tally_run(plan, workload=800, stragglers="worker=3,delay_ms=90,from=20%,to=70%")
        real = simulate(other, Scenario(cluster=CLUSTER)).seconds
        assert simulate(other, fitted.onto(Scenario())).seconds == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize("how", ["rpc_ms=40", "bytes_per_sec=1e5", "factor=3"])
def test_what_made_a_worker_slow_is_no_part_of_the_cluster_that_is_fitted(tmp_path: Path, how: str) -> None:
    costs = fitted_to(tmp_path / "slow", Scenario(cluster=CLUSTER), stragglers=f"worker=1,{how}").cluster.costs
    even = fitted_to(tmp_path / "even", Scenario(cluster=CLUSTER)).cluster.costs
    assert costs.step_secs == pytest.approx(even.step_secs, rel=0.1)
    again = fitted_to(tmp_path / "again", Scenario(cluster=CLUSTER), stragglers=f"worker=1,{how}")
    run = tally_run("asp", workload=800, stragglers=f"worker=1,{how}")
    real = simulate(run, Scenario(cluster=CLUSTER)).seconds
    assert simulate(run, again.onto(Scenario())).seconds == pytest.approx(real, rel=0.03)


def test_workers_of_two_kinds_are_told_apart_and_a_slowed_one_is_taken_for_an_even_one(tmp_path: Path) -> None:
    uneven = Cluster(devices=(Device(0.05), Device(0.1), Device(0.05), Device(0.05)))
    devices = fitted_to(tmp_path / "two", Scenario(cluster=uneven)).cluster.devices
    assert [device.secs for device in devices] == pytest.approx([0.05, 0.1, 0.05, 0.05], rel=0.01)
    slowed = fitted_to(tmp_path / "slowed", Scenario(cluster=Cluster()), stragglers="worker=2,delay_ms=70")
    assert [device.secs for device in slowed.cluster.devices] == pytest.approx([0.05], rel=0.01)


def test_what_nobody_measured_of_a_switch_is_not_taken_for_no_time(tmp_path: Path) -> None:
    run = tally_run("bsp:30%,asp:40%,bsp", workload=800)
    simulate(run, Scenario(cluster=CLUSTER), workdir=tmp_path)
    events = tmp_path / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    first = next(line for line in lines if line["kind"] == "switch")
    first |= {"capture_secs": None, "reserve_secs": None}  # as of a switch that a restarted chief went on with
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    costs = fit(read_measured(tmp_path), sizes_of(run)).cluster.costs
    assert costs.capture_secs == pytest.approx(COSTS.capture_secs, rel=0.1)
    assert costs.reserve_secs == pytest.approx(COSTS.reserve_secs, rel=0.1)


def test_what_the_run_did_not_do_stays_as_by_default(tmp_path: Path) -> None:
    fitted = fitted_to(tmp_path, Scenario(cluster=CLUSTER), plan="asp")
    assert fitted.cluster.costs.step_secs == Costs().step_secs
    assert [value.secs for value in fitted.values if "lock-step" in value.name] == [None]


def test_a_loss_tells_how_long_a_restart_takes(tmp_path: Path) -> None:
    deaths = (Death("worker", 1, 3.0), Death("worker", 2, 5.0))
    fitted = fitted_to(tmp_path, Scenario(cluster=CLUSTER, deaths=deaths), plan="asp")
    assert fitted.cluster.costs.restart_secs == pytest.approx(1.2, rel=0.1)


def test_a_folder_that_nobody_may_look_into_is_refused(tmp_path: Path) -> None:
    with no_access(tmp_path), pytest.raises(WorkdirError, match="there is no workdir"):
        read_measured(tmp_path / "run")


def test_a_folder_without_a_finished_run_and_its_timeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkdirError, match="there is no workdir"):
        read_measured(tmp_path / "absent")
    with pytest.raises(WorkdirError, match="holds no completed run"):
        read_measured(tmp_path)
    simulate(tally_run(workload=40), workdir=tmp_path / "run")
    (tmp_path / "run" / "timeline.json").write_text("{")
    with pytest.raises(WorkdirError, match=r"timeline\.json is damaged"):
        read_measured(tmp_path / "run")
    (tmp_path / "run" / "timeline.json").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(WorkdirError, match="holds no computation"):
        fit(read_measured(tmp_path / "run"), sizes_of(tally_run(workload=40)))
    (tmp_path / "run" / "timeline.json").unlink()
    with pytest.raises(WorkdirError, match=r"has no timeline\.json"):
        read_measured(tmp_path / "run")
