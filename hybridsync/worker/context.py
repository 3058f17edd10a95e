"""Holds what the runners of one worker have in common: its place, its programs, and how it computes a unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from hybridsync.emulation.device import Emulation
from hybridsync.interfaces.messages import LeaseReply
from hybridsync.interfaces.ports import WorkPort
from hybridsync.protocols.base import FLOAT32
from hybridsync.training.buffer_layout import first_non_finite
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import TrainState
from hybridsync.worker.prefetch import Batch, Prefetch
from hybridsync.worker.requests import ComputeUnit, LeaseUnits, SendPart
from hybridsync.worker.stats import WorkerRecorder
from hybridsync.worker.unit_tracer import UnitTracer
from hybridsync.worker.utilisation import peak_secs


def nothing(contribution: Any) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class WorkerContext:
    """One worker of a runtime.

    Args:
      worker: id of the worker.
      chief: the chief, which leases units.
      programs: the compiled programs.
      recorder: collects spans, losses and times.
      emulation: emulates a slow device and a slow link.
      prefetch: reads the data of units ahead; None where they are read when they are needed.
      tracer: traces units; None where none are to be traced.
    """

    worker: int
    chief: WorkPort
    programs: Programs
    recorder: WorkerRecorder
    emulation: Emulation
    prefetch: Prefetch | None = None
    tracer: UnitTracer | None = None

    def lease(self, request: LeaseUnits) -> LeaseReply:
        """Ask the chief for units."""
        return self.chief.lease(request.request)

    def gradient(
        self,
        parameters: Parameters,
        request: ComputeUnit,
        wire: str = FLOAT32,
        prepare: Callable[[Any], None] = nothing,
        compute: Callable[[Batch], Any] | None = None,
    ) -> Any:
        """Compute a unit's contribution to its end, and take as long as the emulated device would.

        Args:
          parameters: parameters to compute on.
          request: names the unit whose gradient is computed.
          wire: number format of the contribution.
          prepare: prepares what follows without reading the contribution, which an emulated device still computes.
          compute: computes it from the unit's examples; None runs the worker's own program.
        """
        recorder, unit, prefetch = self.recorder, request.unit, self.prefetch
        if self.tracer is not None:
            self.tracer.begin(unit)
        batch = self.programs.batch(unit) if prefetch is None else prefetch.take(unit, request.ahead)
        started = recorder.clock.monotonic()  # a device can compute once its data are there
        if compute is None:
            contribution = self.programs.gradient(parameters, unit, wire, self.worker, batch)
        else:
            contribution = compute(batch)
            started += recorder.met_secs
        jax.block_until_ready(contribution["floats"]["loss"])  # all results of a program are there together
        if self.tracer is not None:
            self.tracer.end()
        if recorder.unit_peak_secs is None:
            recorder.unit_peak_secs = peak_secs(
                self.programs, contribution, parameters, batch, wire=wire, worker=self.worker
            )
        prepare(contribution)
        if self.emulation.active:
            recorder.emulating()
            self.emulation.finish(self.worker, unit, started, recorder.clock)
        return contribution

    def send(self, request: SendPart) -> bool:
        """Wait for what a part in a collective takes on an emulated slow link; returns whether it took any time."""
        if not self.emulation.active:
            return False
        programs = self.programs
        layouts = {
            "contribution": programs.contribution_layout,
            "parameters": programs.parameters_layout,
            "state": programs.state_layout,
        }
        return self.emulation.send(self.worker, request.unit, layouts[request.what].nbytes)


def _no_glance(contribution: Any) -> bool:
    return False


class ProgramNumerics:
    """Computes at once what engines need, with the compiled programs.

    Args:
      programs: programs of the run.
      is_finite: finds a contribution finite at a glance; where it does not, each entry is looked at.
    """

    def __init__(self, programs: Programs, is_finite: Callable[[Any], bool] = _no_glance) -> None:
        self._is_finite = is_finite
        self.zero, self.sum = programs.zero, programs.sum
        self.local_step, self.difference, self.combine = programs.local_step, programs.difference, programs.combine

    def parameters(self, state: TrainState) -> Parameters:
        """Return what a gradient is computed on."""
        return Parameters(state.params, state.model_state)

    def loss(self, contribution: Any) -> Any:
        """Return a contribution's loss, which stays on the device."""
        return contribution["floats"]["loss"]

    def non_finite(self, contribution: Any) -> str:
        """Name the first entry of a contribution that is no finite number; "" where all are."""
        return "" if self._is_finite(contribution) else first_non_finite(contribution) or ""
