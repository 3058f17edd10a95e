"""Tests of what the transport's benchmarks measure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.transfer import MemoryBackend
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer

NUM_BYTES = 4096


@pytest.fixture
def client() -> Iterator[ParameterClient]:
    server, address = make_server([ParameterServicer(MemoryBackend(NUM_BYTES), NUM_BYTES)], max_workers=4)
    server.start()
    client = ParameterClient(address)
    yield client
    client.close()
    server.stop(grace=None)


@pytest.mark.parametrize("base", [-1, 0, 7])
def test_a_push_to_the_backend_without_arithmetic_brings_all_parameters_back(
    client: ParameterClient, base: int
) -> None:
    into = np.zeros(NUM_BYTES, np.uint8)
    push = Push(PhaseId(1, 1), worker=0, incarnation=1, units=(0,), base=base)
    reply = client.push_pull(push, np.ones(NUM_BYTES, np.uint8), into)
    assert reply.brings_parameters(push)
    assert (into == 1).all()
