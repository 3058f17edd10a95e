"""Builds the parts of a parameter server, once for threads and for processes."""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.config import Stragglers
from hybridsync.core.clock import Clock
from hybridsync.emulation.link_delays import DelayedPort, Pacing, check_speed, emulated, emulates_links
from hybridsync.interfaces.ports import ParameterPort
from hybridsync.protocols.base import BFLOAT16, FLOAT32
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
      run: run that the server takes part in.
      programs: the compiled programs of the whole run.
      primary: decides and updates.
      clock: paces transfers.
      contributions: reads the buffers that workers push; None where they are threads, which push trees.

    Raises:
      ConfigError: workers would give up their calls as lost on such links.
    """
    sizes = {wire: programs.wire_sizes(wire) for wire in (FLOAT32, BFLOAT16)}
    endpoint = Endpoint(primary, contributions)
    port = server_port(endpoint, run, programs, clock, lambda: sizes[primary.wire_dtype])
    return Services(holder=primary, server=primary, parameters=port)


def server_port(
    port: ParameterPort, run: Run, programs: Programs, clock: Clock, sizes: Callable[[], tuple[int, int]] | None = None
) -> ParameterPort:
    """Return a server's port behind the links that a run emulates, or as it is where the run emulates none.

    Args:
      port: port of the server.
      run: run that the server takes part in.
      programs: the compiled programs of the whole run.
      clock: paces transfers.
      sizes: bytes of a contribution, and of the parameters, in the phase that is served; None for the largest.

    Raises:
      ConfigError: workers would give up their calls as lost on such links.
    """
    config = run.config
    most = programs.wire_sizes(FLOAT32)
    check_speed(config.emulation, config.workers, config.servers, *most)
    if not emulates_links(config.emulation):
        return port
    stragglers = Stragglers(config.emulation.stragglers, config.workload)
    wire = emulated(config.emulation, config.servers)
    return DelayedPort(port, Pacing(wire, *most, clock, stragglers=stragglers, sizes=sizes))
