"""Snapshots: a slow reader keeps a whole copy, whatever is published meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hybridsync.core.errors import HybridSyncError
from hybridsync.server.publisher import DevicePublisher, ParameterPool
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.state import TrainState


def state_of(value: float) -> TrainState:
    """Return a state all of whose parameters have one value."""
    params = {name: np.full((257,), value, np.float32) for name in "abc"}
    return TrainState(params, {}, {"seen": np.float32(value)}, {}, {})


def layout() -> Layout:
    state = state_of(0)
    return Layout.of(Parameters(state.params, state.model_state))


def value_in(buffer: np.ndarray) -> float:
    """Return the one value of packed parameters; several would be half an update."""
    tree = layout().unpack(buffer)
    values = {float(v) for leaf in [*tree.params.values(), tree.model_state["seen"]] for v in np.ravel(leaf)}
    assert len(values) == 1, f"the parameters show {values}"
    return values.pop()


def test_a_slow_reader_sees_one_whole_update_while_many_are_published():
    pool = ParameterPool(layout())
    pool.publish(state_of(0))
    slow = pool.current()
    for update in range(1, 6):
        pool.publish(state_of(update))
        quick = pool.current()
        assert value_in(quick.buffer) == update
        quick.release()
    assert value_in(slow.buffer) == 0
    slow.release()


def test_what_was_reserved_is_what_quick_readers_are_served_from():
    allocated: list[np.ndarray] = []

    def allocate(num_bytes: int) -> np.ndarray:
        allocated.append(np.empty(num_bytes, np.uint8))
        return allocated[-1]

    pool = ParameterPool(layout(), allocate)
    pool.reserve()
    assert len(allocated) == 2
    for update in range(4):
        pool.publish(state_of(update))
        published = pool.current()
        assert value_in(published.buffer) == update
        published.release()
    assert len(allocated) == 2


def test_two_buffers_serve_quick_readers_and_a_third_comes_only_for_a_slow_one():
    pool = ParameterPool(layout())
    seen = set()
    for update in range(6):
        pool.publish(state_of(update))
        published = pool.current()
        seen.add(id(published.buffer))
        published.release()
    assert len(seen) == 2
    kept = pool.current()
    for update in range(6):
        pool.publish(state_of(update))
        published = pool.current()
        seen.add(id(published.buffer))
        published.release()
    assert len(seen) == 3
    kept.release()


def test_a_copy_for_which_there_is_no_memory_is_no_refusal_of_a_call():
    """The update before it has changed the state: a call that was refused would be made again."""

    def nothing(num_bytes: int) -> np.ndarray:
        raise HybridSyncError(f"no shared memory for {num_bytes} bytes")

    with pytest.raises(MemoryError, match="no shared memory for"):
        ParameterPool(layout(), nothing).publish(state_of(1))


def test_a_copy_read_by_several_is_not_rewritten_until_the_last_is_done():
    pool = ParameterPool(layout())
    pool.publish(state_of(1))
    first, second = pool.current(), pool.current()
    assert first is second
    first.release()
    pool.publish(state_of(2))
    pool.publish(state_of(3))
    assert value_in(second.buffer) == 1
    second.release()
    with pytest.raises(AssertionError, match="released twice"):
        second.release()


def test_readers_in_other_threads_never_see_half_an_update():
    pool = ParameterPool(layout())
    pool.publish(state_of(0))
    stop, seen, torn = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            published = pool.current()
            try:
                seen.append(value_in(published.buffer))
            except AssertionError as error:
                torn.append(error)
            published.release()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    update = 0
    while len(set(seen)) < 20 and not torn:
        update += 1
        pool.publish(state_of(update))
    stop.set()
    for reader in readers:
        reader.join(60)
    assert torn == []


def test_nothing_can_be_lent_before_the_first_publication():
    for publisher in (ParameterPool(layout()), DevicePublisher()):
        with pytest.raises(AssertionError, match="nothing was published"):
            publisher.current()
