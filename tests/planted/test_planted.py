"""Every oracle is shown able to fail: each bug planted here must be found by the check that is there to find it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from hybridsync import EmulationConfig
from hybridsync.chief.leases import Leases
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState
from hybridsync.chief.service import ChiefService
from hybridsync.collectives.threads import ThreadCommunicator
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, StaleIncarnation, StalePhase
from hybridsync.core.units import UnitSet
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.interfaces.reports import ReportReply
from hybridsync.phases.recovery import Recovery
from hybridsync.protocols.bsp import Bsp
from hybridsync.runtime.inprocess import InProcess
from hybridsync.server import primary as primary_module
from hybridsync.server import sequencer as sequencer_module
from hybridsync.server import server_core as core_module
from hybridsync.server.partitioned_state import PartitionedState
from hybridsync.server.primary import Primary
from hybridsync.server.unit_counts import Count
from hybridsync.telemetry.metrics import Metrics
from hybridsync.training.snapshot import SnapshotBuffer, fetch
from hybridsync.workdir.opening import Opening
from hybridsync.worker import server_runner
from hybridsync.worker.drive_threads import Carriers, drive
from hybridsync.worker.replica import Replica
from hybridsync.worker.requests import CallServer, LeaseUnits
from tests.roles import Start, counts, gradient_of, phase_of, push_of, tally_programs
from tests.trainers import fit_and_stop, is_exact, tally_trainer

WORKLOAD = 60
STUCK_SECS = 6.0
"""When a run of half a second that applies no unit any more counts as one that hangs."""
SLOW = EmulationConfig(compute_secs=0.01)

# --- stories: what a run goes through while the oracles look --------------------------------------------------------


def retried_pushes(tmp_path) -> None:
    """Every push is sent again after its answer, as after a lost reply."""

    def twice(carriers):
        def call(request):
            if request.verb == "push_pull":
                carriers[CallServer](request)
            return carriers[CallServer](request)

        return {**carriers, CallServer: call}

    with pytest.MonkeyPatch.context() as patch:
        wrap_carriers(patch, twice)
        check(tally_trainer("bsp:20%,asp:40%,bsp:10%,asp", WORKLOAD, emulation=SLOW).fit())


class Died(BaseException):
    """Ends a worker's thread as a kill ends its process."""


def wrap_carriers(patch: pytest.MonkeyPatch, wrap: Callable[[Carriers], Carriers]) -> None:
    """Have the requests of workers whose state a server holds carried out by what `wrap` makes of their carriers."""
    patch.setattr(server_runner, "drive", lambda io, carriers, *rest: drive(io, wrap(carriers), *rest))


def lost_worker(tmp_path) -> None:
    """Worker 2 dies with units in hand; another process takes its place."""
    died, over = threading.Event(), threading.Event()
    ended = InProcess._thread_failed

    def die_once(carriers):
        def lease(request):
            reply = carriers[LeaseUnits](request)
            last = reply.ranges[-1][1] if reply.ranges else 0
            if request.request.worker == 2 and last > WORKLOAD // 3 and not died.is_set():
                died.set()
                raise Died
            return reply

        return {**carriers, LeaseUnits: lease}

    def restart(self, who, error):
        if isinstance(error, Died):
            service: ChiefService = self.chief.service
            pid = self._hello("worker", 2, "", "").pid
            service.role_lost(RoleEvent("worker", 2, pid, "exit code -9", 0.0))
            work = partial(self._work, 2, self._programs.state_layout.schema_hash)
            reborn.append(self._thread("worker_2", who, work))
            reborn[0].start()
        else:
            ended(self, who, error)

    def report_for_the_living(self, report):
        with contextlib.suppress(StaleIncarnation):  # one heartbeat speaks for all: a dead worker's report is refused
            return heard(self, report)
        return ReportReply(report.phase_id, revoked=False)

    def with_restart_count(self, *args):
        words = first_words(self, *args)
        return dataclasses.replace(words, restart_count=int(died.is_set() and args[:2] == ("worker", 2)))

    heard, first_words = ChiefService.report, InProcess._hello
    reborn: list[threading.Thread] = []
    with pytest.MonkeyPatch.context() as patch:
        wrap_carriers(patch, die_once)
        patch.setattr(InProcess, "_thread_failed", restart)
        patch.setattr(InProcess, "_hello", with_restart_count)
        patch.setattr(ChiefService, "report", report_for_the_living)
        trainer = tally_trainer("asp", WORKLOAD, emulation=SLOW, drain_secs=60.0)
        watchdog = threading.Thread(target=give_up_where_it_stands, args=(trainer, died, over))
        watchdog.start()
        try:
            check(trainer.fit())
        finally:
            over.set()
            watchdog.join()
            for thread in reborn:
                thread.join(STUCK_SECS)
    assert died.is_set(), "worker 2 never died"


