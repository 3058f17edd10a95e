"""The primary: each unit once, each phase fenced, each snapshot whole."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.core.errors import StaleIncarnation, StalePhase, StillHeld
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.asp import Asp
from hybridsync.protocols.base import Apply, Drop, Release, ServerRule
from hybridsync.server import primary as primary_module
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.storage.apply_log import FileApplyLog, read
from hybridsync.training.buffer_layout import fingerprint
from tests.roles import Start, counts, gradient_of, phase_of, push_of, tally_programs
from tests.server.cluster import until_held

UNITS = 8


@pytest.fixture
def start() -> Start:
    return Start()


def entered(start: Start, spec: str = "asp", number: int = 1, **fields):
    primary = start.primary()
    phase = phase_of(number, spec, snapshot=start.snapshot, **fields)
    primary.enter(phase)
    return primary, phase


def state_in(primary: Primary, snapshot):
    layout = tally_programs().state_layout
    buffer = layout.empty()
    primary.read(snapshot.snapshot_id, buffer)
    return layout.unpack(buffer)


# --- pushes ---


def test_a_push_is_applied_and_answered_with_the_parameters_after_it(start):
    primary, phase = entered(start)
    reply, parameters = primary.push_pull(push_of(phase, 3), gradient_of(3))
    assert (reply.sequence, reply.duplicate, reply.dropped) == (1, False, "")
    assert float(parameters.params["tally"][3]) == -1
    assert primary.pull(push_of(phase))[0].sequence == 1


def test_a_repeated_push_is_not_applied_again(start):
    primary, phase = entered(start)
    primary.push_pull(push_of(phase, 3), gradient_of(3))
    primary.push_pull(push_of(phase, 4, base=1), gradient_of(4))
    for worker, incarnation in [(0, 1), (0, 2), (1, 1)]:
        again = push_of(phase, 3, worker=worker, incarnation=incarnation)
        reply, parameters = primary.push_pull(again, gradient_of(3))
        assert reply.duplicate
        assert reply.sequence == 2
        assert float(parameters.params["tally"][3]) == -1
    assert primary.take_report().applied == ((3, 5),)


def test_units_applied_in_an_earlier_phase_are_not_applied_again(start):
    primary, phase = entered(start)
    primary.push_pull(push_of(phase, 3), gradient_of(3))
    snapshot = primary.take_snapshot(phase.id, final=True)
    second = phase_of(2, "asp", snapshot=snapshot, source="primary")
    primary.enter(second)
    assert primary.push_pull(push_of(second, 3), gradient_of(3))[0].duplicate
    assert counts(state_in(primary, primary.take_snapshot(second.id, final=True)))[3] == 1


class HoldTwo(ServerRule):
    """Holds a push until a second one is here, then applies both in one update."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def on_push(self, arrival):
        self.held.append(arrival.push_id)
        if len(self.held) < 2:
            return []
        pushes, self.held = tuple(self.held), []
        return [Apply(pushes, lr_factor=2.0), *(Release(push) for push in pushes)]

    def on_leave(self, worker):
        self.held = []
        return []


class DropStale(ServerRule):
    """Drops what is older than one update."""

    def on_push(self, arrival):
        if arrival.staleness > 1:
            return [Drop(arrival.push_id, "too stale"), Release(arrival.push_id)]
        return [Apply((arrival.push_id,), lr_factor=1.0), Release(arrival.push_id)]


@pytest.fixture
def rules(monkeypatch):
    """Register server protocols that hold and drop."""

    class Pairs(Asp):
        name: ClassVar[str] = "pairs"

        def server_rule(self, members):
            return HoldTwo()

    class Fresh(Asp):
        name: ClassVar[str] = "fresh"

        def server_rule(self, members):
            return DropStale()

    monkeypatch.setitem(protocols.REGISTRY, "pairs", Pairs)
    monkeypatch.setitem(protocols.REGISTRY, "fresh", Fresh)


def test_a_concurrent_retry_waits_for_the_first_ones_result(start, rules):
    primary, phase = entered(start, "pairs")
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(primary.push_pull, push_of(phase, 1), gradient_of(1))
        until_held(primary, 1)
        retry = threads.submit(primary.push_pull, push_of(phase, 1), gradient_of(1))
        other = threads.submit(primary.push_pull, push_of(phase, 2, worker=1), gradient_of(2))
        replies = [future.result(timeout=120)[0] for future in (first, retry, other)]
    assert {reply.sequence for reply in replies} == {1}
    assert counts(state_in(primary, primary.take_snapshot(phase.id, final=True)))[:4] == [0, 1, 1, 0]


