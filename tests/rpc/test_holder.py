from __future__ import annotations

import numpy as np
import pytest

from hybridsync.errors import SchemaMismatch, StaleEpoch
from hybridsync.messages import Capture
from hybridsync.plan import Epoch
from hybridsync.rpc.holder import STATE_BYTES, HolderClient, HolderServicer
from tests.rpc.conftest import EPOCH, HELD, FakeServer, pattern

NUM_BYTES = 3 * (1 << 20) + 5


@pytest.fixture
def holder() -> FakeServer:
    return FakeServer(pattern(NUM_BYTES))


@pytest.fixture
def client(holder: FakeServer, serve, closing) -> HolderClient:
    return closing(HolderClient(serve(HolderServicer(holder)), deadline_secs=10, who="server 0"))


def test_a_capture_is_read_as_it_is_held(client: HolderClient, holder: FakeServer) -> None:
    capture = client.capture(EPOCH, final=True)
    assert capture == Capture(4, HELD, ((0, 7),), (), NUM_BYTES, 1.5, 2.5)
    assert holder.seen == [(EPOCH, True)]
    into = np.zeros(NUM_BYTES, np.uint8)
    client.read(4, into)
    assert np.array_equal(into, holder.parameters)


def test_a_holder_in_another_epoch_says_so(client: HolderClient) -> None:
    with pytest.raises(StaleEpoch, match="epoch 9 was asked for, 3 is held"):
        client.capture(Epoch(9, 0), final=False)
    with pytest.raises(StaleEpoch, match="capture 8 is no longer kept, 4 is"):
        client.read(8, np.zeros(NUM_BYTES, np.uint8))


def test_a_reader_with_another_size_is_refused_with_both(client: HolderClient) -> None:
    with pytest.raises(SchemaMismatch, match=f"has 5 bytes where {NUM_BYTES} are expected"):
        client.read(4, np.zeros(5, np.uint8))


def test_a_reader_who_asks_for_too_much_is_refused_before_memory_is_taken(client: HolderClient) -> None:
    endless = np.broadcast_to(np.uint8(0), (STATE_BYTES + 1,))
    with pytest.raises(SchemaMismatch, match="over the limit"):
        client.read(4, endless)
