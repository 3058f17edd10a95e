"""The measurement of floods finds the ports, floods them, and compares windows beside each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from benchmarks.flooder import Flooder, Targets
from benchmarks.floods import FLOODS, listening, ratios_of
from benchmarks.jobs import ROOT
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.transport import GrpcTransport
from tests.security.roles import TOKEN, Role, served
from tests.transport.certified import authority


def test_ports_of_both_families_are_found() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as plain:
        head: Any = Role()
        serving = GrpcTransport(Keyring(TOKEN)).serve_head(head, "127.0.0.1:0", calls=1)
        found = {*listening(os.getpid())}
        assert plain.getsockname() in found
        assert int(serving.address.rpartition(":")[2]) in {port for _, port in found}
        serving.stop()


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_makes_attempts_until_it_is_ended(flood: str) -> None:
    role = Role()
    with served(role, authority().issue("server")) as address:
        host, _, port = address.rpartition(":")
        targets = Targets([(host, int(port))], [address], authority().issue("worker", 0).as_dict(), TOKEN)
        flooder = Flooder(targets)
        end = flooder.run(flood)
        assert flooder.has_begun.wait(60)
        assert end() > 0
    assert role.seen == []


def test_the_flooder_answers_each_line_with_its_count() -> None:
    targets = Targets([], [], authority().issue("worker", 0).as_dict(), TOKEN)
    lines = f"{targets.as_json()}\nsilent connections\n\n"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.flooder"], cwd=ROOT, input=lines, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["0", "0"], done.stderr


def test_a_ratio_is_to_the_windows_beside_it() -> None:
    assert ratios_of([100.0, 95.0, 90.0, 180.0, 110.0]) == [1.0, 1.8]
