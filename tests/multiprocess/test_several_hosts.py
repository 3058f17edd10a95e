"""Three hosts on one machine, each with an address of its own on the loopback interface."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.multiprocess.job import assert_exactly_once
from tests.multiprocess.several_hosts import SeveralHosts
from tests.multiprocess.test_commands import command
from tests.security.listeners import open_sockets

# Jobs of three hosts each.
pytestmark = [pytest.mark.timeout(600), pytest.mark.integration, pytest.mark.xdist_group("hosts")]
SLOW_SECS = 0.5
"""Of a unit in a session whose story needs time: on a loaded machine a host takes half a minute to come."""


def tally_on_hosts(workdir: Path, *more: str, plan: str, units: int, port: int, unit_secs: float) -> SeveralHosts:
    flags = ["--workers=3", *more, f"--plan={plan}", f"--compute_secs={unit_secs}", f"--set=workload={units}"]
    flags += ["--set=telemetry.log_secs=0.1"]
    return SeveralHosts(workdir, "configs/tally.py", *flags, num_hosts=3, port=port)


def save(job: SeveralHosts) -> None:
    """Have the run saved by SIGTERM on the head."""
    job.send(signal.SIGTERM)
    assert job.wait() == 75, job.output + job.logs()
    assert job.wait_agents() == {1: 75, 2: 75}


def complete(job: SeveralHosts) -> None:
    """Wait until a run ends, that was saved or not: each unit was applied once, and none was taken back."""
    with job:
        assert job.wait() == 0, job.output + job.logs()
        assert job.wait_agents() == {1: 0, 2: 0}
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0 and job.tracebacks() == []


def test_every_mode_works_between_hosts_and_a_killed_agent_gets_its_roles_again(
    tmp_path: Path,
) -> None:
    plan = {"plan": "asp:60%,bsp:20%,preduce", "units": 900, "port": 4721}
    with tally_on_hosts(tmp_path / "run", **plan, unit_secs=SLOW_SECS) as job:
        job.until_phase("asp")
        addresses = {e["id"]: e["address"] for e in job.events("role_started") if e["role"] == "worker"}
        assert [addresses[worker].rpartition(":")[0] for worker in range(3)] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        killed = job.live_workers()[1]
        job.kill_agent(1)
        job.start_agent(1)
        job.until_lost(killed)  # the chief may miss its worker before the head misses the agent
        job.until(lambda: "host 1 is lost" in job.screen(), "the head lost host 1")
        again = job.until(
            lambda: [e for e in job.events("role_started") if (e["role"], e["id"]) == ("worker", 1)][1:], "it is back"
        )
        assert again[0]["address"].startswith("127.0.0.2:")
        assert {(e["role"], e["id"]) for e in job.events("role_lost")} == {("worker", 1)}
        save(job)
    complete(job := tally_on_hosts(tmp_path / "run", **plan, unit_secs=0.0))
    assert [e["protocol"] for e in job.events("phase_entered") if e["reason"] in ("start", "planned")] == [
        *("asp", "bsp", "preduce"),
    ]


def test_a_host_that_is_told_to_leave_says_so_and_the_run_is_saved_on_all_of_them(tmp_path: Path) -> None:
    with tally_on_hosts(tmp_path / "run", plan="asp", units=100_000, port=4722, unit_secs=0.01) as job:
        job.until_phase("asp")
        assert job.end_agent(2, signal.SIGTERM) == 75
        job.until(lambda: "its agent was ended by SIGTERM" in job.screen(), "the head heard why host 2 has left")
        (lost,) = job.until(lambda: job.events("role_lost"), "the roles of host 2 were lost")
        assert (lost["role"], lost["id"]) == ("worker", 2)
        units = job.units()
        job.until_units(units + 20)
        save(job)
        account = job.summary()["units"]
        assert account["issued"] == account["applied"] + account["dropped"] + account["outstanding"]
        assert account["applied"] >= units + 20 and account["rolled_back"] == 0


def test_sigterm_to_all_processes_of_all_hosts_saves_the_run_and_nothing_is_done_again(tmp_path: Path) -> None:
    """As `scancel` and an end of all containers do; the servers lie on different hosts."""
    plan = {"plan": "asp:50%,bsp", "units": 600, "port": 4725}
    with tally_on_hosts(tmp_path / "run", "--servers=2", **plan, unit_secs=0.05) as job:
        job.until_phase("asp")
        job.send_to_all_hosts(signal.SIGTERM)
        assert job.wait() == 75, job.output + job.logs()
        assert job.wait_agents() == {1: 75, 2: 75}
        assert job.summary()["units"]["applied"] > 0
    with tally_on_hosts(tmp_path / "run", "--servers=2", **plan, unit_secs=0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0 and job.events("rollback") == []
        assert job.events("role_lost") == []


def ports_of(pid: int) -> list[int]:
    """Return the ports at which a process listens."""
    files = open_sockets(pid)
    tables = [Path(f"/proc/net/{kind}").read_text().splitlines()[1:] for kind in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and line[9] in files]


def test_workers_get_a_process_group_when_a_switch_needs_one(tmp_path: Path) -> None:
    plan = {"plan": "asp", "units": 900, "port": 4726}
    with tally_on_hosts(tmp_path / "run", **plan, unit_secs=SLOW_SECS) as job:
        job.until_phase("asp")
        assert ports_of(job.process.pid) == [4726], "something listens in plain text, and nobody needs it"
        code, said = command("switch", str(tmp_path / "run"), "bsp")
        assert code == 0, said
        job.until_phase("bsp")
        (renewed,) = job.events("world_renewed")
        assert renewed["why"] == "the workers have joined no process group"
        save(job)
    complete(tally_on_hosts(tmp_path / "run", **plan, unit_secs=0.0))


def test_a_host_with_another_configuration_is_refused_with_both_digests_and_the_others_go_on(tmp_path: Path) -> None:
    with tally_on_hosts(tmp_path / "run", plan="asp", units=300, port=4723, unit_secs=0.02) as job:
        job.kill_agent(2)
        job.start_agent(2, "--seed=9")
        assert job.wait_agent(2) == 1
        assert "give every host the same configuration" in job.agent_screen(2)
        job.start_agent(2)
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())


def test_a_run_begins_with_the_fewest_workers_and_a_host_that_comes_later_joins_it_in_every_mode(
    tmp_path: Path,
) -> None:
    plan = {"plan": "asp:60%,bsp", "units": 1200, "port": 4724}
    with tally_on_hosts(tmp_path / "run", "--workers=2..3", **plan, unit_secs=SLOW_SECS) as job:
        job.kill_agent(2)
        job.until_phase("asp")
        assert {e["id"] for e in job.events("role_started") if e["role"] == "worker"} == {0, 1}
        job.start_agent(2)
        job.until(lambda: any(e["worker"] == 2 for e in job.events("worker_joined")), "the third worker joined")
        for protocol in ("bsp", "preduce"):
            code, said = command("switch", str(tmp_path / "run"), protocol)
            assert code == 0, said
            job.until_phase(protocol)
            entered = [e for e in job.events("phase_entered") if e["protocol"] == protocol]
            assert sorted(entered[0]["members"]) == [0, 1, 2]
        (renewed,) = job.events("world_renewed")
        assert renewed["why"] == "the workers have joined different process groups"
        save(job)
    complete(tally_on_hosts(tmp_path / "run", "--workers=2..3", **plan, unit_secs=0.0))


def test_a_host_that_is_lost_while_workers_meet_is_not_waited_for_and_joins_when_it_comes_back(tmp_path: Path) -> None:
    """No unit is taken twice, and none is lost, though all workers start again three times."""
    with tally_on_hosts(tmp_path / "run", plan="asp", units=100_000, port=4727, unit_secs=0.02) as job:
        job.until_phase("asp")
        job.stop_agent(2)  # so that what the switch orders there is not done
        code, said = command("switch", str(tmp_path / "run"), "bsp")
        assert code == 0, said
        job.until(lambda: job.events("world_renewed"), "the workers were to meet in a group")
        job.kill_agent(2)
        job.until_phase("bsp")
        (entered,) = [e for e in job.events("phase_entered") if e["protocol"] == "bsp"]
        assert sorted(entered["members"]) == [0, 1]
        assert "the run goes on without host 2: it is away" in job.screen()
        job.start_agent(2)

        def members() -> list[int]:
            return sorted([e for e in job.events("phase_entered") if e["protocol"] == "bsp"][-1]["members"])

        job.until(lambda: members() == [0, 1, 2], "the third worker was back")
        assert job.events("world_renewed")[-1]["why"] == "the workers have joined different process groups"
        units = job.units()
        job.until_units(units + 20)
        save(job)
        account = job.summary()["units"]
        assert account["issued"] == account["applied"] + account["dropped"] + account["outstanding"]
        assert account["rolled_back"] == 0 and job.tracebacks() == []
