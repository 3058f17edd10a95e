"""Builds the parts of a parameter server, once for threads and for processes."""

from __future__ import annotations

from hybridsync.config import Stragglers
from hybridsync.core.clock import Clock
from hybridsync.emulation.link_delays import DelayedPort, Pacing, check_speed, emulated, emulates_links
from hybridsync.interfaces.ports import ParameterPort
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import Contributions
from hybridsync.server.primary import Primary
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run
from hybridsync.transport.link import Services


def primary_services(
    run: Run, programs: Programs, primary: Primary, clock: Clock, contributions: Contributions | None
) -> Services:
    """Return what a primary offers, behind the links between workers and their parameters where a run emulates some.

    Args:
      run: that it takes part in.
      programs: the compiled programs of the whole run.
      primary: decides and updates.
      clock: paces transfers.
      contributions: reads the buffers that workers push; None where they are threads, which push trees.

    Raises:
      ConfigError: workers would give up their calls as lost on such links.
    """
    port = server_port(Endpoint(primary, contributions), run, programs, clock)
    return Services(holder=primary, server=primary, parameters=port)


def server_port(port: ParameterPort, run: Run, programs: Programs, clock: Clock) -> ParameterPort:
    """Return a server's port behind the links that a run emulates, or as it is where the run emulates none.

    Raises:
      ConfigError: workers would give up their calls as lost on such links.
    """
    config = run.config
    sizes = programs.contribution_layout.nbytes, programs.parameters_layout.nbytes
    check_speed(config.emulation, config.workers, config.servers, *sizes)
    if not emulates_links(config.emulation):
        return port
    stragglers = Stragglers(config.emulation.stragglers, config.workload)
    wire = emulated(config.emulation, config.servers)
    return DelayedPort(port, Pacing(wire, *sizes, clock, stragglers=stragglers))