def give_up_where_it_stands(trainer: Any, died: threading.Event, over: threading.Event) -> None:
    """Have a run fail whose worker has died, and that applies nothing any more though units are left."""
    units, grown = 0, SYSTEM_CLOCK.monotonic()
    while not over.wait(0.1):
        chief, now = trainer._chief, SYSTEM_CLOCK.monotonic()
        if chief is None or not died.is_set() or chief.run_state.ledger.num_applied > units:
            units, grown = chief.run_state.ledger.num_applied if chief else 0, now
        elif units < WORKLOAD and now - grown > STUCK_SECS:
            with chief.control.turn() as state:
                state.waits.fail(HybridSyncError("units were lost with worker 2: nobody was given them"))
            return


def preempted_and_resumed(tmp_path) -> None:
    """The run is stopped among its units, twice, and resumed."""
    for units in (8, 40):
        trainer = tally_trainer("bsp:50%,asp", WORKLOAD, workdir=tmp_path / "run", emulation=SLOW)
        assert fit_and_stop(trainer, units).summary.exit == "preempted"
    check(tally_trainer("bsp:50%,asp", WORKLOAD, workdir=tmp_path / "run").fit())


def broken_off(tmp_path) -> None:
    """Phases are broken off among their units; the next one begins from the newest state."""
    trainer = tally_trainer("bsp:50%,asp", WORKLOAD, emulation=SLOW)

    def break_off(metrics: Metrics) -> None:
        assert trainer._chief is not None
        with trainer._chief.control.turn() as state:
            state.break_phase("test")

    trainer.add_hook(break_off, every=7)
    check(trainer.fit())


def plain(tmp_path) -> None:
    """Nothing special happens."""
    check(tally_trainer("bsp:30%,asp:30%,bsp:20%,asp", WORKLOAD).fit())


def check(result: Any) -> None:
    """Look at the tally and the accounts."""
    units = result.summary.units
    assert result.completed, result.summary
    assert is_exact(result.summary.final), result.summary.final
    assert units.applied == units.workload == int(result.state.counters["units"])
    assert units.outstanding == units.rolled_back == 0


def strangers(tmp_path) -> None:
    """Who speaks of an old phase, or for a process that was replaced, is refused."""
    start = Start()
    primary = start.primary()
    phase = phase_of(1, "asp", snapshot=start.snapshot)
    primary.enter(phase)
    primary.fence(phase.id, worker=0, incarnation=1)
    with pytest.raises(StaleIncarnation):
        primary.push_pull(push_of(phase, 0), gradient_of(0))
    snapshot = primary.take_snapshot(phase.id, final=True)
    with pytest.raises(StalePhase):
        primary.push_pull(push_of(phase, 1, worker=1), gradient_of(1))
    second = phase_of(2, "asp", snapshot=snapshot, source="primary")
    primary.enter(second)
    with pytest.raises(StalePhase):
        primary.push_pull(push_of(phase, 2, worker=1), gradient_of(2))


