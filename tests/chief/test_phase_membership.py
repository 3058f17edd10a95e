"""Who is in a phase, how far each is, who has come back."""

from __future__ import annotations

from hybridsync.chief.phase_membership import PhaseMembership
from hybridsync.interfaces.messages import StateVersion
from hybridsync.interfaces.reports import Report
from tests.roles import phase_of

PHASE_ID = phase_of(1).id
LIVE = (0, 1, 2)


def report(worker: int, completed: int = 0, **fields) -> Report:
    return Report("worker", worker, 1, PHASE_ID, completed=completed, **fields)


def note(here: PhaseMembership, told: Report) -> None:
    here.record_heartbeat(told, (told.first_applied, told.last_applied))
    if told.role == "worker":
        here.record_activity(told)


def test_who_entered_is_missing_until_it_is_back_or_gone():
    here = PhaseMembership(admitted={0: 1, 1: 1})
    assert here.missing(LIVE) == [0, 1], "worker 2 never entered"
    here.back[0] = None
    assert here.missing(LIVE) == [1]
    assert here.missing((0, 2)) == [], "worker 1 is gone"


def test_a_worker_that_is_lost_is_forgotten_with_what_it_held():
    here = PhaseMembership(admitted={0: 1, 1: 1}, back={1: StateVersion(PHASE_ID, 4, 2, "f00d")})
    note(here, report(1, 4, doing="average"))
    here.remove_worker(1)
    assert here.positions == {} and here.doing == {} and here.admitted == {0: 1}
    assert here.back == {1: None}, "it has done its part, but what it held is gone"


def test_a_worker_that_is_lost_before_it_came_back_never_comes_back():
    here = PhaseMembership(admitted={1: 1})
    here.remove_worker(1)
    assert here.back == {} and here.missing(LIVE) == []


def test_the_workers_with_the_fewest_units_done_are_behind():
    here = PhaseMembership()
    for worker, completed in [(0, 6), (1, 4), (2, 6)]:
        note(here, report(worker, completed))
    assert here.behind(LIVE) == [1]
    assert here.behind((0, 1, 2, 3)) == [3], "who said nothing has done nothing"
    assert here.behind(()) == []


def test_the_first_and_the_last_update_are_those_of_any_role():
    here = PhaseMembership()
    assert here.first_and_last() == (0.0, 0.0)
    note(here, report(0, first_applied=7.0, last_applied=7.5))
    note(here, report(1))
    note(here, Report("server", 0, 1, PHASE_ID, first_applied=5.0, last_applied=9.0))
    assert here.first_and_last() == (5.0, 9.0)
    note(here, Report("server", 0, 1, PHASE_ID, first_applied=5.0, last_applied=11.0))
    assert here.first_and_last() == (5.0, 11.0), "a later word takes the earlier one's place"


def test_what_a_server_reports_is_no_workers_position():
    here = PhaseMembership()
    note(here, Report("server", 0, 1, PHASE_ID, completed=9))
    assert here.positions == {} and here.doing == {}
