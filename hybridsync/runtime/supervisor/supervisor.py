"""Parent process of a run's roles: decides what is started, killed and started again. Imports neither jax nor orbax.

One loop on the main thread waits for events of the hosts' agents (see agent/host_agent.py) and for signals. All roles
start at once, and each gets its spec at once; when the chief serves, the others get its address. A role that dies is
reported and replaced; a chief comes back at its former address. The supervisor keeps for it what happens while it is
away. A worker that fails again and again by itself is quarantined: the others continue without it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.counted import counted
from hybridsync.core.errors import (
    EXIT_FAILED,
    EXIT_PREEMPTED,
    EXIT_REFUSED,
    RESTARTING,
    AddressError,
    HybridSyncError,
    InvalidMessage,
    RoleLost,
    UnknownRole,
    printable,
)
from hybridsync.interfaces.messages import MOST_REASON_CHARS, STARTED_FIRST, Process, RoleEvent
from hybridsync.runtime.agent.fork_server import log_tail
from hybridsync.runtime.agent.host_agent import HostAgent, HostSpec
from hybridsync.runtime.agent.host_messages import Ended, Key, NotStarted, Reported, Started, StartRole
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.end_signals import WARNINGS, Parent, WakePipe
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.supervisor.agent_sessions import AgentSessions
from hybridsync.runtime.supervisor.placement import (
    MAX_FAILURES,
    Beginning,
    CrashLoop,
    Placement,
    RunningRole,
    Step,
    Stillness,
)
from hybridsync.runtime.supervisor.process_group_service import ProcessGroupService
from hybridsync.runtime.supervisor.run_hosts import HostEvent, HostJoined, HostLost, RunHosts
from hybridsync.runtime.supervisor.run_keys import RunKeys, rotate_if_due
from hybridsync.runtime.user_output import say
from hybridsync.runtime.wiring import AUTO, choose_collective, choose_link, collectives_of

if TYPE_CHECKING:
    from hybridsync.interfaces.ports import ChiefPort, HeadPort
    from hybridsync.transport.link import Serving


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


_TICK_SECS = 1.0
_END_SECS = 5.0
_CALL_SECS = 3.0
"""A chief that has shown no sign of life for so long is not called: no call would be answered."""
_KILLED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_RESUME = "run the same command again: it resumes from the last commit"


class Supervisor:
    """Runs all roles to their end.

    Args:
      spec: describes the run.
      connect: makes a connection to the chief from its address; every call on it has a deadline.
      say: shows a line to the user.
      lock_fd: file descriptor of the workdir's lock, which each chief holds as well; None if the workdir is not locked.
      serve_head: serves the head, for the agents of further hosts; not called if there are none.
      parent: the process that started the command; None looks for it now. It may end while a run restarts.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        connect: Callable[[str], ChiefPort],
        say: Callable[[str], None] = say,
        lock_fd: int | None = None,
        serve_head: Callable[[HeadPort], Serving] | None = None,
        parent: Parent | None = None,
    ) -> None:
        self._spec = spec
        self._serve_head = serve_head
        self._say = say
        self._lock_fd = lock_fd
        self._agent: HostAgent  # once there is a folder for its logs
        self._hosts: RunHosts
        self._collective: str
        self._link: str
        self._assignment = RoleAssignment(spec.num_hosts, spec.num_workers, spec.num_servers, spec.patience_secs)
        self._outbox = Outbox(connect, say)
        self._slots = tuple(range(spec.num_workers))  # to be run
        self._beginning = Beginning(spec, self._assignment, SYSTEM_CLOCK.monotonic())
        self._group: ProcessGroupService
        self._placement: Placement
        self._roles: dict[Key, RunningRole] = {}
        self._ended_early: list[tuple[RunningRole, Ended]] = []  # before the chief served
        self._restart_counts: dict[Key, int] = {}
        self._given_up = set[Process]()  # whose start is not reported yet
        self._chief_address = ""
        self._chief_serves = False
        self._crash_loop = CrashLoop()
        self._over = self._asked = False
        self._asked_by = ""  # who or what, for the user; "" for the run's user, to whom the chief has answered
        self._mistakes = set[str]()  # of the run's user, as roles have met them
        self._num_signals = 0
        self._broken_off = False
        self._parent = parent or Parent()
        self._stillness = Stillness()
        self._preempt_deadline: float | None = None
        self._leaving: tuple[int, float] | None = None  # the chief's exit code, and until when the others may leave
        self._exit_code: int | None = None

    def run(self) -> int:
        """Start every role and watch until the run ends; returns the exit code for this process.

        SIGTERM or SIGINT asks the chief to save and leave; a second one kills everything at once. A warning (SIGHUP,
        SIGUSR1, SIGUSR2) and the end of the parent ask as well, as often as they come (see `end_signals`).

        Raises:
          WorkdirError: the workdir cannot be written.
          AddressError: there is no place for sockets.
          ConfigError: shared memory was asked for, and does not suit.
          HybridSyncError: the coordination service, or a role's process, cannot start.
        """
        spec = self._spec
        try:
            with closing(RoleAddresses(spec.host, spec.port, num_hosts=spec.num_hosts)) as addresses:
                self._collective = choose_collective(spec.collective, spec.num_workers, sockets=addresses.has_sockets)
                self._link = choose_link(spec.link, sockets=addresses.are_sockets, hosts=spec.num_hosts)
                lease_secs = spec.lease_secs if spec.num_hosts > 1 else 0.0
                needed = spec.needs_process_group
                self._group = ProcessGroupService(self._collective, addresses, lease_secs, is_needed=needed)
                return self._final(self._run(addresses))
        except HybridSyncError:
            raise
        except Exception:  # noqa: BLE001 - Python itself would exit with 1, "input refused"; the traceback is shown
            self._say(f"error: the supervisor failed; {_RESUME}\n{traceback.format_exc()}")
            return EXIT_FAILED

    def _run(self, addresses: RoleAddresses) -> int:
        assert threading.current_thread() is threading.main_thread(), "children die with the thread that starts them"
        spec = self._spec
        host = HostSpec(
            (*spec.command, *spec.argv),
            spec.workdir / "logs",
            start_again_secs=spec.start_again_secs,
            compilation_cache=lambda num_threads: spec.compilation_cache,
            worker_environments=spec.worker_environments,
        )
        self._agent = HostAgent(host, addresses, self._say, self._lock_fd)
        with WakePipe(self._on_signal) as wake:
            sessions = None
            if spec.num_hosts > 1:
                sessions = AgentSessions(spec.num_hosts, spec.config_digest, spec.lease_secs, wake.wake)
            self._hosts = RunHosts(self._agent, spec.slots or self._assignment.slots(), spec.num_hosts, sessions)
            self._placement = Placement(self._assignment, self._hosts, self._roles, self._beginning.absent)
            head = None
            try:
                if sessions is not None and self._serve_head is not None:
                    head = self._serve_head(sessions)
                self._begin_or_go_on(SYSTEM_CLOCK.monotonic())  # one host does, while the fork server imports
                self._outbox.started(RoleEvent("supervisor", 0, os.getpid(), STARTED_FIRST, SYSTEM_CLOCK.wall()))
                for role, count in (("chief", 1), ("server", spec.num_servers), ("worker", spec.num_workers)):
                    for role_id in range(count):
                        self._restart_counts[role, role_id] = -1
                        self._start_again(role, role_id, STARTED_FIRST)
                return self._watch(wake.fd, addresses)
            except HybridSyncError as error:
                self._exit_code = error.exit_code
                raise
            finally:
                self._agent.close()
                if unheard := self._hosts.end(EXIT_FAILED if self._exit_code is None else self._exit_code, _END_SECS):
                    self._say(unheard)
                if head is not None:
                    head.stop(0.0, _END_SECS)
                if sessions is None:  # elsewhere workers may live on for a moment, see `LINGER_SECS`
                    self._group.stop()

    def _watch(self, wake_fd: int, addresses: RoleAddresses) -> int:
        start_deadline = SYSTEM_CLOCK.monotonic() + self._spec.start_secs
        while self._exit_code is None:
            for host, event in self._hosts.wait(_TICK_SECS, wake_fd):
                if self._exit_code is None:
                    self._heed(host, event)
            now = SYSTEM_CLOCK.monotonic()
            if self._exit_code is None and self._leaving is None and (lost := self._spec.lock_lost()):
                self._say(f"error: {lost}")
                self._exit_code = EXIT_FAILED
            if self._leaving is not None:
                code, until = self._leaving
                self._exit_code = code if not self._roles or now >= until else self._exit_code
                continue
            if not self._asked and self._parent.has_ended():
                self._asked, self._asked_by = True, "the process that started this run has ended"
            self._keep_sockets(addresses)
            if self._exit_code is None and (self._asked or not self._slots):
                self._preempt(now)
            if self._exit_code is None and not self._chief_address and now >= start_deadline:
                self._fail(f"the chief does not serve after {self._spec.start_secs:g} s", "chief-0")
            if self._exit_code is None:
                self._begin_or_go_on(now)
            if self._exit_code is None:  # else the chief's end may have come, too, and nobody has heeded it
                silent_secs = self._watch_chief(now)
                rotate_if_due(self._spec.keys, self._hosts, self._roles, self._placement, self._say)
                if self._chief_serves and silent_secs < _CALL_SECS:
                    self._outbox.deliver(self._chief_address)
                self._place()
                self._group.stop_former()
        if self._broken_off and self._exit_code == EXIT_FAILED:
            self._say(f"error: a second signal has ended the run before it was saved; {_RESUME}")
        return self._exit_code

    def _keep_sockets(self, addresses: RoleAddresses) -> None:
        """Have sockets made again that somebody has removed; where that fails, save what can be saved, and end."""
        try:
            if addresses.keep_sockets():
                self._say("the folder of the run's sockets was gone; it, and the sockets, are made again")
        except AddressError as error:
            if not self._asked:
                self._asked, self._asked_by = True, str(error)

    def _watch_chief(self, now: float) -> float:
        """End a chief that stands still; returns for how long it has shown no sign of life.

        Its own watchdog is a thread of Python: it stands, too, where the process is stopped, or user code in C keeps
        the interpreter's lock. One that does not serve yet may open a large data set so, and another one would, too: it
        has `start_secs`.
        """
        chief = self._roles.get(("chief", 0))
        if chief is None or chief.stood_secs:
            return 0.0
        secs = self._stillness.look((chief.pid, self._agent.pulse(("chief", 0))), now)
        most_secs = max(self._spec.silent_secs, 0.0 if self._chief_serves else self._spec.start_secs)
        if secs >= most_secs:
            chief.stood_secs, chief.error = secs, f"it has shown no sign of life for {secs:.0f} s"
            self._say(f"the chief, process {chief.pid}, has shown no sign of life for {secs:.0f} s, and is replaced")
            self._hosts.kill(chief.host, chief.kill_order())
        return secs

    def _begin_or_go_on(self, now: float) -> None:
        """Have workers meet whose hosts are there, once they are enough, or have waited for the others long enough."""
        step = self._beginning.step(now, self._slots, self._group, self._placement)
        if step is Step.FAIL:
            self._exit_code = EXIT_FAILED
        elif step is not Step.WAIT:
            self._renew_process_group()
        if said := self._beginning.take_said():
            self._say(said)

    def _start_again(self, role: str, role_id: int, reason: str) -> None:
        self._restart_counts[role, role_id] += 1
        self._placement.want((role, role_id), reason)
        self._place()

    def _place(self) -> None:
        """Have every wanted role started that has a host; a worker only once there is a group to join."""
        for key, host, reason in self._placement.due(workers=self._beginning.has_begun):
            self._order(key, host, reason)

    def _order(self, key: Key, host: int, reason: str) -> None:
        is_worker, is_chief = key[0] == "worker", key[0] == "chief"
        coordinator, slots = self._group.place_of(key[1]) if is_worker else (self._group.address, ())
        spec = self._spec.role_spec(
            *key,
            self._restart_counts[key],
            coordinator=coordinator,
            slots=slots,
            collective=self._collective,
            link=self._link,
            listen=self._chief_address if is_chief else "",
        )
        self._hosts.start(host, StartRole(spec, reason))

    def _heed(self, host: int, event: HostEvent) -> None:
        match event:
            case HostJoined():
                self._beginning.host_joined(host, SYSTEM_CLOCK.monotonic())
                self._say(f"host {host} ({event.name}) has joined with {counted(event.slots, 'slot')}")
            case Started() if self._placement.is_starting_at((event.role, event.role_id), host):
                self._started(host, event)
            case Reported() if (role := self._role_at(host, event)) is not None:
                self._heed_report(role, event.fields)
            case Ended() if self._role_at(host, event) is not None:
                self._lost(event)
            case NotStarted() if self._placement.is_starting_at((event.role, event.role_id), host):
                self._not_started(event)
            case HostLost():
                self._host_lost(host, event.reason)

    def _role_at(self, host: int, event: Reported | Ended) -> RunningRole | None:
        """Return the role that an event speaks of; None where that host has no such process: it tells of others'."""
        role = self._roles.get((event.role, event.role_id))
        return role if role is not None and (role.host, role.pid) == (host, event.pid) else None

    def _started(self, host: int, event: Started) -> None:
        key = event.role, event.role_id
        self._placement.settle(key)
        role = self._roles[key] = RunningRole(*key, event.restart_count, event.pid, host)
        self._outbox.started(role.started(event.reason, SYSTEM_CLOCK.wall()))
        if role.role == "chief":
            self._outbox.repeat_preemption()
        if role.process in self._given_up:
            self._given_up.discard(role.process)
            role.is_given_up = True
            self._hosts.kill(host, role.kill_order())

    def _heed_report(self, role: RunningRole, report: dict[str, Any]) -> None:
        if "exit_code" in report:
            role.exit_code, role.error = report["exit_code"], report.get("error", "")
        self._group.joined(report.get("joined", ""))
        if role.role == "chief":
            self._over = self._over or report.get("over", False)
            self._asked = self._asked or report.get("stop", False)
            if "renew" in report:  # for a phase in which workers sum
                self._group.is_needed = True
                self._renew_process_group()
            if "kill" in report:
                self._end(**report["kill"])
            if "address" in report:
                self._chief_serves = True
                first, self._chief_address = not self._chief_address, report["address"]
                if first:
                    self._follow()

    def _follow(self) -> None:
        """Tell the roles where the first chief serves, and judge those that have ended before."""
        self._hosts.chief_serves(self._chief_address)
        for role, ended in self._ended_early:
            if self._exit_code is None:
                self._judge(role, ended)
        self._ended_early.clear()

    def _end(self, role: str, id: int, restart_count: int, pid: int, quarantine: str = "") -> None:
        """Kill a process that the chief has given up, unless another one has its place already."""
        found = self._roles.get((role, id))
        if found is None:
            self._given_up.add((role, id, restart_count, pid))  # the chief may hear of it before this loop does
        elif found.process == (role, id, restart_count, pid):
            found.quarantine, found.is_given_up = quarantine, True
            self._hosts.kill(found.host, found.kill_order())

    def _renew_process_group(self) -> None:
        """Serve a new process group and end every worker: its successor joins that one."""
        self._beginning.group_renewed(SYSTEM_CLOCK.monotonic())
        self._group.serve(self._placement.present(self._slots))
        for role in self._roles.values():
            if role.role == "worker":
                role.is_given_up = True
                self._hosts.kill(role.host, role.kill_order())
        for key, host, reason in self._placement.starting("worker"):  # they are to join the new one
            self._restart_counts[key] += 1  # the former order may have been carried out
            self._order(key, host, reason)

    def _lost(self, ended: Ended) -> None:
        """Take an ended role off; what it means is decided once the chief serves.

        The chief checks everything that a run can be refused for. Its error comes first, whichever other role failed
        for the same reason.
        """
        role = self._roles.pop((ended.role, ended.role_id))
        if role.role == "chief" or self._chief_address:
            self._judge(role, ended)
        else:
            self._ended_early.append((role, ended))

    def _host_lost(self, host: int, reason: str) -> None:
        """Take off what ran, or was to start, on a host that is gone: all of it has ended with its agent."""
        self._say(f"host {host} is lost: {reason}")
        for key in self._placement.host_lost(host):
            self._restart_counts[key] += 1  # it may have been started, and the chief have heard of it
        self._beginning.host_lost(host, SYSTEM_CLOCK.monotonic())
        for role in [role for role in self._roles.values() if role.host == host]:
            role.error = f"host {host} is lost: {reason}"
            self._lost(Ended(role.role, role.role_id, role.pid, -signal.SIGKILL, 0.0))

    def _judge(self, role: RunningRole, ended: Ended) -> None:
        """Decide what the end of a role means; the only place that does."""
        code = ended.code
        reason = role.reason(code)
        if role.role == "chief":
            self._chief_left(role, ended, reason)
        elif self._leaving is not None:
            return
        elif role.exit_code == EXIT_REFUSED:
            self._refuse(role, role.lost(reason, -1, SYSTEM_CLOCK.wall()))
        # A role is told to leave at the end of the run alone, and the chief says that first. Any other end is a loss,
        # whatever the exit code: user code may have called `exit(0)`.
        elif self._over:
            return
        else:
            failing, log = self._is_failing(role, ended), self._agent.logs.path(f"{role.role}-{role.role_id}")
            if role.role == "worker" and failing:
                why = f"it failed {MAX_FAILURES} times in a row by itself, the last time with {reason}; see {log}"
                role.quarantine = role.quarantine or why
            event = role.lost(reason, ended.unit, SYSTEM_CLOCK.wall())
            if event.quarantined:
                self._quarantine(event)
                return
            self._outbox.report_lost(event)
            if failing:
                name = f"{role.role}-{role.role_id}"
                self._fail(f"{role.name} fails again and again ({reason}); correct that, then {_RESUME}", name)
            elif not self._asked:
                self._start_again(role.role, role.role_id, f"restart after {reason}")

    def _refuse(self, role: RunningRole, event: RoleEvent) -> None:
        """End the run for a mistake of its user's that a role has met, and have the chief save what there is."""
        if role.error not in self._mistakes:  # other roles may meet the same one
            self._say(f"error: {role.error}")
        self._mistakes.add(role.error)
        # The chief waits for it no longer, and names the mistake in the summary.
        self._outbox.report_lost(replace(event, is_refusal=True))
        if not self._asked:
            self._asked, self._asked_by = True, f"{role.name} refuses to go on"

    def _not_started(self, event: NotStarted) -> None:
        """Give up a role that could not be started; one that is no worker ends the run.

        Raises:
          RoleLost: the run cannot go on without it.
        """
        self._placement.settle((event.role, event.role_id))
        if self._leaving is not None:
            return
        if event.role != "worker" or event.hopeless:
            raise RoleLost(event.message)
        told, count = (event.role, event.role_id, 0, event.message), self._restart_counts[event.role, event.role_id]
        self._quarantine(RoleEvent(*told, SYSTEM_CLOCK.wall(), quarantined=True, restart_count=count))

    def _is_failing(self, role: RunningRole, ended: Ended) -> bool:
        by_itself = not role.is_given_up and (role.stood_secs > 0 or ended.code not in _KILLED_FROM_OUTSIDE)
        return self._crash_loop.add(role.name, ended.lived_secs - role.stood_secs, ended.unit, by_itself=by_itself)

    def _quarantine(self, event: RoleEvent) -> None:
        """Start no other process in a worker's place: the others go on without it, or the chief ends the run.

        A process group is complete when every slot of it has joined once, shared memory with the first that has. Until
        then the others would wait for this one in vain: they start again, in a process group without it.
        """
        self._slots = tuple(slot for slot in self._slots if slot != event.id)
        self._outbox.report_lost(event)
        if self._slots and not self._group.is_complete:
            self._renew_process_group()

    def _chief_left(self, role: RunningRole, ended: Ended, reason: str) -> None:
        # Its process may end with any code: by a traceback, by its watchdog, by an `exit(0)` of the user's evaluation.
        code = role.exit_code
        if code is None:
            self._chief_serves = False
            self._outbox.report_lost(role.lost(reason, -1, SYSTEM_CLOCK.wall()))
            failing = self._is_failing(role, ended)
            if not self._chief_address or failing:
                self._fail(f"the chief was lost ({reason}); {_RESUME}", "chief-0", ended.code)
            else:
                self._restart_chief(f"restart after {reason}")
            return
        if role.error and not role.stood_secs:
            self._say(f"error: {role.error}")
        if self._chief_address:
            self._leaving = self._blamed(code), SYSTEM_CLOCK.monotonic() + self._spec.grace_secs
            self._agent.discard()
        else:  # the others wait for its address
            self._exit_code = code

    def _restart_chief(self, reason: str) -> None:
        """Start a replacement chief; resend events and repeat actions that only the old chief's memory held."""
        self._outbox.repeat()
        self._start_again("chief", 0, reason)
        self._over = False
        if self._asked:
            return
        left = self._restart_counts.keys() - self._roles.keys() - self._placement.pending
        for role_name, role_id in sorted(left):  # because the run was over, which it is not
            if role_name != "worker" or role_id in self._slots:
                self._start_again(role_name, role_id, reason)

    def _fail(self, message: str, name: str, code: int = EXIT_FAILED) -> None:
        """End the run as our fault; the log says nothing about a process that was killed from outside."""
        self._say(f"error: {message}")
        if code not in _KILLED_FROM_OUTSIDE:
            self._say(log_tail(self._agent.logs.path(name)))
        self._exit_code = EXIT_FAILED

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked, self._asked_by = True, self._asked_by or signal.Signals(number).name
        self._num_signals += number not in WARNINGS
        if self._num_signals > 1 and self._leaving is None:  # not in the loop, which may be in a call to the chief
            self._broken_off = True
            self._agent.kill_all()
            chief = self._roles.get(("chief", 0))
            self._exit_code = EXIT_FAILED if chief is None or chief.exit_code is None else chief.exit_code

    def _preempt(self, now: float) -> None:
        if not self._chief_address:  # nothing has begun that could be saved
            if self._asked:
                self._say(f"{self._asked_by}: the run ends before it has begun: the chief does not serve yet")
                self._exit_code = EXIT_PREEMPTED
        elif self._preempt_deadline is None:
            self._preempt_deadline = now + self._spec.preempt_secs
            if self._asked_by:
                self._say(f"{self._asked_by}: the run is saved and ends")
            if self._asked:
                self._outbox.preempt()
                self._hosts.await_end()
        elif now >= self._preempt_deadline:
            self._fail(f"the chief has not saved and left within {self._spec.preempt_secs:g} s; {_RESUME}", "chief-0")
            self._exit_code = self._blamed(EXIT_FAILED)

    def _blamed(self, code: int) -> int:
        """Return the exit code of a run that ends with `code`: a mistake of the user's comes before what it led to."""
        return EXIT_REFUSED if self._mistakes and code in (EXIT_PREEMPTED, EXIT_FAILED, RESTARTING) else code

    def _final(self, code: int) -> int:
        """Return the exit code of a run whose roles have ended: asked to stop meanwhile, it does not restart."""
        return EXIT_PREEMPTED if code == RESTARTING and self._asked else code