def captured_among_pushes(tmp_path) -> None:
    """A snapshot taken while workers push holds exactly the units it names, under its fingerprint."""
    start = Start()
    primary = start.primary()
    phase = phase_of(1, "asp", snapshot=start.snapshot)
    primary.enter(phase)

    turns = threading.Semaphore(0)
    fill = SnapshotBuffer.fill

    def fill_among_pushes(snapshot_buffer, write):
        turns.release(6)  # they come while the state is captured, and are to wait for its end
        fill(snapshot_buffer, write)

    def train(worker: int) -> None:
        for unit in range(worker, 64, 4):
            assert turns.acquire(timeout=120)
            primary.push_pull(push_of(phase, unit, worker=worker), gradient_of(unit))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as threads:
        patch.setattr(SnapshotBuffer, "fill", fill_among_pushes)
        pushes = [threads.submit(train, worker) for worker in range(4)]
        try:
            for _ in range(10):
                snapshot = primary.take_snapshot(phase.id, final=False)
                state = fetch(
                    "primary",
                    snapshot.snapshot_id,
                    snapshot.held.fingerprint,
                    tally_programs().state_layout,
                    start.reader_at,
                )
                applied = sorted(UnitSet(snapshot.applied))
                assert [unit for unit, count in enumerate(counts(state)) if count] == applied
                assert int(state.counters["units"]) == snapshot.held.units == len(applied)
        finally:
            turns.release(64)
        for push in pushes:
            push.result(timeout=120)


def acknowledged(tmp_path) -> None:
    """A unit is acknowledged when it is in the parameters, and in no other case."""
    start = Start()
    primary = start.primary()
    phase = phase_of(1, "asp", snapshot=start.snapshot)
    primary.enter(phase)
    for unit in range(4):
        reply, parameters = primary.push_pull(push_of(phase, unit), gradient_of(unit))
        assert reply.sequence == unit + 1
        assert float(parameters.params["tally"][unit]) == -1.0


STORIES: tuple[Callable[..., None], ...] = (
    *(retried_pushes, lost_worker, preempted_and_resumed, broken_off, plain),
    *(strangers, captured_among_pushes, acknowledged),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_without_a_bug_the_oracles_are_silent(story, tmp_path):
    story(tmp_path)


# --- bugs -----------------------------------------------------------------------------------------------------------


def forgets_what_it_applied(patch):
    """The primary does not look into its applied-set, so a repeated push is applied again."""
    patch.setattr(Count, "is_settled", lambda self, unit: False)


def keeps_a_lost_workers_units(patch):
    """The ledger does not take back what a lost worker had."""
    patch.setattr(Leases, "release_worker", lambda self, worker: self._streams.pop(f"worker {worker}", None))


def leases_beyond_the_workload(patch):
    """More units go out than may end up applied."""
    original = Ledger.room
    patch.setattr(Ledger, "room", lambda self, limit: original(self, limit + 3))


def skips_the_phase_check(patch):
    """The server admits every phase."""
    for module in (primary_module, core_module, sequencer_module):
        patch.setattr(module, "check_phase_id", lambda phase_id, phase: phase)


def stays_open_after_the_final_capture(patch):
    """Pushes that come behind a final snapshot are applied: they are lost with the next phase."""
    original = Primary.take_snapshot

    def open_again(self, phase_id, final):
        snapshot = original(self, phase_id, final)
        self._sequencer.open = True
        return snapshot

    patch.setattr(Primary, "take_snapshot", open_again)


def forgets_the_fence(patch):
    """A dead worker's incarnation may still speak."""
    patch.setattr(Primary, "fence", lambda self, phase_id, worker, incarnation: None)


def captures_without_the_lock(patch):
    """Units and state are read at two moments, with an update between them."""
    take_snapshot = Primary.take_snapshot

    def unlocked(self, phase_id, final):
        fill = SnapshotBuffer.fill

        def fill_and_let_others_in(snapshot_buffer, write):
            fill(snapshot_buffer, write)
            before = self._sequencer.sequence
            self._condition.wait_for(lambda: self._sequencer.sequence > before, 10.0)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SnapshotBuffer, "fill", fill_and_let_others_in)
            return take_snapshot(self, phase_id, final)

    patch.setattr(Primary, "take_snapshot", unlocked)


def acknowledges_before_it_applies(patch):
    """The reply goes out before the update, and the update is lost."""

    def acknowledge_only(self, update, sequence):
        self.first_applied = self.last_applied = self._now()

    patch.setattr(PartitionedState, "apply", acknowledge_only)


def applies_at_the_rate_of_one_unit(patch):
    """A lock-step update takes n units at the rate of one."""
    patch.setattr(Bsp, "lr_factor", lambda self, num_units, num_workers: 1.0)


