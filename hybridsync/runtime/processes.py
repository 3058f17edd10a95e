"""The process runtime: what each process of a run does first, whichever it is.

`hybridsync train` makes a `Launch` of its flags in every process, and calls one of these:

- `supervise`, in the process of the command. It refuses what it can before anything is started, locks the workdir and
  runs the `Supervisor`. That has a fork server started, the same program, which forks the roles.
- `play`, in a role. Its line to the supervisor says which role it is.
- `attach`, in `hybridsync host` on a further host. It runs an `AgentProgram` until the head says that the run is over.

Importing this file loads no JAX; a role's own module does, in the fork server.
"""

from __future__ import annotations

import functools
import importlib
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridsync import __version__
from hybridsync.config import LoadedConfig, RunConfig
from hybridsync.core.counted import counted
from hybridsync.core.errors import RESTARTING, AddressError, ConfigError, WorkdirError
from hybridsync.core.work_deadlines import COMPILE_SECS
from hybridsync.devices.environment import worker_environments
from hybridsync.interfaces.agents import AgentHello
from hybridsync.interfaces.callbacks import checked_callbacks
from hybridsync.policies.plan_checks import check_plan, parsed_plan, sums_among_workers
from hybridsync.runtime.agent.host_agent import HostSpec
from hybridsync.runtime.agent.host_resources import (
    MOST_THREADS,
    compute_in_calling_thread,
    forget_environment,
    share_of_cores,
)
from hybridsync.runtime.agent.role_addresses import LOOPBACK, check_head, check_own_address, check_port
from hybridsync.runtime.cluster_spec import ClusterSpec, digest_of
from hybridsync.runtime.end_signals import Parent
from hybridsync.runtime.role import watchdog
from hybridsync.runtime.role.compilation_cache import open_cache, use_cache
from hybridsync.runtime.role.role_pipe import Child, RoleKeys, RoleSpec
from hybridsync.runtime.supervisor.run_keys import HeadFolder, RunKeys
from hybridsync.runtime.user_output import say
from hybridsync.runtime.wiring import AUTO, GRPC, choose_link, head_transport, transport_of
from hybridsync.security.credentials import AUTHORITY_FILE, Credentials
from hybridsync.security.identity import HOST
from hybridsync.security.key_files import KeyFiles
from hybridsync.security.keyring import Keyring
from hybridsync.storage.durable import HeldLock, WorkdirLock, make_directory
from hybridsync.telemetry.prometheus import check_metrics_place
from hybridsync.workdir.resuming import Allowed, Resume, check_init_from, check_workdir, continued

if TYPE_CHECKING:
    from hybridsync.interfaces.ports import ChiefPort, HeadPort
    from hybridsync.runtime.supervisor.supervisor import Supervisor
    from hybridsync.training.run import Run
    from hybridsync.transport.link import Serving

ROLE_MODULES = (
    *(f"hybridsync.runtime.role.{role}_main" for role in ("chief", "server", "worker")),
    *(f"hybridsync.transport.{link}.transport" for link in ("grpc", "shared_memory")),
)
"""Modules that roles need (see `play`): imported once, before they are forked; TCP alone needs little more."""