RETRY_SECS = 1.0


class Outbox:
    """Keeps what the chief has not heard, and delivers it when there is one.

    Args:
      connect: makes a connection to the chief from its address; every call on it has a deadline.
      say: shows a line to the user.
    """

    def __init__(self, connect: Callable[[str], ChiefPort], say: Callable[[str], None]) -> None:
        self._connect, self._say = connect, say
        self._chief: ChiefPort | None = None
        self._waiting: deque[tuple[str, RoleEvent | None]] = deque()
        self._lasting: list[RoleEvent] = []
        self._preempts = False
        self._retry_at = 0.0

    def started(self, event: RoleEvent) -> None:
        """Tell of a process that was started."""
        self._waiting.append(("role_started", _told(event)))

    def report_lost(self, event: RoleEvent) -> None:
        """Tell of a process that ended, and tell each later chief what it cannot find on disk: unit, end, refusal."""
        event = _told(event)
        self._waiting.append(("role_lost", event))
        if event.unit >= 0 or event.quarantined or event.is_refusal:
            self._lasting.append(event)

    def preempt(self) -> None:
        """Ask the chief to save and leave, before anything else is told but the refusals, which its summary names."""
        self._preempts = True
        refusals = (at for at, (_, event) in enumerate(self._waiting, 1) if event is not None and event.is_refusal)
        self._waiting.insert(max(refusals, default=0), ("preempt", None))

    def repeat(self) -> None:
        """Tell another chief again what only the memory of the last one held."""
        self._waiting.extend(("role_lost", event) for event in self._lasting)

    def repeat_preemption(self) -> None:
        """Ask another chief to save and leave, if the last one was asked."""
        if self._preempts and ("preempt", None) not in self._waiting:
            self._waiting.append(("preempt", None))

    def deliver(self, address: str) -> None:
        """Hand over the waiting events, in order; one that the chief does not take is tried again a second later."""
        if SYSTEM_CLOCK.monotonic() < self._retry_at:
            return
        try:
            if self._chief is None:
                self._chief = self._connect(address)
            while self._waiting:
                try:
                    self._hand_over(self._chief, *self._waiting[0])
                except (InvalidMessage, UnknownRole) as error:  # it never becomes right, and others wait for it
                    self._say(f"the chief does not take what became of a process: {error}")
                self._waiting.popleft()
        except HybridSyncError:  # the chief is slow, or its end is the next thing to be seen
            self._retry_at = SYSTEM_CLOCK.monotonic() + RETRY_SECS

    def _hand_over(self, chief: ChiefPort, kind: str, event: RoleEvent | None) -> None:
        if event is None:
            chief.preempt()
        elif kind == "role_lost":
            chief.role_lost(event)
        else:
            chief.role_started(event)


def _told(event: RoleEvent) -> RoleEvent:
    """Return an event as the chief takes it: a role's last words may be long, and hold line breaks."""
    return replace(event, reason=printable(event.reason)[:MOST_REASON_CHARS])