def takes_the_rate_of_a_full_step_for_a_short_one(patch):
    """The short last step is applied at n times the rate."""
    patch.setattr(Bsp, "lr_factor", lambda self, num_units, num_workers: float(num_workers))


def loses_a_members_gradient(patch):
    """The sum leaves the last member out."""
    original = ThreadCommunicator.__init__

    def without_the_last(self, members, sum_up, *rest, **named):
        original(self, members, lambda slots: sum_up((*slots[:-1], slots[0])), *rest, **named)

    patch.setattr(ThreadCommunicator, "__init__", without_the_last)


def applies_a_step_for_each_member(patch):
    """Members that share a replica all apply the step's total."""
    original = Replica.update

    def every_time(self, step, *args, **options):
        with self._lock:
            self._step = min(self._step, step)
        original(self, step, *args, **options)

    patch.setattr(Replica, "update", every_time)


def hands_over_the_older_state(patch):
    """A phase starts from the state before the last captured one."""
    original = SnapshotBuffer.pack

    def only_the_first(self, state):
        if self._buffer is None:
            original(self, state)

    patch.setattr(SnapshotBuffer, "pack", only_the_first)


def resumes_with_the_wrong_ledger(patch):
    """A resume believes that fewer units were applied than the state holds."""
    original = Opening.__init__

    def wrong(self, *args, **fields):
        original(self, *args, **fields)
        applied = len(self.ledger.applied())
        if applied > 4:
            self.ledger = Ledger(self.ledger.workload, issued=applied, applied=[(0, applied - 4)])

    patch.setattr(Opening, "__init__", wrong)


def goes_on_from_the_last_commit(patch):
    """Nobody is asked for the newest state."""
    patch.setattr(Recovery, "_from_servers", lambda self, phase: None)
    patch.setattr(Recovery, "_from_workers", lambda self, *args: None)


def counts_what_was_lost_as_applied(patch):
    """The run goes on from an older state, and the ledger does not hear of it."""
    goes_on_from_the_last_commit(patch)
    patch.setattr(RunState, "restore", lambda self, snapshot, rolled_back: 0)


TALLY = r"'min_count': 0|'max_count': [2-9]|'stray': [1-9]"

BUGS = [
    # bug, story, what finds it
    (forgets_what_it_applied, retried_pushes, TALLY),
    (keeps_a_lost_workers_units, lost_worker, "nobody was given them"),
    (leases_beyond_the_workload, plain, r"6[1-9] == 60|push leased units only"),
    (skips_the_phase_check, strangers, "DID NOT RAISE .*StalePhase"),
    (stays_open_after_the_final_capture, strangers, "DID NOT RAISE .*StalePhase"),
    (forgets_the_fence, strangers, "DID NOT RAISE .*StaleIncarnation"),
    (captures_without_the_lock, captured_among_pushes, r"assert \["),
    (acknowledges_before_it_applies, acknowledged, "0.0 == -1.0"),
    (acknowledges_before_it_applies, plain, TALLY),
    (applies_at_the_rate_of_one_unit, plain, TALLY),
    (takes_the_rate_of_a_full_step_for_a_short_one, plain, TALLY),
    (loses_a_members_gradient, plain, TALLY),
    (applies_a_step_for_each_member, plain, f"{TALLY}|lock-step replicas must be equal"),
    (hands_over_the_older_state, plain, "lock-step replicas must be equal"),
    (resumes_with_the_wrong_ledger, preempted_and_resumed, TALLY),
    (goes_on_from_the_last_commit, broken_off, r"rolled_back=[1-9]"),
    (counts_what_was_lost_as_applied, broken_off, r"the ledger counts \d+ units as applied"),
]


@pytest.mark.parametrize(("bug", "story", "finding"), BUGS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_planted_bug_is_found(bug, story, finding, tmp_path, monkeypatch):
    bug(monkeypatch)
    with pytest.raises((AssertionError, HybridSyncError, pytest.fail.Exception), match=finding):
        story(tmp_path)


def test_every_story_is_shown_able_to_fail():
    assert {story for _, story, _ in BUGS} == set(STORIES)
