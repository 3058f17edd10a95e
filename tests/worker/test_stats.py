"""What a worker notes reaches exactly one report, of the right phase."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from hybridsync.core.activity import current, follow
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import GroupReply, LeaseReply, PushReply
from hybridsync.interfaces.reports import COMPILING, COMPUTING, READING, SEND, WAITING
from hybridsync.lab.simulator.arithmetic import Sizes, Weightless
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.local_engine import LocalEngine
from hybridsync.worker.lockstep_engine import LockstepEngine
from hybridsync.worker.requests import (
    AllReduce,
    AverageGroup,
    CallServer,
    ComputeUnit,
    JoinGroup,
    LeaseUnits,
    Start,
    UpdateOwn,
)
from hybridsync.worker.server_engine import ServerEngine
from hybridsync.worker.stats import WorkerRecorder
from tests.telemetry.clocks import ManualClock
from tests.worker.scripted import Script, member_of


def test_everything_noted_is_in_one_report():
    recorder = WorkerRecorder(3, ManualClock(), keep_spans=True)
    recorder.incarnation = 7
    recorder.enter(PhaseId(2, 5))
    recorder.completed = 12
    recorder.compute("sync", 1.0, 1.5, np.float32(0.25))
    recorder.compute("sync", 2.0, 2.5, np.float32(0.75))
    recorder.wait("average", "sync", 2.5, 2.75)
    recorder.step(1.0, 2.75, 4)
    recorder.compiled(0.5)
    report = recorder.take_report()
    assert (report.role, report.id, report.incarnation, report.phase_id) == ("worker", 3, 7, PhaseId(2, 5))
    assert (report.completed, report.num_losses, report.loss_sum) == (12, 2, 1.0)
    assert (report.compute_secs, report.wait_secs, report.compile_secs) == (1.0, 0.25, 0.5)
    assert [(span.name, span.secs, span.phase) for span in report.spans] == [
        ("compute", 0.5, 2),
        ("compute", 0.5, 2),
        ("average", 0.25, 2),
        ("step", 1.75, 2),
    ]
    empty = recorder.take_report()
    assert (empty.num_losses, empty.compute_secs, empty.spans, empty.completed) == (0, 0.0, (), 12)


def test_what_is_noted_while_reports_are_taken_is_in_one_of_them():
    recorder = WorkerRecorder(0, SYSTEM_CLOCK, keep_spans=True)
    recorder.enter(PhaseId(1, 0))
    stop, reports = threading.Event(), []

    def train() -> None:
        for number in range(4000):
            recorder.computing(number)
            recorder.compute("server", float(number), number + 0.5, None)
            recorder.wait("push_pull", "server", number + 0.5, number + 0.75)
            recorder.moved(3, 5)
        stop.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    while not stop.is_set():
        reports.append(recorder.take_report())
    trainer.join(60)
    reports.append(recorder.take_report())
    spans = [(span.name, span.start) for report in reports for span in report.spans]
    expected = [
        (name, number + late) for number in range(4000) for name, late in (("compute", 0.0), ("push_pull", 0.5))
    ]
    assert spans == expected
    assert sum(report.sent_bytes for report in reports) == 12_000
    assert sum(report.received_bytes for report in reports) == 20_000
    assert sum(report.compute_secs for report in reports) == 2000.0
    assert sum(report.wait_secs for report in reports) == 1000.0


def test_what_happened_in_a_phase_is_told_of_under_its_number():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=True)
    recorder.enter(PhaseId(1, 0))
    recorder.compute("sync", 0.0, 1.0, None)
    recorder.step(0.0, 1.5, 1)
    recorder.enter(PhaseId(2, 0))
    recorder.compute("sync", 2.0, 3.0, None)
    assert [(span.name, span.phase) for span in recorder.take_report().spans] == [
        ("compute", 1),
        ("step", 1),
        ("compute", 2),
    ]


def test_a_new_phase_forgets_position_and_stamps_of_the_old():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False)
    recorder.enter(PhaseId(1, 0))
    recorder.completed, recorder.stamps = 40, lambda: (3.0, 4.0)
    assert recorder.take_report().last_applied == 4.0
    recorder.enter(PhaseId(2, 0))
    report = recorder.take_report()
    assert (report.phase_id, report.completed, report.first_applied) == (PhaseId(2, 0), 0, 0.0)


def test_no_report_carries_one_phases_position_under_anothers_phase():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False)
    stop = threading.Event()

    def train() -> None:
        for number in range(1, 3000):
            recorder.enter(PhaseId(number, 0))
            recorder.completed = number
        stop.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    while not stop.is_set():
        report = recorder.take_report()
        assert report.completed in (0, report.phase_id.number)
    trainer.join(60)


def unit_secs(counts_transfers: bool, keep_unit_secs: bool = True) -> tuple[float, ...]:
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False, keep_unit_secs=keep_unit_secs)
    recorder.enter(PhaseId(1, 0))
    recorder.compute("server", 0.0, 9.0, None)
    recorder.compute("server", 9.0, 18.0, None)
    recorder.enter(PhaseId(2, 0), counts_transfers)
    for started in (0.0, 2.0, 4.0):
        recorder.compute("server", started, started + 0.5, None)
        recorder.wait("ready", "server", started + 0.5, started + 0.75)
        recorder.wait("push_pull", "server", started + 1.0, started + 2.0)
    return recorder.take_report().unit_secs


def test_what_units_take_the_worker_itself_is_told_for_this_phase_up_to_the_last_whose_transfer_is_over():
    assert unit_secs(counts_transfers=False) == (0.5, 0.5)
    assert unit_secs(counts_transfers=True) == (1.5, 1.5)


@pytest.mark.parametrize(("read_secs", "shown"), [(3.0, [("read", 0.0, 3.0), ("compute", 3.0, 1.0)]),
                                                  (0.25, [("compute", 0.0, 4.0)])])  # fmt: skip
def test_reading_is_no_computing_but_a_part_of_what_a_unit_takes_its_worker(read_secs: float, shown: list) -> None:
    clock = ManualClock()
    recorder = WorkerRecorder(0, clock, keep_spans=True, keep_unit_secs=True)
    recorder.enter(PhaseId(1, 0))
    started = recorder.computing(0)
    recorder.reading()
    clock.advance(read_secs)
    recorder.has_read()
    clock.advance(4.0 - read_secs)
    recorder.compute("sync", started, clock.monotonic(), None)
    begun = clock.monotonic()
    recorder.compute("sync", recorder.computing(1), begun + 2.0, None)
    report = recorder.take_report()
    assert (report.read_secs, report.compute_secs) == (read_secs, 4.0 - read_secs + 2.0)
    assert report.usual_secs == 2.0 and report.unit_secs == (4.0,)
    spans = [(span.name, span.start - started, span.secs) for span in report.spans]
    assert spans == [*shown, ("compute", 4.0, 2.0)]
    assert recorder.take_report().read_secs == 0.0


def test_the_wait_for_other_members_units_is_no_part_of_ones_own() -> None:
    clock = ManualClock()
    recorder = WorkerRecorder(0, clock, keep_spans=True, keep_unit_secs=True)
    recorder.enter(PhaseId(1, 0))
    started = recorder.computing(0)
    recorder.reading()
    clock.advance(1.0)
    recorder.has_read()
    recorder.joining()
    clock.advance(2.0)
    assert recorder.take_report().doing == WAITING
    met = clock.monotonic()
    clock.advance(0.5)  # until the program is begun
    recorder.has_joined(met)
    clock.advance(1.0)
    recorder.compute("sync", started, clock.monotonic(), None)
    recorder.compute("sync", recorder.computing(1), clock.monotonic() + 1.0, None)
    report = recorder.take_report()
    assert (report.read_secs, report.compute_secs, report.wait_secs) == (1.0, 1.5 + 1.0, 2.0)
    assert report.unit_secs == (2.5,)
    assert [(span.name, span.start - started, span.secs) for span in report.spans] == [
        ("average", 1.0, 2.0),
        ("read", 0.0, 1.0),
        ("compute", 3.0, 1.5),
        ("compute", 4.5, 1.0),
    ]


class Timed(Script):
    """A request that is begun takes a second of its worker's time."""

    def __init__(self, clock: ManualClock, answer: Callable[[Any], Any]) -> None:
        super().__init__(answer)
        self._clock = clock

    def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Start):
            self._clock.advance(1.0)
        return super()._carry_out(request)


