"""Captured states: readable until the next, handed over bit for bit or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hybridsync.core.errors import HybridSyncError, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.snapshot import CommittedState, SnapshotBuffer, fetch
from hybridsync.training.state import TrainState

PHASE_ID = PhaseId(4, 9)


def state_of(value: float) -> TrainState:
    params = {"w": np.full((300,), value, np.float32), "b": np.float32(value)}
    return TrainState(params, {"m": np.full((7,), value, np.float16)}, {}, {}, {"units": np.int32(value)})


@pytest.fixture
def snapshot_buffer() -> SnapshotBuffer:
    return SnapshotBuffer(Layout.of(state_of(0)))


def read_back(holder: SnapshotBuffer | CommittedState, snapshot: Snapshot) -> TrainState:
    layout = Layout.of(state_of(0))
    return fetch("here", snapshot.snapshot_id, snapshot.held.fingerprint, layout, lambda address: holder)


def test_a_snapshot_names_what_it_holds(snapshot_buffer):
    snapshot_buffer.pack(state_of(3))
    snapshot = snapshot_buffer.finalize(
        PHASE_ID, sequence=5, applied=[(0, 2), (4, 5)], dropped=[(2, 3)], last_applied=8.5
    )
    assert (snapshot.held.phase_id, snapshot.held.units, snapshot.held.sequence) == (PHASE_ID, 3, 5)
    assert snapshot.held.fingerprint == fingerprint(state_of(3))
    assert (snapshot.applied, snapshot.dropped, snapshot.last_applied) == (((0, 2), (4, 5)), ((2, 3),), 8.5)
    assert fingerprint(read_back(snapshot_buffer, snapshot)) == snapshot.held.fingerprint


def test_a_snapshot_does_not_follow_the_state_it_was_taken_of(snapshot_buffer):
    state = state_of(3)
    snapshot_buffer.pack(state)
    snapshot = snapshot_buffer.finalize(PHASE_ID, sequence=1, applied=[(0, 1)])
    state.params["w"][:] = 8
    assert fingerprint(read_back(snapshot_buffer, snapshot)) == snapshot.held.fingerprint == fingerprint(state_of(3))


def test_an_older_snapshot_is_refused_as_soon_as_a_new_one_is_being_taken(snapshot_buffer):
    buffer = Layout.of(state_of(0)).empty()
    with pytest.raises(StalePhase, match="kept: none"):
        snapshot_buffer.read(1, buffer)
    snapshot_buffer.pack(state_of(1))
    first = snapshot_buffer.finalize(PHASE_ID, sequence=1, applied=[(0, 1)])
    snapshot_buffer.pack(state_of(2))
    with pytest.raises(StalePhase, match=rf"snapshot {first.snapshot_id} .*kept: none"):
        snapshot_buffer.read(first.snapshot_id, buffer)
    second = snapshot_buffer.finalize(PHASE_ID, sequence=2, applied=[(0, 2)])
    with pytest.raises(StalePhase, match=f"kept: {second.snapshot_id}"):
        snapshot_buffer.read(first.snapshot_id, buffer)


def test_readers_and_captures_at_once_never_mix_two_states(snapshot_buffer):
    layout = Layout.of(state_of(0))
    snapshot_buffer.pack(state_of(0))
    snapshots = [snapshot_buffer.finalize(PHASE_ID, sequence=0, applied=())]
    stop = threading.Event()

    def read() -> int:
        num_read, buffer = 0, layout.empty()
        while not stop.is_set():
            snapshot = snapshots[-1]
            try:
                snapshot_buffer.read(snapshot.snapshot_id, buffer)
            except StalePhase:
                continue
            assert fingerprint(layout.unpack(buffer)) == snapshot.held.fingerprint
            num_read += 1
        return num_read

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        for value in range(1, 60):
            snapshot_buffer.pack(state_of(value))
            snapshots.append(snapshot_buffer.finalize(PHASE_ID, sequence=value, applied=[(0, value)]))
        stop.set()
        for reader in readers:
            reader.result(timeout=60)


def test_a_state_that_is_not_what_was_captured_is_refused_with_both_fingerprints(snapshot_buffer):
    snapshot_buffer.pack(state_of(1))
    snapshot = snapshot_buffer.finalize(PHASE_ID, sequence=1, applied=[(0, 1)])
    layout = Layout.of(state_of(0))
    digest = snapshot.held.fingerprint
    assert fingerprint(fetch("s", snapshot.snapshot_id, digest, layout, lambda address: snapshot_buffer)) == digest
    with pytest.raises(HybridSyncError) as refusal:
        fetch("server 0", snapshot.snapshot_id, "f00d", layout, lambda address: snapshot_buffer)
    assert all(part in str(refusal.value) for part in ("server 0", digest, "f00d"))


def kept_at(snapshot_buffer: SnapshotBuffer) -> CommittedState:
    """Return what a chief keeps that starts a run from state 1."""
    snapshot_buffer.pack(state_of(1))
    snapshot = snapshot_buffer.finalize(PHASE_ID, sequence=1, applied=[(0, 1)])
    return CommittedState(snapshot_buffer.layout, snapshot, state_of(1))


def store(committed: CommittedState, snapshot: Snapshot, state: TrainState) -> None:
    buffer = committed.buffer()
    Layout.of(state).pack(state, out=buffer)
    committed.store(snapshot, buffer)


def test_the_chief_hands_out_its_starting_state_and_captures_nothing(snapshot_buffer):
    snapshot_buffer.pack(state_of(1))
    snapshot = snapshot_buffer.finalize(PHASE_ID, sequence=0, applied=())
    committed = CommittedState(snapshot_buffer.layout, snapshot, state_of(1))
    buffer = Layout.of(state_of(0)).empty()
    committed.read(snapshot.snapshot_id, buffer)
    assert fingerprint(Layout.of(state_of(0)).unpack(buffer)) == snapshot.held.fingerprint
    with pytest.raises(StalePhase, match=r"the last committed state only .* phase 4"):
        committed.take_snapshot(PHASE_ID, final=True)


def test_the_chief_offers_the_newest_state_it_was_given_with_its_units_and_accounts(snapshot_buffer):
    committed = kept_at(snapshot_buffer)
    held = StateVersion(PhaseId(6, 1), units=3, sequence=2, fingerprint=fingerprint(state_of(3)))
    store(committed, Snapshot(77, held, ((0, 2), (3, 4)), ((2, 3),), 0, 5.0, 6.0), state_of(3))
    assert committed.units == 3
    offered = committed.publish()
    assert (offered.held, offered.applied, offered.dropped) == (held, ((0, 2), (3, 4)), ((2, 3),))
    assert fingerprint(read_back(committed, offered)) == held.fingerprint


def test_an_offer_takes_the_place_of_the_one_before_and_can_be_made_again(snapshot_buffer):
    committed = kept_at(snapshot_buffer)
    first, second = committed.publish(), committed.publish()
    assert first.held == second.held and first.snapshot_id != second.snapshot_id
    with pytest.raises(StalePhase, match=f"kept: {second.snapshot_id}"):
        committed.lend(first.snapshot_id)
    assert fingerprint(read_back(committed, second)) == fingerprint(state_of(1))


def test_a_newer_state_that_is_kept_leaves_an_offer_readable_as_it_was(snapshot_buffer):
    """Somebody may be reading the offer at the moment at which a commit ends."""
    committed = kept_at(snapshot_buffer)
    offered = committed.publish()
    held = StateVersion(PHASE_ID, 2, 2, fingerprint(state_of(2)))
    store(committed, Snapshot(9, held, ((0, 2),), (), 0, 0.0, 0.0), state_of(2))
    assert fingerprint(read_back(committed, offered)) == fingerprint(state_of(1))
    assert fingerprint(read_back(committed, committed.publish())) == fingerprint(state_of(2))


@pytest.mark.parametrize(
    ("phase_number", "units", "sequence", "kept"),
    [
        (6, 3, 2, 3),  # the same state, committed
        (6, 2, 1, 3),  # captured before the state that was adopted
        (5, 9, 9, 3),  # of a phase before it
        (7, 2, 1, 2),  # the run was set back, and went on from there
    ],
)
def test_a_commit_that_ends_late_leaves_a_newer_state_that_was_adopted(
    snapshot_buffer, phase_number, units, sequence, kept
):
    committed = kept_at(snapshot_buffer)

    def held(number: int, units: int, sequence: int) -> Snapshot:
        state = StateVersion(PhaseId(number, 1), units, sequence, fingerprint(state_of(units)))
        return Snapshot(77, state, ((0, units),), (), 0, 0.0, 0.0)

    store(committed, held(6, 3, 2), state_of(3))
    store(committed, held(phase_number, units, sequence), state_of(units))
    assert committed.units == kept


def test_states_that_are_committed_in_turn_take_the_memory_of_two():
    """The one that is kept, and the one that is fetched: what was published goes once a later phase has trained."""
    layout, allocated = Layout.of(state_of(0)), list[int]()

    def allocate(num_bytes: int) -> np.ndarray:
        allocated.append(num_bytes)
        return layout.empty()

    def snapshot_of(number: int) -> Snapshot:
        held = StateVersion(PhaseId(number, 1), number, number, fingerprint(state_of(number)))
        return Snapshot(number, held, ((0, number),), (), layout.nbytes, 0.0, 0.0)

    committed = CommittedState(layout, snapshot_of(1), state_of(1), allocate)
    for number in range(2, 7):
        store(committed, snapshot_of(number), state_of(number))
        assert fingerprint(committed.state) == fingerprint(state_of(number))
    assert len(allocated) == 2
    with pytest.raises(StalePhase, match="kept: none"):
        committed.lend(1)
    seen = committed.state
    for number in range(7, 10):
        store(committed, snapshot_of(number), state_of(number))
    assert fingerprint(seen) == fingerprint(state_of(6)), "who sees a state keeps it as it was"


def test_the_commit_of_the_state_that_is_kept_takes_no_more_memory(snapshot_buffer):
    committed = kept_at(snapshot_buffer)
    offered, memory = committed.publish(), committed.state.params["w"].ctypes.data
    store(committed, offered, state_of(1))
    assert committed.state.params["w"].ctypes.data == memory
    assert fingerprint(read_back(committed, offered)) == fingerprint(state_of(1))


def test_what_is_kept_waits_for_no_reader_and_becomes_the_next_snapshot(snapshot_buffer):
    layout = Layout.of(state_of(0))
    snapshot_buffer.pack(state_of(1))
    first = snapshot_buffer.finalize(PHASE_ID, sequence=1, applied=[(0, 1)])
    reader = snapshot_buffer.lend(first.snapshot_id)
    for value in (2, 3):
        assert snapshot_buffer.keep(lambda buffer, value=value: layout.pack(state_of(value), out=buffer))
    assert fingerprint(layout.unpack(reader.buffer)) == first.held.fingerprint
    reader.release()
    snapshot_buffer.use_kept()
    second = snapshot_buffer.finalize(PHASE_ID, sequence=3, applied=[(0, 3)])
    assert second.held.fingerprint == fingerprint(read_back(snapshot_buffer, second)) == fingerprint(state_of(3))
    assert snapshot_buffer.keep(lambda buffer: layout.pack(state_of(4), out=buffer))
    assert fingerprint(read_back(snapshot_buffer, second)) == fingerprint(state_of(3)), "the two take turns"


def test_nothing_is_kept_where_there_is_no_memory_for_a_second_state():
    def allocate(num_bytes: int) -> Any:
        raise HybridSyncError("no memory for 4 kB")

    snapshot_buffer = SnapshotBuffer(Layout.of(state_of(0)), allocate)
    assert not snapshot_buffer.keep(lambda buffer: None)
