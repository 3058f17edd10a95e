"""A bug in the core that ships is found by the simulator, whose servers run that core."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest

from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.lab.testing.schedules import plans_of
from hybridsync.server.held_pushes import Decision
from hybridsync.server.server_core import HeldCall, ServerCore
from tests.lab.simulator.test_planted import find
from tests.lab.testing.drawn_schedules import try_seed

BSP_SERVER, ASP = plans_of("bsp_server"), ("asp", "bsp:50%,asp", "asp:50%,asp")


def acknowledges_what_nobody_applied(patch: pytest.MonkeyPatch) -> None:
    """A held push whose phase has closed is answered, instead of being refused by name."""
    original = ServerCore._offer

    def offer(self: ServerCore, call: HeldCall) -> PushReply | None:
        return original(self, call) if self.sequencer.open else PushReply(self.sequencer.sequence)

    patch.setattr(ServerCore, "_offer", offer)


def counts_what_it_does_not_apply(patch: pytest.MonkeyPatch) -> None:
    """Decisions are counted, and the holder never hears of them."""

    def carry_out(self: ServerCore, decisions: Iterable[Decision]) -> None:
        for _ in decisions:
            pass

    patch.setattr(ServerCore, "_carry_out", carry_out)


def applies_what_a_lost_worker_has_pushed(patch: pytest.MonkeyPatch) -> None:
    """The core forgets the fence."""

    def fence(self: ServerCore, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        self._holder.forget(worker, incarnation)

    patch.setattr(ServerCore, "fence", fence)


def releases_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who waits for the others' pushes is never answered, and repeats its push for ever."""
    patch.setattr(ServerCore, "_release_pushes", lambda self, ended: False)


def takes_any_push_for_a_repeat(patch: pytest.MonkeyPatch) -> None:
    """A push is answered by what became of the last one of its worker."""
    original, answered = ServerCore.push, dict[tuple[int, int], int]()

    def push(self: ServerCore, push: Push, contribution: object, non_finite: str) -> PushReply | HeldCall:
        key = push.phase_id.number, push.worker
        answered[key] = answered.get(key, 0) + 1
        if answered[key] % 7 == 0:
            return self._answer(push, PushReply(self.sequencer.sequence))
        return original(self, push, contribution, non_finite)

    patch.setattr(ServerCore, "push", push)


BUGS = [
    # bug, plans, what finds it
    (acknowledges_what_nobody_applied, BSP_SERVER, "was acknowledged, but nobody applied it"),
    (counts_what_it_does_not_apply, ASP, "was acknowledged, but nobody applied it"),
    (applies_what_a_lost_worker_has_pushed, ASP, "is fenced"),
    (releases_nobody, BSP_SERVER, "has not ended"),
    (takes_any_push_for_a_repeat, ASP, "was acknowledged, but nobody applied it"),
]


@pytest.mark.parametrize(("bug", "plans", "finding"), BUGS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_bug_planted_in_the_servers_core_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], plans: tuple[str, ...], finding: str
) -> None:
    seed, found = find(bug, plans)
    assert re.search(finding, found), found
    try_seed(seed, plans)
