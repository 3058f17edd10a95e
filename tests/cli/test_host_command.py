"""`hybridsync host` refuses what several hosts cannot do, before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.security.certificates import Authority
from hybridsync.security.identity import HEAD, HOST
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
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


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


def head_at(address: str, tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Be the head at an address, with certificates and more flags."""
    authority = Authority.create(tmp_path / "certs")
    authority.issue(HEAD).write(tmp_path / "certs", HEAD)
    place = (f"--head={address}", "--index=0", "--hosts=2", f"--certs={tmp_path / 'certs'}", "--plan=asp")
    return host(*place, *flags, f"--workdir={tmp_path / 'run'}")


def test_a_head_whose_port_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = head_at(address, tmp_path)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert said.startswith(
        f"error: --head={address} cannot be served on here: Address already in use; does another head"
    )
    assert not (tmp_path / "run" / "logs").exists()


@pytest.mark.parametrize("flags", [(), ("--address=127.0.0.1",)], ids=["no address", "another address"])
def test_a_head_at_an_address_of_another_host_is_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = head_at("192.0.2.1:4711", tmp_path, *flags)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert said.startswith(
        "error: --head=192.0.2.1:4711 cannot be served on here: Cannot assign requested address; host 0"
    )
    assert not (tmp_path / "run" / "logs").exists()


@pytest.mark.parametrize("index", [0, 1])
def test_an_address_that_is_not_this_host_s_is_refused(tmp_path: Path, index: int) -> None:
    authority = Authority.create(tmp_path / "certs")
    role = HOST if index else HEAD
    authority.issue(role, index).write(tmp_path / "certs", role)
    place = ("--head=127.0.0.1", f"--index={index}", "--hosts=2", f"--certs={tmp_path / 'certs'}", "--plan=asp")
    done = host(*place, "--address=192.0.2.1", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: --address=192.0.2.1 cannot be served on here: Cannot assign requested address;"
    )
