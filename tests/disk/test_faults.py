"""A disk that refuses or a process that dies, at every single call that changes a file."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.disk import oracle
from tests.disk.victim import KEEP

EVERY_CALL = pytest.param(1, id="every-call", marks=pytest.mark.soak)
SWEEPS = [pytest.param(9, id="slice"), EVERY_CALL]
REFUSALS = [pytest.param(18, id="slice"), EVERY_CALL]


def numbers(step: int, first: int = 1) -> Iterator[int]:
    """Count 1, 1 + step, ...: the numbers of the calls at which a fault comes."""
    return itertools.count(first, step)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", REFUSALS)
@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "full"])
def test_a_refusal_at_any_call_of_a_save_is_named_and_costs_no_earlier_step(victim, one_step, tmp_path, mode, step):
    outcomes: Counter[str] = Counter()
    at, answer = 0, {}
    first = 1 + ["ENOSPC", "EIO", "full"].index(mode)
    for at in numbers(step, first):
        folder = tmp_path / str(at)
        answer = victim.ask("save_with_fault", template=one_step, folder=folder, mode=mode, at=at)
        if answer["calls"] < at:
            break
        outcomes["refused" if answer["error"] else "saved"] += 1
        outcomes[f"found {answer['found']}"] += 1
    print(f"{mode}, every {step} of {answer['calls']} calls: {dict(outcomes)}")
    assert at > 100, "a save makes more calls than that"
    # Of eight calls, those that a save can do without may be half: which ones come varies with Orbax's threads.
    assert outcomes["refused"] > (outcomes["saved"] if step == 1 else 0)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", SWEEPS)
def test_a_kill_at_any_call_of_a_save_leaves_it_or_the_one_before(start_victim, one_step, tmp_path, step):
    victim, outcomes, at = start_victim(), Counter(), 0
    for at in numbers(step):
        folder = tmp_path / str(at)
        if not victim.ask("killed_save", template=one_step, folder=folder, at=at)["killed"]:
            break
        outcomes[oracle.check_survivor(folder, 1, 2, KEEP)] += 1
        oracle.check_saving_goes_on(folder, KEEP)
    print(f"killed at every {step} of {at - 1} calls, states found: {dict(outcomes)}")
    assert at > 100, "a save makes more calls than that"
    assert outcomes[1] > outcomes[2] > 0


@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "full"])
def test_a_refusal_at_any_call_of_a_fallback_is_named_and_loses_nothing(victim, one_step, tmp_path, mode):
    at = 0
    for at in numbers(1):
        answer = victim.ask("fall_back_with_fault", template=one_step, folder=tmp_path / str(at), mode=mode, at=at)
        if answer["calls"] < at:
            break
        assert answer["error"] or mode == "full"
    assert at > 7, "a folder, the reason, a rename, and each made durable"


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "full"])
def test_a_refusal_at_any_call_of_a_reservation_hands_no_phase_out(victim, tmp_path, mode, before):
    at = 0
    for at in numbers(1):
        answer = victim.ask("reserve_with_fault", folder=tmp_path / str(at), mode=mode, at=at, before=before)
        if answer["calls"] < at:
            break
        assert answer["error"] or mode == "full"
    assert at == 6, "create, write, fsync, rename, fsync of the directory"


@pytest.mark.parametrize("before", [0, 2])
def test_a_kill_at_any_call_of_a_reservation_hands_no_phase_out_twice(victim, tmp_path, before):
    at = 0
    for at in numbers(1):
        folder = tmp_path / str(at)
        if not victim.ask("killed_reserve", folder=folder, at=at, before=before)["killed"]:
            break
        oracle.check_phase_ids(folder, list(range(1, before + 1)))
    assert at == 6


@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "full"])
def test_a_refusal_at_any_call_of_taking_the_lock_is_named_and_leaves_it_free(victim, tmp_path, mode):
    at = 0
    for at in numbers(1):
        answer = victim.ask("lock_with_fault", folder=tmp_path / str(at), mode=mode, at=at)
        if answer["calls"] < at:
            break
        assert answer["error"] or mode == "full"
    assert at == 5, "open, truncate, write, fsync"


@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "full"])
def test_a_refusal_at_any_call_of_a_beat_costs_beats_and_not_the_lock(victim, tmp_path, mode):
    at = 0
    for at in numbers(1):
        answer = victim.ask("beat_with_fault", folder=tmp_path / str(at), mode=mode, at=at)
        if answer["calls"] < at:
            break
        assert answer["refused"] or mode == "full"
    assert at == 7, "open, write, fsync of each of two beats"


@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "full"])
def test_a_refusal_at_any_call_of_the_apply_log_loses_no_update(victim, tmp_path, mode):
    at = 0
    for at in numbers(1):
        if victim.ask("log_with_fault", folder=tmp_path / str(at), mode=mode, at=at)["calls"] < at:
            break
    assert at == 12, "open, write and fsync of each of three flushes; truncate and fsync of the cut"
