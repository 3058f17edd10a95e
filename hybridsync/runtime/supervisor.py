"""Parent process of a host's roles: starts, watches, kills and restarts them. Imports neither jax nor orbax.

One loop on the main thread polls the children's pidfds, their report pipes and the signals. All roles start
at once, forked by a fork server that has imported what they need (see fork_server.py); each is told what to do when the
chief serves. A role that dies is reported and replaced; a chief comes back at its former address. What happens while it
is away is kept for it. A worker that fails again and again by itself is quarantined: the others go on without it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hybridsync.collectives.backend import Service
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import (
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_PREEMPTED,
    EXIT_REFUSED,
    HybridSyncError,
    WorkdirError,
)
from hybridsync.interfaces.messages import STARTED_FIRST, RoleEvent
from hybridsync.runtime.adopted_children import reap_adopted
from hybridsync.runtime.event_outbox import Outbox
from hybridsync.runtime.fork_server_client import log_tail
from hybridsync.runtime.role_addresses import RoleAddresses
from hybridsync.runtime.role_logs import Logs
from hybridsync.runtime.role_pipe import RoleSpec
from hybridsync.runtime.role_process import MAX_FAILURES, CrashLoop, RoleProcess, describe_exit
from hybridsync.runtime.role_starts import NotStarted, Starts
from hybridsync.runtime.wiring.collectives import AUTO, choose, collectives_of
from hybridsync.runtime.wiring.transport import choose as choose_link
from hybridsync.storage.durable import make_directory

if TYPE_CHECKING:
    from hybridsync.interfaces.ports import SupervisorPort

_TICK_SECS = 1.0
_KILL_SECS = 5.0
_CHIEF_CODES = (EXIT_COMPLETED, EXIT_REFUSED, EXIT_FAILED, EXIT_PREEMPTED)
_KILLED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_RESUME = "run the same command again: it resumes from the last commit"


@dataclass(frozen=True)
class SupervisorSpec:
    """Describes the run whose processes a supervisor starts and watches.

    Attributes:
      argv: the run's flags, handed on to every role.
      workdir: exists or can be made; logs go to `logs/` in it.
      num_workers: worker processes.
      num_servers: server processes.
      host: address at whose ports the roles serve; "" for sockets, which no other user can reach.
      port: of the chief, where there is a host; 0 takes a free one.
      token: of the run: each role asks for it, and shows it to others.
      command: program of every role.
      start_secs: until the chief must serve.
      preempt_secs: until the chief must have saved and left, once asked to.
      grace_secs: for the others to leave when the chief has.
      start_again_secs: how long it is tried to start a role for which there is no process or memory.
      collective: how workers sum among themselves: "auto", "host" or "shm".
      link: how buffers go between processes: "auto", "grpc" or "shm".
      num_devices: local devices of each worker; None for as many as the collectives need.
      num_threads: with which XLA computes in each role; None leaves it to XLA.
    """

    argv: tuple[str, ...]
    workdir: Path
    num_workers: int
    num_servers: int = 1
    host: str = ""
    port: int = 0
    token: str = field(default="", repr=False)
    command: tuple[str, ...] = (sys.executable, "-m", "hybridsync.cli.train")
    start_secs: float = 120.0
    preempt_secs: float = 120.0
    grace_secs: float = 5.0
    start_again_secs: float = 300.0
    collective: str = AUTO
    link: str = AUTO
    num_devices: int | None = None
    num_threads: int | None = None


def _write_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Supervisor:
    """Run all roles of a host to their end.

    Args:
      spec: what to supervise.
      connect: makes the way to the chief from its address; every call on it has a deadline.
      say: shows a line to the user.
      lock_fd: of the workdir's lock, which each chief holds as well; None where nobody has locked it.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        connect: Callable[[str], SupervisorPort],
        say: Callable[[str], None] = _write_stderr,
        lock_fd: int | None = None,
    ) -> None:
        self._spec = spec
        self._say = say
        self._lock_fd = lock_fd
        self._starts: Starts  # once there is a folder for its log
        self._addresses: RoleAddresses
        self._collective: str
        self._link: str
        self._logs = Logs(spec.workdir / "logs", say)
        self._outbox = Outbox(connect, say)
        self._slots = self._group = tuple(range(spec.num_workers))  # to be run, and with a place in what is joined
        self._is_complete = False
        self._roles: dict[tuple[str, int], RoleProcess] = {}
        self._restart_counts: dict[tuple[str, int], int] = {}
        self._service: Service | None = None
        self._chief_address = ""
        self._chief_serves = False
        self._crash_loop = CrashLoop()
        self._over = self._asked = False
        self._num_signals = 0
        self._preempt_deadline: float | None = None
        self._exit_code: int | None = None

    def run(self) -> int:
        """Start every role and watch until the run ends; returns the exit code for this process.

        Signals: SIGTERM or SIGINT asks the chief to save and leave; a second one kills everything at once. SIGHUP asks
        as well, unless it is ignored, as by nohup: a closing terminal may send several, and a SIGTERM behind them.

        Raises:
          WorkdirError: the workdir cannot be written.
          AddressError: there is no place for sockets.
          ConfigError: shared memory was asked for, and does not suit.
          HybridSyncError: the coordination service, or a role's process, cannot start.
        """
        try:
            self._addresses = RoleAddresses(self._spec.host, self._spec.port)
            try:
                sockets = self._addresses.has_sockets
                self._collective = choose(self._spec.collective, self._spec.num_workers, sockets=sockets)
                self._link = choose_link(self._spec.link, sockets=self._addresses.are_sockets)
                return self._run()
            finally:
                self._addresses.remove()
        except HybridSyncError:
            raise
        # Everything, because Python itself would exit with 1, which means "input refused"; the traceback is shown.
        except Exception:  # noqa: BLE001
            self._say(f"error: the supervisor failed; {_RESUME}\n{traceback.format_exc()}")
            return EXIT_FAILED

    def _run(self) -> int:
        assert threading.current_thread() is threading.main_thread(), "children die with the thread that starts them"
        logs = self._spec.workdir / "logs"
        try:
            make_directory(logs)
            command = [*self._spec.command, *self._spec.argv]
            again_secs, num_threads = self._spec.start_again_secs, self._spec.num_threads
            self._starts = Starts(command, self._logs, self._say, again_secs, self._lock_fd, num_threads)
        except OSError as error:
            raise WorkdirError(f"cannot write to {logs}: {error.strerror}; name a writable --workdir") from error
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        former_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        former = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            self._serve_group()  # while the fork server imports
            self._note("role_started", "supervisor", 0, os.getpid(), STARTED_FIRST)
            for role, count in (
                ("chief", 1),
                ("server", self._spec.num_servers),
                ("worker", self._spec.num_workers),
            ):
                for role_id in range(count):
                    self._start(role, role_id, 0, STARTED_FIRST)
            return self._watch(wake_read)
        finally:
            self._starts.close()
            for process in self._roles.values():
                process.kill()
            for process in self._roles.values():
                process.reap()
            self._roles.clear()
            reap_adopted(())
            if self._service is not None:
                self._service.stop()
            for number, handler in former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(former_wake)
            os.close(wake_read)
            os.close(wake_write)

    def _watch(self, wake_fd: int) -> int:
        start_deadline = SYSTEM_CLOCK.monotonic() + self._spec.start_secs
        while self._exit_code is None:
            poll = select.poll()
            poll.register(wake_fd, select.POLLIN)
            for process in self._roles.values():
                poll.register(process.pidfd, select.POLLIN)
                if not process.reports_ended:
                    poll.register(process.report_fd, select.POLLIN)
            poll.poll(_TICK_SECS * 1000)
            _drain(wake_fd)
            for process in list(self._roles.values()):  # the chief first: its end explains the others'
                ended = process.wait_ended(0)
                for report in process.read_reports():
                    self._heed(process, report)
                if ended and self._exit_code is None:
                    self._lost(process)
            now = SYSTEM_CLOCK.monotonic()
            if self._exit_code is None and (self._asked or not self._slots):
                self._preempt(now)
            if self._exit_code is None and not self._chief_address and now >= start_deadline:
                self._fail(f"the chief does not serve after {self._spec.start_secs:g} s", "chief-0")
            if self._exit_code is None:
                if self._chief_serves:
                    self._outbox.deliver(self._chief_address)
                self._starts.keep_fork_server()
                self._take_started()
                reap_adopted({self._starts.fork_server_pid, *(process.pid for process in self._roles.values())})
        return self._exit_code

    def _start(self, role: str, role_id: int, restart_count: int, reason: str) -> None:
        self._restart_counts[role, role_id] = restart_count
        self._starts.request(role, role_id, restart_count, reason)
        self._take_started()

    def _take_started(self) -> None:
        """Take hold of the roles that could be started; one that cannot be is given up in the end."""
        try:
            for process, reason in self._starts.start_due():
                self._roles[process.role, process.role_id] = process
                self._note("role_started", process.role, process.role_id, process.pid, reason)
                if self._chief_address or process.role == "chief":
                    process.send_spec(self._role_spec(process))
        except NotStarted as error:
            role, role_id = error.key
            if role != "worker":
                raise
            self._quarantine(RoleEvent(role, role_id, 0, str(error), SYSTEM_CLOCK.wall(), quarantined=True))

    def _role_spec(self, process: RoleProcess) -> RoleSpec:
        assert self._service is not None
        return RoleSpec(
            role=process.role,
            role_id=process.role_id,
            restart_count=process.restart_count,
            chief=self._chief_address,
            coordinator=self._service.address,
            workdir=str(self._spec.workdir.absolute()),
            num_workers=self._spec.num_workers,
            num_servers=self._spec.num_servers,
            host=self._addresses.host,
            collective=self._collective,
            link=self._link,
            num_devices=self._spec.num_devices or collectives_of(self._collective).num_devices,
            num_threads=self._spec.num_threads,
            slots=self._group,
            listen=self._addresses.of(process.role, process.role_id, process.restart_count),
            token=self._spec.token,
        )

    def _heed(self, process: RoleProcess, report: dict[str, Any]) -> None:
        assert self._service is not None
        if "error" in report:
            process.error = report["error"], report["exit_code"]
        if report.get("joined") == self._service.address:
            self._is_complete = True
        if process.role == "chief":
            self._over = self._over or report.get("over", False)
            if "renew" in report:
                self._renew_process_group()
            if "kill" in report:
                self._end(**report["kill"])
            if "address" in report:
                self._chief_serves = True
                first, self._chief_address = not self._chief_address, report["address"]
                for other in self._roles.values():
                    if first and other is not process:
                        other.send_spec(self._role_spec(other))

    def _end(self, role: str, id: int, pid: int, quarantine: str = "") -> None:
        """Kill a process that the chief has given up, unless another one has its place already."""
        process = self._roles.get((role, id))
        if process is not None and process.pid == pid:
            process.quarantine = quarantine
            process.kill()

    def _renew_process_group(self) -> None:
        """Serve a new process group and end every worker: its successor joins that one."""
        former = self._service
        self._serve_group()
        self._is_complete = False
        workers = [process for (role, _), process in self._roles.items() if role == "worker"]
        for process in workers:
            process.kill()
        deadline = SYSTEM_CLOCK.monotonic() + _KILL_SECS
        for process in workers:  # they would tell of their service's end as if it were an accident
            process.wait_ended(deadline - SYSTEM_CLOCK.monotonic())
        if former is not None:
            former.stop()

    def _serve_group(self) -> None:
        self._group = self._slots
        self._service = collectives_of(self._collective).serve(self._group, self._addresses.next_service())

    def _lost(self, process: RoleProcess) -> None:
        """Decide what the end of a role means; the only place that does."""
        del self._roles[process.role, process.role_id]
        code = process.reap()
        reason = describe_exit(code)
        if process.error is not None:
            reason = f"{reason}: {process.error[0]}"
        if process.role == "chief":
            self._chief_left(process, code, reason)
        elif process.error is not None and process.error[1] == EXIT_REFUSED:
            self._say(f"error: {process.error[0]}")
            self._exit_code = EXIT_REFUSED
        elif self._over or (code in (EXIT_COMPLETED, EXIT_PREEMPTED) and self._chief_serves):
            return
        else:
            failing, log = self._is_failing(process, code), self._logs.path(f"{process.role}-{process.role_id}")
            if process.role == "worker" and failing:
                why = f"it failed {MAX_FAILURES} times in a row by itself, the last time with {reason}; see {log}"
                process.quarantine = process.quarantine or why
            event = RoleEvent(
                *(process.role, process.role_id, process.pid, process.quarantine or reason, SYSTEM_CLOCK.wall()),
                unit=process.unit,
                quarantined=bool(process.quarantine),
            )
            if event.quarantined:
                self._quarantine(event)
                return
            self._outbox.report_lost(event)
            if failing:
                name = f"{process.role}-{process.role_id}"
                self._fail(f"{process.name} fails again and again ({reason}); correct that, then {_RESUME}", name)
            elif not self._asked:
                self._start(process.role, process.role_id, process.restart_count + 1, f"restart after {reason}")

    def _is_failing(self, process: RoleProcess, code: int) -> bool:
        lived = SYSTEM_CLOCK.monotonic() - process.started
        by_itself = code not in _KILLED_FROM_OUTSIDE
        return self._crash_loop.add(process.name, lived, process.unit, by_itself=by_itself)

    def _quarantine(self, event: RoleEvent) -> None:
        """Start no other process in a worker's place: the others go on without it, or the chief ends the run.

        A process group is complete when every slot of it has joined once, shared memory with the first that has. Until
        then the others would wait for this one in vain: they begin anew, in a process group without it.
        """
        self._slots = tuple(slot for slot in self._slots if slot != event.id)
        self._outbox.report_lost(event)
        if self._slots and not self._is_complete:
            self._renew_process_group()

    def _chief_left(self, process: RoleProcess, code: int, reason: str) -> None:
        told = process.error is not None
        # 1 is also Python's traceback, and 70 what its watchdog ends a chief with that hangs.
        if code not in _CHIEF_CODES or (code in (EXIT_REFUSED, EXIT_FAILED) and not told):
            self._chief_serves = False
            self._note("role_lost", "chief", 0, process.pid, reason)
            failing = self._is_failing(process, code)
            if not self._chief_address or failing:
                self._fail(f"the chief was lost ({reason}); {_RESUME}", "chief-0", code)
            else:
                self._restart_chief(process, f"restart after {reason}")
            return
        if process.error is not None:
            self._say(f"error: {process.error[0]}")
        if self._chief_address:  # before that, the others wait to be told what to do
            deadline = SYSTEM_CLOCK.monotonic() + self._spec.grace_secs
            for other in self._roles.values():
                other.wait_ended(deadline - SYSTEM_CLOCK.monotonic())
        self._exit_code = code

    def _restart_chief(self, process: RoleProcess, reason: str) -> None:
        """Start the next chief; what only the memory of the last one held is told, or done, again."""
        self._outbox.repeat()
        self._start("chief", 0, process.restart_count + 1, reason)
        self._outbox.repeat_preemption()
        self._over = False
        if self._asked:
            return
        left = self._restart_counts.keys() - self._roles.keys() - {*self._starts.waiting}
        for role, role_id in sorted(left):  # because the run was over, which it is not
            if role != "worker" or role_id in self._slots:
                self._start(role, role_id, self._restart_counts[role, role_id] + 1, reason)

    def _fail(self, message: str, name: str, code: int = EXIT_FAILED) -> None:
        """End the run as our fault; the log says nothing about a process that was killed from outside."""
        self._say(f"error: {message}")
        if code not in _KILLED_FROM_OUTSIDE:
            self._say(log_tail(self._logs.path(name)))
        self._exit_code = EXIT_FAILED

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._num_signals += number != signal.SIGHUP
        if self._num_signals > 1:  # here and not in the loop, which may be in a call to the chief
            for process in list(self._roles.values()):
                process.kill()
            self._exit_code = EXIT_PREEMPTED

    def _preempt(self, now: float) -> None:
        if not self._chief_address:  # nothing has begun that could be saved
            self._exit_code = EXIT_PREEMPTED if self._asked else None
        elif self._preempt_deadline is None:
            self._preempt_deadline = now + self._spec.preempt_secs
            if self._asked:
                self._outbox.preempt()
        elif now >= self._preempt_deadline:
            self._fail(f"the chief has not saved and left within {self._spec.preempt_secs:g} s; {_RESUME}", "chief-0")

    def _note(self, kind: str, role: str, role_id: int, pid: int, reason: str) -> None:
        event = RoleEvent(role, role_id, pid, reason, SYSTEM_CLOCK.wall())
        (self._outbox.started if kind == "role_started" else self._outbox.report_lost)(event)


def _drain(fd: int) -> None:
    try:
        os.read(fd, 1 << 12)
    except BlockingIOError:
        return
