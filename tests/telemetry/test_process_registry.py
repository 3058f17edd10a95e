"""What the end of a process means for the record."""

from __future__ import annotations

from typing import Any

from hybridsync.telemetry.process_registry import Loss, Roster


def started(pid: int, worker: int = 1) -> dict[str, Any]:
    return {"kind": "role_started", "role": "worker", "id": worker, "pid": pid}


def test_a_late_word_of_a_process_that_was_replaced_leaves_its_place_taken() -> None:
    roster = Roster([started(7), started(8)])
    assert roster.record_end(("worker", 1, 0, 7)) == Loss(is_news=True, leaves=False)
    assert roster.record_end(("worker", 1, 0, 8)) == Loss(is_news=True, leaves=True)


def test_a_loss_that_is_written_is_no_news() -> None:
    roster = Roster([started(7), {"kind": "role_lost", "role": "worker", "id": 1, "pid": 7}])
    assert roster.record_end(("worker", 1, 0, 7)) == Loss(is_news=False, leaves=False)


def test_a_process_that_never_took_part_leaves_no_place() -> None:
    assert Roster([started(7)]).record_end(("worker", 2, 0, 9)) == Loss(is_news=True, leaves=False)


def test_an_earlier_start_of_the_run_had_other_processes_with_the_same_numbers() -> None:
    lost = {"kind": "role_lost", "role": "worker", "id": 1, "pid": 7}
    roster = Roster([started(7), lost, {"kind": "run_started"}, started(7)])
    assert roster.record_end(("worker", 1, 0, 7)) == Loss(is_news=True, leaves=True)


def test_a_thread_that_comes_again_can_be_lost_again() -> None:
    roster = Roster([started(7)])
    for _ in range(2):
        assert roster.record_end(("worker", 1, 0, 7)) == Loss(is_news=True, leaves=True)
        roster.joined(("worker", 1, 0, 7))


def test_a_process_of_another_host_with_the_same_id_is_another_one() -> None:
    """A supervisor repeats to a new chief what the earlier one may not have written."""
    first, second = started(7), {**started(7), "restart_count": 1}
    roster = Roster([first, {**first, "kind": "role_lost"}, second])
    assert roster.record_end(("worker", 1, 0, 7)) == Loss(is_news=False, leaves=False)
    assert roster.present == [("worker", 1, 1, 7)]
