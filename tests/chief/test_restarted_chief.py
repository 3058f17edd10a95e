"""What a restarted chief takes up: the phase that goes on, the units that its workers have, who was lost meanwhile."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hybridsync.chief import service
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import NotRegistered
from hybridsync.interfaces.messages import Hello, LeaseReply, RoleEvent, RoleState
from hybridsync.interfaces.phase import Phase
from tests.chief.chiefs import (
    SERVER,
    WORKLOAD,
    Chief,
    begin,
    enter,
    lease,
    served,
    snapshot_of,
    units_of,
    worker_died,
)
from tests.roles import hello, phase_of


def restarted_chief(**fields) -> Chief:
    return Chief(
        RunState(
            Ledger(WORKLOAD, **fields), 2, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf, restarted=True)
        )
    )


def role_state(phase: Phase, *stream: tuple[int, int], completed: int = 0, inside: bool = True) -> RoleState:
    return RoleState(phase, inside, stream, completed)


def came_back(worker: int, told: RoleState, role: str = "worker") -> Hello:
    return hello(worker, role=role, pid=100 + worker, role_state=told)


def test_a_restarted_chief_gives_no_units_before_it_knows_what_is_going_on(monkeypatch):
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), end=WORKLOAD)
    chief.service.register(came_back(0, role_state(phase, (0, 4))))
    assert lease(chief, phase, 0) == LeaseReply((), False), "no refusal: it is to go on with what it has"
    assert enter(chief, 0).phase is None
    monkeypatch.setattr(service, "POLL_SECS", 600.0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lease, chief, phase, 0, 4, 2)
        with chief.control.turn() as state:
            state.adopt(phase)
            state.open_leases()
        assert units_of(waiting.result(timeout=120))[:1] == [4], "it hears of the adoption at once"


@pytest.mark.parametrize(("spec", "broken"), [("asp", False), ("ssp", True)])
def test_a_worker_lost_beside_the_chief_breaks_a_phase_whose_rule_waits_for_it(spec, broken):
    chief = restarted_chief()
    phase = replace(phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD), spec=spec)
    chief.service.register(came_back(0, role_state(phase), role="server"))
    chief.service.register(came_back(0, role_state(phase, (0, 4))))
    with chief.control.turn() as state:
        state.adopt(phase)
    assert ("workers [1]" in chief.state.phase_members.broken) is broken


def test_an_adopted_phase_goes_on_with_the_streams_that_its_workers_have():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD)
    chief.service.register(came_back(0, role_state(phase), role="server"))
    chief.service.register(came_back(0, role_state(phase, (0, 4), completed=2)))
    chief.service.register(came_back(1, role_state(phase, (4, 7), (9, 10), completed=3)))
    with chief.control.turn() as state:
        state.adopt(phase)
        state.record_snapshot(snapshot_of(phase, (0, 2), (4, 7)), final=False)
        state.open_leases()
    assert chief.state.ledger.holders() == {"worker 0": 2, "worker 1": 1}
    assert units_of(lease(chief, phase, 0, known=0)) == [0, 1, 2, 3], "what it has it may ask for again"
    first = collect_more(chief, phase, 0, known=4)
    second = collect_more(chief, phase, 1, known=4)
    assert sorted(first + second) == [7, 8, *range(10, WORKLOAD)]
    assert first[0] == 7, "what nobody has goes out first"
    assert enter(chief, 0).phase == phase and chief.state.missing_back() == [0, 1]
    worker_died(chief, 1)
    assert chief.state.phase_members.broken == "" and chief.state.ledger.holders().keys() == {"worker 0"}
    chief.state.ledger.check()


def test_who_comes_back_after_a_phase_was_adopted_goes_on_with_its_stream_too():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD)
    chief.service.register(came_back(0, role_state(phase), role="server"))
    with chief.control.turn() as state:
        state.adopt(phase)
        state.open_leases()
    chief.service.register(hello(0, pid=100))  # late: from when its process was new
    with pytest.raises(NotRegistered, match=r"has 4 units of phase .* knows of 0"):
        lease(chief, phase, 0, known=4, completed=2)
    chief.service.register(came_back(0, role_state(phase, (0, 3), (7, 8), completed=2)))
    assert chief.state.missing_back() == [0] and chief.state.ledger.holders() == {"worker 0": 2}
    assert units_of(lease(chief, phase, 0, known=4, completed=2))[0] == 3, "what it has had is for others"
    chief.service.register(came_back(0, role_state(phase, (0, 3), completed=2)))  # an older word
    assert len(units_of(lease(chief, phase, 0, known=0))) > 4


def test_what_is_reported_while_the_state_of_an_adopted_phase_is_captured_counts():
    """The snapshot does not hold it, and nobody tells of it again."""
    chief = restarted_chief(issued=4, applied=[(2, 4)])  # of a commit that the phase did not begin from
    phase = phase_of(4, members=(0, 1), servers=(SERVER,), end=WORKLOAD)
    chief.service.register(came_back(0, role_state(phase), role="server"))
    with chief.control.turn() as state:
        state.adopt(phase)
    served(chief, phase, (1, 2))
    with chief.control.turn() as state:
        state.record_snapshot(snapshot_of(phase, (0, 1)), final=False)
    assert chief.state.ledger.applied().ranges() == ((0, 2),)


def collect_more(chief: Chief, phase: Phase, worker: int, known: int) -> list[int]:
    units: list[int] = []
    while new := units_of(lease(chief, phase, worker, known + len(units), known)):
        units += new
    return units


def test_what_a_worker_was_in_before_or_has_left_is_not_adopted():
    chief = restarted_chief()
    before, phase = (phase_of(phase_id, members=(0, 1), end=WORKLOAD) for phase_id in (3, 4))
    chief.service.register(came_back(0, role_state(before, (0, 4))))
    chief.service.register(came_back(1, role_state(phase, inside=False)))
    with chief.control.turn() as state:
        state.adopt(phase)
    assert chief.state.ledger.holders() == {} and chief.state.missing_back() == []
    assert enter(chief, 0, after=before.id).phase == phase


def test_role_states_are_those_of_the_living():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), end=WORKLOAD)
    told = role_state(phase, (0, 4))
    chief.service.register(came_back(0, told))
    chief.service.register(came_back(1, told))
    worker_died(chief, 1)
    assert chief.state.members.role_states() == {("worker", 0): told}
    assert chief.state.take_reports().joined == [], "they are no new processes"


def test_who_was_replaced_while_the_chief_was_away_leaves_no_role_state_to_its_successor():
    chief = restarted_chief()
    phase = phase_of(4, members=(0, 1), end=WORKLOAD)
    chief.service.register(came_back(1, role_state(phase, (0, 4))))
    chief.service.register(came_back(0, role_state(phase), role="server"))
    chief.service.register(hello(1, pid=500, restart_count=1))
    chief.service.register(hello(0, role="server", pid=501, restart_count=1))
    assert chief.state.members.role_states() == {}
    with chief.control.turn() as state:
        state.adopt(phase)
    assert chief.state.ledger.holders() == {} and chief.state.missing_back() == []


def test_a_restarted_chief_whose_run_had_not_begun_begins_it():
    chief = restarted_chief()
    for worker in range(2):
        chief.service.register(hello(worker, pid=100 + worker))
    with chief.control.turn() as state:
        state.adopt(None)
    phase = begin(chief, "bsp", number=2)
    assert enter(chief, 0).phase == phase and units_of(lease(chief, phase, 0))


def test_a_process_that_is_lost_while_the_chief_is_away_does_not_end_the_run():
    chief = restarted_chief()
    worker_died(chief, 1)
    chief.state.waits.raise_failure()


def test_a_server_lost_while_its_phase_is_taken_up_breaks_it():
    """Between the look at the state and the phase that goes on from it, nobody was told of any loss."""
    chief = restarted_chief()
    phase = phase_of(2, "asp", end=WORKLOAD, members=(0, 1), servers=(SERVER,))
    chief.service.register(replace(hello(0, role="server"), role_state=role_state(phase)))
    chief.service.role_lost(RoleEvent("server", 0, hello(0, role="server").pid, "signal SIGKILL", 0.0))
    with chief.control.turn() as state:
        state.adopt(phase)
    assert "a server was lost while the phase was taken up" in chief.state.phase_members.broken
