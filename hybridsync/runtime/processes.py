"""The process runtime: the same program supervises, or plays the role that a supervisor gave it.

Importing this file loads no JAX; a role's own module does, in the fork server.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridsync.config import LoadedConfig, RunConfig
from hybridsync.core.counted import counted
from hybridsync.core.errors import AddressError, ConfigError, WorkdirError
from hybridsync.core.work_deadlines import COMPILE_SECS
from hybridsync.policies.plan_checks import check_plan
from hybridsync.runtime import watchdog
from hybridsync.runtime.host_resources import (
    MOST_THREADS,
    compute_in_calling_thread,
    forget_environment,
    share_of_cores,
)
from hybridsync.runtime.role_addresses import LOOPBACK
from hybridsync.runtime.role_pipe import Child, RoleSpec
from hybridsync.runtime.wiring.collectives import AUTO
from hybridsync.runtime.wiring.transport import choose as choose_link
from hybridsync.storage.durable import WorkdirLock, make_directory
from hybridsync.workdir.resuming import Resume, check_init_from, check_workdir, continued

if TYPE_CHECKING:
    from hybridsync.interfaces.ports import SupervisorPort
    from hybridsync.training.run import Run

ROLE_MODULES = tuple(f"hybridsync.runtime.{role}_main" for role in ("chief", "server", "worker"))
"""What a role's process imports (see `play`)."""

TOKEN_BYTES = 32