@pytest.mark.parametrize("reads", [(), (0.0,), (3.0,), (2.0, 3.0)], ids=["none", "ahead", "now", "another ahead"])
@pytest.mark.parametrize(
    ("spec", "engine"),
    [
        ("bsp", partial(LockstepEngine, ahead=False)),
        ("asp", partial(ServerEngine, ahead=False)),
        ("ssp", partial(ServerEngine, ahead=True)),
        ("localsgd", partial(LocalEngine, ahead=True)),
        ("psplus", partial(LocalEngine, ahead=False)),
        ("preduce", partial(GroupEngine, logs=False)),
        ("adpsgd", partial(GroupEngine, logs=False)),
    ],
)
def test_reading_is_what_the_data_take_whatever_else_an_engine_does(spec: str, engine: Any, reads: tuple) -> None:
    """Every request takes a second, that for a gradient before its data are read, as where a trace begins."""
    clock, leases = ManualClock(), [LeaseReply(((0, 4),), False), LeaseReply((), True)]
    member, numerics, units = member_of(spec, clock=clock), Weightless(Sizes(1, 1, 1)), list[int]()

    def answer(request: Any) -> Any:
        clock.advance(1.0)
        if isinstance(request, LeaseUnits):
            return leases.pop(0) if leases else LeaseReply((), True)
        if isinstance(request, ComputeUnit):
            for secs in reads:
                member.recorder.reading()
                clock.advance(secs)
                member.recorder.has_read()
            units.append(request.unit)
            clock.advance(4.0)
        if isinstance(request, CallServer):
            return PushReply(0), 1
        if isinstance(request, AllReduce):
            return 0, 4
        if isinstance(request, JoinGroup):
            return GroupReply((2,), sequence=len(units), is_full_sync=request.request.last)
        return request.state if isinstance(request, (UpdateOwn, AverageGroup)) else 0

    Timed(clock, answer).drive(engine(member, numerics).run())
    report = member.recorder.take_report()
    assert units and report.read_secs == len(units) * sum(reads)
    assert report.compute_secs == len(units) * (6.0 if spec == "adpsgd" else 5.0)


