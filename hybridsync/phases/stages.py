"""Carries out the machine's commands: one class a stage, which share a `ControllerState` and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridsync.chief.run_control import RunControl
from hybridsync.phases.capture_stage import CaptureStage
from hybridsync.phases.commit_stage import CommitStage
from hybridsync.phases.entry_stage import EntryStage
from hybridsync.phases.recovery_stage import GatherStage
from hybridsync.phases.run_stage import RunStage
from hybridsync.phases.state_machine import Command, Event


@dataclass(frozen=True)
class Stages:
    """The stages of one run's phase changes.

    Args:
      control: opens the leases, and ends the run.
      run, capture_stage, gather, entry, commit: the stages.
    """

    control: RunControl
    run: RunStage
    capture_stage: CaptureStage
    gather: GatherStage
    entry: EntryStage
    commit: CommitStage

    def execute(self, command: Command) -> Event | None:
        """Carry `command` out; returns what the machine is told of it, None where that is nothing.

        Raises:
          PhaseBroken: a member was lost without which the phase cannot go on.
          Preempted: the run was asked to stop while roles were waited for.
          HybridSyncError: the run cannot go on.
        """
        carry_out: dict[Command, Callable[[], Event | None]] = {
            Command.STOP_LEASES: self.capture_stage.drain,
            Command.CAPTURE: self.capture_stage.capture_final,
            Command.CAPTURE_LIVE: self.capture_stage.capture_live,
            Command.GATHER: self.gather.gather,
            Command.COMMIT: self.commit.submit,
            Command.AWAIT_COMMIT: self.commit.await_commit,
            Command.AWAIT_RETRY: self.commit.await_retry,
            Command.RESERVE: self.entry.reserve,
            Command.ANNOUNCE: self.entry.announce,
            Command.RESUME_LEASES: self.control.open_leases,
            Command.FINISH: self.control.finish,
        }
        return carry_out[command]()
