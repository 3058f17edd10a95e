"""What the checks of a simulated run let pass, and what they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest, PhaseRequest
from hybridsync.lab.testing.checks import Checks, Violation
from tests.chief.chiefs import SERVER, make_chief
from tests.roles import phase_of


@pytest.mark.parametrize(("spec", "servers"), [("bsp", ()), ("asp", (SERVER,))])
def test_an_ended_phases_stream_may_be_told_again_and_does_not_grow(spec: str, servers: tuple[str, ...]) -> None:
    """A late copy of a call comes while the next phase's servers take the state over."""
    checks, chief = Checks(), make_chief()
    simulated: Any = SimpleNamespace(chief=chief, num_chiefs=1)
    checks.simulated = simulated
    phase = phase_of(1, spec, servers=servers)
    checks.announced(PhaseRequest(0, 1, NO_PHASE, None, ""), phase)
    first, more = LeaseRequest(0, 1, phase.id, 0, 0), LeaseRequest(0, 1, phase.id, 4, 0)
    checks.granted(first, LeaseReply(((0, 4),), False))
    checks.granted(more, LeaseReply(((6, 8),), False))
    checks.announced(PhaseRequest(0, 1, phase.id, None, ""), phase_of(2, "bsp"))
    checks.granted(first, LeaseReply(((0, 4), (6, 8)), True))
    with pytest.raises(Violation, match="phase 2 is under way"):
        checks.granted(more, LeaseReply(((6, 9),), True))


def test_who_was_replaced_gets_no_units_of_the_chief_that_knows_it_and_a_restarted_one_may_meet_it_first() -> None:
    checks, chief = Checks(), make_chief()
    simulated: Any = SimpleNamespace(chief=chief, num_chiefs=1)
    checks.simulated = simulated
    phase = phase_of(1, "asp", servers=(SERVER,))
    checks.announced(PhaseRequest(0, 1, NO_PHASE, None, ""), phase)
    replaced, newest = LeaseRequest(0, 1, phase.id, 0, 0), LeaseRequest(0, 2, phase.id, 0, 0)
    nothing = LeaseReply((), False)
    checks.granted(newest, nothing)
    with pytest.raises(Violation, match="2 has taken its place"):
        checks.granted(replaced, nothing)
    simulated.num_chiefs = 2
    checks.granted(replaced, nothing)
    checks.granted(newest, nothing)
    with pytest.raises(Violation, match="2 has taken its place"):
        checks.granted(replaced, nothing)
