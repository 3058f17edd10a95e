"""A server that fails in the middle of an update: what it holds is used no more, and it says so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hybridsync.core.errors import HybridSyncError, RoleLost, StalePhase
from hybridsync.server.publisher import DevicePublisher
from hybridsync.training.state import TrainState
from tests.roles import Start, gradient_of, phase_of, push_of, tally_programs
from tests.server.cluster import Cluster, until_held

SECS = 10.0


class FailingPublisher(DevicePublisher):
    """Fails once, behind an update of the state: by default memory has run out."""

    fails = False
    error: BaseException = MemoryError("out of memory")

    def publish(self, state: TrainState) -> None:
        if self.fails:
            self.fails = False
            raise self.error
        super().publish(state)


def failing() -> tuple[Start, FailingPublisher, list[HybridSyncError]]:
    return Start(), FailingPublisher(), []


def test_a_primary_that_fails_in_an_update_tells_so_and_serves_nobody():
    start, publisher, failures = failing()
    primary = start.primary(publisher=publisher, failed=failures.append)
    phase = phase_of(1, snapshot=start.snapshot)
    primary.enter(phase)
    publisher.fails = True
    with pytest.raises(RoleLost, match="MemoryError: out of memory"):
        primary.push_pull(push_of(phase, 3), gradient_of(3))
    assert [type(failure) for failure in failures] == [RoleLost]
    assert isinstance(failures[0].__cause__, MemoryError)
    with pytest.raises(StalePhase):  # it would be applied twice
        primary.push_pull(push_of(phase, 3), gradient_of(3))
    with pytest.raises(StalePhase):
        primary.take_snapshot(phase.id, final=True)
    assert primary.role_state() is None
    assert primary.take_report().applied == ()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_an_update_reaches_its_caller_as_it_is_and_the_primary_serves_nobody(interrupt):
    start, publisher, failures = failing()
    primary = start.primary(publisher=publisher, failed=failures.append)
    phase = phase_of(1, snapshot=start.snapshot)
    primary.enter(phase)
    publisher.fails, publisher.error = True, interrupt()
    with pytest.raises(interrupt):
        primary.push_pull(push_of(phase, 3), gradient_of(3))
    assert [type(failure.__cause__) for failure in failures] == [interrupt]
    with pytest.raises(StalePhase):
        primary.push_pull(push_of(phase, 3), gradient_of(3))


def test_whoever_waits_at_a_primary_that_fails_is_let_go():
    start, publisher, failures = failing()
    primary = start.primary(publisher=publisher, failed=failures.append)
    phase = phase_of(1, "bsp_server", snapshot=start.snapshot, members=(0, 1, 2))
    primary.enter(phase)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(primary.push_pull, push_of(phase, 0), gradient_of(0))
        until_held(primary, 1)
        publisher.fails = True
        with ThreadPoolExecutor(2) as others:
            rest = [
                others.submit(primary.push_pull, push_of(phase, worker, worker=worker), gradient_of(worker))
                for worker in (1, 2)
            ]
            for each in (waiting, *rest):
                assert isinstance(each.exception(SECS), (RoleLost, StalePhase))
    assert len(failures) == 1


def test_a_phase_that_could_not_be_begun_is_not_served():
    start, publisher, failures = failing()
    primary = start.primary(publisher=publisher, failed=failures.append)
    publisher.fails = True
    phase = phase_of(1, snapshot=start.snapshot)
    with pytest.raises(RoleLost, match="MemoryError"):
        primary.enter(phase)
    with pytest.raises(StalePhase):
        primary.push_pull(push_of(phase, 3), gradient_of(3))
    assert len(failures) == 1


def test_another_server_that_fails_in_an_update_tells_so_and_keeps_no_part_for_anybody(monkeypatch):
    cluster = Cluster(tally_programs(), 2)
    phase = cluster.enter()
    store = cluster.stores[0]

    def publish(state: TrainState) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(store._pool, "publish", publish)
    with pytest.raises(HybridSyncError):
        cluster.link().push_pull(push_of(phase, 3), gradient_of(3))
        cluster.captured(phase)
    assert any(isinstance(failure.__cause__, MemoryError) for failure in cluster.failures)
    assert store.role_state() is None
