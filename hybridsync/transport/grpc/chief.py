"""The chief over gRPC: `ChiefServicer` in the chief's process, `ChiefClient` in all others."""

from __future__ import annotations

from typing import Any

from hybridsync.interfaces.commands import StatusReply, StopReply, StopRequest, SwitchReply, SwitchRequest
from hybridsync.interfaces.messages import (
    GroupReply,
    GroupRequest,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    RoleEvent,
    Welcome,
)
from hybridsync.interfaces.ports import ChiefPort
from hybridsync.interfaces.reports import Report, ReportReply
from hybridsync.security.identity import CHIEF
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import Channel, Servicer, call, stub
from hybridsync.transport.grpc.codec import decode, encode


class ChiefServicer(Servicer):
    """Serves a chief.

    Args:
      backend: is called by several threads at a time.
    """

    def __init__(self, backend: ChiefPort) -> None:
        def role_started(request: pb.RoleEvent) -> pb.Empty:
            backend.role_started(decode(RoleEvent, request))
            return pb.Empty()

        def role_lost(request: pb.RoleEvent) -> pb.Empty:
            backend.role_lost(decode(RoleEvent, request))
            return pb.Empty()

        def preempt(request: pb.Empty) -> pb.Empty:
            backend.preempt()
            return pb.Empty()

        super().__init__(
            "Chief",
            unary={
                "Register": lambda request: encode(backend.register(decode(Hello, request))),
                "NextPhase": lambda request: encode(backend.next_phase(decode(PhaseRequest, request))),
                "Lease": lambda request: encode(backend.lease(decode(LeaseRequest, request))),
                "JoinGroup": lambda request: encode(backend.join_group(decode(GroupRequest, request))),
                "Report": lambda request: encode(backend.report(decode(Report, request))),
                "RoleStarted": role_started,
                "RoleLost": role_lost,
                "Preempt": preempt,
                "Status": lambda request: encode(backend.status()),
                "Switch": lambda request: encode(backend.switch(decode(SwitchRequest, request))),
                "Stop": lambda request: encode(backend.stop(decode(StopRequest, request))),
            },
        )


class ChiefClient:
    """A chief in another process: `ChiefPort`.

    Args:
      address: `host:port` of the chief; it may start later than the client.
      deadline_secs: limit in seconds for each call, all attempts together; above the second that a long poll takes.
      keys: keys of this process.

    All methods raise, besides the errors of the ports:
      RoleLost: the chief could not be reached.
      WaitTimeout: the chief did not answer in time.
    """

    def __init__(self, address: str, deadline_secs: float = 30.0, keys: Keyring = NO_KEYS) -> None:
        self._who = f"the chief at {address}"
        self._deadline_secs = deadline_secs
        self._channel = Channel(address, keys, CHIEF)
        methods = pb.DESCRIPTOR.services_by_name["Chief"].methods_by_name
        self._stubs = {name: stub(self._channel, "Chief", name) for name in methods}

    def register(self, hello: Hello) -> Welcome:
        """Take part in the run."""
        return decode(Welcome, self._call("Register", encode(hello)))

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        """Return the phase after `request.after`, or none yet."""
        return decode(PhaseReply, self._call("NextPhase", encode(request)))

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Extend the caller's stream of units."""
        return decode(LeaseReply, self._call("Lease", encode(request)))

    def join_group(self, request: GroupRequest) -> GroupReply:
        """Come to a group round, and return the group, or whom it waits for."""
        return decode(GroupReply, self._call("JoinGroup", encode(request)))

    def report(self, report: Report) -> ReportReply:
        """Send a heartbeat."""
        return decode(ReportReply, self._call("Report", encode(report)))

    def role_started(self, event: RoleEvent) -> None:
        """Tell of a process that was started."""
        self._call("RoleStarted", encode(event))

    def role_lost(self, event: RoleEvent) -> None:
        """Tell of a process that was lost."""
        self._call("RoleLost", encode(event))

    def preempt(self) -> None:
        """Ask for the run to be saved and stopped."""
        self._call("Preempt", pb.Empty())

    def status(self) -> StatusReply:
        """Return where the run stands."""
        return decode(StatusReply, self._call("Status", pb.Empty()))

    def switch(self, request: SwitchRequest) -> SwitchReply:
        """Ask for another protocol."""
        return decode(SwitchReply, self._call("Switch", encode(request)))

    def stop(self, request: StopRequest) -> StopReply:
        """Ask for the run to be saved and stopped, for its user."""
        return decode(StopReply, self._call("Stop", encode(request)))

    def close(self) -> None:
        """Close the channel; calls under way end with `RoleLost`."""
        self._channel.close()

    def _call(self, name: str, request: Any) -> Any:
        return call(self._stubs[name], request, self._deadline_secs, self._who, name)
