"""Describes the run whose processes a supervisor starts and watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.supervisor.run_keys import RunKeys
from hybridsync.runtime.wiring.collectives import AUTO, collectives_of


@dataclass(frozen=True)
class SupervisorSpec:
    """Describes the run whose processes a supervisor starts and watches.

    Attributes:
      argv: the run's flags, handed on to every role.
      workdir: exists or can be made; logs go to `logs/` in it.
      num_workers: worker processes.
      num_servers: server processes.
      host: address at whose ports the roles serve; "" for sockets, which no other user can reach.
      port: port of the chief, where there is a host; 0 takes a free one.
      keys: keys of the run's roles.
      command: program of every role.
      start_secs: seconds until the chief must serve.
      preempt_secs: seconds until the chief must have saved and left, once asked to.
      grace_secs: seconds for the others to leave when the chief has.
      start_again_secs: seconds for which the start of a role is tried again while there is no process or memory for it.
      silent_secs: seconds for which the chief may show no sign of life, before it is replaced; `start_secs` if they are
        more, as long as it does not serve.
      collective: kind of collectives among the workers: "auto", "host" or "shm".
      link: kind of links that carry buffers between processes: "auto", "grpc", "shm" or "tcp".
      num_devices: local devices of each worker; None for as many as the collectives need.
      num_threads: number of threads with which XLA computes in each role; None leaves it to XLA.
      compilation_cache: folder of compiled programs, checked; "" for what JAX itself keeps.
      worker_environments: environment variables of this host's worker processes (see `HostSpec`).
      min_workers: number of workers with which the run begins if hosts are missing; 0 for all.
      num_hosts: number of hosts of the run; agents of all but this one attach to its head.
      head: address of the head, host:port, at which the agents attach; "" for one host.
      config_digest: digest of the configuration, which all hosts must have.
      slots: maximum number of workers on this host; 0 for its share.
      lease_secs: seconds that an agent may be silent before its host counts as lost.
      patience_secs: seconds that a role waits for its host before it starts on a different one; and in the middle of a
        run, seconds that workers that are to meet wait for a host that is away.
      attach_secs: seconds that the first step waits for a host, before its roles start on others, the run begins with
        `min_workers` of its workers, or it ends.
      settle_secs: seconds that the run waits for further hosts, when it could begin with fewer.
      needs_process_group: whether workers find a process group when they start, or only once a phase needs it.
      sums_refused: reason why workers may not sum between the run's hosts, for the chief; "" where they may.
      lock_nonce: nonce of the workdir's lock, for the chief; "" if the workdir is not locked.
      opened: monotonic seconds at which the command began.
      lock_lost: returns why the workdir is another run's by now, "" while it is not; asks no disk.
    """

    argv: tuple[str, ...]
    workdir: Path
    num_workers: int
    num_servers: int = 1
    host: str = ""
    port: int = 0
    keys: RunKeys = field(default_factory=RunKeys)
    command: tuple[str, ...] = (sys.executable, "-m", "hybridsync.cli.train")
    start_secs: float = 120.0
    preempt_secs: float = 120.0
    grace_secs: float = 5.0
    start_again_secs: float = 300.0
    silent_secs: float = 60.0
    collective: str = AUTO
    link: str = AUTO
    num_devices: int | None = None
    num_threads: int | None = None
    compilation_cache: str = ""
    worker_environments: Sequence[Mapping[str, str]] = ({},)
    min_workers: int = 0
    num_hosts: int = 1
    head: str = ""
    config_digest: str = ""
    slots: int = 0
    lease_secs: float = 15.0
    patience_secs: float = 20.0
    attach_secs: float = 300.0
    settle_secs: float = 5.0
    needs_process_group: bool = True
    sums_refused: str = ""
    lock_nonce: str = ""
    opened: float = field(default_factory=SYSTEM_CLOCK.monotonic)
    lock_lost: Callable[[], str] = lambda: ""

    def role_spec(
        self,
        role: str,
        role_id: int,
        restart_count: int,
        coordinator: str,
        slots: tuple[int, ...],
        *,
        collective: str,
        link: str,
        listen: str,
    ) -> RoleSpec:
        """Return what a role is told (see `RoleSpec`); its host adds what it alone knows."""
        return RoleSpec(
            role,
            role_id,
            restart_count,
            coordinator=coordinator,
            workdir=str(self.workdir.absolute()),
            num_workers=self.num_workers,
            num_servers=self.num_servers,
            host="",
            collective=collective,
            link=link,
            num_devices=self.num_devices or collectives_of(collective).num_devices,
            num_threads=self.num_threads,
            slots=slots,
            listen=listen,
            keys=self.keys.of(role, role_id),
            sums_refused=self.sums_refused if role == "chief" else "",
            lock_nonce=self.lock_nonce if role == "chief" else "",
            opened=self.opened,
        )
