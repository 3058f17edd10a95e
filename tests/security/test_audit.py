"""In a whole run nothing that arrives becomes code, and nobody listens but where a role is known to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.job import ROOT, Job
from tests.multiprocess.planted_audit import FOLDER
from tests.multiprocess.scenarios import tally, until_told
from tests.security.listeners import listeners, processes
from tests.sweeps import swept
from tests.transport.slab_primary import until

PLANTED = until_told("what_makes_code_of_data_is_recorded")


def recorded(job: Job) -> dict[str, list[dict]]:
    """Return what each process has recorded, by the file's name."""
    files = sorted((job.workdir / FOLDER).iterdir())
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("link", swept(["shm", "tcp", "grpc"], kept=2))  # each run of the chief's is over gRPC
def test_nothing_that_arrives_becomes_code_and_every_listener_is_known(tmp_path: Path, link: str) -> None:
    flags = (f"--link={link}", "--set=servers=2")
    with tally(tmp_path / "run", *flags, plan="bsp:30%,asp:40%,bsp", units=600, workers=2, planted=PLANTED) as job:
        job.until_phase("asp")
        started, pids = {event["pid"] for event in job.events("role_started")}, list[int]()

        def are_found() -> bool:
            pids[:] = processes(job.process.pid)
            return started <= set(pids)

        until(are_found, "a role is no process of the run")  # the kernel may leave one out while another ends
        found = [listeners(pid) for pid in pids]
        tcp, unix = set().union(*(each.tcp for each in found)), set().union(*(each.unix for each in found))
        assert {host for host, _ in tcp} == ({"127.0.0.1"} if link == "tcp" else set()), (
            "beside the loopback interface's ports of --link=tcp"
        )
        folders = {Path(path).parent for path in unix}
        assert len(folders) == 1, unix
        assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
        job.hurry()
        assert job.wait() == 0, job.output
        lines_of = recorded(job)
    kinds = sorted(name.split("-")[0] for name in lines_of)
    assert kinds == ["chief", "server", "server", "worker", "worker"], "a process has recorded nothing"
    assert {name: lines[1:] for name, lines in lines_of.items() if len(lines) > 1} == {}


@pytest.mark.parametrize(
    ("what", "event"),
    [
        ("exec(compile('1', 'sent', 'exec'))", "exec"),
        ("pickle.loads(pickle.dumps(Path('x')))", "pickle.find_class"),
        ("marshal.loads(marshal.dumps(1))", "marshal.loads"),
        ("os.system('true')", "os.system"),
    ],
)
def test_what_becomes_code_in_a_call_would_be_recorded(tmp_path: Path, what: str, event: str) -> None:
    program = f"""
import marshal, os, pickle, sys
from pathlib import Path
from tests.multiprocess.planted_audit import what_makes_code_of_data_is_recorded
what_makes_code_of_data_is_recorded("worker", Path(sys.argv[1]))
{what}
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True, timeout=240)
    ((_, *lines),) = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (tmp_path / FOLDER).iterdir()
    )
    assert event in {line["event"] for line in lines}
