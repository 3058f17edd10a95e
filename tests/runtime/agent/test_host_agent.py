"""A host's agent: what it starts and kills, in which order it tells of it, and orders that cross its words."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hybridsync.config.device_config import DeviceConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.devices.environment import worker_environments
from hybridsync.runtime.agent import fork_server
from hybridsync.runtime.agent.host_agent import HostAgent, HostSpec
from hybridsync.runtime.agent.host_messages import (
    ChiefServes,
    Ended,
    Event,
    GiveKeys,
    KillRole,
    Reported,
    Started,
    StartRole,
)
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.role.role_pipe import RoleKeys, RoleSpec

ROLE = Path(__file__).parents[1] / "fake_role.py"
WAIT_SECS = 120.0


class Host:
    """An agent and what it has told."""

    def __init__(self, folder: Path, addresses: RoleAddresses, wake_fd: int) -> None:
        self.said: list[str] = []
        self.folder, self._wake_fd = folder, wake_fd
        seats = worker_environments(DeviceConfig(platform="cuda"), 3, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"})
        spec = HostSpec((sys.executable, str(ROLE), json.dumps({})), folder / "logs", worker_environments=seats)
        self.agent = HostAgent(spec, addresses, self.said.append)
        self.told: list[Event] = []

    def start(self, restart_count: int = 0, role_id: int = 1) -> None:
        spec = RoleSpec("worker", role_id, restart_count, "10.0.0.0:1", str(self.folder), 4, 1, "", "host", 1)
        self.agent.start(StartRole(spec, f"restart {restart_count}"))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
        while not condition():
            assert SYSTEM_CLOCK.monotonic() < deadline, f"nothing more is told after {self.told}"
            self.told += self.agent.wait(0.1, self._wake_fd)

    def of_kind(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.told if isinstance(event, kind)]


def _children() -> set[int]:
    """Return the process ids of this process's children: tests that ran before may have left some."""
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    with closing(RoleAddresses("127.0.0.1", num_hosts=2)) as addresses:
        found = Host(tmp_path, addresses, read_fd)
        yield found
        found.agent.close()
    os.close(read_fd)
    os.close(write_fd)


def test_a_role_is_told_as_started_then_what_it_reports_then_its_end(host: Host) -> None:
    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    host.start()
    host.until(lambda: bool(host.of_kind(Reported)))
    started, reported = host.told
    assert isinstance(started, Started) and (started.role, started.role_id) == ("worker", 1)
    assert reported == Reported("worker", 1, started.pid, {"joined": "10.0.0.0:1"})
    host.agent.kill(KillRole("worker", 1, started.pid + 1))  # of another process, which had the place before
    assert host.agent.wait(0.2, host._wake_fd) == []
    host.agent.kill(KillRole("worker", 1, started.pid))
    host.until(lambda: bool(host.of_kind(Ended)))
    ended = host.told[-1]
    assert isinstance(ended, Ended) and (ended.pid, ended.code) == (started.pid, -9)


def test_each_worker_sees_one_gpu_and_a_successor_that_of_its_place(host: Host) -> None:
    def gpus() -> dict[tuple[int, int], str]:
        specs = host.folder / "specs.jsonl"
        lines = specs.read_text().split("\n")[:-1] if specs.exists() else []  # roles write there
        return {(spec["role_id"], spec["restart_count"]): spec["gpus"] for spec in map(json.loads, lines)}

    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    for worker in (4, 5, 6):  # of a further host
        host.start(role_id=worker)
    host.until(lambda: len(host.of_kind(Reported)) == 3)
    (_, second, _) = host.of_kind(Started)
    assert isinstance(second, Started)
    host.agent.kill(KillRole("worker", 5, second.pid))
    host.until(lambda: bool(host.of_kind(Ended)))
    host.start(role_id=5, restart_count=1)
    host.until(lambda: len(host.of_kind(Reported)) == 4)
    host.until(lambda: len(gpus()) == 4)
    assert gpus() == {(4, 0): "GPU-a", (5, 0): "GPU-b", (6, 0): "GPU-a", (5, 1): "GPU-b"}


def test_an_order_that_crosses_the_word_of_the_start_leaves_no_second_process(host: Host) -> None:
    host.start()
    host.until(lambda: bool(host.of_kind(Started)))
    host.start()  # given before the head has heard that it runs: what it joins has changed
    host.until(lambda: bool(host.of_kind(Ended)))
    (started,) = host.of_kind(Started)
    (ended,) = host.of_kind(Ended)
    assert isinstance(started, Started) and isinstance(ended, Ended) and ended.pid == started.pid
    host.start(restart_count=1)
    host.until(lambda: len(host.of_kind(Started)) == 2)
    newest = host.of_kind(Started)[-1]
    assert isinstance(newest, Started) and newest.pid in _children() and started.pid not in _children()


