"""Runs of many sessions: killed whole, asked to stop, and resumed on other roles, every unit is applied once."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.multiprocess import sessions
from tests.multiprocess.job import assert_exactly_once
from tests.multiprocess.scenarios import tally

pytestmark = pytest.mark.timeout(600)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_everything_killed_twenty_times_in_switches_in_saves_and_anywhere(tmp_path: Path) -> None:
    points = sessions.drawn(random.Random(20), at_stages=8, in_saves=4, anywhere=8)
    counts = sessions.everything_is_killed_again_and_again(tmp_path / "run", points, seed=20, units=36_000)
    assert counts["applied"] == 36_000


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_everything_killed_in_a_switch_and_in_a_save_goes_on(tmp_path: Path) -> None:
    """Two of the twenty kills."""
    points, plan = ["ENTER", "SYNC"], sessions.switching(3)
    sessions.everything_is_killed_again_and_again(tmp_path / "run", points, seed=2, units=400, plan=plan)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_run_asked_to_stop_fifty_times_loses_nothing(tmp_path: Path) -> None:
    runtimes = ["processes"] * 15 + ["inprocess"] * 35
    random.Random(50).shuffle(runtimes)
    sessions.asked_to_stop_again_and_again(tmp_path / "run", runtimes, seed=50, units=12000)


@pytest.mark.alone
def test_a_run_in_one_process_that_is_asked_to_stop_loses_nothing_unless_it_is_asked_twice(tmp_path: Path) -> None:
    sessions.a_second_signal_ends_it_at_once(tmp_path / "twice")
    plan = sessions.switching(3)
    sessions.asked_to_stop_again_and_again(tmp_path / "run", ["inprocess"], seed=2, units=400, plan=plan)


def test_a_run_that_restarts_at_each_switch_trains_on_in_new_processes(tmp_path: Path) -> None:
    with tally(
        tmp_path / "run", "--switch=restart", plan="bsp:25%,asp:50%,bsp", units=120, workers=2, unit_secs=0.0
    ) as job:
        assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    assert job.output.count("saved at a switch") == 2
    ends = [(event["exit"], event["units"]) for event in job.events("run_finished")]
    assert ends == [("restarting", 30), ("restarting", 90), ("completed", 120)]
    assert [event["protocol"] for event in job.events("phase_entered")] == ["bsp", "asp", "bsp"]
    assert job.events("switch") == [], "no phase follows another one in the same processes"
    roles = [(event["role"], event["pid"]) for event in job.events("role_started") if event["role"] != "supervisor"]
    assert len(set(roles)) == 3 * 4, "a chief, a server and two workers, each three times"


TOPOLOGIES = (("--workers=4",), ("--workers=2",), ("--workers=2", "--runtime=inprocess"), ("--workers=1",))


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_run_goes_on_with_fewer_workers_in_one_process_and_alone(tmp_path: Path) -> None:
    *stopped, last = TOPOLOGIES

    def start(flags: tuple[str, ...], unit_secs: float):
        workers = int(flags[0].partition("=")[2])
        plan = sessions.switching(9)
        return tally(tmp_path / "run", *flags[1:], plan=plan, units=1500, workers=workers, unit_secs=unit_secs)

    reached = 0
    for flags in stopped:
        with start(flags, 0.01) as job:
            job.until_units(reached + 200)
            job.send(signal.SIGTERM)
            assert job.wait() == 75, job.output + job.logs()
            reached = job.summary()["units"]["applied"]
            assert reached < 1500
    with start(last, 0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    assert job.summary()["units"]["rolled_back"] == 0
    runtimes = [event["runtime"] for event in job.events("run_started")]
    assert runtimes == ["processes", "processes", "inprocess", "processes"]
    assert job.tracebacks() == []


@pytest.mark.soak
def test_a_server_that_stands_still_for_a_while_costs_nothing(tmp_path: Path) -> None:
    assert sessions.a_server_stands_still(tmp_path / "run", 8.0)["rolled_back"] == 0


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_server_that_stands_still_for_good_is_replaced(tmp_path: Path) -> None:
    sessions.a_server_stands_still(tmp_path / "run", None)
