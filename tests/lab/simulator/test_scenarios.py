from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hybridsync.config import PolicyConfig
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.cluster import Chaos, Cluster, Costs, Death, Device, Join, Link, Partition, Scenario, Slow
from hybridsync.lab.simulator.scenarios import load_scenario, scenario_text, write_scenario
from hybridsync.lab.simulator.simulation import simulate
from tests.lab.simulator.runs import tally_run

FOLDER = Path(__file__).parents[3] / "configs" / "scenarios"
LATE = Scenario(joins=(Join(3, 2.0),))
FILES = {path.stem: path for path in FOLDER.glob("*.py") if path.stem != "__init__"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_scenario_file_is_documented_and_runs_to_its_end(name: str) -> None:
    assert len(FILES[name].read_text().splitlines()[0]) > 40
    scenario = load_scenario(FILES[name])
    machines = scenario.cluster.colocated
    workers = sum(scenario.cluster.hosts) or (4 if machines is None else len(machines.latency_secs))
    result = simulate(tally_run(workload=3000, workers=workers), scenario)
    assert result.summary.exit == "completed"
    assert result.summary.units.applied == 3000


def test_a_straggler_costs_lock_step_more_than_asp() -> None:
    straggler = load_scenario(FILES["straggler"])
    even = Scenario(cluster=straggler.cluster)
    bsp, asp = (
        simulate(tally_run(plan, workload=2000), straggler).seconds
        / simulate(tally_run(plan, workload=2000), even).seconds
        for plan in ("bsp", "asp")
    )
    assert bsp > 1.1
    assert asp < (bsp + 1) / 2


def told(plan: str, scenario: Scenario) -> list[dict[str, Any]]:
    """Return the log of a simulation."""
    log = io.StringIO()
    assert simulate(tally_run(plan, workload=400), scenario, events=log).summary.units.applied == 400
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_lock_step_begins_without_who_comes_late_and_takes_it_in_when_it_comes() -> None:
    entered = [line for line in told("bsp", LATE) if line["kind"] == "phase_entered"]
    assert [(line["reason"], line["members"]) for line in entered] == [("start", [0, 1, 2]), ("join", [0, 1, 2, 3])]
    assert entered[0]["t"] < 1.0
    assert 2.0 <= entered[1]["t"] < 2.5


def test_nobody_is_given_up_whose_step_takes_long_while_somebody_joins() -> None:
    slow = Scenario(cluster=Cluster(devices=(Device(5.0),)), joins=(Join(3, 22.0),))
    log = told("bsp", slow)
    assert [line["members"] for line in log if line["kind"] == "phase_entered"] == [[0, 1, 2], [0, 1, 2, 3]]
    assert not [line for line in log if line["kind"] == "role_lost"]


def test_who_comes_late_to_an_asynchronous_phase_gets_units_then_and_nobody_waits() -> None:
    log = told("asp", LATE)
    assert next(line["t"] for line in log if line["kind"] == "update") < 1.0
    assert 2.0 <= next(line["t"] for line in log if line["kind"] == "lease" and line["worker"] == 3) < 2.5
    assert sum(line["kind"] == "phase_entered" for line in log) == 1
    assert any(line["kind"] == "push" and line["worker"] == 3 for line in log)


def test_a_run_that_ends_before_somebody_comes_does_without() -> None:
    never = Scenario(joins=(Join(0, 1e6),))
    for plan in ("bsp", "asp", "bsp:50%,asp"):
        assert simulate(tally_run(plan), never).seconds < 100


def test_a_worker_comes_for_the_first_time_once() -> None:
    with pytest.raises(ConfigError, match="one of them twice"):
        Scenario(joins=(Join(1, 1.0), Join(1, 2.0))).check(4, 1)


def test_churn_rolls_back_what_the_server_had_not_committed() -> None:
    units = simulate(tally_run(workload=3000), load_scenario(FILES["churn"])).summary.units
    assert units.rolled_back > 0
    assert units.applied == units.workload


def test_behind_a_slow_network_more_workers_do_not_make_asp_faster() -> None:
    slow = load_scenario(FILES["slow_network"])
    some, more = (simulate(tally_run("asp", workload=3000, workers=n), slow).units_per_sec for n in (16, 32))
    assert more < 1.1 * some


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    scenario = Scenario(
        cluster=Cluster(
            devices=(Device(0.1, 0.2), Device(trace=(0.1, 0.3))), server_link=Link(1e-3), costs=Costs(apply_secs=1e-3)
        ),
        slow=(Slow(1, 0.05, stop_secs=9.0), Slow(2, start_secs=3.0)),
        deaths=(Death("server", 0, 3.0),),
        partitions=(Partition((1, 2), 3.0, 1.5),),
        chaos=Chaos(lost=0.1),
        save_fails=(2,),
    )
    write_scenario(tmp_path / "one.py", scenario, "One.")
    assert load_scenario(tmp_path / "one.py") == scenario


def test_an_endless_value_is_written_as_python_reads_it(tmp_path: Path) -> None:
    scenario = Scenario(partitions=(Partition((1,), 3.0, math.inf),))
    (tmp_path / "endless.py").write_text(scenario_text(scenario, 'Said "so".'))
    assert load_scenario(tmp_path / "endless.py") == scenario


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no function scenario()"),
        ("def scenario():\n    return 3\n", "returned int, not Scenario"),
        ("def scenario():\n    return undefined\n", "line 2: NameError"),
        ("def scenario(:\n", "line 1"),
        (
            "from hybridsync.lab.simulator.cluster import Device\n\n\ndef scenario():\n    return Device(secs=-1.0)\n",
            "line 5: Device.secs must be above 0, got -1.0",
        ),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_scenario(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_misspelt_file_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean '.*straggler\.py'"):
        load_scenario(FOLDER / "stragler.py")


def test_a_scenario_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the scenario"):
        write_scenario(tmp_path / "absent" / "one.py", Scenario(), "One.")


def test_in_scenario_2_of_sync_switch_a_slow_step_is_2_75_times_as_long_and_flagged_within_three() -> None:
    config = dataclasses.replace(
        tally_run("bsp", workload=560, workers=8).config, policy=PolicyConfig(detector_window=1)
    )
    run = dataclasses.replace(tally_run(), config=config)
    file = io.StringIO()
    simulate(run, load_scenario(FILES["syncswitch_2"]), events=file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    updates = sorted({line["sequence"]: line["t"] for line in lines if line["kind"] == "update"}.values())
    steps = [after - before for before, after in itertools.pairwise(updates)]
    assert steps[0] == pytest.approx(1.317, rel=0.01)
    slow = next(at for at, secs in enumerate(steps) if secs > 2)
    assert steps[slow + 1] / steps[0] == pytest.approx(2.75, rel=0.01)
    flagged = [line for line in lines if line["kind"] == "straggler_flagged"]
    assert [line["worker"] for line in flagged] == [0, 1]
    assert flagged[1]["t"] - 80.0 < 3 * 3.62


def test_a_scenario_with_stretches_is_written_and_read_again(tmp_path: Path) -> None:
    scenario = load_scenario(FILES["syncswitch_2"])
    machines = scenario.cluster.colocated
    assert machines is not None
    endless = dataclasses.replace(machines, stretches=(*machines.stretches, (900.0, math.inf)))
    scenario = dataclasses.replace(scenario, cluster=dataclasses.replace(scenario.cluster, colocated=endless))
    write_scenario(tmp_path / "again.py", scenario, "Written.")
    assert load_scenario(tmp_path / "again.py") == scenario


def test_both_scenarios_of_sync_switch_are_on_one_cluster() -> None:
    one, two = (
        dataclasses.replace(load_scenario(FILES[name]).cluster, colocated=None)
        for name in ("syncswitch_1", "syncswitch_2")
    )
    assert one == two
