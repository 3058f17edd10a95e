"""Who hangs and is waited for: one rule for all modes, decided from what the members say of themselves."""

from __future__ import annotations

import math

import pytest

from hybridsync.chief.membership import Doing
from hybridsync.config import HangConfig
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.reports import COMPILING, COMPUTING, READING, WAITING
from hybridsync.phases.hung_members import Judgement, judge, limit_of
from hybridsync.protocols import REGISTRY
from hybridsync.protocols.modes import SERVER
from tests.roles import phase_of

OLDER, NOW = phase_of(1).id, phase_of(2).id
LIMITS = HangConfig(compute_secs=2.0, read_secs=10.0, compile_secs=20.0, silent_secs=5.0)
ALL = sorted(REGISTRY)
WAITED_FOR = [name for name, each in REGISTRY.items() if each.mode is not SERVER or each.awaits_workers]


def at(what: str, secs: float, phase_id: PhaseId = NOW, usual_secs: float = 0.1) -> Doing:
    return Doing(what, secs, usual_secs, phase_id)


def computing(secs: float, phase_id: PhaseId = NOW, usual_secs: float = 0.1) -> Doing:
    return at(COMPUTING, secs, phase_id, usual_secs)


def waiting(secs: float, phase_id: PhaseId = NOW) -> Doing:
    return at(WAITING, secs, phase_id)


IDLE = Doing(phase_id=NOW)


def judged(spec: str, *doing: Doing, step_secs: float = math.inf) -> Judgement:
    phase = phase_of(2, spec, members=tuple(range(len(doing))))
    return judge(phase, dict(enumerate(doing)), LIMITS, step_secs=step_secs)


def found(spec: str, *doing: Doing) -> list[int]:
    return [*judged(spec, *doing).hung]


@pytest.mark.parametrize(
    ("doing", "who"),
    [
        ((computing(2.1), waiting(2.1), IDLE), [0]),
        ((computing(2.1), waiting(2.0), IDLE), []),  # nobody has waited for as long yet
        ((computing(2.0), waiting(2.1), IDLE), []),  # it is within its limit
        ((computing(9.9, usual_secs=1.0), waiting(9.9), IDLE), []),  # it is slow
        ((computing(19.9, usual_secs=0.0), waiting(19.9), IDLE), []),  # its first unit
        ((computing(2.1), IDLE, IDLE), []),  # who has nothing to do does not wait for it
        ((computing(2.1), computing(0.1), computing(0.1)), []),  # the others go on
        ((waiting(99.0), waiting(99.0), IDLE), []),  # a held push is nobody's own time
        ((computing(2.1), computing(2.1), waiting(2.1)), [0, 1]),
        ((computing(2.1), computing(2.1)), [0, 1]),  # nobody is left who could wait
        ((at(READING, 9.9), waiting(9.9)), []),  # data come late
        ((at(READING, 9.9), at(READING, 9.9)), []),  # of all
        ((at(READING, 10.1), waiting(10.1)), [0]),
        ((at(COMPILING, 19.9), waiting(19.9)), []),
        ((at(COMPILING, 20.1), waiting(20.1)), [0]),
        ((at("", 19.9), waiting(19.9)), []),  # an update of a large model, a state that is fetched
        ((at("", 20.1), waiting(20.1)), [0]),
        ((computing(2.1), at(READING, 9.9), waiting(9.9)), [0]),  # each by its own limit
        ((), []),
    ],
)
@pytest.mark.parametrize("spec", WAITED_FOR)
def test_a_member_hangs_that_is_at_one_thing_beyond_its_limit_while_another_waits_as_long(spec, doing, who):
    assert found(spec, *doing) == who


@pytest.mark.parametrize("spec", [name for name, each in REGISTRY.items() if each.mode is SERVER])
def test_every_rule_that_lets_workers_wait_is_looked_after_and_no_other(spec):
    assert found(spec, computing(2.1), waiting(2.1), IDLE) == ([0] if REGISTRY[spec].awaits_workers else [])
    assert found(spec, computing(2.1), waiting(99.0, OLDER)) == [], "what it waited for is past"
    assert found(spec, computing(2.1, OLDER), waiting(2.1)) == ([0] if REGISTRY[spec].awaits_workers else [])


@pytest.mark.parametrize("spec", [name for name, each in REGISTRY.items() if each.mode is not SERVER])
def test_a_mesh_and_groups_wait_for_who_hangs_in_an_older_phase(spec):
    assert found(spec, computing(2.1, OLDER), IDLE, IDLE) == [0]
    assert found(spec, computing(1.9, OLDER), IDLE, IDLE) == []
    assert found(spec, at(READING, 9.9, OLDER), IDLE, IDLE) == []


@pytest.mark.parametrize("spec", ALL)
def test_only_a_phase_without_servers_stands_still_when_all_members_wait_and_nobody_is_blamed(spec):
    served = REGISTRY[spec].mode is SERVER
    whole = judged(spec, waiting(3.1), waiting(4.0), step_secs=3.0)
    assert (whole.hung, whole.stands_still) == ({}, not served)
    for other in (waiting(2.9), computing(0.1), at(READING, 9.0), at(COMPILING, 9.0), IDLE):
        assert not judged(spec, waiting(99.0), other, step_secs=3.0).stands_still


def test_the_user_hears_of_a_member_before_it_is_given_up():
    assert judged("bsp", at(READING, 5.1), waiting(5.1)).slow == {0: 10.0}
    assert judged("bsp", at(READING, 4.9), waiting(4.9)).slow == {}
    assert judged("bsp", computing(2.1), waiting(2.1)).slow == {}, "it is given up"
    long = judge(phase_of(2, "bsp", members=(0,)), {0: at(READING, 30.1)}, HangConfig())
    assert (long.hung, long.slow) == ({}, {0: 600.0}), "half a minute is long enough to be told of"


@pytest.mark.parametrize("what", [READING, COMPILING, COMPUTING, ""])
def test_by_default_every_limit_outlasts_a_pause_of_half_a_minute(what):
    assert limit_of(at(what, 0.0), HangConfig())[0] > 45.0 and HangConfig().silent_secs > 45.0
