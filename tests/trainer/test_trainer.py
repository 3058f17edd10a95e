"""Runs from the outside: fit, hooks, steps, preemption, hand-overs."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest

from hybridsync import EmulationConfig, Trainer, protocols
from hybridsync.chief.run_state import RunState
from hybridsync.collectives import threads
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, HybridSyncError, PlanError, RoleLost
from hybridsync.data import UnitSource
from hybridsync.runtime import inprocess
from hybridsync.server import primary
from hybridsync.server.shard_state import Progress
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.task import Task
from tests.sweeps import swept
from tests.tasks import adamw, batchnorm_task, mlp_task, momentum_sgd, plain_sgd, tally_task
from tests.trainers import (
    NEVER,
    events_of,
    fit_and_stop,
    goes_on_until_asked,
    is_exact,
    mlp_trainer,
    tally_trainer,
    units_held,
)

SLOW = EmulationConfig(compute_secs=0.02)
LIMIT_SECS = 40.0
"""Until an error must have ended a run; each wait that nobody ends takes ten times as long in these tests."""


def run_in_process(plan: str, workload: int = 32, optimizer=None, **options):
    return mlp_trainer(plan, workload, optimizer, **options).fit()


# --- results ---


@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:12.5%,asp"])
def test_a_small_classifier_learns(plan):
    result = run_in_process(plan, 240, momentum_sgd(0.01))
    assert result.completed
    assert result.accuracy is not None
    assert result.accuracy >= 0.9
    assert result.loss is not None
    assert result.summary.units.applied == 240
    assert result.summary.examples == 240 * 8
    assert int(result.state.counters["units"]) == 240


THERE_AND_BACK = "bsp:25%,asp:25%,bsp:25%,asp"


@pytest.mark.parametrize(
    ("plan", "workers"),
    [
        *[("bsp", 4), ("asp", 4), ("bsp:12.5%,asp", 4), ("asp:50%,bsp", 4), ("bsp:10%,bsp:10%,asp", 4)],
        *[(THERE_AND_BACK, 1), (THERE_AND_BACK, 4), (THERE_AND_BACK, 7)],
    ],
)
def test_every_unit_is_applied_once_whatever_the_plan_and_the_workers(plan, workers):
    result = tally_trainer(plan, 100, workers=workers).fit()
    assert is_exact(result.summary.final)
    assert result.summary.units.issued == result.summary.units.applied == 100


def test_phases_of_a_few_units_are_switched_like_any_other():
    """A phase may be over before its first heartbeat."""
    result = tally_trainer("bsp:2%,asp:2%,bsp:2%,asp:2%,bsp:2%,asp", 200).fit()
    assert is_exact(result.summary.final)
    assert [switch["units"] for switch in result.summary.switches] == [4, 8, 12, 16, 20]


def test_lock_step_updates_take_n_units_at_n_times_the_rate_but_for_a_short_last_one():
    result = tally_trainer("bsp", 30, workers=4).fit()
    assert is_exact(result.summary.final)
    assert int(result.state.counters["updates"]) == 8
    assert int(tally_trainer("asp", 30, workers=4).fit().state.counters["updates"]) == 30


# --- equalities ---


def test_two_lock_step_phases_equal_one_bit_for_bit():
    whole, halves = (run_in_process(plan, 32, adamw()) for plan in ("bsp", "bsp:50%,bsp"))
    assert fingerprint(halves.state) == fingerprint(whole.state)
    assert len(halves.summary.switches) == 1


def test_two_lock_step_phases_of_a_model_with_batch_statistics_equal_one_bit_for_bit():
    def run(plan: str):
        trainer = Trainer(
            batchnorm_task(),
            momentum_sgd(),
            workload=16,
            unit_size=8,
            workers=2,
            plan=plan,
            progress=False,
            checkpoint=NEVER,
        )
        return fingerprint(trainer.fit().state)

    assert run("bsp:50%,bsp") == run("bsp")


def test_one_worker_is_the_same_under_either_protocol():
    assert len({fingerprint(run_in_process(plan, 24, workers=1).state) for plan in ("bsp", "asp", "asp:50%,bsp")}) == 1


def test_a_state_handed_over_is_the_state_that_was_captured(tmp_path):
    result = run_in_process("bsp:25%,asp:50%,bsp", 32, adamw(), workdir=tmp_path / "run")
    entered = events_of(tmp_path / "run", "phase_entered")
    ended = events_of(tmp_path / "run", "phase_ended")
    assert [event["protocol"] for event in entered] == ["bsp", "asp", "bsp"]
    assert [event["fingerprint"] for event in entered[1:]] == [event["fingerprint"] for event in ended[:-1]]
    assert [switch["fingerprint"] for switch in result.summary.switches] == [e["fingerprint"] for e in entered[1:]]
    assert fingerprint(result.state) == ended[-1]["fingerprint"]
    assert len({event["fingerprint"] for event in entered}) == 3


# --- hooks and steps ---


def test_a_hook_is_called_with_metrics_as_units_are_applied():
    seen = []
    trainer = mlp_trainer("asp", 64, emulation=SLOW)
    with units_held(20) as let_go:  # each call comes before the next one is due

        def see(metrics) -> None:
            seen.append(metrics)
            let_go(metrics.units + 20)

        trainer.add_hook(see, every=16)
        trainer.fit()
    units = [metrics.units for metrics in seen]
    assert len(units) >= 3
    assert all(later // 16 > earlier // 16 for earlier, later in zip([0, *units], units, strict=False))
    assert units[-1] == 64
    assert all(metrics.protocol == "asp" and metrics.examples == metrics.units * 8 for metrics in seen)
    assert any(metrics.loss is not None for metrics in seen)


def test_a_hook_is_not_called_at_a_resume_before_anything_new_was_applied(tmp_path):
    first = mlp_trainer("bsp", 64, workdir=tmp_path / "run", emulation=SLOW)
    stopped = fit_and_stop(first, 16).summary.units.applied
    assert 16 <= stopped < 64
    seen = []
    second = mlp_trainer("bsp", 64, workdir=tmp_path / "run", emulation=SLOW)
    second.add_hook(lambda metrics: seen.append(metrics.units), every=16)
    second.fit()
    assert min(seen) // 16 > stopped // 16


def test_steps_hand_the_loop_to_the_caller_and_keep_the_result():
    trainer = mlp_trainer("bsp:50%,asp", 64, emulation=SLOW)
    protocols = [metrics.protocol for metrics in trainer.steps(every=8)]
    assert protocols[0] == "bsp"
    assert protocols[-1] == "asp"
    assert trainer.result is not None
    assert trainer.result.completed


def test_steps_wait_for_their_units_however_long_these_take(monkeypatch):
    class Impatient(queue.Queue):
        def get(self, block=True, timeout=None):
            if timeout is not None:
                raise queue.Empty
            return super().get()

    monkeypatch.setattr("hybridsync.trainer.queue", SimpleNamespace(Queue=Impatient, Empty=queue.Empty))
    trainer = tally_trainer("asp", 16)
    assert [metrics.units for metrics in trainer.steps(every=16)] == [16]
    assert trainer.result is not None and trainer.result.completed


def test_asking_a_run_to_stop_while_it_ends_does_nothing_worse(monkeypatch):
    trainer, chief = tally_trainer("asp", 16), Mock()
    reads = iter([chief, None])  # the run ends between two looks at it
    monkeypatch.setattr(Trainer, "_chief", property(lambda self: next(reads)), raising=False)
    trainer.preempt()
    chief.service.preempt.assert_called_once_with()


def test_leaving_the_steps_saves_and_stops_and_a_new_run_goes_on(tmp_path):
    trainer = tally_trainer("asp", 200, workdir=tmp_path / "run", emulation=SLOW)
    with goes_on_until_asked(trainer, 8):
        steps = trainer.steps(every=8)
        next(steps)
        steps.close()
    assert trainer.result is not None
    assert trainer.result.summary.exit == "preempted"
    result = tally_trainer("asp", 200, workdir=tmp_path / "run").fit()
    assert is_exact(result.summary.final)
    assert trainer._hooks == []


@pytest.mark.parametrize("every", [0, -1])
def test_a_hook_for_every_so_many_units_needs_units(every):
    trainer = tally_trainer("asp", 16)
    with pytest.raises(ConfigError, match=f"every={every}"):
        trainer.add_hook(print, every=every)
    with pytest.raises(ConfigError, match=f"every={every}"):
        next(trainer.steps(every=every))
    assert trainer.fit().completed


def test_a_hook_that_is_added_while_a_run_is_under_way_is_one_of_the_next():
    trainer, seen = tally_trainer("asp", 32), []

    def add(metrics) -> None:
        if len(trainer._hooks) == 1:
            trainer.add_hook(seen.append, every=8)

    trainer.add_hook(add, every=8)
    assert trainer.fit().completed and not seen
    assert trainer.fit().completed and seen


def test_a_trainer_fits_once_at_a_time_and_who_is_refused_leaves_the_other_alone():
    trainer = tally_trainer("asp", 64, emulation=SLOW)
    refused = []

    def again(metrics) -> None:
        for start in (trainer.fit, lambda: list(trainer.steps(every=8))):
            with pytest.raises(HybridSyncError, match="under way already") as refusal:
                start()
            refused.append(refusal)

    trainer.add_hook(again, every=32)
    assert trainer.fit().completed and refused
    assert trainer._hooks == [(again, 32)]


def test_an_interrupt_while_the_servers_state_is_copied_is_raised_as_it_is(monkeypatch, tmp_path):
    """The controller runs in the caller's thread and asks the primary for the copy."""

    def interrupted(self, whole) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridsync.server.partitioned_state.PartitionedState.pack_inside", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tally_trainer("asp", 16, workdir=tmp_path / "run").fit()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit"] == "failed" and "KeyboardInterrupt" in summary["error"]