@pytest.fixture
def stopped(host: Host) -> int:
    """Start worker 1, and stop the fork server; returns the fork server's process id."""
    host.start()
    host.until(lambda: bool(host.of_kind(Started)))
    pid = host.agent._starts.fork_server_pid
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_an_agent_goes_on_while_its_fork_server_stands_still_and_replaces_it(
    host: Host, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = host.of_kind(Started)
    assert isinstance(first, Started)
    monkeypatch.setattr(fork_server, "ANSWER_SECS", WAIT_SECS)
    host.start(role_id=2)  # the fork server has the order
    host.agent.kill(KillRole("worker", 1, first.pid))
    host.until(lambda: bool(host.of_kind(Ended)))
    assert len(host.of_kind(Started)) == 1, "the fork server did not stand still"
    monkeypatch.setattr(host.agent._starts._fork_server_client, "_deadline", 0.0)
    host.until(lambda: len(host.of_kind(Started)) == 2)
    assert host.agent._starts.fork_server_pid != stopped and not Path(f"/proc/{stopped}").exists()


def test_an_order_that_follows_one_which_the_fork_server_has_takes_its_place(host: Host, stopped: int) -> None:
    host.start(role_id=2)
    host.start(role_id=2, restart_count=1)
    os.kill(stopped, signal.SIGCONT)
    host.until(lambda: len(host.of_kind(Started)) == 2)
    newest = host.of_kind(Started)[-1]
    assert isinstance(newest, Started) and (newest.role_id, newest.restart_count) == (2, 1)


def test_a_role_that_is_ended_while_the_fork_server_has_its_order_does_not_run(host: Host, stopped: int) -> None:
    before = _children()
    host.start(role_id=2)
    host.agent.end_roles()
    os.kill(stopped, signal.SIGCONT)
    host.start(role_id=3)
    host.until(lambda: len(host.of_kind(Started)) == 2)
    newest = host.of_kind(Started)[-1]
    assert isinstance(newest, Started) and newest.role_id == 3
    assert _children() - before == {newest.pid}, "the role that was ended runs"


def test_roles_that_were_ended_are_told_of_no_more_and_the_next_chief_is_not_the_last(host: Host) -> None:
    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    host.start()
    host.until(lambda: bool(host.of_kind(Started)))
    (started,) = host.of_kind(Started)
    assert isinstance(started, Started)
    host.agent.end_roles()
    assert not Path(f"/proc/{started.pid}").exists()
    assert host.agent.wait(0.0, host._wake_fd) == []
    host.start(restart_count=0)
    host.agent.chief_serves(ChiefServes("10.0.0.0:10"))
    host.until(lambda: "10.0.0.0:10" in "".join(_specs(host)))
    assert "10.0.0.0:9" not in _specs(host)[-1]


def _keys(host: Host) -> list[str]:
    path = host.folder / "keys"
    return path.read_text().split() if path.exists() else []


def test_a_role_that_runs_is_told_of_new_keys_whenever_they_come(host: Host) -> None:
    host.start()  # and it waits for its chief
    host.until(lambda: bool(host.of_kind(Started)))
    host.agent.give_keys(GiveKeys("worker", 1, RoleKeys("before")))
    host.agent.give_keys(GiveKeys("worker", 2, RoleKeys("another's")))
    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    host.until(lambda: _keys(host) == ["before"])
    host.agent.give_keys(GiveKeys("worker", 1, RoleKeys("behind")))
    host.until(lambda: _keys(host) == ["before", "behind"])


def test_a_role_that_still_waits_to_be_started_begins_with_the_newest_keys(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    take = host.agent._take_started
    monkeypatch.setattr(host.agent, "_take_started", lambda: None)
    host.start()
    host.agent.give_keys(GiveKeys("worker", 1, RoleKeys("newer")))
    monkeypatch.setattr(host.agent, "_take_started", take)
    host.until(lambda: len(_specs(host)) == 1)
    assert json.loads(_specs(host)[0])["keys"]["token"] == "newer"
    host.agent.end_roles()
    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    host.start(restart_count=1)
    host.until(lambda: len(_specs(host)) == 2)
    assert json.loads(_specs(host)[-1])["keys"]["token"] == "", "those of its own order are newer"


def test_a_role_that_reads_nothing_is_killed_before_its_agent_waits_for_it(host: Host) -> None:
    host.agent.chief_serves(ChiefServes("10.0.0.0:9"))
    host.start()
    host.until(lambda: bool(host.of_kind(Reported)))
    (started,) = host.of_kind(Started)
    assert isinstance(started, Started)
    os.kill(started.pid, signal.SIGSTOP)
    for _ in range(100):  # 200 kB
        host.agent.give_keys(GiveKeys("worker", 1, RoleKeys("x" * 2000)))
    host.until(lambda: bool(host.of_kind(Ended)))


def _specs(host: Host) -> list[str]:
    """Return the lines that roles have written to their end."""
    path = host.folder / "specs.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []
