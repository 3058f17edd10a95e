"""The fork server: it has imported what roles need, and forks one whenever its supervisor asks for it.

Importing is most of what a new process costs (2 s of a processor for each role); a fork has it at once, and shares the
memory. A role is forked twice, so that the process between them ends and the role becomes a child of the supervisor,
which adopts such orphans (`fork_server_client.ForkServerClient`): the fork server may die, and none of its roles does.

The order is a packet on a socket, {"environment": {...}}, with its descriptors: stdin, stdout, stderr, the report's
end of a pipe, the memory of the unit, and for a chief the workdir's lock. The answer is {"pid": n} or {"error": text}.

Only the forking thread survives a fork. If a configuration file has started other threads while it was read, for
instance by computing with JAX, a role is not forked but started as a program of its own, which has to import everything
first.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import socket
import sys
from typing import NoReturn

from hybridsync.devices.environment import NUM_CPU_DEVICES
from hybridsync.runtime.role_pipe import LOCK_FD, REPORT_FD, ROLE, SUPERVISOR_PID, UNIT_FD, Child, live_under
from hybridsync.runtime.role_signals import ignore_signals

FORK_SERVER_FD = "HYBRIDSYNC_FORK_SERVER_FD"
ORDER_BYTES = 1 << 16
NUM_DESCRIPTORS = 6


def is_role() -> bool:
    """Return whether a supervisor, or a host's agent, started this process; only before `connect`."""
    return FORK_SERVER_FD in os.environ or ROLE in os.environ


def connect() -> Child | ForkServer | None:
    """Take up the line to the supervisor, before any slow import; None when no supervisor started this process.

    Raises:
      RoleLost: the supervisor has died meanwhile.
    """
    descriptor = os.environ.pop(FORK_SERVER_FD, None)
    if descriptor is None:
        return Child.from_environment()
    supervisor = int(os.environ.pop(SUPERVISOR_PID))
    live_under(supervisor, "the fork server")
    return ForkServer(int(descriptor), supervisor)


class ForkServer:
    """The fork server's line to its supervisor. Made by `connect`.

    Args:
      descriptor: file descriptor of a socket that keeps packets apart.
      supervisor: process id of the supervisor.
    """

    def __init__(self, descriptor: int, supervisor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._line = socket.socket(fileno=descriptor)
        self._supervisor = supervisor
        self._folder = os.getcwd()

    def serve(self, *modules: str) -> Child:
        """Serve orders, and return in each process that becomes a role; the server itself ends with its supervisor.

        To be called on the main thread.

        Args:
          modules: names of the modules that the roles need, imported before the first of them is forked.

        Raises:
          RoleLost: in a role: the supervisor has died meanwhile.
        """
        gc.disable()  # what is imported stays: to look for garbage in it was a sixth of the time
        for module in modules:
            importlib.import_module(module)
        # What is here counts as alive: no collection of a role's touches, and so copies, its pages. To find the 1,200
        # of 286,000 objects that are garbage would take .17 s. They are out of reach before a collection may begin.
        gc.freeze()
        gc.enable()
        own, alone = os.getpid(), _has_one_thread()
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._line, ORDER_BYTES, NUM_DESCRIPTORS)
            if not packet:
                sys.exit()
            if error := self._fork_twice():
                self._line.send(json.dumps({"error": os.strerror(error)}).encode())
            if os.getpid() != own:
                return self._become(json.loads(packet)["environment"], descriptors, alone)
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_twice(self) -> int:
        """Fork a process, in a session of its own, whose parent is the nearest ancestor that takes in orphans.

        Returns an error's number, 0 for none; in the new process, which has answered the order, too.
        """
        try:
            if first := os.fork():
                return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        except OSError as error:
            return error.errno or errno.EAGAIN
        between = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            os._exit(error.errno or errno.EAGAIN)
        while os.getppid() == between:
            os.sched_yield()
        os.setsid()
        # Sent by the role itself: whatever happens to the fork server, the supervisor hears of exactly the roles that
        # exist.
        self._line.send(json.dumps({"pid": os.getpid()}).encode())
        self._line.close()
        return 0

    def _become(self, environment: dict[str, str], descriptors: list[int], alone: bool) -> Child:
        stdin, stdout, stderr, report, unit, *lock = descriptors
        for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.update(environment)
        os.environ.update({REPORT_FD: str(report), UNIT_FD: str(unit), SUPERVISOR_PID: str(self._supervisor)})
        for descriptor in lock:
            os.environ[LOCK_FD] = str(descriptor)
        if not alone:
            os.chdir(self._folder)  # the file runs again, and may change it from here
            _be_program(report, unit, *lock)
        if "jax" in sys.modules:  # it has read the fork server's environment, not this role's
            import jax

            jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS"))
            if number := environment.get(NUM_CPU_DEVICES):
                jax.config.update("jax_num_cpu_devices", int(number))
        if "numpy.random" in sys.modules:  # as the fork does with Python's own: else all roles would draw the same
            import numpy.random

            numpy.random.seed()
        child = Child.from_environment()
        assert child is not None, "an order's environment names a role"
        return child


def _be_program(*inherited: int) -> NoReturn:
    """Start this process's program anew, which takes the role up from the environment."""
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    ignore_signals()
    os.execv(sys.executable, sys.orig_argv)


def _has_one_thread() -> bool:
    """Tell whether this process may be forked. Libraries that know of forks put their threads away for the first."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1
