"""What Ray's actor does with an agent; tests/integration/test_ray.py has a real Ray place it."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import ConfigError
from hybridsync.submission import ray_hosts
from hybridsync.submission.ray_hosts import Host


class HostWithAddress(Host):
    """An actor that needs no Ray to know where it is."""

    def address(self) -> str:
        return "10.0.0.9"


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the interpreter: each life of an agent notes its arguments, and ends as the next line says."""
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/bash\necho "$PWD $* ${{RAY_JOB_ID:-}}" >>{tmp_path}/calls\n'
        f'read -r code <{tmp_path}/codes; sed -i 1d {tmp_path}/codes; exit "$code"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("RAY_JOB_ID", "1")
    return tmp_path


@pytest.mark.parametrize("code", [0, 1, 75])
def test_an_agent_that_dies_is_started_again_until_the_run_has_ended(agents: Path, code: int) -> None:
    (agents / "codes").write_text(f"137\n70\n{code}\n")
    assert HostWithAddress().run(["--index=1"], str(agents)) == code
    line = f"{agents} -m hybridsync host --address=10.0.0.9 --index=1 "
    assert (agents / "calls").read_text().splitlines() == [line] * 3


def test_a_run_that_is_asked_to_end_before_it_has_begun_does_not_begin(agents: Path) -> None:
    """The driver's word may come before its actor has started the agent."""
    host = HostWithAddress()
    host.save()
    assert host.run([], str(agents)) == 75
    assert not (agents / "calls").exists()


@pytest.mark.parametrize(
    ("dies", "code"), [("exit 75", 75), ("trap - TERM; kill -TERM $$", 75), ("kill -KILL $$", 70), ("exit 70", 70)]
)
def test_an_agent_that_is_asked_to_save_is_not_started_again_however_it_ends(
    agents: Path, dies: str, code: int
) -> None:
    begun = agents / "begun"
    wait = "for _ in {1..600}; do sleep 0.05; done"
    Path(sys.executable).write_text(f"#!/bin/bash\ntrap '{dies}' TERM\necho >>{begun}\n{wait}\n")
    host = HostWithAddress()
    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(host.run, [], str(agents))
        deadline = SYSTEM_CLOCK.monotonic() + 30
        while not (begun.exists() and begun.read_text()):
            assert SYSTEM_CLOCK.monotonic() < deadline and not ends.done(), "the agent has not begun"
            pause(0.02)
        host.save()
        assert ends.result(30) == code
    assert begun.read_text() == "\n", "it was started again"


def test_a_run_whose_agent_has_died_when_it_is_asked_to_save_has_failed(
    agents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (agents / "codes").write_text("137\n0\n")
    host = HostWithAddress()
    monkeypatch.setattr(ray_hosts, "say", lambda line: host.save())
    assert host.run([], str(agents)) == 70
    assert len((agents / "calls").read_text().splitlines()) == 1, "it was started again"


def test_a_node_without_the_folder_refuses_the_run(agents: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert HostWithAddress().run([], "/nowhere/job") == 1
    assert "this node has no folder /nowhere/job; start the job in one that all nodes" in capfd.readouterr().err
    assert not (agents / "calls").exists()


def test_a_python_without_ray_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_hosts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--cluster=ray needs the package ray, which .* has not; install the"):
        ray_hosts.check_ray()


class RayError(Exception):
    """What Ray raises."""


class ThreadsForRay:
    """`wait` and `get` of Ray for futures of this process."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.asks = threading.Event()
        """Somebody asks how a host has ended, and waits until it has."""

    def wait(self, ends: list[Future[int]], timeout: float) -> tuple[list[Future[int]], list[Future[int]]]:
        done = wait(ends, timeout, FIRST_COMPLETED).done
        ended = [end for end in ends if end in done][:1]
        return ended, [end for end in ends if end not in ended]

    def get(self, end: Future[int]) -> int:
        self.asks.set()
        return end.result(30)


def ends_of(*codes: int | None, saved: int = 75) -> tuple[Any, list[Future[int]]]:
    """Return the head and the hosts' ends, None where a host runs on; a head that is to save ends with `saved`."""
    ends: list[Future[int]] = [Future() for _ in codes]
    for end, code in zip(ends, codes, strict=True):
        if code is not None:
            end.set_result(code)
    return SimpleNamespace(save=SimpleNamespace(remote=lambda: ends[0].set_result(saved))), ends


def end(head: Any, ends: list[Future[int]], ray: ThreadsForRay | None = None) -> int:
    return ray_hosts._end(ray or ThreadsForRay(), head, ends)  # type: ignore[arg-type]


REFUSED = "error: a host was refused (see above), and so the job has ended"


@pytest.mark.parametrize("codes", [(None, None, 1), (None, 75, 1), (None, 0, 1), (None, 1, 1)])
@pytest.mark.parametrize("saved", [70, 75])
def test_a_host_that_is_refused_at_the_start_ends_the_run(
    codes: tuple[int | None, ...], saved: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert end(*ends_of(*codes, saved=saved)) == 1
    assert REFUSED in capfd.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_completes_or_is_refused_itself_blames_no_host(code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert end(*ends_of(None, 1, saved=code)) == code
    assert REFUSED not in capfd.readouterr().err


@pytest.mark.parametrize("others", [(None, None), (0, None), (75, 75), (1, None)])
@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_head_that_has_ended_says_how_the_run_did(code: int, others: tuple[int | None, ...]) -> None:
    assert end(*ends_of(code, *others)) == code


def test_a_host_that_cannot_be_made_ends_the_run_when_it_is_saved() -> None:
    head, ends = ends_of(None, None)
    ends[1].set_exception(RayError("the actor died"))
    with pytest.raises(RayError, match="the actor died"):
        end(head, ends)
    assert ends[0].result(0) == 75, "it was not saved"


@pytest.mark.parametrize("secs", [0.0, 0.2])
def test_a_host_that_is_refused_later_does_not_end_the_run(secs: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_hosts, "BEGIN_SECS", secs)
    head, ends = ends_of(None, None)
    ray = ThreadsForRay()
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(end, head, ends, ray)
        assert ray.asks.wait(60), "it waits for others than the head"
        ends[1].set_result(1)
        ends[0].set_result(0)
        assert code.result(30) == 0
