"""Who hangs and is waited for: decided from what the members say of themselves."""

from __future__ import annotations

import pytest

from hybridsync.chief.phase_membership import Doing
from hybridsync.interfaces.reports import COMPUTING, WAITING
from hybridsync.phases.hung_members import hung
from hybridsync.protocols import REGISTRY
from hybridsync.protocols.modes import SERVER
from tests.roles import phase_of

OLDER, NOW = phase_of(1).id, phase_of(2).id
LIMIT = 2.0


def computing(secs, phase_id=NOW, usual_secs=0.1):
    return Doing(COMPUTING, secs, usual_secs, phase_id)


def waiting(secs, phase_id=NOW):
    return Doing(WAITING, secs, 0.1, phase_id)


IDLE = Doing(phase_id=NOW)


def found(spec, *doing):
    phase = phase_of(2, spec, members=tuple(range(len(doing))))
    return [*hung(phase, dict(enumerate(doing)), lambda usual_secs: max(LIMIT, 10 * usual_secs))]


@pytest.mark.parametrize(
    ("doing", "who"),
    [
        ((computing(2.1), waiting(2.1), IDLE), [0]),
        ((computing(2.1), waiting(2.0), IDLE), []),  # nobody has waited for as long yet
        ((computing(2.0), waiting(2.1), IDLE), []),  # it is within its limit
        ((computing(9.9, usual_secs=1.0), waiting(9.9), IDLE), []),  # it is slow
        ((computing(2.1), IDLE, IDLE), []),  # who has nothing to do does not wait for it
        ((computing(2.1), computing(0.1), computing(0.1)), []),  # the others go on
        ((waiting(99.0), waiting(99.0), IDLE), []),  # a held push is nobody's own time
        ((computing(2.1), computing(2.1), waiting(2.1)), [0, 1]),
        ((computing(2.1), computing(2.1)), [0, 1]),  # nobody is left who could wait
        ((computing(2.1, OLDER), waiting(2.1)), [0]),
        ((computing(2.1), waiting(99.0, OLDER)), []),  # what it waited for is past
        ((), []),
    ],
)
def test_a_worker_hangs_that_is_at_one_unit_beyond_its_limit_while_a_rule_makes_others_wait_as_long(doing, who):
    assert found("ssp", *doing) == who


@pytest.mark.parametrize("spec", [name for name, each in REGISTRY.items() if each.mode is SERVER])
def test_every_rule_that_lets_workers_wait_is_looked_after_and_no_other(spec):
    assert found(spec, computing(2.1), waiting(2.1), IDLE) == ([0] if REGISTRY[spec].awaits_workers else [])
    assert found(spec, computing(2.1), computing(2.1)) == [0, 1]


@pytest.mark.parametrize("spec", [name for name, each in REGISTRY.items() if each.mode is not SERVER])
def test_a_mesh_and_groups_wait_for_who_hangs_in_an_older_phase(spec):
    assert found(spec, computing(2.1, OLDER), IDLE, IDLE) == [0]
    assert found(spec, computing(1.9, OLDER), IDLE, IDLE) == []
    assert found(spec, computing(2.1), waiting(2.1), IDLE) == [], "its own steps and group rounds are watched elsewhere"
