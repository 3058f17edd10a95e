"""What workers join on several hosts, and that nothing listens there before they need it."""

from __future__ import annotations

from contextlib import closing

from hybridsync.collectives.backend import NO_GROUP
from hybridsync.collectives.mesh.sockets import listening
from hybridsync.runtime.process_group_service import ProcessGroupService
from hybridsync.runtime.role_addresses import RoleAddresses
from hybridsync.runtime.wiring.collectives import HOST


def test_nothing_listens_before_workers_are_to_sum() -> None:
    with closing(RoleAddresses("127.0.0.1", num_hosts=2)) as addresses:
        group, before = ProcessGroupService(HOST, addresses, is_needed=False), listening()
        try:
            group.serve((0, 1))
            assert [group.place_of(worker) for worker in (1, 2)] == [(NO_GROUP, (0, 1))] * 2
            assert listening() == before
            group.joined(NO_GROUP)
            assert group.is_complete, "a worker waits for nobody there"
            group.is_needed = True
            group.serve((0, 1))
            ((host, port),) = listening() - before
            assert group.place_of(1) == (f"{host}:{port}", (0, 1)) and not group.is_complete
        finally:
            group.stop()
