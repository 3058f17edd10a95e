"""A supervisor over fake roles: what it tells the chief goes to stdout, a JSON object a line.

argv: workdir, the fake roles' actions, options ("deaf_calls", "deaf_to_preempt", "hangups_ignored",
"fault", "program", "locks", fields of SupervisorSpec).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

from hybridsync.core.errors import WaitTimeout
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.runtime.supervisor import Supervisor, SupervisorSpec
from hybridsync.storage.durable import WorkdirLock

ROLE = Path(__file__).with_name("fake_role.py")


def show(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Link:
    """The way to a chief that takes its orders as signals."""

    def __init__(self, deaf_calls: int, deaf_to_preempt: bool) -> None:
        self._deaf_calls = deaf_calls
        self._deaf_to_preempt = deaf_to_preempt
        self._chief_pid = 0

    def role_started(self, event: RoleEvent) -> None:
        self._listen()
        if event.role == "chief":
            self._chief_pid = event.pid
        show(call="role_started", **dataclasses.asdict(event))

    def role_lost(self, event: RoleEvent) -> None:
        self._listen()
        show(call="role_lost", **dataclasses.asdict(event))

    def preempt(self) -> None:
        show(call="preempt")
        if not self._deaf_to_preempt:
            os.kill(self._chief_pid, signal.SIGUSR1)

    def _listen(self) -> None:
        self._deaf_calls -= 1
        if self._deaf_calls >= 0:
            show(call="deaf")
            raise WaitTimeout("the chief does not answer")


def fail(event: RoleEvent) -> None:
    raise RuntimeError(f"planted, when {event.role} {event.id} was lost")


def main() -> int:
    workdir, actions, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    link = Link(options.pop("deaf_calls", 0), options.pop("deaf_to_preempt", False))
    if options.pop("hangups_ignored", False):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.pop("fault", False):
        link.role_lost = fail
    locks = options.pop("locks", False)
    command = (options.pop("program", sys.executable), str(ROLE))
    spec = SupervisorSpec((actions,), workdir, 2, command=command, **options)
    with WorkdirLock(workdir) if locks else contextlib.nullcontext() as lock:
        code = Supervisor(spec, lambda address: link, lock_fd=lock.descriptor if lock else None).run()
    show(call="ended", code=code, heavy=sorted({"jax", "orbax", "flax"} & sys.modules.keys()))
    return code


if __name__ == "__main__":
    sys.exit(main())
