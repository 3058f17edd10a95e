"""Takes the commands of a run's user at its chief: `CommandPort`. A refused command changes nothing."""

from __future__ import annotations

from hybridsync.chief.run_state import RunState
from hybridsync.core.errors import HybridSyncError, NotRunning
from hybridsync.interfaces.commands import (
    Figure,
    HostUnits,
    MemberStatus,
    StatusReply,
    StopReply,
    StopRequest,
    SwitchReply,
    SwitchRequest,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.telemetry.run_figures import Newest


class CommandService:
    """Answers a run's user from the run's state; every public method takes its lock.

    Args:
      state: the run's state.
    """

    def __init__(self, state: RunState) -> None:
        self._state, self._condition = state, state.condition

    def status(self) -> StatusReply:
        """Return where the run stands (see `CommandPort.status`)."""
        figures = self._state.figures
        newest, seconds = figures.read(), figures.seconds
        with self._condition:
            state = self._state
            phase, counts, pending = state.leases.phase, state.ledger.counts(), state.orders.pending
            members, hosts = self._members(phase, newest), newest.units_of(counts.applied)
            return StatusReply(
                exit="",
                phase=phase.id.number if phase is not None else newest.phase,
                protocol=phase.spec if phase is not None else newest.protocol,
                reason=phase.reason if phase is not None else newest.reason,
                end_units=phase.end_units if phase is not None else counts.workload,
                ordered=pending.spec if pending is not None else "",
                is_stopping=state.preempted and counts.applied < counts.workload,
                **counts.to_json(),
                seconds=seconds,
                restarts=sum(newest.restarts.values()),
                **told_of(newest, seconds),
                members=members,
                hosts=tuple(HostUnits(*pair, units) for pair, units in hosts.items()),
            )

    def switch(self, request: SwitchRequest) -> SwitchReply:
        """Order another protocol (see `CommandPort.switch`)."""
        orders = self._state.orders
        spec = orders.check(request.spec)
        with self._condition:
            phase = self._running_phase()
            units = self._state.ledger.num_applied
        if (held := orders.held) is None or held.spec != spec:  # in progress or not: an order disables the policy
            orders.give(spec, units, request.reason)  # outside of the run's lock: a disk may take long
        with self._condition:
            self._condition.notify_all()
        return SwitchReply(spec, phase.spec, phase.id.number, units, spec != phase.spec)

    def stop(self, request: StopRequest) -> StopReply:
        """Have the run save and stop (see `CommandPort.stop`)."""
        with self._condition:
            state = self._state
            if state.over:
                raise NotRunning("the run is over; there is nothing to stop")
            if not state.preempted and state.ledger.num_applied < state.ledger.workload:  # else it ends by itself
                state.reports.stops.append(request.reason)
            state.ask_stop()  # first: the supervisor has to know it, should this chief die
            state.preempt()
            return StopReply(state.ledger.num_applied)

    # --- under the lock ---

    def _running_phase(self) -> Phase:
        state = self._state
        if state.over or state.preempted:
            raise NotRunning("the run is saving and stopping; start it again, then give the command")
        try:
            state.waits.raise_failure()
        except HybridSyncError as error:
            raise NotRunning(f"the run is ending: {error}") from None
        phase = state.leases.phase
        if phase is None or state.restarted:
            raise NotRunning("the run is in no phase yet; give the command again when it is (hybridsync status)")
        if state.ledger.num_applied >= state.ledger.workload:
            raise NotRunning(f"the run is at its end: all {state.ledger.workload:,} units are applied")
        return phase

    def _members(self, phase: Phase | None, newest: Newest) -> tuple[MemberStatus, ...]:
        state, members = self._state, self._state.members
        rates = state.leases.units_per_sec(members.workers.ids())
        slow = state.detector.flagged

        def state_of(role: str, role_id: int) -> str:
            if role == "worker" and role_id in members.quarantined:
                return "quarantined"
            if members.of(role).get(role_id) is None:
                return "gone" if state.over else "starting"
            if phase is None or (role == "server" and not phase.servers):
                return "waiting"
            if role == "worker" and role_id not in phase.members:
                return "left out" if role_id in state.phase_members.left_out else "waiting"
            return "training"

        def status_of(role: str, role_id: int) -> MemberStatus:
            member = members.of(role).get(role_id)
            return MemberStatus(
                role,
                role_id,
                state_of(role, role_id),
                units_per_sec=rates.get(role_id, 0.0) if role == "worker" else 0.0,
                restarts=newest.restarts.get((role, role_id), 0),
                pid=member.hello.pid if member is not None else 0,
                is_slow=role == "worker" and role_id in slow,
                sent_bytes=newest.sent_bytes.get(role_id, 0) if role == "worker" else 0,
                received_bytes=newest.received_bytes.get(role_id, 0) if role == "worker" else 0,
                host=newest.host_of(role, role_id),
            )

        places = [
            *(("server", i) for i in range(members.num_servers)),
            *(("worker", i) for i in range(members.num_workers)),
        ]
        return tuple(status_of(*place) for place in places)


def told_of(newest: Newest, seconds: float) -> dict:
    """Return the part of a `StatusReply` that the record alone tells.

    Args:
      newest: newest record of the run.
      seconds: duration of the run so far, in seconds.
    """
    saved = newest.checkpoint_units >= 0
    return {
        "num_switches": newest.num_switches,
        "stall_secs": newest.stall_secs,
        "checkpoint_units": newest.checkpoint_units,
        "checkpoint_age_secs": max(0.0, seconds - newest.checkpoint_t) if saved else 0.0,
        "checkpoint_bytes": newest.checkpoint_bytes,
        "figures": tuple(Figure(*each) for each in newest.figures.items()),
        "evaluations": newest.evaluations,
    }