@dataclass(frozen=True)
class Launch:
    """Holds what a command line asks for.

    Args:
      loaded: the configuration file, with all overrides applied.
      file: path of the configuration file, as given.
      workdir: folder for everything that the run writes.
      resume: "auto", "must" or "never".
      init_from: workdir of a run to start from.
      convert_units: allow a resume with another unit size.
      accept_changes: allow a resume with another model, loss or optimizer.
      bind: address at whose ports the roles serve; "" for sockets, which no other user can reach.
      port: port of the chief; 0 takes a free one. Any other port is one of 127.0.0.1 if no address is given.
      collective: kind of collectives among the workers: "auto", "host" or "shm".
      link: kind of links that carry buffers between processes: "auto", "grpc", "shm" or "tcp".
      threads_per_role: number of threads with which XLA computes in each role; 0 is a share of the cores (see
        `share_of_cores`).
      compilation_cache: folder of compiled programs, "off", or "" for the user's (see `open_cache`).
      restarts: whether the run is saved at each planned switch and all its processes start again, so that those of two
        protocols never hold memory at the same time.
      metrics_port, metrics_bind: port and address at which Prometheus finds the run's figures; port 0 for none.
      argv: the flags, handed on to every role.
      program: module that plays the roles.
      cluster: this host's place among several; None for a run on one host.

    Raises:
      AddressError: `bind` is not a loopback address.
      ConfigError: `port`, `metrics_port` or `threads_per_role` is out of range, both ports are one, the link does not
        suit where the roles serve, the plan names an unknown protocol, or one that cannot work with the workers or the
        policies.
    """

    loaded: LoadedConfig
    file: Path
    workdir: Path
    resume: Resume = "auto"
    init_from: Path | None = None
    convert_units: bool = False
    accept_changes: bool = False
    bind: str = ""
    port: int = 0
    collective: str = AUTO
    link: str = AUTO
    threads_per_role: int = 0
    compilation_cache: str = ""
    restarts: bool = False
    metrics_port: int = 0
    metrics_bind: str = LOOPBACK
    argv: tuple[str, ...] = ()
    program: str = "hybridsync.cli.train"
    cluster: ClusterSpec | None = None

    def __post_init__(self) -> None:
        check_plan(self.config)
        if self.cluster is not None:
            self.cluster.check(self.config)
            if self.restarts and self.num_hosts > 1:
                raise ConfigError(
                    f"--switch=restart is for one host, and the run has {self.num_hosts}: their agents would end with "
                    "the roles; leave it out"
                )
            if self.bind:
                raise ConfigError(f"--bind={self.bind} is for one host; on several, --address says where roles serve")
        try:
            local = self.bind in ("", "localhost") or ipaddress.ip_address(self.bind).is_loopback
        except ValueError:
            local = False
        if not local:
            raise AddressError(
                f"--bind={self.bind} is refused: it is not a loopback address, and a run on one host has no TLS; leave "
                "it out, for sockets that no other user can reach, or use --bind=127.0.0.1"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port={self.port} is not a port; use 1 to 65535, or 0 for a free one")
        if not 0 <= self.metrics_port <= 65535:
            raise ConfigError(f"--metrics_port={self.metrics_port} is not a port; use 1 to 65535, or 0 for none")
        if self.port and self.port == self.metrics_port:
            raise ConfigError(
                f"--port={self.port} and --metrics_port={self.metrics_port} are the same port; choose another for one "
                "of both"
            )
        if not 0 <= self.threads_per_role <= MOST_THREADS:
            raise ConfigError(
                f"--threads_per_role={self.threads_per_role} is refused; use 1 to {MOST_THREADS}, or leave it out for "
                "a share of the cores"
            )
        choose_link(self.link, sockets=not self.host, hosts=self.num_hosts)

    @property
    def num_hosts(self) -> int:
        """Return the number of hosts."""
        return 1 if self.cluster is None else self.cluster.num_hosts

    @property
    def share_of_workers(self) -> int:
        """Return how many workers this host runs at most while all hosts are there."""
        return -(-self.config.workers // self.num_hosts)

    @property
    def most_workers(self) -> int:
        """Return how many workers this host runs at most, also where others are lost."""
        return (self.cluster.slots if self.cluster else 0) or self.share_of_workers

    def worker_environments(self) -> tuple[dict[str, str], ...]:
        """Return the environments of this host's worker processes (see `devices.environment`).

        Raises:
          ConfigError: this host's devices are too few.
        """
        return worker_environments(self.config.devices, self.most_workers, os.environ, os.listdir("/dev"))

    @property
    def command(self) -> tuple[str, ...]:
        """Return the program of every role, with its arguments."""
        return (sys.executable, "-m", self.program, *self.argv)

    @property
    def host(self) -> str:
        """Return the address at whose ports the roles serve; "" for sockets."""
        if self.cluster is not None:
            return self.cluster.address
        return self.bind or (LOOPBACK if self.port else "")

    @property
    def allowed(self) -> Allowed:
        """Return which changes a resume may make."""
        return {"convert_units": self.convert_units, "accept_changes": self.accept_changes}

    @property
    def config(self) -> RunConfig:
        """The resolved values."""
        return self.loaded.config

    def run(self, *, with_callbacks: bool = False) -> Run:
        """Return the run; the first call that imports JAX.

        Args:
          with_callbacks: whether this process is the chief's, which calls them.

        Raises:
          HybridSyncError: the configuration's task or optimizer refuses its input.
        """
        from hybridsync.training.run import Run

        # A schedule's shares are of the workload that the run has.
        task, optimizer = self.loaded.build(self.config, continued(self.workdir, self.config))
        callbacks = self.loaded.callbacks(self.config) if with_callbacks else ()
        where = f"{self.file}: callbacks(config)"
        run = Run(
            self.config,
            task,
            optimizer,
            workdir=self.workdir,
            file=self.file,
            callbacks=checked_callbacks(callbacks, where),
        )
        run.check()
        return run


def supervise(launch: Launch) -> int:
    """Start every role and watch them to the run's end; returns the exit code.

    Raises:
      HybridSyncError: refused before any role was started.
    """
    launch.worker_environments()  # refused before the workdir has a trace
    keys = RunKeys() if launch.cluster is None else RunKeys(HeadFolder(launch.cluster.certificates, say))
    _check_places(launch)
    num_threads = launch.threads_per_role or share_of_cores(launch.share_of_workers)
    cache = open_cache(launch.compilation_cache, num_threads, say)
    # From here on the run leaves traces on disk.
    try:
        workdir = make_directory(launch.workdir)
    except OSError as error:
        raise WorkdirError(f"cannot write to {launch.workdir}: {error.strerror}; name a writable --workdir") from error
    # Until the last chief has gone: no other launch comes in between two of them.
    with WorkdirLock(workdir, say=say) as lock:
        if launch.cluster is not None and launch.num_hosts > 1:
            check_head(launch.cluster.head)  # behind the lock: a head that lives on has both, and its run is named
        say(
            f"starting 1 chief, {counted(launch.config.servers, 'server')}, "
            f"{counted(launch.config.workers, 'worker')}; logs in {launch.workdir / 'logs'}"
        )
        parent = Parent()
        while (code := _supervisor(launch, lock, num_threads, cache, keys=keys, parent=parent).run()) == RESTARTING:
            say("saved at a switch: all processes have ended, and start again")
            launch = replace(launch, argv=(*launch.argv, "--resume=auto"))
        return code


def _check_places(launch: Launch) -> None:
    """Refuse a workdir or addresses that do not suit, before the run leaves a trace.

    Raises:
      HybridSyncError: one of them does not suit.
    """
    used = check_workdir(launch.workdir, launch.config, resume=launch.resume, **launch.allowed)
    if launch.init_from is not None and used is None:
        check_init_from(launch.init_from, launch.workdir)
    cluster = launch.cluster
    if cluster is not None and cluster.address != cluster.head.rpartition(":")[0].strip("[]"):
        check_own_address(cluster.address)  # the head's own is checked with its port, once the workdir is locked
    check_port(launch.host, launch.port)
    if launch.metrics_port:
        check_metrics_place(launch.metrics_bind, launch.metrics_port)


def _supervisor(
    launch: Launch, lock: WorkdirLock, num_threads: int, compilation_cache: str, *, keys: RunKeys, parent: Parent
) -> Supervisor:
    """Return the supervisor of a run whose workdir is locked."""
    # Not above: every role imports this file, and no role supervises.
    from hybridsync.runtime.supervisor.supervisor import Supervisor, SupervisorSpec

    config = launch.config
    spec = SupervisorSpec(
        launch.argv,
        launch.workdir,
        config.workers,
        num_servers=config.servers,
        host=launch.host,
        port=launch.port,
        min_workers=config.min_workers,
        command=(sys.executable, "-m", launch.program),
        keys=keys,
        collective=launch.collective,
        link=launch.link,
        num_threads=num_threads,
        compilation_cache=compilation_cache,
        silent_secs=config.hang.silent_secs,
        worker_environments=launch.worker_environments(),
        lock_nonce=lock.held.nonce,
        lock_lost=lambda: str(lock.lost or ""),
    )
    if launch.cluster is not None:
        spec = replace(
            spec,
            num_hosts=launch.cluster.num_hosts,
            head=launch.cluster.head,
            config_digest=digest_of(config),
            slots=launch.cluster.slots,
            needs_process_group=launch.num_hosts == 1 or bool(sums_among_workers(parsed_plan(config))),
            sums_refused=launch.cluster.sums_refused,
        )

    # Both import grpc, which has threads: they are called after the start of the fork server.
    def connect(address: str) -> ChiefPort:
        return transport_of(GRPC, keys.own).chief(address, deadline_secs=3.0)

    def serve_head(head: HeadPort) -> Serving:
        calls = 3 * (spec.num_hosts - 1) + 2
        return head_transport(keys.to_agents).serve_head(head, spec.head, calls, keys.admit)

    return Supervisor(spec, connect, lock_fd=lock.held.descriptor, serve_head=serve_head, parent=parent)


def attach(launch: Launch, cluster: ClusterSpec) -> int:
    """Be a further host of a run until it ends; returns the exit code.

    Raises:
      HybridSyncError: refused before anything was started, or by the head.
    """
    from hybridsync.runtime.agent.agent_program import AgentProgram, AgentSpec

    check_own_address(cluster.address)
    folder = cluster.certificates
    files = KeyFiles(
        folder, (AUTHORITY_FILE, f"{HOST}.pem", f"{HOST}.key"), lambda: Credentials.read(folder, HOST), say
    )
    keys = Keyring("", files.found)
    num_slots = launch.most_workers
    digest = digest_of(launch.config)

    def hello_of(session: str) -> AgentHello:
        return AgentHello(
            socket.gethostname(),
            cluster.index,
            cluster.address,
            slots=num_slots,
            version=__version__,
            config_digest=digest,
            session=session,
            num_hosts=cluster.num_hosts,
        )

    roles = HostSpec(
        launch.command,
        launch.workdir / "logs",
        f"-host{cluster.index}",
        compilation_cache=functools.cache(lambda num_threads: open_cache(launch.compilation_cache, num_threads, say)),
        worker_environments=launch.worker_environments(),
    )
    dog = watchdog.Watchdog(f"the agent of host {cluster.index}")
    dog.start()

    def look() -> None:
        if files.look():
            keys.exchange("", files.found)
            say(f"host {cluster.index} has another certificate, and uses it from now on")

    say(f"host {cluster.index} of {cluster.num_hosts} looks for the head at {cluster.head}")
    connect = head_transport(keys).head
    spec = AgentSpec(roles, cluster.address)
    return AgentProgram(spec, lambda: connect(cluster.head), hello_of, look, watchdog=dog).run()


def play(child: Child, load: Callable[[], Launch]) -> int:
    """Be the role that the supervisor gave this process; returns the exit code.

    Args:
      child: the line to the supervisor.
      load: returns what is launched. A worker calls it once it has joined its process group, because a configuration
        file may compute with JAX while it is read, and a process that has its devices can join none.

    Raises:
      HybridSyncError: refused input, or the run could not go on.
    """
    # The fork server has imported it already; a role that is a program of its own imports it here.
    module = importlib.import_module(f"hybridsync.runtime.role.{child.role}_main")
    forget_environment()
    compute_in_calling_thread()
    spec = child.spec()
    keys, user_keys = _keyrings(child, spec)
    if child.role == "chief":
        child.show_life()
    use_cache(spec.compilation_cache)
    # A chief that reports an error of its own ends the run; one that hangs is to be replaced like the others.
    tell = child.report_overdue if child.role != "chief" else lambda text: None
    dog = watchdog.Watchdog(f"{child.role} {child.role_id}", tell, floor_secs=watchdog.FLOOR_SECS)
    dog.start()

    def run_of_launch() -> Run:
        with dog.work("building the task", COMPILE_SECS):
            return load().run(with_callbacks=child.role == "chief")

    def report(fields: dict[str, Any]) -> None:
        child.report(**fields)

    if child.role == "server":
        return module.run_server(spec, keys, run_of_launch(), child.chief_address, dog)
    if child.role == "worker":
        return module.run_worker(
            spec,
            keys,
            run_of_launch,
            chief_address=child.chief_address,
            at_unit=child.at_unit,
            report=report,
            watchdog=dog,
        )
    launch = load()
    chief = module.ChiefSpec(
        spec,
        launch.resume,
        launch.init_from,
        allowed=launch.allowed,
        metrics=(launch.metrics_bind, launch.metrics_port),
        restarts=launch.restarts,
        lock=None if child.lock_fd is None else HeldLock(child.lock_fd, spec.lock_nonce),
    )
    code = module.run_chief(
        run_of_launch(), chief, keys=keys, user_keys=user_keys, report=report, watchdog=dog, screen=sys.stdout
    )
    # The supervisor believes this alone: user code may end the process with any code.
    child.report(exit_code=code)
    return code


def _keyrings(child: Child, spec: RoleSpec) -> tuple[Keyring, Keyring]:
    """Return a role's keys and those of the run's user; both follow what the supervisor sends from now on."""
    keys = Keyring(spec.keys.token, Credentials.of(spec.keys.credentials))
    user_keys = Keyring(spec.keys.token, Credentials.of(spec.keys.user_credentials))

    def take_keys(new: RoleKeys) -> None:
        keys.exchange(new.token, Credentials.of(new.credentials))
        user_keys.exchange(new.token, Credentials.of(new.user_credentials))

    child.hear_keys(take_keys)
    return keys, user_keys