def test_held_pushes_are_one_update_of_their_mean_at_the_rules_rate(start, rules):
    primary, phase = entered(start, "pairs")
    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(primary.push_pull, push_of(phase, unit, worker=unit), gradient_of(unit)) for unit in (0, 1)
        ]
        for future in futures:
            reply, parameters = future.result(timeout=120)
            assert reply.sequence == 1
            np.testing.assert_array_equal(parameters.params["tally"][:3], [-1, -1, 0])
    snapshot = primary.take_snapshot(phase.id, final=True)
    assert snapshot.held.units == 2
    assert snapshot.held.sequence == 1


def test_a_push_that_nobody_releases_says_who_holds_it(start, rules, monkeypatch):
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.05)
    primary, phase = entered(start, "pairs")
    with pytest.raises(StillHeld, match=r"worker 3 .*\(5,\).*pairs"):
        primary.push_pull(push_of(phase, 5, worker=3), gradient_of(5))


def test_a_held_push_is_refused_when_its_phase_ends(start, rules):
    primary, phase = entered(start, "pairs")
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(primary.push_pull, push_of(phase, 1), gradient_of(1))
        until_held(primary, 1)
        snapshot = primary.take_snapshot(phase.id, final=True)
        with pytest.raises(StalePhase):
            held.result(timeout=120)
    assert snapshot.applied == ()


def test_a_dropped_unit_is_final_and_changes_nothing(start, rules):
    primary, phase = entered(start, "fresh")
    for unit in range(3):
        primary.push_pull(push_of(phase, unit, base=unit), gradient_of(unit))
    reply, _ = primary.push_pull(push_of(phase, 9, base=0), gradient_of(9))
    assert (reply.dropped, reply.sequence) == ("too stale", 3)
    assert primary.push_pull(push_of(phase, 9, base=3), gradient_of(9))[0].duplicate
    progress = primary.take_report()
    assert progress.dropped == ((9, "too stale"),)
    snapshot = primary.take_snapshot(phase.id, final=True)
    assert (snapshot.applied, snapshot.dropped) == (((0, 3),), ((9, 10),))
    assert counts(state_in(primary, snapshot))[9] == 0


# --- who may speak ---


def test_an_older_phase_and_the_same_number_with_another_nonce_are_refused(start):
    primary, phase = entered(start)
    snapshot = primary.take_snapshot(phase.id, final=True)
    second = phase_of(2, "asp", snapshot=snapshot, source="primary")
    primary.enter(second)
    with pytest.raises(StalePhase, match=r"phase 1 .* phase 2"):
        primary.push_pull(push_of(phase, 1), gradient_of(1))
    with pytest.raises(StalePhase):
        primary.take_snapshot(phase.id, final=False)
    with pytest.raises(StalePhase, match=r"phase 1 .* phase 2"):
        primary.enter(phase)
    forged = phase_of(2).id._replace(nonce=1)
    with pytest.raises(StalePhase):
        primary.pull(push_of(second).__class__(forged, 0, 1, (), 0))


def test_an_older_incarnation_is_refused_once_a_newer_one_has_spoken(start):
    primary, phase = entered(start)
    primary.pull(push_of(phase, incarnation=2))
    with pytest.raises(StaleIncarnation, match=r"worker 0 .*incarnation 1.* 2"):
        primary.push_pull(push_of(phase, 1, incarnation=1), gradient_of(1))
    primary.push_pull(push_of(phase, 1, worker=1, incarnation=1), gradient_of(1))


def test_a_fenced_worker_is_refused_before_its_successor_has_spoken(start):
    primary, phase = entered(start)
    primary.fence(phase.id, worker=0, incarnation=1)
    with pytest.raises(StaleIncarnation):
        primary.push_pull(push_of(phase, 1, incarnation=1), gradient_of(1))
    primary.push_pull(push_of(phase, 1, incarnation=2), gradient_of(1))
    primary.fence(phase_of(9).id, worker=1, incarnation=5)
    primary.pull(push_of(phase, worker=1))


