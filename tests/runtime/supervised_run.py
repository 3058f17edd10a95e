"""A supervisor over fake roles: what it tells the chief goes to stdout, a JSON object a line.

argv: workdir, the fake roles' actions, options ("deaf_calls", "deaf_to_preempt", "warnings_ignored",
"fault", "program", "locks", fields of SupervisorSpec). Where there are several hosts, each line of stdin is what the
agent of one says: {"host": index, "attach": slots}, or the fields of an event with its "kind". What an agent is told
goes to stdout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridsync import __version__
from hybridsync.core.errors import HybridSyncError, WaitTimeout
from hybridsync.interfaces.agents import AgentHello, AgentReport
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.runtime.end_signals import WARNINGS
from hybridsync.runtime.supervisor.supervisor import Supervisor, SupervisorSpec
from hybridsync.storage.durable import WorkdirLock

if TYPE_CHECKING:
    from hybridsync.interfaces.ports import HeadPort  # it loads NumPy, which takes as long as all the rest

ROLE = Path(__file__).with_name("fake_role.py")


def show(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Link:
    """The way to a chief that takes its orders as signals."""

    def __init__(self, deaf_calls: int, deaf_to_preempt: bool) -> None:
        self._deaf_calls = deaf_calls
        self._deaf_to_preempt = deaf_to_preempt
        self._chief_pid, self._preempted = 0, False

    def role_started(self, event: RoleEvent) -> None:
        self._listen()
        if event.role == "chief":
            self._chief_pid = event.pid
            self._pass_on()
        show(call="role_started", **dataclasses.asdict(event))

    def role_lost(self, event: RoleEvent) -> None:
        self._listen()
        show(call="role_lost", **dataclasses.asdict(event))

    def preempt(self) -> None:
        show(call="preempt")
        self._preempted = not self._deaf_to_preempt
        self._pass_on()

    def _pass_on(self) -> None:
        if self._preempted and self._chief_pid:  # 0 would be this whole process group
            os.kill(self._chief_pid, signal.SIGUSR1)

    def _listen(self) -> None:
        self._deaf_calls -= 1
        if self._deaf_calls >= 0:
            show(call="deaf")
            raise WaitTimeout("the chief does not answer")


class Agents:
    """Be the agents of the other hosts as far as the head hears of them: what they say comes from stdin.

    Attributes:
      address: of the head that they would attach to.
    """

    address = "10.0.0.1:4711"

    def __init__(self, head: HeadPort) -> None:
        self._head = head
        self._sessions: dict[int, str] = {}
        self._num_events: dict[int, int] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """Be what serves a head."""

    def _listen(self) -> None:
        for line in sys.stdin:
            said = json.loads(line)
            host = said.pop("host")
            if "attach" in said:
                self._attach(host, said["attach"])
            else:
                self._exchange(host, 0, json.dumps(said))

    def _attach(self, host: int, slots: int) -> None:
        session = self._sessions[host] = secrets.token_hex(16)
        self._num_events[host] = 0
        self._head.attach(AgentHello(f"node{host}", host, f"10.0.0.{host}:1", slots, __version__, "", session))
        threading.Thread(target=self._hear, args=(host, session), daemon=True).start()

    def _hear(self, host: int, session: str) -> None:
        seen = 0
        while self._sessions[host] == session:
            try:
                reply = self._head.exchange(AgentReport(host, session, self._num_events[host], (), seen, 0.5))
            except HybridSyncError:
                return
            for order in reply.orders[seen - reply.first :]:
                show(call="order", host=host, **json.loads(order))
            seen = reply.first + len(reply.orders) if reply.orders else seen

    def _exchange(self, host: int, seen: int, *events: str) -> None:
        report = AgentReport(host, self._sessions[host], self._num_events[host], events, seen, 0.0)
        self._head.exchange(report)
        self._num_events[host] += len(events)  # not before the head has them: what hears orders names this number, too


def fail(event: RoleEvent) -> None:
    raise RuntimeError(f"planted, when {event.role} {event.id} was lost")


def main() -> int:
    workdir, actions, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    link: Any = Link(options.pop("deaf_calls", 0), options.pop("deaf_to_preempt", False))
    if options.pop("warnings_ignored", False):
        for number in WARNINGS:
            signal.signal(number, signal.SIG_IGN)
    if options.pop("fault", False):
        link.role_lost = fail
    locks = options.pop("locks", False)
    if lost := options.pop("lock_lost", ""):
        options["lock_lost"] = lambda: lost
    command = (options.pop("program", sys.executable), str(ROLE))
    spec = SupervisorSpec((actions,), workdir, 2, command=command, **options)
    with WorkdirLock(workdir) if locks else contextlib.nullcontext() as lock:
        code = Supervisor(
            spec, lambda address: link, lock_fd=lock.held.descriptor if lock else None, serve_head=Agents
        ).run()
    show(call="ended", code=code, heavy=sorted({"jax", "orbax", "flax"} & sys.modules.keys()))
    return code


if __name__ == "__main__":
    sys.exit(main())
