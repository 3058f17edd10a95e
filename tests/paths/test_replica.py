"""A lock-step replica: whole steps, applied once, handed over bit for bit."""

from __future__ import annotations

import threading

import pytest

from hybridsync.applylog import FileApplyLog, NullApplyLog, read
from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.errors import HybridSyncError, StaleEpoch
from hybridsync.layout import fingerprint
from hybridsync.paths.replica import Replica
from tests.roles import Start, counts, gradient_of, phase_of, tally_programs

MEMBERS = (1, 0)


@pytest.fixture
def start() -> Start:
    return Start()


def replica_of(start: Start, apply_log=None) -> Replica:
    replica = Replica(tally_programs(), start.reader_at, SYSTEM_CLOCK, apply_log or NullApplyLog())
    start.roles["replica"] = replica
    return replica


def step(replica: Replica, number: int) -> None:
    units = (2 * number, 2 * number + 1)
    total = tally_programs().total(tuple(gradient_of(unit) for unit in units))
    replica.update(number, units, total, 2.0)


def state_in(replica: Replica, capture):
    buffer = tally_programs().state_layout.empty()
    replica.read(capture.capture_id, buffer)
    return tally_programs().state_layout.unpack(buffer)


def test_members_that_share_a_replica_apply_each_step_once(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", members=MEMBERS, capture=start.capture)
    for worker in MEMBERS:
        replica.enter(phase, worker)
    for number in range(3):
        step(replica, number)
        step(replica, number)
    capture = replica.capture(phase.epoch, final=True)
    assert counts(state_in(replica, capture))[:8] == [1] * 6 + [0] * 2
    assert (capture.held.units, capture.held.sequence, capture.applied) == (6, 3, ((0, 6),))


def test_a_step_cannot_be_left_out(start):
    replica = replica_of(start)
    replica.enter(phase_of(1, "bsp", capture=start.capture), 0)
    with pytest.raises(AssertionError):
        step(replica, 1)


def test_leaving_tells_what_is_held_as_the_capture_does(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", capture=start.capture)
    replica.enter(phase, 0)
    step(replica, 0)
    held = replica.leave()
    assert held == replica.capture(phase.epoch, final=True).held
    first, last = replica.stamps()
    assert 0 < first <= last


def test_the_next_lock_step_phase_keeps_the_state_where_it_is(start):
    replica = replica_of(start)
    first = phase_of(1, "bsp", capture=start.capture)
    replica.enter(first, 0)
    step(replica, 0)
    replica.leave()
    capture = replica.capture(first.epoch, final=True)
    start.roles.clear()  # nobody can be asked
    second = phase_of(2, "bsp", capture=capture, source="nobody")
    replica.enter(second, 0)
    step(replica, 0)
    assert replica.capture(second.epoch, final=True).held.units == 2


def test_another_state_is_taken_over_from_its_holder(start):
    trained, fresh = replica_of(start), replica_of(start)
    first = phase_of(1, "bsp", capture=start.capture)
    trained.enter(first, 0)
    step(trained, 0)
    capture = trained.capture(first.epoch, final=True)
    start.roles["trained"] = trained
    fresh.enter(first, 0)
    second = phase_of(2, "bsp", capture=capture, source="trained")
    fresh.enter(second, 0)
    assert fresh.leave().fingerprint == capture.held.fingerprint == fingerprint(state_in(trained, capture))


def test_a_state_that_changed_on_its_way_is_refused_with_both_fingerprints(start):
    class Damaged:
        def read(self, capture_id, into):
            start.holding.read(capture_id, into)
            into[0] ^= 1

    start.roles["damaged"] = Damaged()
    with pytest.raises(HybridSyncError, match=start.capture.held.fingerprint):
        replica_of(start).enter(phase_of(1, "bsp", capture=start.capture, source="damaged"), 0)


def test_another_epoch_cannot_be_captured(start):
    replica = replica_of(start)
    with pytest.raises(StaleEpoch, match="epoch 0"):
        replica.capture(phase_of(1).epoch, final=False)
    replica.enter(phase_of(1, "bsp", capture=start.capture), 0)
    with pytest.raises(StaleEpoch, match=r"epoch 2 .* epoch 1"):
        replica.capture(phase_of(2).epoch, final=False)


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_shared_replica_logs_every_update_whoever_enters_first(start, tmp_path, order):
    replica = replica_of(start, FileApplyLog(tmp_path / "log"))
    phase = phase_of(1, "bsp", members=MEMBERS, capture=start.capture)
    for worker in order:
        replica.enter(phase, worker)
    for number in range(2):
        step(replica, number)
    replica.capture(phase.epoch, final=True)
    entries = list(read(tmp_path / "log"))
    assert [(e.sequence, e.base, e.units, e.rate, e.weight, e.blend) for e in entries] == [
        (1, 0, (0, 1), 2.0, 2.0, 1.0),
        (2, 1, (2, 3), 2.0, 2.0, 1.0),
    ]


def test_a_replica_that_is_not_the_meshs_first_logs_nothing(start, tmp_path):
    replica = replica_of(start, FileApplyLog(tmp_path / "log"))
    phase = phase_of(1, "bsp", members=MEMBERS, capture=start.capture)
    replica.enter(phase, 0)
    step(replica, 0)
    replica.capture(phase.epoch, final=True)
    assert not (tmp_path / "log").exists()


def test_a_capture_among_steps_holds_whole_steps(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", capture=start.capture)
    replica.enter(phase, 0)
    trainer = threading.Thread(target=lambda: [step(replica, number) for number in range(20)])
    trainer.start()
    for _ in range(5):
        capture = replica.capture(phase.epoch, final=False)
        state = state_in(replica, capture)
        assert capture.held.units == 2 * capture.held.sequence == int(state.counters["units"]) == sum(counts(state))
    trainer.join(20)