def test_a_unit_that_is_computed_for_its_seconds_alone_comes_behind_those_before_it():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=True, keep_unit_secs=True)
    recorder.enter(PhaseId(1, 0))
    recorder.compute("sync", 0.0, 0.5, None)
    recorder.compute("sync", 1.0, 1.5, None)
    recorder.probe(2.0, 5.0)
    recorder.beside("push", 5.0, 6.0)
    report = recorder.take_report()
    assert report.unit_secs == (0.5, 3.0)
    assert [span.name for span in report.spans] == ["compute", "compute", "probe", "push"]


def test_a_worker_that_nobody_judges_tells_of_no_unit():
    assert unit_secs(counts_transfers=True, keep_unit_secs=False) == ()


def test_what_a_slow_link_takes_in_a_step_is_its_workers_own_whoever_waits_for_whom():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=True, keep_unit_secs=True)
    recorder.enter(PhaseId(1, 0))
    for started in (0.0, 2.0, 4.0):
        recorder.compute("sync", started, started + 0.5, None)
        recorder.wait(SEND, "sync", started + 0.5, started + 0.75)
        recorder.wait("average", "sync", started + 0.75, started + 2.0)
    report = recorder.take_report()
    assert report.unit_secs == (0.75, 0.75)
    assert [span.name for span in report.spans[:3]] == ["compute", "send", "average"]


def test_what_is_sent_of_a_step_is_divided_among_the_units_that_its_worker_has_in_it():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False, keep_unit_secs=True)
    recorder.enter(PhaseId(1, 0), counts_transfers=True)
    told: list[float] = []
    for num_units in (4, 1, 0, 2, 1):
        for secs in (0.5, 0.25, 0.5, 0.25)[:num_units]:
            recorder.compute("sync", 0.0, secs, None)
            told += recorder.take_report().unit_secs  # a heartbeat may come between two units of a step
        recorder.wait(SEND, "sync", 0.0, 1.0)
        recorder.wait("average", "sync", 1.0, 9.0)
        recorder.step(0.0, 9.0, num_units)
    assert told == [0.75, 0.5, 0.75, 0.5, 1.5, 1.0, 0.75], "what was sent of the step without units is in none"


def test_a_worker_that_pushes_rarely_and_is_held_is_judged_by_each_unit_at_once():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False, keep_unit_secs=True)
    recorder.enter(PhaseId(1, 0), counts_transfers=False)
    for _ in range(50):
        recorder.compute("server", 0.0, 0.5, None)
    assert recorder.take_report().unit_secs == (0.5,) * 49


