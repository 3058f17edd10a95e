"""Builds the parts of a parameter server, once for threads and for processes."""

from __future__ import annotations

from hybridsync.config import Stragglers
from hybridsync.core.clock import Clock
from hybridsync.emulation.link_delays import DelayedPort, Pacing, check_speed, emulated
from hybridsync.interfaces.reports import Report
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.primary import Primary
from hybridsync.server.shard_state import Progress
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run
from hybridsync.transport.link import Services


def primary_services(
    run: Run, programs: Programs, primary: Primary, clock: Clock, contribution_layout: Layout | None
) -> Services:
    """Return what a primary offers, with the links that a run emulates between workers and their parameters.

    Args:
      run: that it takes part in.
      programs: the compiled programs of the whole run.
      primary: decides and updates.
      clock: paces transfers.
      contribution_layout: of the buffers that workers push; None where they are threads, which push trees.

    Raises:
      ConfigError: workers would give up their calls as lost on such links.
    """
    port = DelayedPort(Endpoint(primary, contribution_layout), _pacing(run, programs, clock))
    return Services(holder=primary, server=primary, parameters=port)


def _pacing(run: Run, programs: Programs, clock: Clock) -> Pacing:
    config = run.config
    sizes = programs.contribution_layout.nbytes, programs.parameters_layout.nbytes
    check_speed(config.emulation, config.workers, config.servers, *sizes)
    stragglers = Stragglers(config.emulation.stragglers, config.workload)
    return Pacing(emulated(config.emulation, config.servers), *sizes, clock, stragglers=stragglers)


def server_report(server: int, incarnation: int, progress: Progress, compile_secs: float = 0.0) -> Report:
    """Return the heartbeat of a server that has made `progress`, and has compiled for so long meanwhile."""
    return Report(
        role="server",
        id=server,
        incarnation=incarnation,
        phase_id=progress.phase_id,
        sequence=progress.sequence,
        applied=progress.applied,
        dropped=progress.dropped,
        staleness=progress.staleness,
        compile_secs=compile_secs,
        first_applied=progress.first_applied,
        last_applied=progress.last_applied,
        spans=progress.spans,
        doing=progress.doing,
    )