# --- preemption ---


@pytest.mark.parametrize("plan", swept(["bsp:50%,asp", "bsp", "asp"]))
def test_a_preempted_run_goes_on_where_it_stopped(plan, tmp_path):
    for stop in range(1, 4):
        trainer = tally_trainer(plan, 120, workdir=tmp_path / "run", emulation=SLOW)
        result = fit_and_stop(trainer, 24 * stop)
        assert result.summary.exit == "preempted" and result.summary.units.rolled_back == 0
    result = tally_trainer(plan, 120, workdir=tmp_path / "run").fit()
    assert result.completed
    assert is_exact(result.summary.final)
    assert result.summary.units.issued == 120


def test_a_preempted_lock_step_run_resumes_to_the_state_of_an_unbroken_one(tmp_path):
    trainer = mlp_trainer("bsp", 64, workdir=tmp_path / "run", emulation=SLOW)
    stopped = fit_and_stop(trainer, 16).summary
    assert stopped.exit == "preempted"
    assert stopped.units.applied % 4 == 0
    resumed = mlp_trainer("bsp", 64, workdir=tmp_path / "run").fit()
    assert fingerprint(resumed.state) == fingerprint(mlp_trainer("bsp", 64).fit().state)


def test_a_run_preempted_before_its_first_step_stops_and_can_be_resumed(tmp_path, monkeypatch):
    """Workers that have not entered the lock-step phase yet must neither hang nor be missed."""
    announce = RunState.begin

    def announce_and_preempt(self, phase, left_out):
        announce(self, phase, left_out)
        self.preempted = True

    with monkeypatch.context() as patch:
        patch.setattr(RunState, "begin", announce_and_preempt)
        summary = tally_trainer("bsp", 40, workdir=tmp_path / "run").fit().summary
    assert summary.exit == "preempted"
    assert summary.units.applied % 4 == 0
    assert is_exact(tally_trainer("bsp", 40, workdir=tmp_path / "run").fit().summary.final)


