"""The process group with real processes: sums, deaths, stops, second processes; and its guards."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from hybridsync.collectives.mesh import process_group as process_group_module
from hybridsync.collectives.mesh.coordination_service import Service, start_service
from hybridsync.collectives.mesh.flat_sum import MeshSum
from hybridsync.collectives.mesh.process_group import CollectiveBroken, ProcessGroup
from hybridsync.core.errors import HybridSyncError, WaitTimeout

MEMBER = Path(__file__).with_name("process_group_member.py")
ROOT = Path(__file__).parents[2]
NUM_WORKERS = 4
EVERYONE = list(range(NUM_WORKERS))
ANSWER_SECS = 60.0
CONNECT_SECS = 30.0
"""How long gloo waits for a member that it was to connect to."""
HANG_SECS = 0.5  # a step of these takes some 20 ms


class Member:
    """One process of the process group, and the answers it gave."""

    def __init__(self, service: Service, index: int, cache: Path, *, reborn: bool = False) -> None:
        self.index = index
        start = "reborn" if reborn else "first"
        self.process = subprocess.Popen(
            [sys.executable, str(MEMBER), service.address, str(index), str(NUM_WORKERS), start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            },
        )
        self._buffer = b""

    def tell(self, do: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps({"do": do, **fields}) + "\n").encode())
        self.process.stdin.flush()

    def answer(self, timeout_secs: float = ANSWER_SECS) -> dict[str, Any] | None:
        """Return the next answer, None when there is none in time."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_secs
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self.process.stdout], [], [], remaining)[0]:
                return None
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"member {self.index} ended with {self.process.wait(ANSWER_SECS)}"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def end(self, *, kill: bool = False) -> int:
        if kill:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        return self.process.wait(ANSWER_SECS)


class Fleet:
    """A service and its members; every test leaves all of them alive, and no device choice is used by two tests."""

    def __init__(self, cache: Path) -> None:
        self.service = start_service(NUM_WORKERS)
        self._cache = cache
        self.members = [Member(self.service, index, cache) for index in EVERYONE]
        self._device_choice = -1

    def fresh_device_choice(self) -> int:
        self._device_choice += 1
        return self._device_choice

    def tell(self, who: list[int], do: str, **fields: Any) -> None:
        for index in who:
            self.members[index].tell(do, **fields)

    def answers(self, who: list[int]) -> list[Any]:
        return [self.members[index].answer() for index in who]

    def warm(self, members: list[int], device_choice: int, num_ints: int = 0) -> list[Any]:
        fields = {"members": members, "device_choice": device_choice, "num_floats": 5_000, "num_ints": num_ints}
        self.tell(members, "warm", **fields, timeout_secs=ANSWER_SECS)
        return self.answers(members)

    def step(
        self,
        members: list[int],
        device_choice: int,
        *,
        who: list[int] | None = None,
        times: int = 1,
        num_ints: int = 0,
    ) -> None:
        fields = {
            "members": members,
            "device_choice": device_choice,
            "num_floats": 5_000,
            "num_ints": num_ints,
            "times": times,
        }
        self.tell(members if who is None else who, "step", **fields)

    def replace(self, index: int) -> dict[str, Any]:
        """Kill a member and start its slot's next process; returns what it says when it has joined."""
        self.members[index].end(kill=True)
        self.members[index] = Member(self.service, index, self._cache, reborn=True)
        answer = self.members[index].answer()
        assert answer is not None
        return answer

    def close(self, *, kill: bool) -> list[int]:
        codes = [member.end(kill=kill) for member in self.members]
        self.service.stop()
        return codes


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("cache"))
    try:
        assert None not in made.answers(EVERYONE)
        yield made
    finally:
        failed = request.session.testsfailed > 0
        codes = made.close(kill=failed)
    assert failed or codes == [0] * NUM_WORKERS, f"members ended with {codes}"


def test_the_sum_and_the_maximum_reach_every_member_and_survive_reuse_of_the_buffers(fleet: Fleet) -> None:
    device_choice = fleet.fresh_device_choice()
    assert fleet.warm(EVERYONE, device_choice, num_ints=3) == [{"warm": True}] * 4
    fleet.step(EVERYONE, device_choice, times=3, num_ints=3)
    assert fleet.answers(EVERYONE) == [{"total": [10.0], "highest": [3]}] * 4
    fleet.step(EVERYONE, device_choice, times=3)
    assert fleet.answers(EVERYONE) == [{"total": [10.0], "highest": []}] * 4


