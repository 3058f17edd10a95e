"""What listens in a run, who can reach it, and a second launch on its workdir."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from hybridsync.core.addresses import socket_path
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.shared_memory.transport import SUFFIX
from tests.multiprocess.job import ROOT, Job, assert_exactly_once, users_environment
from tests.transport.slab_primary import ask

CONFIG = "configs/tally.py"
LISTENS = "0A"
ACCEPTS = "00010000"
"""The flags of a unix socket that listens."""
MAPPED = "0000000000000000FFFF0000"
"""Before an IPv4 address of a socket for both kinds: gRPC listens by such where the host has IPv6."""


def _hosts(pid: int) -> set[str]:
    """Return the addresses, in hexadecimal, that a process listens on."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {
        line[1].partition(":")[0].removeprefix(MAPPED) for line in lines if line[3] == LISTENS and line[9] in inodes
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("bind", "host"),
    [
        ("::1", "00000000000000000000000001000000"),
        pytest.param("127.0.0.5", "0500007F", marks=pytest.mark.soak),
    ],
)
def test_every_role_listens_where_it_is_told_and_the_workdir_is_taken(tmp_path: Path, bind: str, host: str) -> None:
    flags = [f"--bind={bind}", "--workers=2", "--servers=2", "--compute_secs=0.5"]
    flags += ["--plan=bsp:30%,adpsgd:30%,asp", "--set=workload=600"]
    with Job(tmp_path / "run", CONFIG, *flags, planted="units_take_their_time_until_told") as job:
        job.until_phase("bsp")
        pids = {(event["role"], event["id"]): event["pid"] for event in job.events("role_started")}
        assert len(pids) == 6
        supervisor = ("supervisor", 0)  # serves its workers on a socket
        expected = {role: {host} if role != supervisor else set() for role in pids}
        assert {role: _hosts(pid) for role, pid in pids.items()} == expected
        before = job.logs(), job.events("role_started")
        second = subprocess.run(
            [sys.executable, "-m", "launch.train", f"--config={CONFIG}", f"--workdir={tmp_path / 'run'}", *flags],
            cwd=ROOT,
            env=users_environment(),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert second.returncode == 1 and f"is in use by process {job.process.pid} " in second.stderr
        assert "starting" not in second.stderr and job.events("role_started") == before[1]
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert job.summary()["exit"] == "completed"


def _sockets() -> set[Path]:
    """Return the unix sockets on this machine that somebody listens on."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {Path(line[7]) for line in lines if len(line) == 8 and line[3] == ACCEPTS}


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    kind = socket.SOCK_SEQPACKET if path.endswith(".slabs") else socket.SOCK_STREAM
    with socket.socket(socket.AF_UNIX, kind) as caller:
        try:
            caller.connect(path)
            print("reached", path)
        except PermissionError:
            print("denied", path)
"""
"""Calls sockets as another user."""


@pytest.mark.timeout(300)
def test_no_other_user_reaches_a_role_and_nobody_without_the_token_is_answered(tmp_path: Path) -> None:
    flags = ["--workers=2", "--servers=2", "--compute_secs=0.5", "--plan=bsp:30%,adpsgd:30%,asp", "--set=workload=600"]
    with Job(tmp_path / "run", CONFIG, *flags, planted="units_take_their_time_until_told") as job:
        job.until_phase("bsp")
        started = job.events("role_started")
        roles = {(event["role"], event["id"]): socket_path(event["address"]) for event in started}
        assert len(roles) == 6 and None not in roles.values()
        (folder,) = {path.parent for path in roles.values() if path is not None}
        slabs = {
            path.with_name(f"{path.name}{SUFFIX}")
            for (role, _), path in roles.items()
            if path is not None and role != "supervisor"  # whose socket hands out the memory of sums
        }
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and {*roles.values(), *slabs} <= _sockets()
        by_tcp = {role: _hosts(event["pid"]) for role, event in zip(roles, started, strict=True)}
        assert by_tcp == {role: set() for role in roles}, "somebody listens at a port"
        if os.getuid() == 0:  # only root can be another user
            called = [str(path) for path in (*roles.values(), *sorted(slabs))]
            done = subprocess.run(
                [sys.executable, "-c", STRANGER, *called], capture_output=True, text=True, timeout=240, check=True
            )
            assert done.stdout.splitlines() == [f"denied {path}" for path in called]
        with grpc.insecure_channel(f"unix:{roles['chief', 0]}") as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary("/hybridsync.Chief/Preempt")(b"", timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for path in slabs:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
                caller.connect(str(path))
                assert ask(caller, pb.LinkRequest(call="read").SerializeToString()).error == "Unauthenticated"
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
    assert not folder.exists()


@pytest.mark.soak
@pytest.mark.one_of_each_soak
@pytest.mark.timeout(300)
def test_a_lock_step_worker_that_dies_on_ipv6_is_followed_by_another(tmp_path: Path) -> None:
    with Job(tmp_path / "run", CONFIG, "--bind=::1", "--workers=3", "--plan=bsp", "--set=workload=400",
             "--collective=host", "--compute_secs=0.02") as job:  # fmt: skip
        job.until_units(30)
        job.until_lost(job.kill_worker(1))
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
