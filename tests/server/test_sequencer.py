"""Who a rule hears of: processes that come, go, have nothing to do, or wait to push; pure, one call after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridsync.core.errors import InvalidMessage
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.phase import Phase
from hybridsync.server.held_pushes import Decided, Decision, Ticket
from hybridsync.server.sequencer import Sequencer

PHASE_ID = PhaseId(3, 7)


def serving(spec: str, *, members: tuple[int, ...] = (0, 1, 2), end: int = 100) -> Sequencer:
    sequencer = Sequencer()
    sequencer.enter(Phase(PHASE_ID, spec, members, 0, end, (), (), 0, "", 1, "", (), "start"))
    return sequencer


def message(worker: int, *units: int, base: int = 0, incarnation: int = 1) -> Push:
    return Push(PHASE_ID, worker, incarnation, units, base)


def units_of(decisions: Iterator[Decision]) -> list[tuple[int, ...]]:
    return [decision.units for decision in decisions if isinstance(decision, Decided)]


def pushed(sequencer: Sequencer, worker: int, unit: int, **fields: int) -> tuple[Ticket, list[tuple[int, ...]]]:
    ticket, decisions = sequencer.submit(message(worker, unit, **fields), f"gradient {unit}", "")
    return ticket, units_of(decisions)


def test_an_update_waits_for_every_member_whether_it_has_called_yet_or_not():
    sequencer = serving("bsp_server")
    assert pushed(sequencer, 1, 4)[1] == pushed(sequencer, 0, 5)[1] == []
    assert pushed(sequencer, 2, 6)[1] == [(5, 4, 6)], "in the order of the members"


def test_nobody_waits_for_a_worker_without_units_until_it_pushes_again():
    sequencer = serving("bsp_server")
    pushed(sequencer, 0, 4)
    pushed(sequencer, 1, 5)
    assert units_of(sequencer.idle(message(2))) == [(4, 5)]
    ticket, updates = pushed(sequencer, 2, 6)
    assert (updates, ticket.reply and ticket.reply.dropped[:5]) == ([], "stale"), "its parameters were of before"
    pushed(sequencer, 0, 7, base=1)
    assert pushed(sequencer, 1, 8, base=1)[1] == [], "it is waited for again"
    assert pushed(sequencer, 2, 9, base=1)[1] == [(7, 8, 9)]


def test_a_late_word_of_idleness_of_a_worker_that_waits_for_its_reply_counts_for_nothing():
    sequencer = serving("bsp_server")
    pushed(sequencer, 0, 4)
    assert units_of(sequencer.idle(message(0))) == []
    pushed(sequencer, 1, 5)
    assert pushed(sequencer, 2, 6)[1] == [(4, 5, 6)]


def test_a_late_pull_of_before_does_not_end_the_idleness_of_a_worker_that_steps_by_itself():
    sequencer = serving("psplus(staleness=0)", members=(0, 1))
    list(sequencer.join(message(0)))
    assert units_of(sequencer.idle(message(0))) == []
    list(sequencer.join(message(0)))  # a copy of what it asked before it was idle
    ticket, _ = pushed(sequencer, 1, 4)
    assert ticket.reply is not None, "nobody waits for it"
    list(sequencer.join(message(0)._replace(restart_count=1)))
    ticket, _ = pushed(sequencer, 1, 5, base=1)
    assert ticket.reply is None, "it has begun anew"


@pytest.mark.parametrize("was_idle", [True, False])
def test_a_late_word_of_idleness_does_not_take_away_a_worker_that_has_begun_anew(was_idle: bool):
    sequencer = serving("psplus(staleness=0)", members=(0, 1))
    list(sequencer.join(message(0)))
    if was_idle:
        list(sequencer.idle(message(0)))
    list(sequencer.join(message(0)._replace(restart_count=1)))
    assert units_of(sequencer.idle(message(0))) == []
    ticket, _ = pushed(sequencer, 1, 4)
    assert ticket.reply is None, "worker 0 is waited for"


@pytest.mark.parametrize("newest", [-1, 1])
def test_a_push_that_knew_a_version_which_does_not_exist_is_refused_where_the_log_tells_of_it(newest):
    with pytest.raises(InvalidMessage, match=f"worker 0 pushes knowing sequence {newest}, .* sequences 0 to 0"):
        serving("psplus").submit(message(0, 4)._replace(newest=newest), "gradient 4", "")


def test_who_is_absent_from_the_start_is_not_waited_for_and_who_comes_is():
    sequencer = serving("bsp_server")
    assert units_of(sequencer.fence(2, 0)) == []
    pushed(sequencer, 0, 4)
    assert units_of(sequencer.join(message(2))) == []
    assert pushed(sequencer, 1, 5)[1] == []
    assert pushed(sequencer, 2, 6)[1] == [(4, 5, 6)]


def test_a_process_that_takes_anothers_place_ends_what_that_one_held_and_its_late_end_touches_nobody():
    sequencer = serving("bsp_server")
    old, _ = pushed(sequencer, 0, 4)
    assert units_of(sequencer.join(message(0, incarnation=2))) == []
    assert old.fenced
    pushed(sequencer, 0, 7, incarnation=2)
    assert units_of(sequencer.fence(0, 1)) == [], "the chief's word of the first one's end comes late"
    pushed(sequencer, 1, 5)
    assert pushed(sequencer, 2, 6)[1] == [(7, 5, 6)]


def test_what_is_held_goes_ahead_when_nobody_can_push_anything_else():
    sequencer = serving("gba(batch=3)", end=5)
    for unit in range(3):
        pushed(sequencer, unit, unit)
    assert sequencer.sequence == 1
    assert pushed(sequencer, 0, 3, base=1)[1] == []
    assert pushed(sequencer, 1, 4, base=1)[1] == [(3, 4)]
    assert sequencer.count.complete


def test_nobody_waits_for_whoever_waits_for_the_fate_of_anothers_unit():
    sequencer = serving("bsp_server", members=(0, 1))
    pushed(sequencer, 0, 4)
    ticket, updates = pushed(sequencer, 1, 4)
    assert (ticket.push.worker, updates) == (0, [(4,)])


def test_a_push_that_is_answered_before_its_update_is_outstanding_until_then():
    sequencer = serving("gba")
    ticket, updates = pushed(sequencer, 0, 4)
    assert ticket.reply is not None and updates == []
    assert sequencer.holds(4) and 4 not in sequencer.count.applied
    list(sequencer.fence(0, 1))
    assert not sequencer.holds(4)
    for worker, unit in ((1, 5), (2, 6), (1, 7)):
        updates = pushed(sequencer, worker, unit)[1]
    assert updates == [(5, 6, 7)], "a lost worker's gradient is in no update: its units go out again"


def test_transfers_are_granted_one_at_a_time_in_the_order_of_readiness_and_a_repeat_has_the_first_ones_grant():
    sequencer = serving("hsp")
    first, second = message(2, 4), message(0, 5)
    for ready in (first, second, first, second):
        assert units_of(sequencer.ready(ready, at=1.0)) == []
    assert (sequencer.is_ungranted(first), sequencer.is_ungranted(second)) == (False, True)
    pushed(sequencer, 2, 4)
    assert not sequencer.is_ungranted(second)


def test_a_word_of_receipt_moves_the_turns_on_and_takes_no_grant_of_the_workers_own():
    sequencer = serving("hsp", members=(0, 1))
    first, _ = pushed(sequencer, 0, 4)
    second, _ = pushed(sequencer, 1, 5)
    assert (first.reply is not None, second.reply) == (True, None), "one answer is on its way"
    assert units_of(sequencer.ready(message(0, base=1), at=2.0)) == []
    assert second.reply is not None
    assert not sequencer.is_ungranted(message(0, base=1))
    list(sequencer.idle(message(0)))
    assert pushed(sequencer, 1, 6, base=1)[1] == [(6,)], "who has received may say that it is idle"


@pytest.mark.parametrize("how", ["is lost", "has nothing to do", "brings nothing finite", "comes too late"])
def test_a_granted_transfer_that_does_not_come_is_the_next_ones_turn(how):
    sequencer = serving("hsp", members=(0, 1, 2, 3))
    granted, following = message(2, 4), message(0, 5)
    list(sequencer.ready(granted, at=1.0))
    list(sequencer.ready(following, at=1.0))
    if how == "is lost":
        list(sequencer.fence(2, 1))
    elif how == "has nothing to do":
        pushed(sequencer, 3, 4)
        pushed(sequencer, 2, 4)
    elif how == "brings nothing finite":
        list(sequencer.submit(granted, "gradient", "leaf w")[1])
    else:
        list(sequencer.submit(message(3, 4), "gradient", "leaf w")[1])
        list(sequencer.submit(granted, "gradient", "")[1])
    assert not sequencer.is_ungranted(following)


def test_an_update_of_several_versions_names_each_pushs_own():
    sequencer = serving("gba(batch=2)", members=(0, 1))
    decided = []
    for worker, unit, base in ((0, 0, 0), (0, 1, 0), (1, 2, 0), (0, 3, 1)):
        decided += sequencer.submit(message(worker, unit, base=base), "gradient", "")[1]
    assert [tuple(part) for part in decided[1].parts] == [((2,), 0, 1.0), ((3,), 1, 1.0)]
    assert decided[0].parts == ()
    assert decided[1].base == 0


def test_what_a_phase_had_not_told_is_not_told_of_the_next_ones_state():
    """The next phase may begin from an older state: its chief would count units that nobody holds any more."""
    sequencer = serving("asp")
    for unit, unfit in ((0, ""), (1, "leaf w")):
        list(sequencer.submit(message(0, unit), "gradient", unfit)[1])
    sequencer.enter(Phase(PhaseId(4, 7), "asp", (0, 1, 2), 0, 100, (), (), 0, "", 1, "", (), "death"))
    applied, dropped, _ = sequencer.count.take_report()
    assert (applied, dropped) == ((), ())


def test_a_unit_in_a_push_that_was_answered_and_is_still_held_keeps_nobody_waiting():
    """Its update may need pushes of those who would wait."""
    sequencer = serving("gba(batch=3)", members=(0, 1))
    pushed(sequencer, 0, 4)
    ticket, updates = pushed(sequencer, 1, 4)
    assert (ticket.reply and ticket.reply.duplicate, updates) == (True, [])
    pushed(sequencer, 1, 5)
    assert pushed(sequencer, 0, 6)[1] == [(4, 5, 6)]
