"""A run's chief, put together once for threads and for processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hybridsync.chief.bad_units import Unfit
from hybridsync.chief.run_state import FIRST_CHIEF, RunControl, RunState, RunStateSpec
from hybridsync.chief.service import ChiefService
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.core.clock import Clock
from hybridsync.core.errors import RoleLost
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.devices.placement import Placement
from hybridsync.interfaces.commands import Evaluation
from hybridsync.interfaces.messages import EvaluationRequest
from hybridsync.interfaces.ports import Evaluate, ServerPort, SnapshotSource
from hybridsync.phases.checkpointing import Committer
from hybridsync.phases.controller import Controller, ControllerSpec, assemble
from hybridsync.phases.reporter import Hook, Reporter
from hybridsync.phases.run_context import Start
from hybridsync.policies.straggler_detector import detector_of
from hybridsync.storage import apply_log
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.snapshot import CommittedState
from hybridsync.training.state import TrainState
from hybridsync.workdir.opening import Opening, start_snapshot


class ChiefRole:
    """The parts of a chief. Roles can register once it is made; `controller` takes the run to its end.

    Args:
      opening: the opened run, with its starting state.
      layout: layout of the training state.
      clock: clock for everything that reads time.
      threads: the other roles are threads of this process. They cannot die unnoticed, no process can take their
        place, and they share one store, whatever number of servers the run is configured for.
      spec: whether another chief served this run before, whether the run restarts at switches, and what notifies the
        supervisor; the rest follows from `opening`.
      hooks: (function, every so many units).
      watchdog: watchdog of the process.
      allocate: makes the memory of the kept state (see `CommittedState`).

    Attributes:
      run_state: what the chief knows of its run.
      service: the object that roles call.
      control: the controller's turns at the run's state.
      committed: the newest committed state, used if no role holds a newer one.
    """

    def __init__(
        self,
        opening: Opening,
        layout: Layout,
        clock: Clock,
        *,
        threads: bool = False,
        spec: RunStateSpec = FIRST_CHIEF,
        hooks: Sequence[tuple[Hook, int]] = (),
        watchdog: Watching = UNWATCHED,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        config = opening.run.config
        self._opening, self._layout, self._clock = opening, layout, clock
        self._threads, self._restarted, self._restarts = threads, spec.restarted, spec.restarts
        self._hooks, self._watchdog = hooks, watchdog
        state = RunState(
            opening.ledger,
            config.workers,
            layout.schema_hash,
            clock,
            replace(
                spec,
                lease_secs=math.inf if threads else config.hang.silent_secs,
                num_servers=1 if threads else config.servers,
                known=opening.known,
                detector=detector_of(config.policy),
                unfit=None if threads else Unfit(),
                orders=opening.orders,
                min_workers=config.min_workers,
            ),
        )
        if not threads:
            state.frozen = opening.frozen
        self.run_state, self.service, self.control = state, ChiefService(state), RunControl(state)
        self._start = start_snapshot(opening, layout)
        self.committed = CommittedState(layout, self._start, opening.take_state(), allocate)

    @property
    def state(self) -> TrainState:
        """The newest state that was committed; before the first one, that the run started from."""
        return self.committed.state

    def controller(
        self,
        address: str,
        recorder: Recorder,
        *,
        servers: Callable[[], Mapping[str, ServerPort]],
        holder_at: Callable[[str], SnapshotSource],
        renew: Callable[[], None] = lambda: None,
        num_devices: int = NUM_DEVICES,
        placement: Placement | None = None,
        evaluator_at: Callable[[str], Evaluate] | None = None,
    ) -> Controller:
        """Return what takes the run through its phases.

        Args:
          address: address at which others read the kept state.
          recorder: events, metrics, timeline, progress.
          servers: returns the servers by address; called when they are needed.
          holder_at: returns the role at an address that can take a snapshot of the state.
          renew: has every worker's process started again (see `assemble`).
          num_devices: local devices of each worker, among which a communicator chooses.
          placement: where workers that are threads of this process compute, and states are measured.
          evaluator_at: returns the worker at an address, which measures states in place of this process where it has
            the better devices (see `Run.is_measured_by_workers`); None where workers are threads of this process.
        """
        opening, clock = self._opening, self._clock
        run, control = opening.run, self.control
        self.run_state.figures = recorder.figures
        reporter = Reporter(
            run,
            control,
            recorder,
            clock,
            hooks=[*self._hooks],
            switches=opening.switches,
        )
        evaluator = run.evaluator(placement)
        committer = Committer(
            opening.store,
            self._layout,
            holder_at,
            evaluator=evaluator,
            clock=clock,
            committed=self.committed,
            watchdog=self._watchdog,
            elsewhere=partial(self._measured_by_a_worker, evaluator_at) if evaluator_at else None,
        )
        return assemble(
            replace(run, config=replace(run.config, servers=1)) if self._threads else run,
            control,
            Start(
                self._start,
                address,
                opening.reason,
                phase_number=opening.phase_number,
                committed=opening.committed,
                detours=opening.detours,
            ),
            ControllerSpec(
                servers=servers,
                holder_at=holder_at,
                reserve_phase=opening.phase_ids.reserve,
                committer=committer,
                reporter=reporter,
                committed_source=self.committed,
                clock=clock,
                threads=self._threads,
                renew=renew,
                forget=self._forget,
                restarted=self._restarted,
                restarts=self._restarts,
                num_devices=num_devices,
                watchdog=self._watchdog,
            ),
        )

    def _measured_by_a_worker(self, evaluator_at: Callable[[str], Evaluate], request: EvaluationRequest) -> Evaluation:
        """Have the last worker measure a state: the first one is a replica's holder more often."""
        with self.control.turn() as chief:
            if not (workers := chief.members.workers.ids()):
                raise RoleLost("no worker is there to measure a state")
            address = chief.members.address_of("worker", workers[-1])
        return evaluator_at(address)(request)

    def _forget(self, sequence: int) -> None:
        """Drop logged updates behind the state that a run goes on from."""
        workdir = self._opening.run.workdir
        if workdir is not None:
            self._opening.fence()
            apply_log.forget(workdir / apply_log.APPLY_LOG, sequence)
