"""Processes that share memory and are killed: the others know at once, step again, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridsync.collectives.shared_memory.service import SumService
from hybridsync.core.addresses import at_socket, socket_path
from hybridsync.core.clock import SYSTEM_CLOCK, pause

ROOT = Path(__file__).parents[2]
MEMBER = Path(__file__).with_name("shared_memory_member.py")
FOR_EVER = 10_000_000
PLACES, REGION_BYTES = 3, 1 << 22
SOON = 10.0
"""Far below the ten minutes that a member waits for one that is not told to be dead."""


class Member:
    """One process, and what it answers."""

    def __init__(self, address: str, place: int) -> None:
        self.place = place
        command = [sys.executable, str(MEMBER), address, *map(str, (place, PLACES, REGION_BYTES))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def service() -> Iterator[SumService]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        served = SumService(PLACES, at_socket(Path(folder) / "slab"))
        yield served
        served.stop()


def memory_files(pid: int) -> int:
    """Return how many descriptors a process has of memory, doorbells and other processes."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += any(name in os.readlink(entry) for name in ("memfd:", "[eventfd]", "[pidfd]"))
        except OSError:  # closed meanwhile
            continue
    return found


def slab_bytes(service: SumService) -> int:
    """Return how much memory the slab takes."""
    return 512 * os.fstat(service._files[0]).st_blocks


def maps_of(file_number: int) -> int:
    """Return how many mappings of a file this process has; each keeps the whole file's memory."""
    return sum(line.split()[4] == str(file_number) for line in Path("/proc/self/maps").read_text().splitlines())


def survive_deaths(service: SumService, deaths: int) -> list[float]:
    """Kill members in turn, each in the middle of a round; returns the seconds until the later survivor knew of each.

    After each death the survivors step again by themselves, and then with the successor. Nothing of the dead is left.
    """
    members = [Member(service.address, place) for place in range(PLACES)]
    took = []
    try:
        assert [member.answer() for member in members] == [{"joined": place} for place in range(PLACES)]
        files, nbytes = memory_files(os.getpid()), slab_bytes(service)
        assert nbytes >= 2 * PLACES * REGION_BYTES
        for number in range(1, deaths + 1):
            for member in members:
                member.tell(phase=number, members=[0, 1, 2])
            for member in members:
                assert member.answer() == {"phase": number}
            for member in members:
                member.tell(rounds=FOR_EVER)
            pause(0.02)
            victim = members[number % PLACES]
            killed = SYSTEM_CLOCK.monotonic()
            os.kill(victim.process.pid, signal.SIGKILL)
            survivors = [member for member in members if member is not victim]
            heard = [member.answer() for member in survivors]
            assert any(answer["revoked"] == f"worker {victim.place} has ended" for answer in heard), heard
            took.append(max(answer["at"] for answer in heard) - killed)
            for member in survivors:
                member.tell(phase=deaths + number, members=[each.place for each in survivors])
                assert member.answer() == {"phase": deaths + number}
            for member in survivors:
                member.tell(rounds=50)
            assert [member.answer() for member in survivors] == [{"rounds": 50}] * 2
            victim.end()
            members[victim.place] = Member(service.address, victim.place)
            assert members[victim.place].answer() == {"joined": victim.place}
            assert slab_bytes(service) == nbytes, f"death {number} left memory behind"
        assert memory_files(os.getpid()) == files, "descriptors of the dead are kept"
    finally:
        for member in members:
            member.end()
    return took


def test_survivors_of_twenty_deaths_know_at_once_and_step_again(service: SumService):
    """Others run beside it, so a survivor may get a processor late; how soon it knows is measured by the long test."""
    took = survive_deaths(service, 20)
    assert statistics.median(took) < 1.0 and max(took) < SOON, sorted(took)[-4:]


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_two_hundred_deaths_leave_nothing_behind(service: SumService):
    took = survive_deaths(service, 200)
    slab = os.fstat(service._files[0]).st_ino
    assert maps_of(slab) == 1
    service.stop()
    assert maps_of(slab) == 0, "the slab outlives its service and all members"
    at_once = len([secs for secs in took if secs <= 0.1])
    print(f"{at_once} of 200 known within .1 s; median {statistics.median(took):.4f} s, latest {max(took):.3f} s")
    assert at_once >= 198 and max(took) < 1.0, sorted(took)[-4:]


def test_a_successor_is_not_taken_for_the_process_whose_place_it_has(service: SumService):
    """It asks for the place while the service is busy with a caller that says nothing, as its predecessor dies."""
    members = [Member(service.address, place) for place in range(2)]
    try:
        assert [member.answer() for member in members] == [{"joined": 0}, {"joined": 1}]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(str(socket_path(service.address)))
            pause(0.1)
            members[1].end()
            members[1] = Member(service.address, 1)
            assert members[1].answer() == {"joined": 1}
        for member in members:
            member.tell(phase=1, members=[0, 1])
        assert [member.answer() for member in members] == [{"phase": 1}] * 2
        for member in members:
            member.tell(rounds=10)
        assert [member.answer() for member in members] == [{"rounds": 10}] * 2
        members[0].tell(phase=2, members=[0, 1])
        assert members[0].answer() == {"phase": 2}
        members[0].tell(rounds=1)
        members[1].end()
        assert members[0].answer()["revoked"] == "worker 1 has ended"
    finally:
        for member in members:
            member.end()


def test_a_member_that_has_ended_before_a_phase_is_not_waited_for_and_one_that_comes_late_is(service: SumService):
    """Members of a replay join when they can; a member of a run that dies while others enter has joined before."""
    early = Member(service.address, 0)
    late: Member | None = None
    try:
        assert early.answer() == {"joined": 0}
        early.tell(phase=1, members=[0, 1])
        assert early.answer() == {"phase": 1}
        early.tell(rounds=5)
        late = Member(service.address, 1)
        assert late.answer() == {"joined": 1}
        late.tell(phase=1, members=[0, 1])
        late.tell(rounds=5)
        assert [late.answer(), late.answer(), early.answer()] == [{"phase": 1}, {"rounds": 5}, {"rounds": 5}]
        late.end()
        pause(0.1)
        early.tell(phase=2, members=[0, 1])
        assert early.answer() == {"phase": 2}
        early.tell(rounds=5)
        assert early.answer()["revoked"] == "worker 1 has ended"
    finally:
        for member in filter(None, (early, late)):
            member.end()


def test_a_member_that_stands_still_is_told_from_a_dead_one(service: SumService):
    """The others wait for it: whether it is given up is the chief's to say."""
    members = [Member(service.address, place) for place in range(2)]
    try:
        assert [member.answer() for member in members] == [{"joined": 0}, {"joined": 1}]
        for member in members:
            member.tell(phase=1, members=[0, 1])
        assert [member.answer() for member in members] == [{"phase": 1}] * 2
        os.kill(members[1].process.pid, signal.SIGSTOP)
        for member in members:
            member.tell(rounds=10)
        pause(0.3)
        os.kill(members[1].process.pid, signal.SIGCONT)
        assert [member.answer() for member in members] == [{"rounds": 10}] * 2
    finally:
        for member in members:
            member.end()
