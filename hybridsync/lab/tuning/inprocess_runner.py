"""Makes the runs of a search as threads of this process: what `Trainer.fit` does."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hybridsync.config import RunConfig
from hybridsync.core.errors import Diverged, Preempted
from hybridsync.lab.tuning.job_history import Where
from hybridsync.lab.tuning.run_ending import accuracy_of, cluster_of, converged_in, end_of, ended, run_folder
from hybridsync.lab.tuning.search import Made, RunOf
from hybridsync.runtime.end_signals import WARNINGS, handled
from hybridsync.trainer import Trainer


@dataclass(frozen=True)
class InProcessRuns:
    """Runs of threads in this process, each in a workdir of its own; a signal saves the one under way.

    Args:
      run_of, config, folder: as of simulated runs.
    """

    run_of: RunOf
    config: RunConfig
    folder: Path

    @property
    def where(self) -> Where:
        """Threads of one process, with what is emulated."""
        return Where("inprocess", cluster_of(self.config.emulation))

    @property
    def place(self) -> str:
        """The host."""
        return socket.gethostname()

    def carry_out(self, plan: str, seed: int) -> Made:
        workdir = self.folder / run_folder(plan, seed)
        config = dataclasses.replace(self.config, plan=plan, seed=seed)
        if (made := ended(workdir, config)) is not None:
            return made
        run = self.run_of(config)
        trainer = Trainer(run.task, run.optimizer, run.config, workdir=workdir, file=run.file)
        try:
            with _preempting(trainer):
                result = trainer.fit()
        except Diverged:
            return end_of(workdir, config)
        if not result.completed:
            units = result.summary.units.applied
            raise Preempted(f"the run in {workdir} is saved at {units} units; give the same command again")
        return Made(accuracy_of(result.summary.final), result.summary.seconds, converged_in(workdir))


@contextlib.contextmanager
def _preempting(trainer: Trainer) -> Iterator[None]:
    """Let a signal that asks for the end save the run and stop it; in another thread than the main one none does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def save_and_stop(number: int, _: object) -> None:
        if number not in WARNINGS:
            signal.signal(number, signal.SIG_DFL)  # a second one does not wait
        trainer.preempt()

    with handled(save_and_stop):
        yield
