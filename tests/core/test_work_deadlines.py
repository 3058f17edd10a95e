"""What is overdue is decided by time alone, and a process that was stopped is not."""

from __future__ import annotations

import pytest

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import (
    COMPILE_SECS,
    LATE_TICKS,
    RECENT,
    TIMES,
    UNLIMITED,
    UNWATCHED,
    Judge,
    Overdue,
    Piece,
    UnitLimit,
)

FLOOR_SECS = 30.0


def judged(piece: Piece, looks: list[float]) -> list[Overdue]:
    """Return what is found at the last of these looks; at the earlier ones nothing may be."""
    judge, thread = Judge(FLOOR_SECS, 1.0, now=0.0), 7
    for now in looks[:-1]:
        assert judge.overdue(now, [(thread, piece)]) == []
    return judge.overdue(looks[-1], [(thread, piece)])


def every_second(until: int) -> list[float]:
    return [float(now) for now in range(1, until + 1)]


@pytest.mark.parametrize(
    ("limit_secs", "overdue_at"), [(0.5, 31), (30.0, 31), (45.0, 46), (COMPILE_SECS, 601), (transfer_secs(0), 61)]
)
def test_a_piece_is_overdue_past_its_limit_and_never_before_the_floor(limit_secs: float, overdue_at: int) -> None:
    assert judged(Piece("unit 17", limit_secs, 0.0), every_second(overdue_at - 1)) == []
    limit = max(FLOOR_SECS, limit_secs)
    (found,) = judged(Piece("unit 17", limit_secs, 0.0), every_second(overdue_at))
    assert found == (7, "unit 17", float(overdue_at), limit)
    assert str(found) == f"unit 17 has made no progress for {overdue_at:.1f} s, and its limit is {limit:g} s"


def test_a_wait_that_somebody_else_judges_is_never_overdue() -> None:
    assert judged(Piece("a lock-step step", UNLIMITED, 0.0), every_second(5000)) == []


def test_each_thread_is_judged_for_itself() -> None:
    judge = Judge(FLOOR_SECS, 1.0, now=0.0)
    pieces = [(1, Piece("a", 1.0, 0.0)), (2, Piece("b", 1.0, 25.0)), (3, Piece("c", 100.0, 0.0))]
    for now in every_second(30):
        assert judge.overdue(now, pieces) == []
    assert [each.name for each in judge.overdue(31.0, pieces)] == ["a"]


@pytest.mark.parametrize("stopped_secs", [LATE_TICKS + 0.1, 40.0, 100_000.0])
def test_a_process_that_was_stopped_is_counted_anew(stopped_secs: float) -> None:
    on = 20.0 + stopped_secs
    assert judged(Piece("unit 17", 1.0, 0.0), [*every_second(20), on]) == []
    assert judged(Piece("unit 17", 1.0, 0.0), [*every_second(20), on, *(on + s for s in every_second(30))]) == []
    (found,) = judged(Piece("unit 17", 1.0, 0.0), [*every_second(20), on, *(on + s for s in every_second(31))])
    assert found.secs == pytest.approx(31.0)


def test_looks_that_are_a_little_late_do_not_hide_a_hang() -> None:
    looks = [LATE_TICKS * look for look in range(1, 12)]
    (found,) = judged(Piece("unit 17", 1.0, 0.0), looks)
    assert found.secs == LATE_TICKS * 11


def test_the_limit_of_a_unit_follows_the_workers_own_slowest_recent_one() -> None:
    limit = UnitLimit()
    assert limit.secs == COMPILE_SECS, "the first one may compile"
    limit.record(60.0)
    assert limit.secs == TIMES * 60.0
    for _ in range(RECENT - 1):
        limit.record(0.2)
    assert limit.secs == TIMES * 60.0
    limit.record(0.3)
    assert limit.secs == pytest.approx(TIMES * 0.3), "the slow one is no longer recent"


def test_where_nobody_watches_pieces_are_nothing() -> None:
    with UNWATCHED.work("a", 0.0), UNWATCHED.work("b", 0.0):
        piece = UNWATCHED.begin("c", 0.0)
        UNWATCHED.progress()
        UNWATCHED.compiles()
        UNWATCHED.end(piece)
