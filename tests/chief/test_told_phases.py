"""What `Phase.check` refuses, and what a role would do with it: no later check finds it by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import InvalidMessage
from hybridsync.core.plan import MOST_UPDATES, most_issued
from hybridsync.interfaces.messages import RoleState
from hybridsync.interfaces.phase import Phase
from hybridsync.transport.grpc.codec import encode
from tests.chief.chiefs import SERVER, Chief, lease, units_of
from tests.roles import WORKLOAD, Start, gradient_of, hello, phase_of, push_of


def taken_up(**fields: Any) -> tuple[Chief, Phase]:
    """Let a restarted chief hear of a phase from its server, and go on with it."""
    chief = Chief(
        RunState(Ledger(WORKLOAD), 1, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf, restarted=True))
    )
    phase = replace(phase_of(4, members=(0,), servers=(SERVER,)), **fields)
    chief.service.register(hello(0, role="server", role_state=RoleState(phase, True)))
    chief.service.register(hello(0, role_state=RoleState(phase, True)))
    with chief.control.turn() as state:
        state.adopt(phase)
        state.open_leases()
    return chief, phase


def account_is_wrong() -> None:
    with pytest.raises(AssertionError, match=r"ledger: issued 3 != applied 3 \+ dropped 1"):
        taken_up(applied=((0, 3),), dropped=((2, 3),))


def units_that_nobody_can_compute_are_outstanding() -> None:
    chief, _ = taken_up(applied=((2**40, 2**40 + 1),))
    assert chief.state.ledger.counts().outstanding > most_issued(WORKLOAD)


def more_units_are_handed_out_than_the_run_has() -> None:
    chief, phase = taken_up(end_units=WORKLOAD + 8)
    units: list[int] = []
    while new := units_of(lease(chief, phase, 0, len(units), len(units))):
        units += new
    assert units == list(range(WORKLOAD + 8))


def no_update_can_be_answered() -> None:
    start = Start()
    phase = replace(phase_of(snapshot=start.snapshot), sequence=2 * MOST_UPDATES - 1)
    primary = start.primary()
    primary.enter(phase)
    reply, _ = primary.push_pull(push_of(phase, 0), gradient_of(0))
    with pytest.raises(ValueError, match="out of range"):
        encode(reply)


@pytest.mark.parametrize(
    "harm",
    [
        account_is_wrong,
        units_that_nobody_can_compute_are_outstanding,
        more_units_are_handed_out_than_the_run_has,
        no_update_can_be_answered,
    ],
)
def test_a_phase_that_no_run_has_is_refused_before_it_does_harm(
    harm: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidMessage):
        harm()
    monkeypatch.setattr(Phase, "check", lambda self, workload: None)
    harm()