def test_a_held_push_goes_with_its_worker_and_the_unit_is_anothers_then(start, rules):
    primary, phase = entered(start, "pairs")
    with ThreadPoolExecutor(3) as threads:
        held = threads.submit(primary.push_pull, push_of(phase, 1), gradient_of(1))
        until_held(primary, 1)
        waits = threads.submit(primary.push_pull, push_of(phase, 1, worker=1), gradient_of(1))
        primary.fence(phase.id, worker=0, incarnation=1)
        with pytest.raises(StaleIncarnation):
            held.result(timeout=120)
        until_held(primary, 1)
        other = threads.submit(primary.push_pull, push_of(phase, 2, worker=2), gradient_of(2))
        assert waits.result(timeout=120)[0].sequence == other.result(timeout=120)[0].sequence == 1
    assert counts(state_in(primary, primary.take_snapshot(phase.id, final=True)))[:4] == [0, 1, 1, 0]


def test_a_refused_push_is_not_applied(start):
    primary, phase = entered(start)
    primary.fence(phase.id, worker=0, incarnation=1)
    with pytest.raises(StaleIncarnation):
        primary.push_pull(push_of(phase, 1), gradient_of(1))
    assert primary.take_snapshot(phase.id, final=True).applied == ()


# --- captures ---


def test_a_final_snapshot_refuses_every_later_push(start):
    primary, phase = entered(start)
    primary.push_pull(push_of(phase, 0), gradient_of(0))
    snapshot = primary.take_snapshot(phase.id, final=True)
    for call in (lambda: primary.pull(push_of(phase)), lambda: primary.push_pull(push_of(phase, 1), gradient_of(1))):
        with pytest.raises(StalePhase, match="has ended"):
            call()
    assert snapshot.applied == ((0, 1),)


def test_a_snapshot_taken_among_pushes_holds_exactly_the_units_it_names(start):
    primary, phase = entered(start)
    stop = threading.Event()

    def train(worker: int) -> None:
        for unit in range(worker, 64, 4):
            if not stop.is_set():
                primary.push_pull(push_of(phase, unit, worker=worker), gradient_of(unit))

    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(train, worker) for worker in range(4)]
        for _ in range(5):
            snapshot = primary.take_snapshot(phase.id, final=False)
            state = state_in(primary, snapshot)
            applied = {unit for start_, stop_ in snapshot.applied for unit in range(start_, stop_)}
            assert {unit for unit, count in enumerate(counts(state)) if count} == applied
            assert snapshot.held.units == snapshot.held.sequence == len(applied) == int(state.counters["units"])
            assert fingerprint(state) == snapshot.held.fingerprint
        stop.set()
        for future in futures:
            future.result(timeout=120)


def test_a_snapshot_is_gone_when_the_next_is_taken(start):
    primary, phase = entered(start)
    first = primary.take_snapshot(phase.id, final=False)
    second = primary.take_snapshot(phase.id, final=False)
    assert second.snapshot_id != first.snapshot_id
    buffer = tally_programs().state_layout.empty()
    with pytest.raises(StalePhase, match=f"snapshot {first.snapshot_id}"):
        primary.read(first.snapshot_id, buffer)
    primary.read(second.snapshot_id, buffer)


def test_the_state_survives_a_hand_over_to_another_server_bit_for_bit(start):
    primary, phase = entered(start)
    primary.push_pull(push_of(phase, 0), gradient_of(0))
    snapshot = primary.take_snapshot(phase.id, final=True)
    start.roles["first"] = primary
    second = start.primary()
    held = second.enter(phase_of(2, "asp", snapshot=snapshot, source="first"))
    assert (held.fingerprint, held.units, held.sequence) == (snapshot.held.fingerprint, 1, 1)
    again = second.enter(phase_of(2, "asp", snapshot=snapshot, source="first"))
    assert again == held


# --- progress ---


def test_progress_is_told_once_with_the_staleness_of_each_update(start):
    primary, phase = entered(start)
    for unit, base in [(0, 0), (1, 0), (2, 1)]:
        primary.push_pull(push_of(phase, unit, base=base), gradient_of(unit))
    progress = primary.take_report()
    assert (progress.applied, progress.staleness, progress.sequence) == (((0, 3),), (0, 1, 1), 3)
    assert 0 < progress.first_applied <= progress.last_applied
    assert [span.name for span in progress.spans] == ["apply"] * 3
    assert primary.take_report().applied == ()


