"""A worker's calls on the parameter server of its phase. Pure."""

from __future__ import annotations

from typing import Any

from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import StillHeld
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.protocols.base import Version
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import IO, CallServer


class ServerCalls:
    """Makes the calls of one worker in one phase.

    Args:
      member: member in whose name the calls are made.

    Attributes:
      restart_count: number of times that the worker began its program anew in this phase; the server tells pushes apart
        by it.
    """

    __slots__ = ("_incarnation", "_member", "_phase_id", "_worker", "restart_count")

    def __init__(self, member: PhaseMember) -> None:
        self._member = member
        self._phase_id, self._worker, self._incarnation = member.phase.id, member.worker, member.incarnation
        self.restart_count = 0

    def push_of(self, units: tuple[int, ...], base: int) -> Push:
        """Return what names a push of these units."""
        return Push(self._phase_id, self._worker, self._incarnation, units, base, restart_count=self.restart_count)

    def caller(self) -> Push:
        """Return what names this worker in a call that pushes nothing."""
        return self.push_of((), 0)

    def pull(self) -> CallServer:
        """Return the request for the current parameters."""
        return CallServer("pull", self.caller())

    def push_pull(self, gradient: Any) -> CallServer:
        """Return the request that pushes a gradient."""
        units, base, contribution = gradient
        return CallServer("push_pull", self.push_of(units, base), contribution)

    def push(self, gradient: Any, newest: int) -> CallServer:
        """Return the request that pushes a gradient and asks for no parameters; `newest` names the newest known."""
        units, base, contribution = gradient
        return CallServer("push", self.push_of(units, base)._replace(newest=newest, push_only=True), contribution)

    def idle(self) -> IO:
        """Tell the server that this worker has nothing to compute."""
        yield CallServer("idle", self.caller())

    def held(self, call: CallServer) -> IO:
        """Make a call that the rule may hold, again and again until it does not; returns its reply."""
        deadline = self._member.now() + MEMBERS_SECS  # a worker lost meanwhile is fenced, and the rule hears of it
        while True:
            try:
                return (yield call)
            except StillHeld:
                if self._member.now() > deadline:
                    raise


def version_of(reply: PushReply, parameters: Any) -> Version:
    """Return what a Pull, a PushPull or a PushOnly results in."""
    return Version(reply.sequence, parameters, reply.units, reply.own, reply.fastest)
