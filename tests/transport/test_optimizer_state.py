"""The optimizer states of workers that make local updates, on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hybridsync.core.errors import RoleLost, SchemaMismatch, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.transport.grpc import optimizer_state
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.optimizer_state import OptimizerClient, OptimizerServicer

NUM_BYTES = 3 << 20
PUSH = Push(PhaseId(3, 7), 1, 2, (5,), 0, restart_count=4)


class OptimizerStore:
    """Has a state, and keeps what is left."""

    def __init__(self) -> None:
        self.state = np.random.default_rng(0).integers(0, 255, NUM_BYTES, np.uint8)
        self.left: list[tuple[Push, np.ndarray]] = []

    def download_opt_state(self, push: Push) -> np.ndarray:
        if push.phase_id != PUSH.phase_id:
            raise StalePhase("another phase is served")
        return self.state

    def upload_opt_state(self, push: Push, opt_state: np.ndarray) -> None:
        self.left.append((push, opt_state))


@pytest.fixture
def store() -> OptimizerStore:
    return OptimizerStore()


@pytest.fixture
def address(store: OptimizerStore) -> Iterator[str]:
    server, address = make_server([OptimizerServicer(store, NUM_BYTES)], max_workers=2)
    server.start()
    yield address
    server.stop(grace=None)


def test_a_state_is_taken_and_another_left(store, address):
    client = OptimizerClient(address, NUM_BYTES)
    found = client.download_opt_state(PUSH)
    np.testing.assert_array_equal(found, store.state)
    client.upload_opt_state(PUSH, found)
    (push, left), *others = store.left
    assert push == PUSH and not others
    np.testing.assert_array_equal(left, found)
    assert left.ctypes.data % 64 == 0, "jax uses such memory in place"


def test_who_is_out_of_date_is_refused_by_name(address):
    with pytest.raises(StalePhase, match="another phase is served"):
        OptimizerClient(address, NUM_BYTES).download_opt_state(PUSH._replace(phase_id=PhaseId(2, 7)))


def test_a_state_of_another_size_is_refused_before_it_is_received(store, address):
    with pytest.raises(SchemaMismatch):
        OptimizerClient(address, NUM_BYTES).upload_opt_state(PUSH, np.zeros(64, np.uint8))
    assert store.left == []


def test_a_server_that_is_gone_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(optimizer_state, "UNREACHABLE_SECS", 0.2)
    server, address = make_server([], max_workers=1)
    server.start()
    server.stop(grace=None).wait()
    with pytest.raises(RoleLost):
        OptimizerClient(address, NUM_BYTES).upload_opt_state(PUSH, np.zeros(NUM_BYTES, np.uint8))
