"""The meeting point of a process group: what it loads, where it listens, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridsync.collectives.mesh.coordination_service import Service, start_service
from hybridsync.collectives.mesh.sockets import listening
from hybridsync.core.errors import HybridSyncError

ROOT = Path(__file__).parents[2]
ANSWER_SECS = 60.0


def test_the_service_starts_without_jax_and_listens_on_one_address_only() -> None:
    program = (
        "import sys; from hybridsync.collectives.mesh.coordination_service import start_service; "
        "from hybridsync.collectives.mesh.sockets import listening; service = start_service(2); "
        "assert 'jax' not in sys.modules; print(service.address, *listening()); "
        "service.stop(); service.stop()"
    )
    quiet = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}  # jax sets it
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECS,
        check=True,
    )
    address, *rest = done.stdout.split()
    assert rest == ["('127.0.0.1',", f"{address.rpartition(':')[2]})"]
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_worker_reaches_the_service_and_not_a_web_proxy(name: str, host: str) -> None:
    """User code in the same process finds its proxy settings as before."""
    program = (
        "import os, sys; from hybridsync.collectives.mesh.coordination_service import start_service; "
        "from hybridsync.collectives.mesh.process_group import _connect; before = dict(os.environ); "
        f"service = start_service(1, '{host}:0'); client = _connect(service.address, 0, 0, [0], 20.0); "
        "assert dict(os.environ) == {**before, 'TF_CPP_MIN_LOG_LEVEL': '2'}; client.key_value_set('a', 'b'); "
        "print(client.blocking_key_value_get('a', 1000), flush=True); os._exit(0)"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", name: "http://127.0.0.1:9", "no_proxy": "example.org"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECS,
    )
    assert (done.stdout, done.returncode) == ("b\n", 0), done.stderr


def test_an_address_of_another_machine_is_refused() -> None:
    before = listening()
    with pytest.raises(HybridSyncError, match=r"cannot listen on 203\.0\.113\.1"):
        start_service(2, "203.0.113.1:0")
    assert listening() == before


def test_an_end_that_takes_long_is_not_waited_for_longer_than_told() -> None:
    """jaxlib may wait for ever, and a supervisor that waited with it would never end."""
    over, begun = threading.Event(), []
    service = Service("127.0.0.1:7", SimpleNamespace(shutdown=lambda: (begun.append(1), over.wait(ANSWER_SECS))))
    assert not service.stop(wait_secs=0.0) and not service.stop(wait_secs=0.05)
    over.set()
    assert service.stop() and service.stop(wait_secs=0.0) and begun == [1]


def test_what_an_end_raises_reaches_who_waits_for_it() -> None:
    def shutdown() -> None:
        raise RuntimeError("no service is there")

    with pytest.raises(RuntimeError, match="no service is there"):
        Service("127.0.0.1:7", SimpleNamespace(shutdown=shutdown)).stop()
