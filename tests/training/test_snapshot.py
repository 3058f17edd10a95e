"""Captured states: readable until the next, handed over bit for bit or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hybridsync.core.errors import HybridSyncError, StaleEpoch
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Capture, Held
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.snapshot import Holding, Kept, fetch, take_over
from hybridsync.training.state import TrainState
from tests.roles import phase_of

EPOCH = Epoch(4, 9)


def state_of(value: float) -> TrainState:
    params = {"w": np.full((300,), value, np.float32), "b": np.float32(value)}
    return TrainState(params, {"m": np.full((7,), value, np.float16)}, {}, {}, {"units": np.int32(value)})


@pytest.fixture
def holding() -> Holding:
    return Holding(Layout.of(state_of(0)))


def read_back(holding: Holding, capture: Capture) -> TrainState:
    layout = Layout.of(state_of(0))
    return fetch("here", capture.capture_id, capture.held.fingerprint, layout, lambda address: holding)


def test_a_capture_names_what_it_holds(holding):
    holding.pack(state_of(3))
    capture = holding.seal(EPOCH, sequence=5, applied=[(0, 2), (4, 5)], dropped=[(2, 3)], last_applied=8.5)
    assert (capture.held.epoch, capture.held.units, capture.held.sequence) == (EPOCH, 3, 5)
    assert capture.held.fingerprint == fingerprint(state_of(3))
    assert (capture.applied, capture.dropped, capture.last_applied) == (((0, 2), (4, 5)), ((2, 3),), 8.5)
    assert fingerprint(read_back(holding, capture)) == capture.held.fingerprint


def test_a_capture_does_not_follow_the_state_it_was_taken_of(holding):
    state = state_of(3)
    holding.pack(state)
    capture = holding.seal(EPOCH, sequence=1, applied=[(0, 1)])
    state.params["w"][:] = 8
    assert fingerprint(read_back(holding, capture)) == capture.held.fingerprint == fingerprint(state_of(3))


def test_an_older_capture_is_refused_as_soon_as_a_new_one_is_being_taken(holding):
    buffer = Layout.of(state_of(0)).empty()
    with pytest.raises(StaleEpoch, match="kept: none"):
        holding.read(1, buffer)
    holding.pack(state_of(1))
    first = holding.seal(EPOCH, sequence=1, applied=[(0, 1)])
    holding.pack(state_of(2))
    with pytest.raises(StaleEpoch, match=rf"capture {first.capture_id} .*kept: none"):
        holding.read(first.capture_id, buffer)
    second = holding.seal(EPOCH, sequence=2, applied=[(0, 2)])
    with pytest.raises(StaleEpoch, match=f"kept: {second.capture_id}"):
        holding.read(first.capture_id, buffer)


def test_readers_and_captures_at_once_never_mix_two_states(holding):
    layout = Layout.of(state_of(0))
    holding.pack(state_of(0))
    captures = [holding.seal(EPOCH, sequence=0, applied=())]
    stop = threading.Event()

    def read() -> int:
        num_read, buffer = 0, layout.empty()
        while not stop.is_set():
            capture = captures[-1]
            try:
                holding.read(capture.capture_id, buffer)
            except StaleEpoch:
                continue
            assert fingerprint(layout.unpack(buffer)) == capture.held.fingerprint
            num_read += 1
        return num_read

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        for value in range(1, 60):
            holding.pack(state_of(value))
            captures.append(holding.seal(EPOCH, sequence=value, applied=[(0, value)]))
        stop.set()
        for reader in readers:
            reader.result(timeout=20)


def test_a_state_that_is_not_what_was_captured_is_refused_with_both_fingerprints(holding):
    holding.pack(state_of(1))
    capture = holding.seal(EPOCH, sequence=1, applied=[(0, 1)])
    layout = Layout.of(state_of(0))
    digest = capture.held.fingerprint
    assert fingerprint(fetch("s", capture.capture_id, digest, layout, lambda address: holding)) == digest
    with pytest.raises(HybridSyncError) as refusal:
        fetch("server 0", capture.capture_id, "f00d", layout, lambda address: holding)
    assert all(part in str(refusal.value) for part in ("server 0", digest, "f00d"))


def test_taking_over_gives_device_arrays_equal_bit_for_bit(holding):
    holding.pack(state_of(1))
    capture = holding.seal(EPOCH, sequence=1, applied=[(0, 1)])
    phase = phase_of(5, capture=capture, source="holder")
    state = take_over(phase, Layout.of(state_of(0)), {"holder": holding}.__getitem__)
    assert fingerprint(state) == capture.held.fingerprint
    holding.pack(state_of(2))
    assert fingerprint(state) == capture.held.fingerprint, "its memory is its own"


def kept_at(holding: Holding) -> Kept:
    """Return what a chief keeps that starts a run from state 1."""
    holding.pack(state_of(1))
    return Kept(holding, holding.seal(EPOCH, sequence=1, applied=[(0, 1)]), state_of(1))


def test_the_chief_hands_out_its_starting_state_and_captures_nothing(holding):
    holding.pack(state_of(1))
    capture = holding.seal(EPOCH, sequence=0, applied=())
    kept = Kept(holding, capture, state_of(1))
    buffer = Layout.of(state_of(0)).empty()
    kept.read(capture.capture_id, buffer)
    assert fingerprint(Layout.of(state_of(0)).unpack(buffer)) == capture.held.fingerprint
    with pytest.raises(StaleEpoch, match=r"the last committed state only .* epoch 4"):
        kept.capture(EPOCH, final=True)


def test_the_chief_offers_the_newest_state_it_was_given_with_its_units_and_accounts(holding):
    kept = kept_at(holding)
    held = Held(Epoch(6, 1), units=3, sequence=2, fingerprint=fingerprint(state_of(3)))
    kept.keep(Capture(77, held, ((0, 2), (3, 4)), ((2, 3),), 0, 5.0, 6.0), state_of(3))
    assert kept.units == 3
    offered = kept.offer()
    assert (offered.held, offered.applied, offered.dropped) == (held, ((0, 2), (3, 4)), ((2, 3),))
    assert fingerprint(read_back(holding, offered)) == held.fingerprint


def test_an_offer_takes_the_place_of_the_one_before_and_can_be_made_again(holding):
    kept = kept_at(holding)
    first, second = kept.offer(), kept.offer()
    assert first.held == second.held and first.capture_id != second.capture_id
    with pytest.raises(StaleEpoch, match=f"kept: {second.capture_id}"):
        kept.lend(first.capture_id)
    assert fingerprint(read_back(holding, second)) == fingerprint(state_of(1))


def test_a_newer_state_that_is_kept_leaves_an_offer_readable_as_it_was(holding):
    """Somebody may be reading the offer at the moment at which a commit ends."""
    kept = kept_at(holding)
    offered = kept.offer()
    kept.keep(Capture(9, Held(EPOCH, 2, 2, fingerprint(state_of(2))), ((0, 2),), (), 0, 0.0, 0.0), state_of(2))
    assert fingerprint(read_back(holding, offered)) == fingerprint(state_of(1))
    assert fingerprint(read_back(holding, kept.offer())) == fingerprint(state_of(2))