def test_a_report_says_for_how_long_the_training_thread_has_been_at_what_it_does():
    clock = ManualClock()
    recorder = WorkerRecorder(0, clock, keep_spans=False)
    recorder.enter(PhaseId(1, 0))
    recorder.computing(4)
    clock.advance(2.5)
    report = recorder.take_report()
    assert (report.doing, report.doing_secs) == (COMPUTING, 2.5)
    clock.advance(0.5)
    assert recorder.take_report().doing_secs == 3.0, "a report that is lost takes nothing along"
    recorder.turn_to(WAITING)
    clock.advance(1.0)
    report = recorder.take_report()
    assert (report.doing, report.doing_secs) == (WAITING, 1.0)
    recorder.enter(PhaseId(2, 0))
    clock.advance(1.0)
    report = recorder.take_report()
    assert (report.doing, report.doing_secs) == ("", 1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def followed(clock: ManualClock) -> Iterator[WorkerRecorder]:
    """The recorder of this thread, which trains."""
    former, recorder = current(), WorkerRecorder(0, clock, keep_spans=False)
    follow(recorder)
    yield recorder
    follow(former)


def test_a_compilation_that_ends_in_another_thread_is_not_the_end_of_the_training_threads(followed: WorkerRecorder):
    followed.compiling()
    other = threading.Thread(target=followed.compiled, args=(0.5,))
    other.start()
    other.join()
    assert followed.take_report().doing == COMPILING
    followed.compiled(1.0)
    report = followed.take_report()
    assert (report.doing, report.compile_secs) == ("", 1.0)


def test_reading_and_compiling_are_what_a_worker_is_at_until_they_end(followed: WorkerRecorder, clock: ManualClock):
    recorder = followed
    recorder.enter(PhaseId(1, 0))

    def at() -> tuple[str, float]:
        clock.advance(1.0)
        report = recorder.take_report()
        return report.doing, report.doing_secs

    recorder.computing(4)
    assert at() == (COMPUTING, 1.0)
    recorder.reading()
    assert (at(), at()) == ((READING, 1.0), (READING, 2.0))
    recorder.compiling()
    assert at() == (COMPILING, 1.0)
    recorder.compiled(1.0)
    assert at() == (READING, 1.0)
    recorder.has_read()
    assert at() == (COMPUTING, 1.0)
    recorder.compiling()
    recorder.compiling()
    assert at() == (COMPILING, 1.0)
    recorder.compiled(2.0)
    assert at() == (COMPUTING, 1.0)
    recorder.turn_to("")
    recorder.compiling()
    recorder.compiled(1.0)
    assert at() == ("", 1.0), "of an update, say"


def test_time_before_the_process_stood_still_does_not_count():
    clock = ManualClock()
    recorder = WorkerRecorder(0, clock, keep_spans=False)
    recorder.computing(4)
    clock.advance(LATE_SECS - 1.0)
    assert recorder.take_report().doing_secs == LATE_SECS - 1.0
    clock.advance(30.0)  # SIGSTOP
    assert recorder.take_report().doing_secs == 0.0
    clock.advance(1.0)
    assert recorder.take_report().doing_secs == 1.0


def test_a_first_update_is_no_step_that_has_ended_before_it_is_counted():
    """A heartbeat may come in between, and the chief would take the next step's time for that of this one."""
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False)
    recorder.stamps = lambda: (3.0, 3.0)
    report = recorder.take_report()
    assert (report.first_applied, report.last_applied) == (0.0, 0.0)
    recorder.completed = 2
    report = recorder.take_report()
    assert (report.first_applied, report.last_applied) == (3.0, 3.0)


def test_what_units_usually_take_follows_the_recent_ones_and_forgets_the_one_that_was_compiled():
    recorder = WorkerRecorder(0, ManualClock(), keep_spans=False)
    recorder.enter(PhaseId(1, 0))
    usual = []
    for secs in (30.0, 1.0, 1.0, 2.0):
        recorder.compute("server", 0.0, secs, None)
        usual.append(recorder.take_report().usual_secs)
    assert usual == [30.0, 1.0, 1.0, 1.25]
    recorder.enter(PhaseId(2, 0))
    assert recorder.take_report().usual_secs == 0.0, "its first unit in the next phase may be compiled again"
