"""`hybridsync host` refuses what several hosts cannot do, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.job import ROOT

NAMED_LOOPBACK = """
import socket, sys
found = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **named: found("127.0.1.1" if host == "node-a" else host, *more, **named)
from hybridsync.cli import main
main()
"""
"""Debian gives a host's own name this address; here a name does not depend on the machine."""


def host(*flags: str, program: tuple[str, ...] = ("-m", "hybridsync")) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program, "host", "--config=configs/digits_mlp.py", "--workdir=/nowhere/run", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--head=10.0.0.1", "--index=1", "--hosts=2"), "--certs is missing: hosts know each other by certificates"),
        (
            ("--head=10.0.0.1", "--index=0", "--hosts=2", "--certs=x", "--plan=bsp"),
            "bsp sums between hosts over gloo, which neither encrypts nor asks who calls; say --collectives_network",
        ),
        (
            ("--head=127.0.0.1", "--index=0", "--hosts=5", "--certs=x"),
            "--hosts=5 is more than the 4 workers; each host runs one at least",
        ),
        (
            ("--head=127.0.0.1", "--index=0", "--hosts=2", "--certs=x", "--slots=1"),
            "--slots=1 is less than this host's share of 4 workers on 2 hosts, which is 2",
        ),
        (
            ("--head=127.0.0.1", "--index=0", "--hosts=2", "--certs=x", "--bind=127.0.0.1"),
            "--bind=127.0.0.1 is for one host; on several, --address says where roles serve",
        ),
        (
            ("--head=127.0.0.1", "--index=0", "--hosts=2", "--certs=/nowhere"),
            "/nowhere cannot be read: No such file or directory; hybridsync certs makes these files",
        ),
        (
            ("--head=127.0.0.1", "--index=0", "--hosts=2", "--certs=x", "--workers=5..4"),
            "min_workers must be at most the 4 workers, and not below 0, got 5",
        ),
    ],
)
def test_what_several_hosts_cannot_do_is_refused_by_name(flags: tuple[str, ...], message: str) -> None:
    done = host(*flags)
    assert (done.returncode, done.stderr.splitlines()[-1].startswith(f"error: {message}")) == (1, True), done.stderr


def test_a_head_by_a_name_that_is_loopback_to_itself_is_refused(tmp_path: Path) -> None:
    flags = ("--head=node-a", "--index=0", "--hosts=2", "--certs=x", "--plan=asp")
    done = host(*flags, program=("-c", NAMED_LOOPBACK))
    assert done.returncode == 1
    assert "--head=node-a:4711 is 127.0.1.1 to this host, which others do not reach" in done.stderr
