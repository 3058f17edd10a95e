"""Every way to break a run off saves it: Ctrl-C, signals, an error out of a signal's handler, a closed generator."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hybridsync import Trainer
from hybridsync.telemetry.metrics import Metrics
from tests.tasks import plain_sgd, tally_task
from tests.trainers import NEVER, is_exact, tally_trainer

WORKLOAD = 20_000
PLANS = ["asp", "bsp"]


class Signalling:
    """The tally's source, which sends this process signals when it comes to a unit."""

    def __init__(self, source: Any, send: Callable[[], None], at: int) -> None:
        self._source, self._send, self._at = source, send, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def batch(self, unit: int, *, unit_size: int, seed: int) -> Any:
        if unit == self._at:
            self._send()
        return self._source.batch(unit, unit_size=unit_size, seed=seed)


def signalling(send: Callable[[], None], plan: str, workdir: Any = None, at: int = 100) -> Trainer:
    task = tally_task(WORKLOAD)
    task = dataclasses.replace(task, source=Signalling(task.source, send, at))
    fields: dict[str, Any] = {"workers": 2, "plan": plan, "checkpoint": NEVER, "workdir": workdir}
    return Trainer(task, plain_sgd(), workload=WORKLOAD, unit_size=1, progress=False, **fields)


def interrupt(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def is_saved(workdir: Any, applied: int) -> bool:
    """Return whether the next run goes on from there, and applies each unit once."""
    trainer = tally_trainer("asp", WORKLOAD, workdir=workdir, workers=2)
    trainer.preempt()
    stopped = trainer.fit().summary
    return stopped.units.applied == applied and stopped.units.rolled_back == 0 and is_exact(stopped.final or EXACT)


EXACT = {"min_count": 1, "max_count": 1, "stray": 0}


@pytest.fixture(autouse=True)
def handlers_are_as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_ctrl_c_saves_and_returns_the_result(plan: str, times: int, tmp_path):
    result = signalling(functools.partial(interrupt, times), plan, tmp_path / "run").fit()
    assert result.summary.exit == "preempted" and 0 < result.summary.units.applied < WORKLOAD
    assert is_saved(tmp_path / "run", result.summary.units.applied)


def test_without_a_workdir_the_result_of_ctrl_c_has_the_state():
    result = signalling(interrupt, "asp").fit()
    applied = result.summary.units.applied
    assert result.summary.exit == "preempted" and 0 < applied < WORKLOAD
    assert -np.asarray(result.state.params["tally"]).sum() == applied


def test_ctrl_c_in_a_hook_saves_and_the_hook_goes_on(tmp_path):
    trainer, seen = tally_trainer("asp", WORKLOAD, workdir=tmp_path / "run", workers=2), []

    def hook(metrics: Metrics) -> None:
        if not seen:
            interrupt()
        seen.append(metrics.units)

    trainer.add_hook(hook, every=50)
    stopped = trainer.fit().summary
    assert stopped.exit == "preempted" and seen and is_saved(tmp_path / "run", stopped.units.applied)


def test_ctrl_c_before_the_run_has_begun_stops_it_and_the_next_fit_is_not_asked_again(tmp_path):
    task = tally_task(64)
    first = [interrupt]
    task = dataclasses.replace(task, init=lambda key: (first and first.pop()(), tally_task(64).init(key))[1])
    fields: dict[str, Any] = {"workers": 2, "plan": "asp", "workdir": tmp_path / "run", "progress": False}
    trainer = Trainer(task, plain_sgd(), workload=64, unit_size=1, **fields)
    assert trainer.fit().summary.exit == "preempted"
    assert tally_trainer("asp", 64, workdir=tmp_path / "run", workers=2).fit().completed


def test_ctrl_c_in_the_body_of_steps_ends_the_loop_once_the_state_is_saved(tmp_path):
    trainer = tally_trainer("asp", WORKLOAD, workdir=tmp_path / "run", workers=2)
    for num_steps, _ in enumerate(trainer.steps(every=50)):
        if num_steps == 1:
            interrupt()
    assert trainer.result is not None
    stopped = trainer.result.summary
    assert stopped.exit == "preempted" and is_saved(tmp_path / "run", stopped.units.applied)


def test_steps_that_are_closed_or_left_by_an_error_save(tmp_path):
    trainer = tally_trainer("asp", WORKLOAD, workdir=tmp_path / "run", workers=2)
    steps = trainer.steps(every=50)
    next(steps)
    with pytest.raises(ZeroDivisionError):
        steps.throw(ZeroDivisionError("the user's own"))
    assert trainer.result is not None
    stopped = trainer.result.summary
    assert stopped.exit == "preempted" and is_saved(tmp_path / "run", stopped.units.applied)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("error", [TimeoutError("the user's alarm"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_error_out_of_a_handler_of_the_users_is_raised_once_the_state_is_saved(plan, error, tmp_path):
    def on_alarm(*told: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        trainer = signalling(lambda: os.kill(os.getpid(), signal.SIGALRM), plan, tmp_path / "run")
        if isinstance(error, KeyboardInterrupt):
            assert trainer.fit().summary.exit == "preempted"
        else:
            with pytest.raises(type(error)) as raised:
                trainer.fit()
            assert raised.value is error
    finally:
        signal.signal(signal.SIGALRM, before)
    trainer = tally_trainer("asp", WORKLOAD, workdir=tmp_path / "run", workers=2)
    trainer.preempt()
    stopped = trainer.fit().summary
    assert stopped.units.applied > 0 and stopped.units.rolled_back == 0, "what was applied before it is saved"


def test_a_handler_of_the_users_stays(tmp_path):
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        trainer = signalling(interrupt, "asp", tmp_path / "run", at=8)
        trainer.add_hook(lambda metrics: trainer.preempt(), every=400)
        assert trainer.fit().summary.units.applied >= 400 and heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


SCRIPT = """
import os, signal, sys
from tests.trainers import tally_trainer
trainer = tally_trainer("asp", 20_000, workdir=sys.argv[1], workers=2)
trainer.add_hook(lambda metrics: os.kill(os.getpid(), getattr(signal, sys.argv[2])), every=50)
trainer.fit()
print("went on")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_another_signal_ends_the_process_once_the_state_is_saved(name: str, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == -signal.Signals[name] and "went on" not in done.stdout, done.stderr
    trainer = tally_trainer("asp", WORKLOAD, workdir=tmp_path / "run", workers=2)
    trainer.preempt()
    stopped = trainer.fit().summary
    assert stopped.units.applied >= 50 and stopped.units.rolled_back == 0
