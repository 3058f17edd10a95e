from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from hybridsync.core.errors import ConfigError, HybridSyncError, WorkdirError
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_records
from hybridsync.lab.simulator import simulation
from hybridsync.lab.simulator.cluster import Chaos, Cluster, Costs, Death, Device, Partition, Pause, Scenario, Slow
from hybridsync.lab.simulator.simulation import simulate, sizes_of
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.summary import read_summary
from tests.lab.simulator.runs import tally_run

CHANCE = Scenario(
    cluster=Cluster(devices=(Device(0.05, 0.3),)),
    deaths=(Death("worker", 1, 1.0), Death("server", 0, 4.0)),
    chaos=Chaos(lost=0.01, duplicated=0.02, delayed=0.02),
)


def told(scenario: Scenario, seed: int = 0) -> str:
    file = io.StringIO()
    simulate(tally_run(), scenario, seed=seed, events=file)
    return file.getvalue()


def test_the_same_seed_tells_the_same_story_and_another_seed_another() -> None:
    assert told(CHANCE) == told(CHANCE)
    assert told(CHANCE) != told(CHANCE, seed=1)


def test_the_story_holds_every_unit_leased_applied_and_answered_and_nothing_of_the_day_or_the_place() -> None:
    lines = [json.loads(line) for line in told(Scenario()).splitlines()]
    leased, updated, answered = (
        {unit for line in lines if line["kind"] == kind for unit in units(line)}
        for kind, units in (
            ("lease", lambda line: [unit for start, stop in line["ranges"] for unit in range(start, stop)]),
            ("update", lambda line: line["units"]),
            ("push", lambda line: line["units"]),
        )
    )
    assert leased == updated == set(range(400))
    assert answered == set(range(100, 400))
    assert all("wall" not in line for line in lines)
    assert not any("/" in json.dumps(line) for line in lines)
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)


def test_listening_changes_nothing_of_what_happens() -> None:
    deaf = simulate(tally_run(), CHANCE)
    assert simulate(tally_run(), CHANCE, events=io.StringIO()) == deaf


def test_lock_step_takes_the_slowest_workers_time_and_asp_everybodys_own() -> None:
    still = Costs(*[0.0] * 9)
    slow = Scenario(cluster=Cluster(devices=(Device(0.05),) * 3 + (Device(0.1),), costs=still))
    bsp, asp = (simulate(tally_run(plan, workload=2000), slow) for plan in ("bsp", "asp"))
    assert bsp.seconds == pytest.approx(500 * 0.1, rel=0.02)
    ideal = 2000 / (3 / 0.05 + 1 / 0.1)
    assert ideal < asp.seconds < 1.12 * ideal  # the others wait for the last units that the slow one was given
    assert bsp.summary.staleness["max"] == 0 < asp.summary.staleness["mean"]


def test_an_emulated_accelerator_and_a_straggler_of_the_configuration_are_simulated_as_they_are_run() -> None:
    run = tally_run("bsp", stragglers="worker=2,delay_ms=100,from=0%,to=50%")
    result = simulate(run, Scenario(cluster=Cluster(devices=(Device(0.05),))))
    assert result.seconds == pytest.approx(50 * 0.15 + 50 * 0.05, rel=0.05)


BYTES = sizes_of(tally_run()).gradient


@pytest.mark.parametrize(
    ("plan", "straggler", "slow", "secs"),
    [
        ("bsp", "factor=4", Slow(2, factor=4.0), 100 * 0.2),
        ("bsp", "rpc_ms=30", Slow(2, rpc_secs=0.03), 100 * 0.08),
        ("bsp", f"bytes_per_sec={BYTES / 0.05}", Slow(2, bytes_per_sec=BYTES / 0.05), 100 * 0.1),
        ("bsp", "rpc_ms=30,every=20%,for=10%", None, 50 * 0.08 + 50 * 0.05),
        ("bsp_server", "rpc_ms=30", Slow(2, rpc_secs=0.03), 100 * 0.11),
        ("asp", "rpc_ms=50", Slow(2, rpc_secs=0.05), 400 / (3 / 0.05 + 1 / 0.15)),
        ("preduce(size=4,slowdown=0)", "rpc_ms=30", Slow(2, rpc_secs=0.03), 100 * 0.08),
    ],
)
def test_a_straggler_is_slow_in_every_way_and_a_scenario_says_the_same_as_the_configuration(
    plan: str, straggler: str, slow: Slow | None, secs: float
) -> None:
    still = Cluster(devices=(Device(0.05),), costs=Costs(*[0.0] * 9))
    found = simulate(tally_run(plan, stragglers=f"worker=2,{straggler}"), Scenario(cluster=still)).seconds
    assert found == pytest.approx(secs, rel=0.06)
    if slow is not None:
        by_scenario = simulate(tally_run(plan), Scenario(cluster=still, slow=(slow,)))
        assert by_scenario.seconds == pytest.approx(found, rel=0.01)


def test_a_simulated_run_leaves_what_a_real_one_leaves_and_has_its_page(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    result = simulate(tally_run(), Scenario(slow=(Slow(3, 0.05),)), workdir=workdir)
    left = {path.name for path in workdir.iterdir()}
    assert {"config.json", "events.jsonl", "metrics.jsonl", "timeline.json", "summary.json"} <= left
    summary = read_summary(workdir)
    assert summary is not None
    assert summary["seconds"] == result.seconds
    (switch,) = read_events(workdir, "switch")
    assert (switch["from"], switch["to"], switch["units"]) == ("bsp", "asp", 100)
    assert "What switching cost" in page(shown_records([workdir]))


def test_a_used_workdir_is_refused(tmp_path: Path) -> None:
    simulate(tally_run(workload=20), workdir=tmp_path)
    with pytest.raises(WorkdirError, match="holds a run already"):
        simulate(tally_run(workload=20), workdir=tmp_path)


def test_a_scenario_that_names_a_worker_whom_the_run_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="names worker 9, but the run has workers 0 to 3"):
        simulate(tally_run(), Scenario(slow=(Slow(9, 0.1),)))


def test_a_run_that_can_never_go_on_ends_with_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "STILL_SECS", 60.0)  # the chief's every tick of 1200 s would be carried out
    unreached = Scenario(partitions=(Partition((0,), 1.0, float("inf")),))
    with pytest.raises(HybridSyncError, match=r"nothing was applied for 60"):
        simulate(tally_run("asp", workers=1), unreached)


def test_stopped_workers_are_given_up_and_replaced() -> None:
    paused = Scenario(pauses=tuple(Pause(worker, 1.0, float("inf")) for worker in range(4)))
    assert simulate(tally_run("asp"), paused).summary.exit == "completed"


def test_sizes_are_those_of_the_layouts() -> None:
    sizes = sizes_of(tally_run())
    assert sizes.parameters == 800 * 4
    assert sizes.gradient > sizes.parameters
    assert sizes.state > sizes.parameters
