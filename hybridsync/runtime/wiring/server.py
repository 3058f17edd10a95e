"""Builds the parts of a parameter server, once for threads and for processes."""

from __future__ import annotations

from hybridsync.config import Stragglers
from hybridsync.core.clock import Clock
from hybridsync.emulation.link_delays import DelayedPort, Pacing, check_speed, emulated, emulates_links
from hybridsync.interfaces.ports import ParameterPort
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run


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
