"""Parent process of a host's roles: starts, watches, kills and restarts them. Imports neither jax nor orbax.

One loop on the main thread polls the children's pidfds, their report pipes and the signals. All roles start
at once, forked by a seed that has imported what they need (see seed.py); each is told what to do when the chief
serves. A role that dies is reported and replaced; a chief comes back at its former address. What happens while it is
away is kept for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hybridsync.chief.meshes import NUM_DEVICES
from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.durable import make_directory
from hybridsync.errors import (
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_PREEMPTED,
    EXIT_REFUSED,
    HybridSyncError,
    WorkdirError,
)
from hybridsync.messages import STARTED_FIRST, RoleEvent
from hybridsync.ports import SupervisorPort
from hybridsync.runtime.child import RoleSpec
from hybridsync.runtime.nursery import Nursery
from hybridsync.runtime.role_process import CrashLoop, RoleProcess, describe_exit
from hybridsync.runtime.world import Service, start_service

_TICK_SECS = 1.0
_KILL_SECS = 5.0
_SEED_RETRY_SECS = 30.0
_CHIEF_CODES = (EXIT_COMPLETED, EXIT_REFUSED, EXIT_FAILED, EXIT_PREEMPTED)
_KILLED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_RESUME = "run the same command again: it resumes from the last commit"


@dataclass(frozen=True)
class SupervisorSpec:
    """What to supervise.

    Attributes:
      argv: the run's flags, handed on to every role.
      workdir: exists or can be made; logs go to `logs/` in it.
      num_workers: worker processes.
      num_servers: server processes.
      host: address that everything binds to.
      command: program of every role.
      start_secs: until the chief must serve.
      preempt_secs: until the chief must have saved and left, once asked to.
      grace_secs: for the others to leave when the chief has.
      num_devices: local devices of each worker.
    """

    argv: tuple[str, ...]
    workdir: Path
    num_workers: int
    num_servers: int = 1
    host: str = "127.0.0.1"
    command: tuple[str, ...] = (sys.executable, "-m", "launch.train")
    start_secs: float = 120.0
    preempt_secs: float = 120.0
    grace_secs: float = 5.0
    num_devices: int = NUM_DEVICES


def _write_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Supervisor:
    """Run all roles of a host to their end.

    Args:
      spec: what to supervise.
      connect: makes the way to the chief from its address; every call on it has a deadline.
      say: shows a line to the user.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        connect: Callable[[str], SupervisorPort],
        say: Callable[[str], None] = _write_stderr,
    ) -> None:
        self._spec = spec
        self._connect = connect
        self._say = say
        self._roles: dict[tuple[str, int], RoleProcess] = {}
        self._lives: dict[tuple[str, int], int] = {}
        self._nursery: Nursery  # once there is a folder for its log
        self._seed_at = 0.0
        self._service: Service | None = None
        self._chief_address = ""
        self._chief_serves = False
        self._chief: SupervisorPort | None = None
        self._outbox: deque[tuple[str, RoleEvent | None]] = deque()
        self._ended_on_units: list[RoleEvent] = []
        self._retry_at = 0.0
        self._crash_loop = CrashLoop()
        self._over = False
        self._num_signals = 0
        self._preempt_deadline: float | None = None
        self._exit_code: int | None = None

    def run(self) -> int:
        """Start every role and watch until the run ends; returns the exit code for this process.

        Signals: SIGTERM or SIGINT asks the chief to save and leave; a second one kills everything at once.

        Raises:
          WorkdirError: the workdir cannot be written.
          HybridSyncError: the coordination service, or a role's process, cannot start.
        """
        assert threading.current_thread() is threading.main_thread(), (
            "children die with the thread that starts them"
        )
        logs = self._spec.workdir / "logs"
        try:
            make_directory(logs)
            self._nursery = Nursery([*self._spec.command, *self._spec.argv], logs / "seed.log")
        except OSError as error:
            raise WorkdirError(
                f"cannot write to {logs}: {error.strerror}; name a writable --workdir"
            ) from error
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        former_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        former = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            self._service = start_service(self._spec.num_workers, self._spec.host)  # while the seed imports
            self._note("role_started", "supervisor", 0, os.getpid(), STARTED_FIRST)
            for role, count in (
                ("chief", 1),
                ("server", self._spec.num_servers),
                ("worker", self._spec.num_workers),
            ):
                for role_id in range(count):
                    self._start(role, role_id, 0, STARTED_FIRST)
            self._roles["chief", 0].send_spec(self._role_spec(self._roles["chief", 0]))
            return self._watch(wake_read)
        finally:
            self._nursery.close()
            for process in self._roles.values():
                process.kill()
            for process in self._roles.values():
                process.reap()
            self._roles.clear()
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
            if self._exit_code is None and self._num_signals:
                self._preempt(now)
            if self._exit_code is None and not self._chief_address and now >= start_deadline:
                self._fail(
                    f"the chief does not serve after {self._spec.start_secs:g} s", self._roles["chief", 0]
                )
            if self._exit_code is None:
                self._deliver(now)
                self._keep_seed(now)
        return self._exit_code

    def _start(self, role: str, role_id: int, life: int, reason: str) -> None:
        log_path = self._spec.workdir / "logs" / f"{role}-{role_id}.log"
        process = RoleProcess(self._nursery, role, role_id, life, log_path)
        self._roles[role, role_id] = process
        self._lives[role, role_id] = life
        self._note("role_started", role, role_id, process.pid, reason)
        if self._chief_address:
            process.send_spec(self._role_spec(process))

    def _keep_seed(self, now: float) -> None:
        """Have a seed for the next role that is lost; the run needs none as long as nobody is."""
        if now < self._seed_at:
            return
        try:
            if self._nursery.keep():
                self._seed_at = now + _SEED_RETRY_SECS
        except OSError as error:
            self._say(f"no seed for the next role could be started: {error}; it is tried again")
            self._seed_at = now + _SEED_RETRY_SECS

    def _role_spec(self, process: RoleProcess) -> RoleSpec:
        assert self._service is not None
        return RoleSpec(
            role=process.role,
            role_id=process.role_id,
            life=process.life,
            chief=self._chief_address,
            coordinator=self._service.address,
            workdir=str(self._spec.workdir.absolute()),
            num_workers=self._spec.num_workers,
            num_servers=self._spec.num_servers,
            host=self._spec.host,
            num_devices=self._spec.num_devices,
        )

    def _heed(self, process: RoleProcess, report: dict[str, Any]) -> None:
        if "error" in report:
            process.error = report["error"], report["exit_code"]
        if process.role == "chief":
            self._over = self._over or report.get("over", False)
            if "renew" in report:
                self._renew_world()
            if "kill" in report:
                self._end(**report["kill"])
            if "address" in report:
                self._chief_serves = True
                first, self._chief_address = not self._chief_address, report["address"]
                for other in self._roles.values():
                    if first and other is not process:
                        other.send_spec(self._role_spec(other))

    def _end(self, role: str, id: int, pid: int) -> None:
        """Kill a process that the chief has given up, unless another one has its place already."""
        process = self._roles.get((role, id))
        if process is not None and process.pid == pid:
            process.kill()

    def _renew_world(self) -> None:
        """Serve a new world and end every worker: its successor joins that one."""
        former, self._service = self._service, start_service(self._spec.num_workers, self._spec.host)
        workers = [process for (role, _), process in self._roles.items() if role == "worker"]
        for process in workers:
            process.kill()
        deadline = SYSTEM_CLOCK.monotonic() + _KILL_SECS
        for process in workers:  # they would tell of their service's end as if it were an accident
            process.wait_ended(deadline - SYSTEM_CLOCK.monotonic())
        if former is not None:
            former.stop()

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
            self._note("role_lost", process.role, process.role_id, process.pid, reason, process.unit)
            if code not in _KILLED_FROM_OUTSIDE and self._crash_loop.add(process.name):
                self._fail(
                    f"{process.name} fails again and again ({reason}); correct that, then {_RESUME}", process
                )
            elif not self._num_signals:
                self._start(process.role, process.role_id, process.life + 1, f"restart after {reason}")

    def _chief_left(self, process: RoleProcess, code: int, reason: str) -> None:
        told = process.error is not None
        if code not in _CHIEF_CODES or (code == EXIT_REFUSED and not told):  # 1 is also Python's traceback
            self._chief_serves = False
            self._note("role_lost", "chief", 0, process.pid, reason)
            failing = code not in _KILLED_FROM_OUTSIDE and self._crash_loop.add("chief")
            if not self._chief_address or failing:
                self._fail(f"the chief was lost ({reason}); {_RESUME}", process, code)
            else:
                self._restart_chief(process, f"restart after {reason}")
            return
        if process.error is not None:
            self._say(f"error: {process.error[0]}")
        elif code == EXIT_FAILED:
            self._say(process.log_tail())
        if self._chief_address:  # before that, the others wait to be told what to do
            deadline = SYSTEM_CLOCK.monotonic() + self._spec.grace_secs
            for other in self._roles.values():
                other.wait_ended(deadline - SYSTEM_CLOCK.monotonic())
        self._exit_code = code

    def _restart_chief(self, process: RoleProcess, reason: str) -> None:
        """Start the next chief; what only the memory of the last one held is told, or done, again."""
        self._outbox.extend(("role_lost", event) for event in self._ended_on_units)
        self._start("chief", 0, process.life + 1, reason)
        if self._preempt_deadline is not None and ("preempt", None) not in self._outbox:
            self._outbox.append(("preempt", None))
        self._over = False
        if not self._num_signals:  # it may have ended the run, but not itself: whoever heard of that has left
            for role, role_id in sorted(self._lives.keys() - self._roles.keys()):
                self._start(role, role_id, self._lives[role, role_id] + 1, reason)

    def _fail(self, message: str, process: RoleProcess, code: int = EXIT_FAILED) -> None:
        """End the run as our fault; the log says nothing about a process that was killed from outside."""
        self._say(f"error: {message}")
        if code not in _KILLED_FROM_OUTSIDE:
            self._say(process.log_tail())
        self._exit_code = EXIT_FAILED

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        if self._num_signals > 1:  # here and not in the loop, which may be in a call to the chief
            for process in list(self._roles.values()):
                process.kill()
            self._exit_code = EXIT_PREEMPTED

    def _preempt(self, now: float) -> None:
        if not self._chief_address:  # nothing has begun that could be saved
            self._exit_code = EXIT_PREEMPTED
        elif self._preempt_deadline is None:
            self._preempt_deadline = now + self._spec.preempt_secs
            self._outbox.appendleft(("preempt", None))
        elif now >= self._preempt_deadline:
            chief = self._roles["chief", 0]
            self._fail(
                f"the chief has not saved and left within {self._spec.preempt_secs:g} s; {_RESUME}", chief
            )

    def _note(self, kind: str, role: str, role_id: int, pid: int, reason: str, unit: int = -1) -> None:
        event = RoleEvent(role=role, id=role_id, pid=pid, reason=reason, wall=SYSTEM_CLOCK.wall(), unit=unit)
        self._outbox.append((kind, event))
        if unit >= 0:
            self._ended_on_units.append(event)

    def _deliver(self, now: float) -> None:
        """Hand the chief what it has not heard, in order; what it does not take is tried again."""
        if not self._chief_serves or now < self._retry_at:
            return
        try:
            if self._chief is None:
                self._chief = self._connect(self._chief_address)
            while self._outbox:
                kind, event = self._outbox[0]
                if event is None:
                    self._chief.preempt()
                elif kind == "role_lost":
                    self._chief.role_lost(event)
                else:
                    self._chief.role_started(event)
                self._outbox.popleft()
        except HybridSyncError:  # the chief is slow, or its end is the next thing to be seen
            self._retry_at = SYSTEM_CLOCK.monotonic() + _TICK_SECS


def _drain(fd: int) -> None:
    try:
        os.read(fd, 1 << 12)
    except BlockingIOError:
        return
