"""What a role process says to whichever chief answers, and what it hears."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hybridsync.core.errors import HybridSyncError, NotRegistered, RoleLost, StaleIncarnation
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import (
    GroupReply,
    GroupRequest,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    RoleEvent,
    RoleState,
    Welcome,
)
from hybridsync.interfaces.ports import ChiefPort
from hybridsync.interfaces.reports import Report, ReportReply
from hybridsync.runtime.role import heartbeat as heartbeat_module
from hybridsync.runtime.role.heartbeat import Heartbeat, ReconnectingChiefClient
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from tests.roles import WithoutCommands, hello, phase_of
from tests.telemetry.clocks import ManualClock

SECS = 10.0
PHASE_ID = phase_of(3).id
GO_ON = ReportReply(PHASE_ID, revoked=False)


@dataclass
class ForgetfulChief(WithoutCommands, ChiefPort):
    """A chief of several processes: after each restart it knows nobody."""

    known: bool = True
    registers: bool = True
    seen: list[Any] = field(default_factory=list)

    def register(self, hello: Hello) -> Welcome:
        self.seen.append(hello)
        self.known = self.registers
        return Welcome(hello.restart_count + 1, 1.0, 3.0)

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        return self._answer(request, PhaseReply(None, done=True))

    def lease(self, request: LeaseRequest) -> LeaseReply:
        return self._answer(request, LeaseReply(((0, 4),), final=False))

    def join_group(self, request: GroupRequest) -> GroupReply:
        return self._answer(request, GroupReply((1, 2)))

    def report(self, report: Report) -> ReportReply:
        return self._answer(report, GO_ON)

    def role_started(self, event: RoleEvent) -> None:
        self.seen.append(event)

    def role_lost(self, event: RoleEvent) -> None:
        self.seen.append(event)

    def preempt(self) -> None:
        self.seen.append("preempt")

    def _answer(self, request: Any, reply: Any) -> Any:
        self.seen.append(request)
        if not self.known:
            raise NotRegistered("worker 2 has not registered with this chief; register and call again")
        return reply


REPORT = Report("worker", 2, 5, PHASE_ID)
LEASE = LeaseRequest(2, 5, PHASE_ID, 0, 0)
NEXT = PhaseRequest(2, 5, PHASE_ID, None)
GROUP_ROUND = GroupRequest(2, 5, PHASE_ID, 1, ())
CALLS: dict[str, tuple[Callable[[ReconnectingChiefClient], Any], Any]] = {
    "report": (lambda chief: chief.report(REPORT), REPORT),
    "lease": (lambda chief: chief.lease(LEASE), LEASE),
    "next_phase": (lambda chief: chief.next_phase(NEXT), NEXT),
    "meet": (lambda chief: chief.join_group(GROUP_ROUND), GROUP_ROUND),
}


def lasting(chief: Any, role_state: Callable[[], RoleState | None] = lambda: None) -> ReconnectingChiefClient:
    return ReconnectingChiefClient(chief, lambda: hello(2, pid=7, restart_count=4, role_state=role_state()))


# --- whichever chief answers ---


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_chief_that_knows_nobody_is_told_who_calls_and_where_it_stands_and_asked_again(name):
    ask, request = CALLS[name]
    chief = ForgetfulChief(known=False)
    where = RoleState(phase_of(3), True, ((0, 4),), 2)
    ask(lasting(chief, lambda: where))
    assert chief.seen == [request, hello(2, pid=7, restart_count=4, role_state=where), request]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_chief_that_knows_the_role_is_asked_once(name):
    ask, request = CALLS[name]
    chief = ForgetfulChief()
    ask(lasting(chief))
    assert chief.seen == [request]


def test_the_role_state_is_the_one_of_the_moment_at_which_the_chief_asks():
    chief = ForgetfulChief()
    role_states = iter([None, RoleState(phase_of(3), True), RoleState(phase_of(4), False)])
    way = lasting(chief, lambda: next(role_states))
    way.register()
    for _ in range(2):
        chief.known = False
        way.report(REPORT)
    told = [each.role_state for each in chief.seen if isinstance(each, Hello)]
    assert told == [None, RoleState(phase_of(3), True), RoleState(phase_of(4), False)]


def test_a_chief_that_forgets_again_and_again_is_not_asked_for_ever(monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(heartbeat_module, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(heartbeat_module, "pause", clock.advance)
    monkeypatch.setattr(heartbeat_module, "CHIEF_SECS", 0.25)
    chief = ForgetfulChief(known=False, registers=False)
    with pytest.raises(NotRegistered):
        lasting(chief).report(REPORT)
    assert chief.seen == [REPORT, hello(2, pid=7, restart_count=4)] * 3 + [REPORT], "with a pause between two tries"


def test_a_role_that_was_replaced_meanwhile_hears_so():
    class Chief(ForgetfulChief):
        def register(self, hello: Hello) -> Welcome:
            raise StaleIncarnation("worker 2 speaks as incarnation 5, but incarnation 6 has taken its place")

    with pytest.raises(StaleIncarnation, match="incarnation 6"):
        lasting(Chief(known=False)).lease(LEASE)


def test_a_call_outlasts_a_chief_that_is_restarted_at_its_address():
    """The whole way: the channel finds the next process, whose answer is that it knows nobody."""
    first, address = make_server([ChiefServicer(ForgetfulChief())])
    first.start()
    client = ChiefClient(address, deadline_secs=20.0)
    way = lasting(client)
    assert way.report(REPORT) == GO_ON
    assert first.stop(grace=None).wait(SECS)
    restarted = ForgetfulChief(known=False)
    second, _ = make_server([ChiefServicer(restarted)], address)
    try:
        answers: list[ReportReply] = []
        caller = threading.Thread(target=lambda: answers.append(way.report(REPORT)))
        caller.start()
        caller.join(0.3)
        assert caller.is_alive(), "nobody serves yet"
        second.start()
        caller.join(SECS)
        assert answers == [GO_ON] and isinstance(restarted.seen[1], Hello)
    finally:
        client.close()
        second.stop(grace=None).wait(SECS)


def test_first_words_say_who_this_process_is():
    spec = RoleSpec("worker", 2, 4, "127.0.0.1:2", "/run", 3, 1, "127.0.0.1", "shm", 1)
    words = heartbeat_module.hello(spec, "127.0.0.1:9", "schema")
    assert (words.role, words.id, words.restart_count, words.address) == ("worker", 2, 4, "127.0.0.1:9")
    assert words.role_state is None and words.pid > 0 and words.devices == ()


def test_first_words_name_the_gpus_of_a_worker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7")
    for role, gpus in (("worker", ("3", "GPU-7")), ("server", ())):
        spec = RoleSpec(role, 0, 0, "127.0.0.1:2", "/run", 3, 1, "127.0.0.1", "shm", 1)
        assert heartbeat_module.hello(spec, "127.0.0.1:9", "schema").devices == gpus


# --- the heartbeat ---


class Listening:
    """A chief that answers by a script and notes what it hears."""

    def __init__(self, *answers: ReportReply | Exception) -> None:
        self.answers = list(answers)
        self.reports: list[Report] = []
        self.came = threading.Semaphore(0)

    def report(self, report: Report) -> ReportReply:
        self.reports.append(report)
        self.came.release()
        answer = self.answers.pop(0) if self.answers else GO_ON
        if isinstance(answer, Exception):
            raise answer
        return answer


class Beating:
    """A heartbeat, and what it told its process."""

    def __init__(self, chief: Any, *, secs: float = 0.01, hold_secs: float = 0.0) -> None:
        self.wake = threading.Event()
        self.heard: list[tuple[PhaseId, ReportReply]] = []
        self.ended: list[HybridSyncError | None] = []
        self.over = threading.Event()
        self.num_drained = 0
        self.heartbeat = Heartbeat(
            chief,
            self.take_report,
            secs,
            self.wake,
            self.end,
            hold_secs=hold_secs,
            heard=lambda phase_id, reply: self.heard.append((phase_id, reply)),
        )

    def take_report(self) -> Report:
        self.num_drained += 1
        return Report("worker", 2, 5, PhaseId(self.num_drained, 0))

    def end(self, error: HybridSyncError | None) -> None:
        self.ended.append(error)
        self.over.set()


@pytest.fixture
def beat() -> Iterator[Callable[..., Beating]]:
    heartbeats: list[Beating] = []

    def start(*args: Any, **fields: Any) -> Beating:
        heartbeats.append(Beating(*args, **fields))
        heartbeats[-1].heartbeat.start()
        return heartbeats[-1]

    yield start
    for each in heartbeats:
        each.heartbeat.stop()


def wait_for(chief: Listening, times: int) -> None:
    for _ in range(times):
        assert chief.came.acquire(timeout=SECS), f"only {len(chief.reports)} reports came"


def test_every_answer_is_heard_with_the_phase_that_was_reported_from(beat):
    """The phase may have changed while the chief held its answer back."""
    revoked = ReportReply(PHASE_ID, revoked=True)
    chief = Listening(GO_ON, revoked, ReportReply(PHASE_ID, revoked=False, done=True))
    beating = beat(chief)
    assert beating.over.wait(SECS)
    assert beating.heard[:2] == [(PhaseId(1, 0), GO_ON), (PhaseId(2, 0), revoked)]
    assert beating.heard[2][1].done and beating.ended == [None]


def test_the_chief_may_hold_its_answer_back_except_to_the_last_report(beat):
    chief = Listening()
    beating = beat(chief, hold_secs=0.5)
    wait_for(chief, 2)
    beating.heartbeat.stop()
    assert {report.hold_secs for report in chief.reports[:-1]} == {0.5}
    assert chief.reports[-1].hold_secs == 0.0


def test_without_a_wish_no_answer_is_held_back(beat):
    chief = Listening()
    beat(chief)
    wait_for(chief, 1)
    assert chief.reports[0].hold_secs == 0.0


def test_who_is_woken_reports_at_once(beat):
    chief = Listening()
    beating = beat(chief, secs=60.0)
    beating.wake.set()
    wait_for(chief, 1)


@pytest.mark.parametrize("error", [StaleIncarnation("replaced"), RoleLost("the chief could not be reached")])
def test_a_process_that_is_refused_or_has_lost_its_chief_for_good_is_told_once(beat, error):
    chief = Listening(GO_ON, error)
    beating = beat(chief)
    assert beating.over.wait(SECS)
    beating.heartbeat.stop()
    assert beating.ended == [error] and len(chief.reports) == 2 and len(beating.heard) == 1


def test_a_last_report_that_fails_disturbs_nobody(beat):
    chief = Listening(RoleLost("the chief has left"))
    beating = beat(chief, secs=60.0)
    beating.heartbeat.stop()
    assert beating.ended == [] and len(chief.reports) == 1


def test_the_heartbeat_beats_on_across_a_restart_of_the_chief(beat):
    chief = ForgetfulChief()
    beating = beat(lasting(chief, lambda: RoleState(phase_of(3), True)))
    chief.known = False
    woken = threading.Event()
    while not any(isinstance(each, Hello) for each in list(chief.seen)):
        assert not woken.wait(0.01) and not beating.ended
    before = len(beating.heard)
    while len(beating.heard) < before + 2:
        assert not woken.wait(0.01) and not beating.ended
    assert NO_PHASE not in [phase_id for phase_id, _ in beating.heard]


def test_a_heartbeat_that_fails_ends_the_process_by_name(beat):
    fault = MemoryError("out of memory")
    beating = beat(Listening(GO_ON, fault))
    assert beating.over.wait(SECS), "a process without a heartbeat lives on"
    (failure,) = beating.ended
    assert isinstance(failure, RoleLost) and failure.__cause__ is fault
