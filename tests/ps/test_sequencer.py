"""The order of decisions, without a state: what is told of it, and when."""

from __future__ import annotations

from hybridsync.ps.sequencer import Sequencer
from tests.roles import phase_of, push_of


def test_what_a_phase_had_not_told_is_not_told_of_the_next_ones_state():
    """The next phase may begin from an older state: its chief would count units that nobody holds any more."""
    sequencer, phase = Sequencer(), phase_of(1, "asp")
    sequencer.enter(phase)
    for unit, unfit in ((0, ""), (1, "leaf w")):
        _, decisions = sequencer.offer(push_of(phase, unit), "gradient", unfit)
        list(decisions)
    sequencer.enter(phase_of(2, "asp"))
    applied, dropped, _ = sequencer.drain()
    assert (applied, dropped) == ((), ())
