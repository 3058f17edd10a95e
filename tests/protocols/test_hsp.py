"""The turns of HSP: one transfer at a time in each direction, and who computes stale meanwhile."""

from __future__ import annotations

import pytest

from hybridsync import protocols
from hybridsync.protocols.base import Action, Apply, Arrival, Grant, Release, ServerRule


def kinds(actions: list[Action]) -> list[str]:
    return [str(action) for action in actions]


def updated(spec: str = "hsp", members: tuple[int, ...] = (0, 1, 2)) -> ServerRule:
    """Return a rule behind its first update, whose answer to worker 0 is on its way."""
    rule = protocols.parse(spec).server_rule(members)
    actions: list[Action] = []
    for worker in members:
        assert Grant(worker) in rule.on_ready(worker, at=1.0)
        actions = rule.on_push(Arrival(worker, worker, (worker,), 0, 1.0))
    assert kinds(actions) == kinds([Apply(members, float(len(members))), Release(0)])
    return rule


def test_new_parameters_go_to_one_worker_at_a_time_in_the_order_of_their_gradients() -> None:
    rule = updated()
    assert rule.on_received(2, at=1.5) == [], "a word of somebody else, late or twice"
    assert rule.on_received(0, at=2.0) == [Release(1)]
    assert rule.on_received(0, at=2.1) == []
    assert rule.on_received(1, at=3.0) == [Release(2)]
    assert rule.on_received(2, at=4.0) == []


def test_gradients_pass_while_others_still_receive() -> None:
    rule = updated()
    rule.on_received(0, at=2.0)
    assert rule.on_ready(0, at=2.5) == [Grant(0)]
    assert rule.on_push(Arrival(5, 0, (5,), 0, 2.8)) == []
    assert rule.on_received(1, at=3.0) == [Release(2)]


@pytest.mark.parametrize("how", ["leaves", "joins again", "is idle", "is ready", "pushes"])
def test_whoever_does_not_say_that_it_has_received_keeps_nobody_waiting_for_good(how: str) -> None:
    rule = updated()
    does = {
        "leaves": lambda: rule.on_leave(0),
        "joins again": lambda: rule.on_join(0),
        "is idle": lambda: rule.on_idle(0),
        "is ready": lambda: rule.on_ready(0, at=2.0),
        "pushes": lambda: rule.on_push(Arrival(7, 0, (7,), 0, 2.0)),
    }
    assert Release(1) in does[how]()


def test_who_leaves_before_its_turn_is_passed_over() -> None:
    rule = updated()
    assert rule.on_leave(1) == []
    assert rule.on_received(0, at=2.0) == [Release(2)]


def test_at_the_end_of_a_phase_all_are_answered_at_once() -> None:
    rule = updated()
    assert rule.on_last() == [Release(1), Release(2)]
    assert rule.on_last() == []


def second_round(rho: float, compute_secs: float) -> list[Action]:
    """Return the answer to worker 0's second push: it computed 1 s, received in 1 s and waits for worker 1."""
    rule = protocols.parse(f"hsp(rho={rho},stale=1)").server_rule((0, 1))
    for worker in (0, 1):
        rule.on_ready(worker, at=1.0)
        rule.on_push(Arrival(worker, worker, (worker,), 0, 2.0))
    rule.on_received(0, at=3.0)
    rule.on_received(1, at=4.0)
    for worker in (0, 1):
        rule.on_ready(worker, at=3.0 + worker + compute_secs)
        actions = rule.on_push(Arrival(2 + worker, worker, (2 + worker,), 0, 4.0 + worker + compute_secs))
    assert Release(2) in actions
    rule.on_received(0, at=7.0 + compute_secs)
    rule.on_ready(0, at=7.0 + 2 * compute_secs)
    return rule.on_push(Arrival(4, 0, (4,), 0, 8.0 + 2 * compute_secs))


def test_a_worker_computes_stale_where_the_wait_is_rho_of_its_compute_time_with_the_turns_still_to_come() -> None:
    # From here worker 1 receives for 1 s, computes for 1 s and pushes for 1 s, and the answer takes 1 s.
    assert second_round(rho=3.9, compute_secs=1.0) == [Release(4)]
    assert second_round(rho=4.1, compute_secs=1.0) == []


def test_without_an_estimate_nobody_computes_stale() -> None:
    rule = protocols.parse("hsp(rho=0.0,stale=1)").server_rule((0, 1))
    rule.on_ready(0, at=1.0)
    assert rule.on_push(Arrival(1, 0, (1,), 0, 2.0)) == []
