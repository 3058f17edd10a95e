"""Who may take a workdir's lock when, by a clock that the tests move."""

from __future__ import annotations

import dataclasses
import random

import pytest

from hybridsync.storage.lock_record import BEAT_SECS, MISSED_BEATS, Decision, LockRecord, Look, Watch
from tests.telemetry.clocks import ManualClock

SILENT_SECS = MISSED_BEATS * BEAT_SECS
HOLDER = LockRecord(7, "there", 1234, "boot-2", "5eed")
LOOK_SECS = 0.5


def beat(count: int) -> bytes:
    return f"{HOLDER.nonce} {count}".encode()


def watched(clock: ManualClock, looks: dict[float, Look]) -> tuple[Decision, float]:
    """Watch from 0 on, at each look with the newest of `looks`, seconds -> what is on the disk from then on.

    Returns:
      The decision, and after how many seconds.
    """
    began = clock.monotonic()
    watch = Watch(looks[0.0], began)
    while True:
        now = clock.monotonic()
        newest = looks[max(since for since in looks if since <= now - began)]
        decision = watch.decide(newest, now)
        if decision is not Decision.WAIT:
            return decision, now - began
        clock.advance(LOOK_SECS)


@pytest.mark.parametrize("silent", [b"", beat(0), beat(41)])
def test_a_silent_holder_is_taken_from_after_three_beats_and_not_before(silent: bytes) -> None:
    assert watched(ManualClock(), {0.0: Look(HOLDER, silent)}) == (Decision.TAKE, SILENT_SECS)


@pytest.mark.parametrize("at", [0.5, BEAT_SECS, SILENT_SECS - 0.5, SILENT_SECS])
def test_one_beat_is_enough_to_be_refused_even_at_the_last_look(at: float) -> None:
    looks = {0.0: Look(HOLDER, beat(4)), at: Look(HOLDER, beat(5))}
    assert watched(ManualClock(), looks) == (Decision.REFUSE, at)


def test_a_beat_that_moves_backwards_is_a_beat() -> None:
    looks = {0.0: Look(HOLDER, beat(4)), 3.0: Look(HOLDER, beat(0))}
    assert watched(ManualClock(), looks) == (Decision.REFUSE, 3.0)


def test_a_first_beat_is_a_beat() -> None:
    looks = {0.0: Look(HOLDER, b""), 3.0: Look(HOLDER, beat(0))}
    assert watched(ManualClock(), looks) == (Decision.REFUSE, 3.0)


def test_a_lock_that_is_given_back_meanwhile_is_taken_at_once() -> None:
    looks = {0.0: Look(HOLDER, beat(4)), 2.0: Look(None, b"")}
    assert watched(ManualClock(), looks) == (Decision.TAKE, 2.0)


def test_a_lock_that_somebody_else_takes_meanwhile_is_theirs() -> None:
    third = dataclasses.replace(HOLDER, host="elsewhere", nonce="7a11")
    looks = {0.0: Look(HOLDER, beat(4)), 14.5: Look(third, beat(4))}
    assert watched(ManualClock(), looks) == (Decision.REFUSE, 14.5)


def test_the_same_process_that_took_the_lock_anew_is_alive() -> None:
    again = dataclasses.replace(HOLDER, nonce="7a11")
    looks = {0.0: Look(HOLDER, beat(4)), 1.0: Look(again, beat(4))}
    assert watched(ManualClock(), looks) == (Decision.REFUSE, 1.0)


def test_a_taker_that_stood_still_looks_before_it_takes() -> None:
    clock = ManualClock()
    watch = Watch(Look(HOLDER, beat(4)), clock.monotonic())
    clock.advance(3600.0)
    assert watch.decide(Look(HOLDER, beat(700)), clock.monotonic()) is Decision.REFUSE


@pytest.mark.parametrize("seed", range(50))
def test_no_holder_that_beats_is_ever_taken_from_however_late_two_beats_in_a_row_are(seed: int) -> None:
    rng, looks = random.Random(seed), {}
    now = -rng.uniform(0.0, 30.0)  # the holder began before the taker
    for count in range(20):
        looks[max(0.0, now)] = Look(HOLDER, beat(count))
        now += rng.uniform(BEAT_SECS, SILENT_SECS - 2 * LOOK_SECS)
    decision, secs = watched(ManualClock(), looks)
    assert decision is Decision.REFUSE and secs < SILENT_SECS


@pytest.mark.parametrize(
    ("boot", "elsewhere"), [("boot-1", False), ("boot-2", True), ("", False)], ids=["ours", "another", "older version"]
)
def test_a_kernel_knows_the_holders_of_its_own_boot_alone(boot: str, elsewhere: bool) -> None:
    assert dataclasses.replace(HOLDER, boot=boot).is_of_another_boot("boot-1") == elsewhere


def test_a_record_is_read_as_it_was_written() -> None:
    assert LockRecord.parse(HOLDER.text().encode()) == HOLDER
    assert str(HOLDER) == "process 7 on there"


def test_a_record_of_an_older_version_has_neither_boot_nor_nonce() -> None:
    assert LockRecord.parse(b'{"pid": 7, "host": "there", "started": 12}') == LockRecord(7, "there", 12)


@pytest.mark.parametrize("content", [b"", b"7", b"[]", b'{"pid": 7}', b'{"pid": "x", "host": "h"}', b"\xff", b'{"pid"'])
def test_what_names_nobody_is_no_record(content: bytes) -> None:
    assert LockRecord.parse(content) is None
