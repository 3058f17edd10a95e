"""In a whole run on several hosts every listener is known, and nothing that arrives becomes code."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hybridsync.runtime.control_file import read_control
from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.planted_audit import FOLDER
from tests.multiprocess.several_hosts import SeveralHosts
from tests.security.listeners import ports_by_role
from tests.security.roles import dialled, messages, outcome

pytestmark = [pytest.mark.timeout(600), pytest.mark.integration, pytest.mark.xdist_group("hosts")]

PORT = 4728
KNOWN = {
    "head": ["coordination service", "head"],
    "chief": ["buffers", "calls"],
    "server": ["buffers", "calls"],
    "worker": ["buffers", "calls", "gloo"],
}
"""At what each program listens when workers sum; agents and fork servers listen nowhere."""


def check_ports(job: SeveralHosts, known: dict[str, list[str]]) -> None:
    """Check that every process listens where it is known to, on its own host, and what is TLS is TLS."""
    names = {event["pid"]: f"{event['role']} {event['id']}" for event in job.events("role_started")}
    programs = {job.process.pid: "head 0"} | {each.pid: f"agent {at}" for at, each in enumerate(job.agents(), 1)}
    ports = ports_by_role(programs, names)
    addresses = {f"{e['role']} {e['id']}": e["address"] for e in job.events("role_started") if e.get("address")}
    addresses |= {"head 0": f"127.0.0.1:{PORT}", "chief 0": read_control(job.workdir).address}
    token = read_control(job.workdir).token
    assert Counter(name.split()[0] for name in ports) == Counter(
        {"head": 1, "agent": 1, "child": 2, "chief": 1, "server": 1, "worker": 2}
    )
    for name, places in ports.items():
        assert len(places) == len(known.get(name.split()[0], [])), (name, places)
        host = "127.0.0.2" if name in ("worker 1", "agent 1") else "127.0.0.1"
        assert {at for at, _ in places} <= {host}, (name, places)
        if places:
            calls = addresses[name]
            assert calls in {f"{at}:{port}" for at, port in places}, (name, calls, places)
            with dialled(calls, None) as channel:
                for method in ("Chief/Status", "SnapshotSource/TakeSnapshot", "Head/Attach"):
                    assert outcome(channel, method, messages(method), token)[0] == "UNAVAILABLE", (name, method)


def recorded(job: Job) -> dict[str, list[dict]]:
    """Return what each process has recorded, by the file's name."""
    files = sorted((job.workdir / FOLDER).iterdir())
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}


def test_every_listener_of_a_run_on_two_hosts_is_known_and_nothing_that_arrives_becomes_code(tmp_path: Path) -> None:
    flags = ["--workers=2", "--plan=bsp:50%,asp", "--compute_secs=0.03", "--set=workload=1000"]
    program = "tests.multiprocess.audited_host"
    with SeveralHosts(*(tmp_path / "run", "configs/tally.py", *flags), num_hosts=2, port=PORT, program=program) as job:
        for protocol in ("bsp", "asp"):
            job.until_phase(protocol)
            job.until_units(job.units() + 20)
            check_ports(job, KNOWN)
        assert job.wait() == 0, job.output + job.logs()
        assert job.wait_agents() == {1: 0}
        assert_exactly_once(job.summary())
        lines_of = recorded(job)
    kinds = sorted(name.split("-")[0] for name in lines_of)
    assert kinds == ["agent", "chief", "head", "server", "worker", "worker"], "a process has recorded nothing"
    made = {name: lines[1:] for name, lines in lines_of.items() if len(lines) > 1}
    for name in [name for name in made if name.startswith(("agent", "head"))]:
        made[name] = [line for line in made[name] if not starts_a_fork_server(line)]
    assert {name: lines for name, lines in made.items() if lines} == {}


def starts_a_fork_server(line: dict) -> bool:
    """Return whether an event comes of how a host's program starts the program that forks its roles."""
    kinds = ("ctypes.dlopen", "subprocess.Popen", "os.fork", "os.posix_spawn")
    return line["event"] in kinds and any("fork_server.py" in frame for frame in line["stack"])
