"""A run from start to end: `Trainer(task, optimizer, ...).fit()`.

trainer = Trainer(task, optimizer, workload=4000, unit_size=32, workers=4, plan="bsp:12.5%,asp")
result = trainer.fit()
result.accuracy, result.model()
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from absl import logging

from hybridsync.config import RunConfig, load_config, to_json
from hybridsync.config.keywords import check_known
from hybridsync.config.recipes import located
from hybridsync.config.typing import annotations
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, HybridSyncError, NotRunning
from hybridsync.core.paths import local_path
from hybridsync.devices.placement import local_devices
from hybridsync.interfaces.callbacks import Callback, checked_callbacks
from hybridsync.interfaces.commands import SwitchReply, SwitchRequest
from hybridsync.phases.reporter import Hook
from hybridsync.runtime.end_signals import handled_by_default
from hybridsync.runtime.inprocess import InProcess
from hybridsync.runtime.role.chief_wiring import ChiefRole
from hybridsync.runtime.role.compilations import Compilations
from hybridsync.storage.jsonl import plain
from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.progress import open_progress
from hybridsync.telemetry.recorder import RecordedLines, Recorder
from hybridsync.telemetry.run_record import Record
from hybridsync.telemetry.summary import Summary, Units
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.training.task import Task
from hybridsync.workdir.auto_plan import planned
from hybridsync.workdir.opening import AlreadyCompleted, Resume, open_run
from hybridsync.workdir.resuming import Allowed

if TYPE_CHECKING:
    from hybridsync.lab.report.history import RunHistory

LOOK_SECS = 1.0
"""Between two looks at whether a run whose metrics are waited for has ended."""

MOST_INTERRUPTS = 2
"""How often Ctrl-C asks a run to save and stop; a later one is raised as KeyboardInterrupt."""

_OPTIONS = (
    *("workdir", "resume", "init_from", "convert_units", "accept_changes"),
    *("progress", "file", "history", "callbacks"),
)
"""Of the trainer itself, beside the fields of its RunConfig."""


@dataclass(frozen=True)
class FitResult:
    """Holds the trained state, and how the run ended.

    Args:
      state: final TrainState, numpy leaves.
      summary: content of summary.json.
      task: task that was trained; None in a result that was pickled: a task's functions and data stay where they are.
      record: what `history` is made of: the run's workdir, or the record of a run without one.
      seed: seed of the run, from which a task makes what is frozen.
    """

    state: TrainState
    summary: Summary
    task: Task | None
    record: Record | Path
    seed: int = 0

    def __repr__(self) -> str:
        units, final = self.summary.units, self.summary.final
        figures = "".join(f", {name} {value:.4g}" for name, value in final.items() if isinstance(value, int | float))
        return (
            f"FitResult({self.summary.exit}: {units.applied:,} of {units.workload:,} units in "
            f"{self.summary.seconds:.1f} s{figures})"
        )

    def _repr_html_(self) -> str:
        try:
            report = self.history.inline_report()
        except HybridSyncError:  # its workdir may be gone by now
            report = ""
        return f"<code>{escape(repr(self))}</code>{report}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "task": None}

    def model(self) -> Any:
        """Return the trained model, ready to evaluate.

        Of `Task.from_nnx` it is a module of the user's class under `eval()`, with parameters and model state (BatchNorm
        statistics) in place; of `Task.from_linen` the variables for `module.apply`. Of a task of plain functions
        without `Task.model` it is the parameters; their model state is `state.model_state`. Frozen leaves are in it.

        Raises:
          HybridSyncError: the result was pickled, and so has no task.
        """
        if self.task is None:
            raise HybridSyncError(
                "this result was pickled, which leaves its task out; call task.model(task.whole(result.state.params, "
                "result.seed), result.state.model_state) with a task made as the trained one was"
            )
        params = self.task.whole(self.state.params, self.seed)
        return params if self.task.model is None else self.task.model(params, self.state.model_state)

    @property
    def history(self) -> RunHistory:
        """What the run did: its configuration, summary, metrics, evaluations and events, also without a workdir.

        Raises:
          WorkdirError: as `hybridsync.read_run`, where the run had a workdir.
        """
        from hybridsync.lab.report.history import history_of  # a run does not load the lab
        from hybridsync.lab.report.results import read_run

        return read_run(self.record) if isinstance(self.record, Path) else history_of(self.record)

    @property
    def completed(self) -> bool:
        """Return whether the whole workload was applied."""
        return self.summary.exit == "completed"

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the held-out examples, None for tasks without one."""
        return self.summary.final.get("accuracy")

    @property
    def loss(self) -> float | None:
        """Loss on the held-out examples, None for tasks without one."""
        return self.summary.final.get("loss")


