"""A server's part of the state: what is reserved for it is used once, and makes no difference to what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridsync.server.publisher import ParameterPool
from hybridsync.server.shard_state import Shard
from hybridsync.training.buffer_layout import Layout, fingerprint
from tests.roles import CHIEF, phase_of
from tests.server.cluster import Cluster
from tests.tasks import mlp_task, momentum_sgd, programs_of


class Rooms:
    """Reads the chief's state, and notes where to."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.rooms: list[np.ndarray] = []

    def __call__(self, address: str) -> Any:
        return self

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        self.rooms.append(into)
        self._cluster.reader_at(CHIEF).read(snapshot_id, into)


@pytest.mark.parametrize("num_servers", [1, 2])
def test_the_memory_of_the_first_state_and_of_what_is_lent_is_taken_before_training_waits(
    num_servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(programs_of(mlp_task(), momentum_sgd()), num_servers)
    made: list[np.ndarray] = []
    empty = Layout.empty

    def noted(layout: Layout) -> np.ndarray:
        made.append(empty(layout))
        return made[-1]

    monkeypatch.setattr(Layout, "empty", noted)
    for part in cluster.parts:
        rooms = Rooms(cluster)
        shard = Shard(part, ParameterPool(part.programs.parameters_layout), rooms)
        shard.reserve()
        reserved = [*made]
        phase = phase_of(1, snapshot=cluster.snapshot)
        first = shard.fetch(phase)
        shard.adopt_state(first)
        shard.begin(None, "")
        for _ in range(3):
            shard.publish()
        assert [id(each) for each in made] == [id(each) for each in reserved]
        again = shard.fetch(phase)  # into memory of its own: the first one is in use
        assert len(made) > len(reserved)
        assert rooms.rooms[0] is reserved[0]
        assert not any(rooms.rooms[1] is each for each in reserved)
        assert fingerprint(first) == fingerprint(again) == fingerprint(part.state.part_of(cluster.state))
        made.clear()