def test_a_resumed_run_preempted_before_it_commits_returns_the_state_it_resumed_from(tmp_path):
    first = tally_trainer("asp", 40, workdir=tmp_path / "run", emulation=SLOW)
    stopped = fit_and_stop(first, 8)
    second = tally_trainer("asp", 40, workdir=tmp_path / "run")
    second.preempt()
    again = second.fit()
    assert again.summary.exit == "preempted"
    assert again.summary.units.applied == stopped.summary.units.applied
    assert fingerprint(again.state) == fingerprint(stopped.state)


# --- what goes wrong in a task ---


class FailingSource:
    """The tally's source, whose unit 20 cannot be read."""

    def __init__(self, source, error: Exception) -> None:
        self._source, self._error = source, error

    def __getattr__(self, name: str):
        return getattr(self._source, name)

    def batch(self, unit: int, *, unit_size: int, seed: int):
        if unit == 20:
            raise self._error
        return self._source.batch(unit, unit_size=unit_size, seed=seed)


@pytest.mark.parametrize("plan", ["bsp", "asp"])
@pytest.mark.parametrize("error", [OSError("disk gone"), StopIteration("the iterator ran dry")])
def test_an_error_in_the_task_ends_the_run_by_name_and_keeps_its_checkpoint(plan, error, tmp_path):
    task = tally_task(64)
    source = cast("UnitSource", FailingSource(task.source, error))  # it passes the rest on
    broken = Task(task.init, task.loss, source, summarize=task.summarize)
    trainer = Trainer(
        broken, plain_sgd(), workload=64, unit_size=1, plan=plan, workdir=tmp_path / "run", progress=False
    )
    with pytest.raises(RoleLost, match=type(error).__name__) as failure:
        trainer.fit()
    assert failure.value.__cause__ is error
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit"] == "failed"
    assert is_exact(tally_trainer(plan, 64, workdir=tmp_path / "run").fit().summary.final)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("worker", "heartbeat"))]


