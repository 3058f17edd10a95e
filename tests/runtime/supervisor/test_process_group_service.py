"""What workers join on several hosts, and that nothing listens there before they need it."""

from __future__ import annotations

from contextlib import closing

import pytest

from hybridsync.collectives.backend import NO_GROUP, STOP_SECS
from hybridsync.collectives.mesh.sockets import listening
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.supervisor import process_group_service
from hybridsync.runtime.supervisor.process_group_service import ProcessGroupService
from hybridsync.runtime.wiring import HOST


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


class Served:
    """A service whose end begins when it is told to stop, and comes when the test says so."""

    def __init__(self, address: str, *, ends: bool) -> None:
        self.address, self.ends = address, ends
        self.waits: list[float] = []

    def stop(self, wait_secs: float) -> bool:
        self.waits.append(wait_secs)
        return self.ends


def test_nobody_waits_for_the_end_of_a_former_group_and_at_last_who_has_not_ended_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = [Served("a:1", ends=False), Served("b:2", ends=True), Served("c:3", ends=True)]
    coming = iter(served)
    monkeypatch.setattr(ProcessGroupService, "_serve", lambda self, slots: next(coming))
    monkeypatch.setattr(process_group_service, "LINGER_SECS", 0.0)
    with closing(RoleAddresses("127.0.0.1", num_hosts=1)) as addresses:
        group = ProcessGroupService(HOST, addresses)
        for slots in ((0,), (0, 1), (0, 1, 2)):
            group.serve(slots)
            group.stop_former()
        waits = [each.waits for each in served]
        assert waits == [[0.0, 0.0], [0.0], []], "the second was over at once, the third is present"
        group.stop()
    assert [len(each.waits) for each in served] == [4, 1, 2]
    assert served[0].waits[2] == served[2].waits[0] == 0.0, "all are told before one is waited for"
    assert 0.0 < served[0].waits[3] <= STOP_SECS
    assert "the service that workers joined at a:1 does not end within" in caplog.text
