"""What is decided by coming is decided as by asking the rule: two sequencers through the same drawn calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync import protocols
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.base import Apply, Arrival, Release
from hybridsync.protocols.modes import SERVER
from hybridsync.server.held_pushes import Decision, Dropped
from hybridsync.server.sequencer import Sequencer

PHASE_IDS = (PhaseId(3, 7), PhaseId(4, 7))
CALLS = (*("push",) * 14, "join", "idle", "ready", "fence", "drain", "close", "enter")
NUM_UNITS = 24


def drawn(random: Random, sequence: int) -> tuple[str, Push, str]:
    """Draw a call: mostly an ordinary push, often of a unit that has an end."""
    what = random.choice(CALLS)
    if what in ("close", "enter", "fence") and random.random() < 0.8:
        what = "push"
    unit, odd = random.randrange(NUM_UNITS), random.choice(((), (1, 2), (3, 3), (-1,), (99,)))
    units = (unit,) if random.random() < 0.9 else odd
    phase_id = PHASE_IDS[random.random() < 0.1]
    worker, incarnation = random.choice((0, 0, 1, 1, 2, 2, 3)), 1 + (random.random() < 0.1)
    base = random.randint(max(0, sequence - 3), sequence)
    base = base if random.random() < 0.9 else random.choice((-1, sequence + 1))
    return what, Push(phase_id, worker, incarnation, units, base), "leaf w" if random.random() < 0.05 else ""


def offered(sequencer: Sequencer, push: Push, non_finite: str) -> Any:
    ticket, decisions = sequencer.submit(push, "gradient", non_finite)
    return [told(decided) for decided in decisions], ticket.reply


def by_fast_path(sequencer: Sequencer, push: Push, non_finite: str) -> Any:
    """Do as a server does."""
    decided = None if non_finite else sequencer.fast_path_update(push, "gradient")
    if decided is None:
        return offered(sequencer, push, non_finite)
    assert decided.contributions == ("gradient",)
    return [told(decided)], sequencer.count_fast_path(push)


def passes(sequencer: Sequencer, push: Push) -> bool:
    return sequencer.fast_path_update(push, "gradient") is not None


def told(decision: Decision) -> Any:
    """Return a decision without its contributions, which the sequencer forgets."""
    return decision if isinstance(decision, Dropped) else replace(decision, contributions=())


def phase_of(spec: str, phase_id: PhaseId) -> Phase:
    return Phase(phase_id, spec, (0, 1, 2), 0, NUM_UNITS - 2, ((1, 2),), ((4, 5),), 1, "", 1, "", (), "start")


def carried_out(sequencer: Sequencer, take: Callable[..., Any], what: str, push: Push, unfit: str, spec: str) -> Any:
    """Make a call; returns what its caller hears."""
    try:
        if what == "push":
            return take(sequencer, push, unfit)
        if what == "fence":
            return [told(decided) for decided in sequencer.fence(push.worker, push.incarnation)]
        if what == "drain":
            return sequencer.count.take_report()
        if what == "close":
            return sequencer.close()
        if what == "enter":
            return sequencer.enter(phase_of(spec, PHASE_IDS[1]))
        if what == "ready":
            return [told(decided) for decided in sequencer.ready(push, 1.0)]
        return [told(decided) for decided in getattr(sequencer, what)(push)]
    except HybridSyncError as error:
        return type(error), str(error)


@pytest.mark.parametrize("spec", ["asp", "asp(scaling=sqrt)", "asp(staleness_rule=dc)"])
def test_a_push_that_passes_is_decided_as_the_rule_decides(spec: str) -> None:
    num_fast = 0
    for seed in range(400):
        random, asked, quick = Random(seed), Sequencer(), Sequencer()
        for sequencer in (asked, quick):
            sequencer.enter(phase_of(spec, PHASE_IDS[0]))
        for _ in range(60):
            what, push, unfit = drawn(random, asked.sequence)
            num_fast += what == "push" and not unfit and passes(quick, push)
            ones = (asked, offered), (quick, by_fast_path)
            first, second = [carried_out(one, take, what, push, unfit, spec) for one, take in ones]
            assert first == second, (seed, what, push)
            for state in ("sequence", "open", "num_held", "phase"):
                assert getattr(asked, state) == getattr(quick, state), (seed, state)
            for state in ("complete", "applied", "dropped"):
                assert getattr(asked.count, state) == getattr(quick.count, state), (seed, state)
        assert asked.count.take_report() == quick.count.take_report()
    assert num_fast > 1000, "too few to say anything"


def test_the_pushes_of_a_known_process_pass_until_it_is_out_of_date_and_each_once() -> None:
    sequencer = Sequencer()
    sequencer.enter(phase_of("asp", PHASE_IDS[0]))

    def push(unit: int, incarnation: int = 1) -> Push:
        return Push(PHASE_IDS[0], 0, incarnation, (unit,), 1)

    assert not passes(sequencer, push(0)), "the rule has not heard of it"
    list(sequencer.submit(push(0), "", "")[1])
    assert [passes(sequencer, push(unit)) for unit in (0, 1, 2, 4, 99)] == [False, False, True, False, False]
    sequencer.count_fast_path(push(2))
    assert not passes(sequencer, push(2))
    assert not passes(sequencer, push(3, incarnation=2))
    list(sequencer.join(push(3, incarnation=2)))
    assert not passes(sequencer, push(3))
    list(sequencer.submit(push(3, incarnation=2), "", "")[1])
    assert passes(sequencer, push(5, incarnation=2))
    list(sequencer.fence(0, 2))
    assert not passes(sequencer, push(5, incarnation=2))


def test_nothing_passes_where_the_rule_has_to_be_asked() -> None:
    for spec in ("ssp", "gba", "psplus", "asp(staleness_rule=rate)", "asp(staleness_rule=cut)"):
        sequencer = Sequencer()
        sequencer.enter(phase_of(spec, PHASE_IDS[0]))
        list(sequencer.submit(Push(PHASE_IDS[0], 0, 1, (0,), 1), "", "")[1])
        assert not passes(sequencer, Push(PHASE_IDS[0], 0, 1, (2,), 1)), spec


def rules() -> list[str]:
    specs = [name for name in sorted(protocols.REGISTRY) if protocols.parse(name).mode is SERVER]
    return [*specs, "asp(scaling=sqrt)", "asp(staleness_rule=dc)", "asp(staleness_rule=cut)"]


@pytest.mark.parametrize("spec", rules())
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(("push", "push", "on_join", "on_leave", "on_idle")), st.integers(0, 2), st.integers(0, 5)
        )
    )
)
def test_a_rule_that_says_so_applies_every_push_at_once(spec: str, calls: list[tuple[str, int, int]]) -> None:
    rule = protocols.parse(spec).server_rule((0, 1, 2))
    if rule.at_once is None:
        return
    for number, (what, worker, staleness) in enumerate(calls, 1):
        if what == "push":
            actions = rule.on_push(Arrival(number, worker, (number,), staleness))
            assert actions == [Apply((number,), rule.at_once), Release(number)]
        else:
            assert getattr(rule, what)(worker) == []
        assert rule.on_last() == []