@dataclass(frozen=True)
class Launch:
    """Holds what a command line asks for.

    Args:
      loaded: the configuration file, with all overrides applied.
      file: its path as given.
      workdir: where everything is left.
      resume: "auto", "must" or "never".
      init_from: workdir of a run to start from.
      convert_units: allow a resume with another unit size.
      bind: address at whose ports the roles serve; "" for sockets, which no other user can reach.
      port: of the chief; 0 takes a free one. Another one is of 127.0.0.1 where no address is given.
      collective: how workers sum among themselves: "auto", "host" or "shm".
      link: how buffers go between processes: "auto", "grpc" or "shm".
      threads_per_role: with which XLA computes in each role; 0 is a share of the cores (see `share_of_cores`).
      argv: the flags, handed on to every role.

    Raises:
      AddressError: `bind` is not a loopback address.
      ConfigError: `port` or `threads_per_role` is no such number, the link does not suit where the roles serve, the
        plan names an unknown protocol, or one that cannot work with the workers or the policies.
    """

    loaded: LoadedConfig
    file: Path
    workdir: Path
    resume: Resume = "auto"
    init_from: Path | None = None
    convert_units: bool = False
    bind: str = ""
    port: int = 0
    collective: str = AUTO
    link: str = AUTO
    threads_per_role: int = 0
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_plan(self.config)
        try:
            local = self.bind in ("", "localhost") or ipaddress.ip_address(self.bind).is_loopback
        except ValueError:
            local = False
        if not local:
            raise AddressError(
                f"--bind={self.bind} is refused: it is not a loopback address, and TLS does not exist yet; leave it "
                "out, for sockets that no other user can reach, or use --bind=127.0.0.1"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port={self.port} is not a port; use 1 to 65535, or 0 for a free one")
        if not 0 <= self.threads_per_role <= MOST_THREADS:
            raise ConfigError(
                f"--threads_per_role={self.threads_per_role} is refused; use 1 to {MOST_THREADS}, or leave it out for "
                "a share of the cores"
            )
        choose_link(self.link, sockets=not self.host)

    @property
    def host(self) -> str:
        """Return the address at whose ports the roles serve; "" for sockets."""
        return self.bind or (LOOPBACK if self.port else "")

    @property
    def config(self) -> RunConfig:
        """The resolved values."""
        return self.loaded.config

    def run(self) -> Run:
        """Return the run; the first call that imports JAX.

        Raises:
          HybridSyncError: the configuration's task or optimizer refuses its input.
        """
        from hybridsync.training.run import Run

        # A schedule's shares are of the workload that the run has.
        task, optimizer = self.loaded.build(self.config, continued(self.workdir, self.config))
        run = Run(self.config, task, optimizer, self.workdir, self.file)
        run.check()
        return run


def supervise(launch: Launch) -> int:
    """Start every role and watch them to the run's end; returns the exit code.

    Raises:
      HybridSyncError: refused before any role was started.
    """
    config = launch.config
    used = check_workdir(launch.workdir, config, resume=launch.resume, convert_units=launch.convert_units)
    if launch.init_from is not None and used is None:
        check_init_from(launch.init_from, launch.workdir)
    check_port(launch.host, launch.port)
    try:
        workdir = make_directory(launch.workdir)
    except OSError as error:
        raise WorkdirError(f"cannot write to {launch.workdir}: {error.strerror}; name a writable --workdir") from error
    with WorkdirLock(workdir) as lock:  # until the last chief has gone: no other launch comes in between two of them
        return _supervise_locked(launch, lock)


def _supervise_locked(launch: Launch, lock: WorkdirLock) -> int:
    from hybridsync.runtime.supervisor import Supervisor, SupervisorSpec

    config = launch.config
    sys.stderr.write(
        f"starting 1 chief, {counted(config.servers, 'server')}, {counted(config.workers, 'worker')}; "
        f"logs in {launch.workdir / 'logs'}\n"
    )
    token = secrets.token_hex(TOKEN_BYTES)
    spec = SupervisorSpec(
        *(launch.argv, launch.workdir, config.workers, config.servers, launch.host, launch.port),
        token=token,
        collective=launch.collective,
        link=launch.link,
        num_threads=launch.threads_per_role or share_of_cores(config.workers),
    )

    def connect(address: str) -> SupervisorPort:
        # grpc, behind the start of the fork server
        from hybridsync.runtime.wiring.transport import GRPC, transport_of

        return transport_of(GRPC, token).chief(address, deadline_secs=5.0)

    return Supervisor(spec, connect, lock_fd=lock.descriptor).run()


def check_port(host: str, port: int) -> None:
    """Check that the chief will be able to serve there, before it leaves a trace in the workdir.

    Raises:
      AddressError: the port is in use, or not free to take.
    """
    if port == 0:
        return
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise AddressError(
            f"--port={port} cannot be served on at {host}: {os.strerror(error.errno or 0)}; choose another port, or 0"
        ) from error


def play(child: Child, load: Callable[[], Launch]) -> int:
    """Be the role that the supervisor gave this process; returns the exit code.

    Args:
      child: the line to the supervisor.
      load: returns what is launched. A worker calls it once it has joined its process group, because a configuration
        file may compute with JAX while it is read, and a process that has its devices can join none.

    Raises:
      HybridSyncError: refused input, or the run could not go on.
    """
    module = importlib.import_module(f"hybridsync.runtime.{child.role}_main")
    forget_environment()
    compute_in_calling_thread()
    spec: RoleSpec = child.spec()
    # A chief that reports an error of its own ends the run; one that hangs is to be replaced like the others.
    tell = child.report_overdue if child.role != "chief" else lambda text: None
    dog = watchdog.Watchdog(f"{child.role} {child.role_id}", tell, floor_secs=watchdog.FLOOR_SECS)
    dog.start()

    def run_of_launch() -> Run:
        with dog.work("building the task", COMPILE_SECS):
            return load().run()

    if child.role == "chief":
        launch = load()
        return module.run_chief(
            run_of_launch(),
            resume=launch.resume if spec.restart_count == 0 else "auto",
            init_from=launch.init_from,
            convert_units=launch.convert_units,
            address=spec.chief or spec.listen,
            token=spec.token,
            restarted=spec.restart_count > 0,
            coordinator=spec.coordinator,
            collective=spec.collective,
            link=spec.link,
            num_devices=spec.num_devices,
            num_threads=spec.num_threads,
            report=lambda fields: child.report(**fields),
            watchdog=dog,
            screen=sys.stdout,
            lock_fd=child.lock_fd,
        )
    if child.role == "server":
        return module.run_server(spec, run_of_launch(), dog)
    return module.run_worker(spec, run_of_launch, child.at_unit, lambda fields: child.report(**fields), dog)