def test_a_subset_in_another_order_steps_without_the_others(fleet: Fleet) -> None:
    device_choice = fleet.fresh_device_choice()
    assert fleet.warm([3, 0], device_choice) == [{"warm": True}] * 2
    fleet.step([3, 0], device_choice)
    assert fleet.answers([0, 3]) == [{"total": [5.0], "highest": []}] * 2


@pytest.mark.parametrize("victim", [0, 2])
def test_a_member_killed_between_collectives_is_reborn_into_the_full_mesh(fleet: Fleet, victim: int) -> None:
    assert fleet.warm(EVERYONE, fleet.fresh_device_choice()) == [{"warm": True}] * 4
    assert fleet.replace(victim)["cache_hits"] > 0, "it compiled anew what its first process had compiled"
    device_choice = fleet.fresh_device_choice()
    assert fleet.warm(EVERYONE, device_choice) == [{"warm": True}] * 4
    fleet.step(EVERYONE, device_choice)
    assert fleet.answers(EVERYONE) == [{"total": [10.0], "highest": []}] * 4


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_collective_that_hangs_on_a_lost_member_is_broken_and_the_survivors_go_on(
    fleet: Fleet, blow: signal.Signals
) -> None:
    device_choice, survivors = fleet.fresh_device_choice(), [0, 2, 3]
    assert fleet.warm(EVERYONE, device_choice) == [{"warm": True}] * 4
    os.kill(fleet.members[1].process.pid, blow)
    fleet.step(EVERYONE, device_choice, who=survivors)
    first = fleet.members[3].answer(HANG_SECS)  # no neighbour of 1 in the ring
    assert first is None, "nothing hangs here: this test proves nothing"
    fleet.tell(survivors, "break")
    for index in survivors:
        answers = [fleet.members[index].answer(), fleet.members[index].answer()]
        assert {"broken": True} in answers, answers
        assert "CollectiveBroken" in [answer.get("error") for answer in answers if answer], answers

    fleet.step(EVERYONE, device_choice, who=survivors)  # refused at once: nobody hangs on a dead mesh again
    assert [answer["error"] for answer in fleet.answers(survivors)] == ["CollectiveBroken"] * 3

    assert fleet.warm(survivors, device_choice) == [{"warm": True}] * 3  # fewer members: another communicator
    fleet.step(survivors, device_choice)
    assert fleet.answers(survivors) == [{"total": [8.0], "highest": []}] * 3

    fleet.replace(1)
    fresh = fleet.fresh_device_choice()
    assert fleet.warm(EVERYONE, fresh) == [{"warm": True}] * 4


def test_a_member_that_dies_while_the_others_connect_to_it_does_not_hold_them(fleet: Fleet) -> None:
    device_choice, survivors = fleet.fresh_device_choice(), [0, 1, 3]
    fields = {
        "members": EVERYONE,
        "device_choice": device_choice,
        "num_floats": 5_000,
        "num_ints": 0,
        "timeout_secs": ANSWER_SECS,
    }
    fleet.tell([2], "die", **fields)
    fleet.tell(survivors, "warm", **fields)
    fleet.members[2].process.wait(ANSWER_SECS)
    assert fleet.members[0].answer(HANG_SECS) is None, "nothing hangs here: this test proves nothing"
    began = time.monotonic()
    fleet.tell(survivors, "break")
    for index in survivors:
        answers = [fleet.members[index].answer(), fleet.members[index].answer()]
        assert {"broken": True} in answers, answers
        assert "CollectiveBroken" in [answer.get("error") for answer in answers if answer], answers
    assert time.monotonic() - began < CONNECT_SECS / 3

    fleet.replace(2)
    assert fleet.warm(EVERYONE, fleet.fresh_device_choice()) == [{"warm": True}] * 4


def test_a_device_choice_beyond_the_first_takes_other_devices_of_each_member(fleet: Fleet) -> None:
    device_choice = 16 * 16 * 3 + 16 * 2 + fleet.fresh_device_choice()
    assert fleet.warm(EVERYONE, device_choice) == [{"warm": True}] * 4
    fleet.step(EVERYONE, device_choice)
    assert fleet.answers(EVERYONE) == [{"total": [10.0], "highest": []}] * 4


