"""The engine of a group phase, driven by hand: what it asks for, and in whose name, in whatever order things end."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync.core.errors import PhaseRevoked, StalePhase, WaitTimeout
from hybridsync.interfaces.messages import AppliedUnit, GroupReply, GroupRequest, LeaseReply
from hybridsync.lab.simulator.arithmetic import Sizes, Weightless
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.requests import (
    AverageGroup,
    ComputeUnit,
    JoinGroup,
    LeaseUnits,
    RunBeside,
    SendPart,
    Start,
    StoreFullSync,
    UpdateOwn,
)
from tests.worker.scripted import Script, member_of

OVER = GroupReply((), over=True)


class Group:
    """Answers a worker that computes two units, and serves in between as `served` says; a part begins when joined.

    Args:
      spec: of the phase.
      own: answers to its own requests, in turn.
      served: answers to the requests in which it serves, in turn; then it is over.
    """

    def __init__(self, spec: str, own: list[GroupReply], served: list[GroupReply]) -> None:
        self._own, self._served = own, served
        self._leases = [LeaseReply(((0, 2),), False), LeaseReply((), True)]
        self.asked: list[GroupRequest] = []
        self.script = Script(self._answer)
        self.engine = GroupEngine(member_of(spec), Weightless(Sizes(1, 1, 1)), logs=False)

    def run(self) -> None:
        self.script.drive(self.engine.run())

    def averaged(self) -> list[int]:
        """Return the numbers of the group rounds in which the worker has averaged, in turn."""
        return [request.reply.sequence for request in self.script.requests if isinstance(request, AverageGroup)]

    def _answer(self, request: Any) -> Any:
        if isinstance(request, LeaseUnits):
            return self._leases.pop(0)
        if isinstance(request, RunBeside):
            return self.script.drive(request.io)
        if isinstance(request, JoinGroup):
            self.asked.append(request.request)
            replies = self._served if request.request.serves else self._own
            return replies.pop(0) if replies else OVER
        if isinstance(request, (UpdateOwn, AverageGroup)):
            return request.state + 1
        return 0 if not isinstance(request, (SendPart, StoreFullSync)) else None


def test_what_it_serves_is_of_the_group_round_that_it_comes_to_next_however_late_that_begins() -> None:
    own = [GroupReply((2,), sequence=number) for number in (1, 2)] + [GroupReply((2,), sequence=3, is_full_sync=True)]
    group = Group("adpsgd", own, [])
    group.run()
    assert [(asked.number, asked.serves) for asked in group.asked] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


def test_a_unit_is_told_until_the_chief_has_heard_of_it_and_its_gradient_names_what_it_was_computed_behind() -> None:
    served = [OVER, GroupReply((1, 2), sequence=5), GroupReply((2, 3), sequence=6)]
    own = [GroupReply((2,), sequence=4), GroupReply((2,), sequence=7), GroupReply((2,), sequence=8, is_full_sync=True)]
    group = Group("adpsgd", own, served)
    group.run()
    told = {(asked.number, asked.serves): asked.applied for asked in group.asked}
    first, second = AppliedUnit(0, 0), AppliedUnit(1, 4)
    assert told[2, 0] == told[2, 1] == (first,), "the worker's own request cannot know what the other has told"
    assert told[2, 2] == told[2, 3] == (), "it was answered, so it was heard"
    assert told[3, 0] == (second,), "computed behind group round 4, applied behind 7"
    assert group.averaged() == [4, 5, 6, 7, 8], "what was served comes before its own group"


def test_nothing_is_begun_beside_the_computing_where_a_protocol_does_not_say_so() -> None:
    own = [GroupReply((2,), sequence=number) for number in (1, 2, 3)]
    for spec in ("preduce", "adpsgd(overlap=false)"):
        group = Group(spec, list(own), [])
        group.run()
        assert not any(isinstance(request, Start) for request in group.script.requests)


def test_a_worker_whose_group_stands_behind_comes_back_without_a_unit() -> None:
    own = [GroupReply((1, 2), sequence=1, again=True), *(GroupReply((2,), sequence=number) for number in (2, 3, 4))]
    group = Group("preduce(buffer=false,division=false)", own, [])
    group.run()
    kinds = [type(request) for request in group.script.requests if isinstance(request, (ComputeUnit, JoinGroup))]
    assert kinds == [ComputeUnit, JoinGroup, JoinGroup, ComputeUnit, JoinGroup, JoinGroup]


def test_a_failed_request_of_its_own_waits_for_the_end_of_what_it_serves() -> None:
    group = Group("adpsgd", [], [])
    answer = group.script._answer

    def fails(request: Any) -> Any:
        if isinstance(request, JoinGroup) and not request.request.serves:
            raise StalePhase("gone")
        return answer(request)

    group.script._answer = fails
    with pytest.raises(PhaseRevoked, match="gone"):
        group.run()
    assert [(asked.number, asked.serves) for asked in group.asked] == [(1, 1)]


def test_what_fails_while_it_serves_is_heard_before_its_own_group_comes() -> None:
    group = Group("adpsgd", [], [])
    answer, asked = group.script._answer, []

    def fails(request: Any) -> Any:
        if not isinstance(request, JoinGroup):
            return answer(request)
        if request.request.serves:
            raise WaitTimeout("no part came")
        assert len(asked) < 3, "it asks on for a group that waits for it"
        asked.append(request)
        group.script.begun[-1].end()
        return GroupReply((), missing=(1,))

    group.script._answer = fails
    with pytest.raises(WaitTimeout, match="no part came"):
        group.run()