class Unprintable(Exception):
    """An error whose own text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("plan", protocols.REGISTRY)
def test_an_error_of_one_worker_releases_the_others_under_every_protocol(plan, monkeypatch):
    for module, name in ((primary, "HELD_SECS"), (inprocess, "JOIN_SECS"), (threads, "DEADLINE_SECS")):
        monkeypatch.setattr(module, name, 10 * LIMIT_SECS)  # a wait that nobody ends fails this test
    task, begun, before = tally_task(200), SYSTEM_CLOCK.monotonic(), set(threading.enumerate())
    source = cast("UnitSource", FailingSource(task.source, Unprintable()))  # it passes the rest on
    broken = Task(task.init, task.loss, source)
    trainer = Trainer(broken, plain_sgd(), workload=200, unit_size=1, workers=3, plan=plan, progress=False)
    with pytest.raises(RoleLost, match="a worker failed: Unprintable; correct that") as failure:
        trainer.fit()
    assert isinstance(failure.value.__cause__, Unprintable)
    assert SYSTEM_CLOCK.monotonic() - begun < LIMIT_SECS
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_SECS)
        assert not thread.is_alive(), f"the thread {thread.name} is left"


def test_a_thread_that_hangs_in_the_task_keeps_no_error_from_the_caller(monkeypatch):
    monkeypatch.setattr(inprocess, "JOIN_SECS", 0.2)
    task, released = tally_task(64), threading.Event()

    class HangingSource(FailingSource):
        """The tally's source, whose unit 20 cannot be read, and whose units do not come to worker 0."""

        def batch(self, unit: int, *, unit_size: int, seed: int):
            if threading.current_thread().name == "worker_0":
                released.wait()
            return super().batch(unit, unit_size=unit_size, seed=seed)

    source = cast("UnitSource", HangingSource(task.source, OSError("disk gone")))  # it passes the rest on
    broken = Task(task.init, task.loss, source, summarize=task.summarize)
    guard = threading.Timer(25.0, released.set)
    guard.start()
    with pytest.raises(RoleLost, match="disk gone"):
        Trainer(broken, plain_sgd(), workload=64, unit_size=1, plan="asp", progress=False).fit()
    assert not released.is_set(), "the caller waited for the thread that hangs"
    guard.cancel()
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("worker"):
            thread.join(60)


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"workers": 0}, ConfigError, "workers"),
        ({"workload": 0}, ConfigError, "workload"),
        ({"unit_size": 0}, ConfigError, "unit_size"),
        ({"servers": 0}, ConfigError, "servers"),
        ({"resume": "nver"}, ConfigError, "auto, must, never, got 'nver'"),
        ({"plan": "bps"}, PlanError, "did you mean 'bsp'"),
        ({"plan": "bsp:50%"}, PlanError, "50 %"),
        ({"plan": "bsp:1%,asp", "workload": 4}, PlanError, "'bsp' would get no unit"),
        ({"emulation": EmulationConfig(stragglers="worker=4,delay_ms=1")}, ConfigError, "workers 0 to 3"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(fields, error, named):
    with pytest.raises(error) as refusal:
        Trainer(mlp_task(), momentum_sgd(), **{"workload": 8, "unit_size": 8, "workers": 4, **fields})
    assert named in str(refusal.value)


def test_emulated_accelerators_overlap_and_a_straggler_holds_up_lock_step_only():
    """24 units of 20 ms on 4 workers take 6 steps; a straggler delays each step, or itself alone."""
    straggler = EmulationConfig(compute_secs=0.02, stragglers="worker=3,delay_ms=480")
    secs = {
        (plan, name): mlp_trainer(plan, 24, emulation=emulation).fit().summary.seconds
        for plan in ("bsp", "asp")
        for name, emulation in (("even", SLOW), ("straggler", straggler))
    }
    assert secs["bsp", "even"] >= 6 * 0.02
    assert secs["bsp", "straggler"] >= 6 * 0.5
    assert secs["asp", "straggler"] < secs["bsp", "straggler"]
    assert np.isfinite(list(secs.values())).all()


def test_a_heartbeat_that_fails_ends_the_run_by_name(monkeypatch):
    def failing(*told: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(Progress, "as_report", failing)
    with pytest.raises(RoleLost, match="the heartbeat failed: MemoryError"):
        tally_trainer("asp", 40).fit()