def test_a_member_that_does_not_come_is_named(fleet: Fleet) -> None:
    fields = {"members": EVERYONE, "device_choice": fleet.fresh_device_choice(), "num_floats": 1, "num_ints": 0}
    fleet.tell([0, 1, 2], "warm", **fields, timeout_secs=0.5)
    answers = fleet.answers([0, 1, 2])
    assert [answer["error"] for answer in answers] == ["WaitTimeout"] * 3
    named = [json.loads(answer["message"].rpartition(" s for workers ")[2].partition(";")[0]) for answer in answers]
    assert all(3 in missing for missing in named), answers
    assert [3] in named, "who comes last misses none of those that have come"


def test_revocation_reaches_a_member_that_waits_for_the_others(fleet: Fleet) -> None:
    fields = {"members": EVERYONE, "device_choice": fleet.fresh_device_choice(), "num_floats": 1, "num_ints": 0}
    fleet.tell([2], "mesh", **fields)
    assert fleet.answers([2]) == [{"entered": True}]
    fleet.tell([2], "warm", **fields, timeout_secs=ANSWER_SECS)
    fleet.tell([2], "break")
    answers = [fleet.members[2].answer(), fleet.members[2].answer()]
    assert {"broken": True} in answers and "CollectiveBroken" in [answer.get("error") for answer in answers if answer]


def local_mean(arrive: Callable[..., None] = lambda timeout_secs, check: None) -> MeshSum:
    return MeshSum((0,), 0, [jax.local_devices()[0]], 0, arrive)


def test_the_self_test_passes_right_sums_and_names_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = local_mean()
    mean.warm(1_000, 10)
    monkeypatch.setitem(mean._programs, (1_000, 0), lambda floats: (floats.at[7].add(1.0),))
    with pytest.raises(HybridSyncError, match=r"sum of known integers .* entry 7 of 1000 is 9.0, not 8.0"):
        mean.warm(1_000, 0)


def test_a_released_mesh_keeps_nothing_that_it_compiled_and_can_be_entered_again() -> None:
    mean = local_mean()
    mean.warm(1_000, 10)
    compiled = [weakref.ref(program._executable) for program in mean._programs.values()]
    assert compiled
    mean.release()
    gc.collect()
    assert [ref() for ref in compiled] == [None] * len(compiled)
    mean.warm(1_000, 10)


def test_a_service_that_is_gone_while_members_meet_breaks_the_mesh_by_name() -> None:
    def gone(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: recvmsg:Connection reset by peer\nmore of it")

    mean = local_mean(gone)
    for _ in range(2):
        with pytest.raises(CollectiveBroken, match=r"is dead: UNAVAILABLE: recvmsg:Connection reset by peer; enter"):
            mean.warm(1_000, 10)


def test_a_dead_mesh_refuses_with_the_first_reason() -> None:
    mean = local_mean()
    mean.kill("worker 1 died")
    mean.kill("later")
    with pytest.raises(CollectiveBroken, match="worker 1 died; enter the next phase on another device choice"):
        mean(np.ones(4, np.float32), np.empty(0, np.int32))


def test_joining_after_the_first_jax_call_is_refused() -> None:
    jax.devices()
    with pytest.raises(HybridSyncError, match="before any other JAX call"):
        ProcessGroup.join("127.0.0.1:1", 0, 1)


def test_an_absent_service_is_an_error_not_an_abort() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(WaitTimeout, match=f"worker 3 finds no coordination service at {address}"):
        process_group_module._connect(address, 3, 3, range(4), 1.0)


def test_a_service_that_ends_while_a_worker_joins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses\nRPC: /coordination")

    monkeypatch.setattr(process_group_module, "_have_devices", lambda process_index, num_devices: None)
    monkeypatch.setattr(process_group_module, "_connect", lambda *place: Gone())
    monkeypatch.setattr(process_group_module, "distributed_state", types.SimpleNamespace)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    with pytest.raises(CollectiveBroken, match=r"(?s)worker 1 could not join .* at 127.0.0.1:1 \(.*UNAVAILABLE"):
        ProcessGroup.join("127.0.0.1:1", 1, 2)