def test_the_chief_is_woken_by_the_last_unit_of_the_phase(start):
    primary, phase = entered(start, end=2)
    primary.push_pull(push_of(phase, 0), gradient_of(0))
    assert not primary._completed.is_set()
    primary.push_pull(push_of(phase, 1), gradient_of(1))
    assert primary._completed.is_set()


# --- behind gRPC ---


def test_an_endpoint_takes_packed_contributions_and_lends_packed_parameters(start):
    programs = tally_programs()
    primary = start.primary(publisher=ParameterPool(programs.parameters_layout))
    endpoint = Endpoint(primary, programs.contribution_layout)
    phase = phase_of(1, "asp", snapshot=start.snapshot)
    primary.enter(phase)
    contribution = programs.contribution_layout.empty()
    for unit in range(UNITS):
        programs.contribution_layout.pack(gradient_of(unit), out=contribution)
        answer = endpoint.begin_push(push_of(phase, unit, base=unit))(contribution)
        contribution[:] = 0xFF  # the caller may reuse its buffer at once
        params = programs.parameters_layout.unpack(answer.parameters.buffer).params["tally"].copy()
        answer.parameters.release()
        assert answer.reply.sequence == unit + 1
        np.testing.assert_array_equal(params[: UNITS + 1], [-1.0] * (unit + 1) + [0.0] * (UNITS - unit))


def test_the_apply_log_is_written_while_heartbeats_have_the_primary(start, tmp_path):
    class SlowDisk(FileApplyLog):
        """Writes once a heartbeat has come through."""

        def _write_down(self, entries):
            beat = threading.Thread(target=primary.take_report, daemon=True)
            beat.start()
            beat.join(60)
            assert not beat.is_alive(), "a heartbeat waits for the disk"
            super()._write_down(entries)

    primary = start.primary(apply_log=SlowDisk(tmp_path / "log"))
    phase = phase_of(1, snapshot=start.snapshot)
    primary.enter(phase)
    primary.push_pull(push_of(phase, 3), gradient_of(3))
    primary.take_snapshot(phase.id, final=True)
    assert [entry.units for entry in read(tmp_path / "log")] == [(3,)]


# --- places ---


def at_places(start: Start, every: int) -> tuple[Primary, Phase]:
    """Return a primary that keeps its state at every multiple of so many units."""
    return entered(start, evaluate_units=every)


def push_units(primary: Primary, phase: Phase, units: Iterable[int]) -> None:
    for unit in units:
        primary.push_pull(push_of(phase, unit), gradient_of(unit))


def test_the_state_of_a_place_is_handed_over_though_later_updates_were_applied(start):
    primary, phase = at_places(start, 4)
    push_units(primary, phase, range(10))
    snapshot = primary.take_snapshot(phase.id, final=False, place=4)
    assert (snapshot.held.units, snapshot.held.sequence, snapshot.applied) == (8, 8, ((0, 8),)), "the newest place"
    assert counts(state_in(primary, snapshot))[:10] == [1] * 8 + [0] * 2
    assert 0 < snapshot.first_applied < snapshot.last_applied < primary.take_report().last_applied
    assert primary.take_snapshot(phase.id, final=False, place=12).held.units == 10, "none was kept since"
    push_units(primary, phase, range(10, 13))
    later = primary.take_snapshot(phase.id, final=False, place=12)
    assert later.held.units == 12 and counts(state_in(primary, later))[:13] == [1] * 12 + [0]


@pytest.mark.parametrize(("final", "place"), [(True, 4), (False, 0), (False, 8)])
def test_the_newest_state_is_captured_at_the_end_and_where_no_kept_one_is_wanted(start, final, place):
    primary, phase = at_places(start, 4)
    push_units(primary, phase, range(6))
    snapshot = primary.take_snapshot(phase.id, final, place)
    assert snapshot.held.units == 6 and counts(state_in(primary, snapshot))[:7] == [1] * 6 + [0]
    if not final:
        assert primary.take_snapshot(phase.id, final=False, place=4).held.units == 6, (
            "no snapshot is older than the last"
        )


def test_the_next_phase_has_nothing_of_the_places_before_it(start):
    primary, phase = at_places(start, 4)
    push_units(primary, phase, range(6))
    following = phase_of(2, snapshot=start.snapshot, evaluate_units=4)
    primary.enter(following)
    assert primary.take_snapshot(following.id, final=False, place=4).held.units == 0