class Trainer:
    """Trains one task on many workers, in this process.

    Args:
      task: model, loss and data (`Task.from_nnx`, `Task.from_linen`, or plain functions).
      optimizer: for example `Optimizer(optax.adamw, learning_rate=1e-3)`.
      config: all values at once; or give some of its fields as keywords.
      workdir: folder for checkpoints, events and the summary; None leaves nothing.
      resume: "auto", "must" or "never" (see `opening.open_run`).
      init_from: workdir of a run to take parameters, optax and model state from.
      convert_units: allow a resume with another unit size.
      accept_changes: allow a resume with another model, loss or optimizer.
      progress: show one line of progress on stderr.
      file: the configuration file that the values come from, for the record.
      callbacks: objects of classes that inherit `hybridsync.Callback`.
      history: job history that `hybridsync.tune` or `hybridsync tune` wrote, for plan "auto"; None takes the user's.
      **fields: fields of RunConfig: workload, unit_size, workers, plan, seed, ...

    Raises:
      ConfigError: an argument is unknown, or a value is impossible; PlanError, OptimizerError and TaskError are its
        kinds.
      NoAnswer: the plan is "auto", and no search has been run for this job's switch point.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Optimizer,
        config: RunConfig | None = None,
        *,
        workdir: str | Path | None = None,
        resume: Resume = "auto",
        init_from: str | Path | None = None,
        convert_units: bool = False,
        accept_changes: bool = False,
        progress: bool = True,
        file: str | Path | None = None,
        history: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        **fields: Any,
    ) -> None:
        check_known("Trainer", fields, [*annotations(RunConfig), *_OPTIONS])
        config = RunConfig(**fields) if config is None else dataclasses.replace(config, **fields)
        run = Run(
            config,
            task,
            optimizer,
            workdir=_path(workdir),
            file=_path(file),
            callbacks=checked_callbacks(callbacks, "callbacks"),
        )
        config = planned(
            config, run, lambda about: logging.info("%s", about), history=_path(history), workdir=run.workdir
        )
        self._run = dataclasses.replace(run, config=config)
        self._run.check()
        if resume not in get_args(Resume):
            raise ConfigError(f"resume must be one of {', '.join(get_args(Resume))}, got {resume!r}; correct it")
        self._resume: Resume = resume
        self._init_from = _path(init_from)
        self._allowed: Allowed = {"convert_units": convert_units, "accept_changes": accept_changes}
        self._progress = progress
        self._hooks: list[tuple[Hook, int]] = []
        self._chief: ChiefRole | None = None
        self._preempted = False
        self._show_line = self._say  # where the `fit` in progress shows lines
        self._fitting = threading.Lock()  # held by the `fit` in progress
        self.result: FitResult | None = None

    @classmethod
    def from_config(cls, path: str | Path, overrides: Sequence[str] = (), **options: Any) -> Trainer:
        """Return the trainer of a configuration file, with `key=value` overrides.

        Args:
          path: path of the file, or `recipe:NAME` such as `recipe:digits_mlp`.
          overrides: changes of its values.
          **options: further arguments of a Trainer.

        Raises:
          ConfigError: the file or a value cannot be used.
        """
        file = located(os.fspath(path))
        for name in ("workdir", "init_from", "history"):
            options[name] = _path(options.get(name))  # before the file runs, which may change the working directory
        loaded = load_config(file, overrides)
        if "callbacks" not in options:
            options["callbacks"] = loaded.callbacks(loaded.config)
        return cls(*loaded.build(loaded.config), loaded.config, file=file, **options)

    def add_hook(self, hook: Hook, *, every: int) -> None:
        """Call `hook(metrics)` in the chief's thread whenever another `every` units have been applied.

        A `fit` in progress ignores it.

        Raises:
          ConfigError: `every` is below 1.
        """
        if every < 1:
            raise ConfigError(f"a hook is called every 1 or more units, got every={every}; raise it")
        self._hooks.append((hook, every))

    def preempt(self) -> None:
        """Ask `fit`, under way or about to begin, to save its state and return early."""
        self._preempted = True
        chief = self._chief  # read once: `fit` may end meanwhile
        if chief is not None:
            chief.service.preempt()

    def switch(self, protocol: str, why: str = "") -> SwitchReply:
        """Switch the running `fit` to another protocol, for the rest of the plan's current stage.

        Args:
          protocol: as in a plan, without a share.
          why: reason, for the event log.

        Raises:
          ConfigError: the protocol cannot be used; nothing has changed.
          NotRunning: no `fit` is in progress, or it is in no phase.
        """
        chief = self._chief  # read once: `fit` may end meanwhile
        if chief is None:
            raise NotRunning("this trainer's fit is not under way; switch while it is, for example in a hook")
        return chief.service.switch(SwitchRequest(protocol, why))

    def fit(self) -> FitResult:
        """Train to the end of the workload, or go on where the workdir's checkpoint ends.

        Ctrl-C, a notebook's stop button and `preempt` save the state and return it early, with `summary.exit`
        "preempted"; `run.stop` of a callback does with "stopped". Another signal that ends the process (SIGTERM,
        SIGHUP, SIGUSR1, SIGUSR2) ends it once the state is saved. Signals that the program handles itself are left to
        it. An error that a handler raises comes out of `fit` once the state is saved.

        Raises:
          ConfigError, WorkdirError, ResumeError, CheckpointError, DataError: refused before anything was trained.
          HybridSyncError: the run could not go on; its last checkpoint is intact. Or this trainer fits already.
        """
        if not self._fitting.acquire(blocking=False):
            raise HybridSyncError("this trainer's fit is under way already; wait for its end, or make another Trainer")
        try:
            with self._saving_on_signals(), contextlib.closing(Compilations()) as compilations:
                return self._fit(compilations)
        finally:
            self._preempted = False
            self._fitting.release()

    def _fit(self, compilations: Compilations) -> FitResult:
        run, clock = self._run, SYSTEM_CLOCK
        began = clock.monotonic()
        devices = local_devices(run.config.devices.platform)
        placement = run.placement(devices, run.config.workers)
        try:
            opening = open_run(run, resume=self._resume, init_from=self._init_from, **self._allowed)
        except AlreadyCompleted as done:
            self._say(str(done))
            units = Units(**done.summary["units"])
            assert run.workdir is not None  # only a workdir holds a run that has ended
            return FitResult(
                done.state, Summary(**{**done.summary, "units": units}), run.task, run.workdir, run.config.seed
            )
        with contextlib.ExitStack() as opened:
            if opening.lock is not None:
                opened.callback(opening.lock.release)
            progress = open_progress(run.config.workload, sys.stderr, clock) if self._progress else None
            lines = RecordedLines()
            if run.workdir is None:
                recorder = Recorder.null(clock, progress, began, lines)
            else:
                recorder = Recorder.open(
                    run.workdir,
                    clock,
                    timeline=run.config.telemetry.timeline,
                    progress=progress,
                    opened=began,
                    fence=opening.fence,
                )
            opened.callback(recorder.close)
            bits = {"collective": placement.kind, "mesh": dict(placement.axes), "platform": devices[0].platform}
            opening.announce(recorder, runtime="inprocess", **bits)
            runtime = InProcess(
                opening, recorder, clock, list(self._hooks), placement=placement, compilations=compilations
            )
            opened.callback(self._opened, None, self._say)
            self._opened(runtime.chief, recorder.progress.show_line if self._progress else self._say)
            if self._preempted:  # it was asked while the run was being opened
                runtime.chief.service.preempt()
            summary = runtime.run()
            record = run.workdir or _record(run, lines, summary)
            return FitResult(runtime.state, summary, run.task, record, run.config.seed)

    def _opened(self, chief: ChiefRole | None, show_line: Callable[[str], None]) -> None:
        self._chief, self._show_line = chief, show_line

    @contextlib.contextmanager
    def _saving_on_signals(self) -> Iterator[None]:
        """Have signals that would end the process, or raise somewhere in a run, ask the run to save and stop.

        An error that a signal's handler raises may come out of any line: of the middle of an update, or of a save.
        """
        interrupts = count(1)
        ends_by: list[int] = []

        def stop(chief: ChiefRole | None, text: str) -> None:
            if chief is not None:
                chief.service.preempt()
            self._show_line(text)

        def on_signal(number: int, frame: object) -> None:
            if number == signal.SIGINT:
                if next(interrupts) > MOST_INTERRUPTS:  # the save may hang, or a hook
                    raise KeyboardInterrupt
                text = "interrupted: the run saves and stops"
            else:
                ends_by.append(number)
                text = f"{signal.Signals(number).name}: the run saves, then this process ends"
            self._preempted = True
            # From a thread of its own: this one may be interrupted in the middle of what takes a lock.
            threading.Thread(target=stop, args=(self._chief, text), name="signal", daemon=True).start()

        try:
            with handled_by_default(on_signal):
                yield
        finally:
            if ends_by:
                os.kill(os.getpid(), ends_by[0])

    def _say(self, text: str) -> None:
        """Show one line where progress is shown, else log it."""
        if not self._progress:
            logging.info("%s", text)
            return
        progress = open_progress(self._run.config.workload, sys.stderr, SYSTEM_CLOCK)
        progress.show_line(text)
        progress.close()

    def steps(self, *, every: int) -> Generator[Metrics, None, None]:
        """Train while the caller iterates: yields metrics every `every` units; leaving the loop saves and stops.

        What `fit` would have returned is in `result` afterwards.

        Raises:
          ConfigError: `every` is below 1.
          HybridSyncError: as `fit`.
        """
        metrics: queue.Queue[Metrics | None] = queue.Queue()
        self.add_hook(metrics.put, every=every)
        with self._saving_on_signals(), ThreadPoolExecutor(1, "fit") as executor:
            fitted = executor.submit(self.fit)
            fitted.add_done_callback(lambda _: metrics.put(None))
            try:
                yield from _received(metrics, fitted)
            finally:
                self._hooks.remove((metrics.put, every))
                if not fitted.done():  # one that was refused leaves the `fit` in progress alone
                    self.preempt()
                self.result = fitted.result()
                self._preempted = False  # `fit` may have ended before it was asked


def _received(metrics: queue.Queue[Metrics | None], fitted: Future[FitResult]) -> Generator[Metrics, None, None]:
    """Yield metrics until None comes, or the run's thread has ended.

    However long `every` units take is waited for: a run that stands still ends itself.
    """
    while True:
        ended = fitted.done()  # asked first: what the run has left is in the queue by then
        try:
            newest = metrics.get_nowait() if ended else metrics.get(timeout=LOOK_SECS)
        except queue.Empty:
            if ended:
                return
            continue
        if newest is None:
            return
        yield newest


def _record(run: Run, lines: RecordedLines, summary: Summary) -> Record:
    """Return the record of a run without a workdir."""
    optimizer = run.optimizer.recorded_values(run.config.unit_size, run.config.workload)
    config = plain({"config": to_json(run.config), "trained": {"optimizer": optimizer}})
    return Record("", config, lines.events, lines.metrics, plain(dataclasses.asdict(summary)))


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else local_path(path)
