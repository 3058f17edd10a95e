"""The commands RESERVE and ANNOUNCE: a phase is reserved, its roles are waited for, and its servers enter it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from hybridsync import protocols
from hybridsync.chief.run_state import RunControl, RunState
from hybridsync.collectives.device_choice import Mesh
from hybridsync.config import RunConfig
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import Preempted, RoleLost, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Process, RoleEvent, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ServerPort
from hybridsync.phases import state_machine
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.run_context import TICK_SECS, Reach, RunContext
from hybridsync.phases.schedule import Segment
from hybridsync.protocols.modes import SyncMode
from hybridsync.telemetry.switch_costs import SWITCHED, commits_switch


class EntryStage:
    """Composes the next phase, has its servers enter it, and announces it.

    Args:
      run: what the stages of a run share.
      servers: returns the servers by address; called when a phase needs them.
      reserve_phase: returns the next phase, with a number above all handed out and above the given one.
      policy_driver: decides which protocol is entered, and with which members.
      arrivals: waits for the roles that the phase needs.
      process_groups: meshes of lock-step and group phases.
      entering: has the servers enter.
      upkeep: knows the lost workers.
    """

    def __init__(
        self,
        run: RunContext,
        servers: Callable[[], Mapping[str, ServerPort]],
        reserve_phase: Callable[[int], PhaseId],
        *,
        policy_driver: PolicyDriver,
        arrivals: MemberWaits,
        process_groups: ProcessGroups,
        entering: ServerEntry,
        upkeep: Housekeeping,
    ) -> None:
        self._run, self._servers, self._reserve_phase = run, servers, reserve_phase
        self._policy_driver, self._arrivals = policy_driver, arrivals
        self._process_groups, self._entering, self._upkeep = process_groups, entering, upkeep

    def reserve(self) -> state_machine.Event:
        """Reserve the next phase: its number is durable before anybody hears of it."""
        started = self._run.timer.start()
        phase_id = self._run.state.phase_id = self._reserve_phase(self._run.state.start_phase)
        self._run.timer.record("reserve", started)
        return state_machine.Reserved(phase_id.number)

    def announce(self) -> state_machine.Event:
        """Enter the next phase from the captured state, and announce it.

        Raises:
          PhaseBroken: a role was lost on the way into the phase.
          Preempted: the run was asked to stop while roles were waited for.
          WaitTimeout: a role did not come.
        """
        state = self._run.state
        assert state.phase_id is not None, "a phase is reserved before a phase is entered"
        started = self._run.timer.start()
        units = state.snapshot.held.units
        segment = self._policy_driver.next_segment(units)
        mode = protocols.parse(segment.spec).mode
        self._arrivals.await_needed(mode)
        self._run.reporter.tick()
        phase = self._next_phase(segment, mode, state.phase_id)
        before, state.phase = state.phase, phase
        if mode.is_served:
            with Reach(self._run.control, f"a server could not enter phase {phase.id}"):
                self._entering.enter(phase, self._servers(), state.snapshot.num_bytes)
        left_out = self._policy_driver.left_out(phase)
        with self._run.control.turn() as chief:
            chief.begin(phase, left_out)
        self._run.pace.begin()
        self._run.reporter.entered(phase, units, state.broken_by, segment.stage + 1)
        state.broken_by = ""
        self._run.timer.record("enter", started)
        if before is not None and phase.reason in SWITCHED:
            self._report_switch(before, phase)
        return state_machine.Entered()

    def _next_phase(self, segment: Segment, mode: SyncMode, phase_id: PhaseId) -> Phase:
        members, device_choice = tuple(range(self._run.config.workers)), 0
        if not mode.is_served:
            members, device_choice = self._mesh(mode)
        snapshot = self._run.state.snapshot  # read here: a new process group comes with a new snapshot
        with self._run.control.turn() as chief:
            dropped = chief.ledger.all_dropped(snapshot.applied, snapshot.dropped)
        return Phase(
            id=phase_id,
            spec=segment.spec,
            members=members,
            device_choice=device_choice,
            end_units=segment.end_units,
            applied=snapshot.applied,
            dropped=dropped,
            sequence=snapshot.held.sequence,
            source=self._run.state.source,
            snapshot_id=snapshot.snapshot_id,
            fingerprint=snapshot.held.fingerprint,
            servers=tuple(self._servers()) if mode.is_served else (),
            reason=self._run.state.reason,
            shares=self._policy_driver.shares(members) if mode.moves_together else (),
            order=segment.order,
            evaluate_units=self._run.config.telemetry.evaluate_units,
        )

    def _mesh(self, mode: SyncMode) -> Mesh:
        """Return a mesh of the workers that are there; where there is none, all start again in a new process group.

        They do so once more where one has come meanwhile that has no place in it: its host was away just before.
        """
        state = self._run.state
        while (mesh := self._process_groups.mesh(self._policy_driver.members(), mode)) is None:
            with self._run.control.turn() as chief:
                workers = chief.members.workers.ids()
            state.snapshot, state.source = self._process_groups.renew(state.snapshot, state.source)
            self._upkeep.take_fenced()
            self._arrivals.await_again(workers)
        return mesh

    def _report_switch(self, before: Phase, phase: Phase) -> None:
        usual = self._policy_driver.step_secs(phase) if phase.reason == "policy" else 0.0
        unit_secs = self._run.state.unit_secs / before.assignment.num_rounds  # of those of a step, one is waited for
        unit_secs = usual if usual and phase.shares else min(unit_secs, usual or unit_secs)
        commits = commits_switch(before.spec, phase.spec, phase.reason)
        self._run.reporter.switching(
            before, phase, self._run.state.snapshot, self._run.timer.times, unit_secs, commits=commits
        )


T = TypeVar("T")

SAY_SECS = 5.0
"""How long a hand-over goes on without a word, and between two words about it."""
SPARE_SECS = 60.0
"""A call on a server ends by itself; this much later it is given up without an answer."""

StartCall = Callable[[Callable[[], StateVersion]], "Future[StateVersion]"]
"""Begins a call, and returns its end."""


def side_by_side(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread of its own, which keeps no process alive."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:
            ended.set_exception(error)
            if not isinstance(error, Exception):
                raise

    threading.Thread(target=run, name="enter", daemon=True).start()
    return ended


def in_turn(call: Callable[[], T]) -> Future[T]:
    """Run a call to its end before the next one: a simulation has one thread."""
    ended: Future[T] = Future()
    ended.set_result(call())
    return ended


class ServerEntry:
    """Has servers take over the state of a phase.

    Args:
      control: live roles and their reports; an event that ends a phase wakes its waits.
      clock: clock for deadlines.
      tick: called every TICK_SECS meanwhile.
      say: shows the user a line when it takes long.
      begin: begins each server's call.
    """

    def __init__(
        self,
        control: RunControl,
        clock: Clock,
        tick: Callable[[], None],
        say: Callable[[str], None],
        begin: StartCall = side_by_side,
    ) -> None:
        self._control, self._clock, self._tick, self._say, self._begin = control, clock, tick, say, begin

    def enter(self, phase: Phase, servers: Mapping[str, ServerPort], num_bytes: int) -> None:
        """Return when every server serves `phase`; one that is lost, or refuses, ends the wait at once.

        Args:
          phase: phase to enter.
          servers: address -> server, by their number.
          num_bytes: size in bytes of the state that each server fetches.

        Raises:
          PhaseBroken: the phase before was broken meanwhile.
          Preempted: the run was asked to stop.
          RoleLost: a server is gone.
          WaitTimeout: a server did not answer in time.
          HybridSyncError: the error with which a server refused.
        """
        calls: dict[str, Future[StateVersion]] = {}
        for address, server in servers.items():
            calls[address] = self._begin(partial(server.enter, phase))
            calls[address].add_done_callback(lambda ended: self._control.wake())
        started = self._clock.monotonic()
        secs = transfer_secs(num_bytes) + SPARE_SECS
        say_at = started + SAY_SECS
        while not self._control.wait_until(partial(_is_over, calls), TICK_SECS):
            waited = self._clock.monotonic() - started
            missing = [number for number, call in enumerate(calls.values()) if not call.done()]
            if waited > secs:
                raise WaitTimeout(f"servers {missing} have not answered within {secs:g} s")
            if started + waited >= say_at:
                say_at += SAY_SECS
                self._say(self._progress(phase, missing, num_bytes, waited))
            self._tick()
        self._judge(phase, calls)

    def _judge(self, phase: Phase, calls: Mapping[str, Future[StateVersion]]) -> None:
        """Raise what has ended the wait, unless every server has entered."""
        if all(call.done() and call.exception() is None for call in calls.values()):
            return
        with self._control.turn() as chief:
            lost = [number for number, address in enumerate(calls) if not chief.members.is_live(address)]
        if lost:
            raise RoleLost(f"servers {lost} were lost while they entered phase {phase.id}")
        for call in calls.values():
            if call.done():
                call.result()
        with self._control.turn() as chief:
            chief.raise_broken()
        raise Preempted(f"asked to stop while servers enter phase {phase.id}; run the same command again")

    def _progress(self, phase: Phase, missing: list[int], num_bytes: int, waited: float) -> str:
        with self._control.turn() as chief:
            entering = [number for number in missing if number in chief.members.entering]
        silent = [number for number in missing if number not in entering]
        text = f"phase {phase.id}: the hand-over of {num_bytes / 1e6:,.1f} MB has taken {waited:.0f} s"
        text += f", servers {entering} are fetching it" if entering else ""
        return text + (f", servers {silent} have not said that they fetch it" if silent else "")


def _is_over(calls: Mapping[str, Future[StateVersion]], chief: RunState) -> bool:
    """Return whether nothing is left to wait for: all servers have entered, or the phase cannot be entered."""
    failed = any(call.done() and call.exception() is not None for call in calls.values())
    lost = not all(map(chief.members.is_live, calls))
    broken = chief.phase_members.broken and not chief.phase_members.gathering
    return bool(failed or lost or broken or chief.preempted or all(call.done() for call in calls.values()))


START_DEADLINE_SECS = 600.0
"""For every role to register: imports and compilation of all of them on few cores."""
SAY_MISSING_SECS = 20.0
"""How long the wait for roles goes without a word."""
SETTLE_SECS = 3.0
"""A restarted chief takes up the run when it has heard of nobody new for so long; calls are repeated every second."""


class MemberWaits:
    """Waits for roles to register, while the record goes on.

    Args:
      control: the roles that are present.
      config: the configuration, with the number of workers and servers.
      clock: clock for deadlines.
      tick: called every TICK_SECS meanwhile.
      say: shows the user a line when it takes long.
    """

    def __init__(
        self, control: RunControl, config: RunConfig, clock: Clock, tick: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self._control, self._config, self._clock = control, config, clock
        self._tick, self._say = tick, say

    def await_all(self) -> None:
        """Wait until every role of the run takes part, but for workers that are to come later.

        Raises:
          Preempted: the run was asked to stop.
          PhaseBroken: the current phase lost a member.
          WaitTimeout: a role did not come.
        """
        self._await(lambda chief: len(chief.members.workers.ids()) >= chief.members.num_awaited(), self._config.servers)

    def await_again(self, workers: Collection[int]) -> None:
        """Wait until the workers are back that were started again, but for those whose hosts stay away.

        Raises:
          Preempted, PhaseBroken, WaitTimeout: see `await_all`.
        """
        self._await(lambda chief: _are_enough(chief) and not chief.awaited(workers), self._config.servers)

    def await_needed(self, mode: SyncMode) -> None:
        """Wait until a phase can begin: with the fewest workers that it needs, and every server where it is served.

        Raises:
          Preempted, PhaseBroken, WaitTimeout: see `await_all`.
        """
        self._await(_are_enough, self._config.servers if mode.is_served else 0)

    def await_registrations(self, present: Iterable[Process]) -> None:
        """Wait until every role has been heard of, or none has come for SETTLE_SECS of those that live.

        A process that is stopped does not end by itself, and nothing would replace it: it is given up as late as any
        other that is silent.

        Args:
          present: processes that an earlier chief has registered.
        """
        limit = self._config.hang.silent_secs
        present = tuple(present)
        known, since = 0, self._clock.monotonic()
        silent_at = since + limit
        while True:
            with self._control.turn() as chief:
                heard, unheard = len(chief.members.live()), chief.unheard_of(present)
            if self._clock.monotonic() - since >= SETTLE_SECS and not unheard:
                break
            if heard >= self._config.workers + self._config.servers:
                return
            if heard != known:
                known, since = heard, self._clock.monotonic()
            if self._clock.monotonic() >= silent_at:
                break
            self._control.wait_until(lambda chief: False, TICK_SECS)
        with self._control.turn() as chief:
            for role, role_id, restart_count, pid in chief.unheard_of(present):
                reason = f"no sign of life for {limit:g} s since the chief was restarted (hang.silent_secs)"
                chief.miss(RoleEvent(role, role_id, pid, reason, self._clock.wall(), restart_count=restart_count))

    def _await(self, workers_here: Callable[[RunState], bool], num_servers: int) -> None:
        def here(chief: RunState) -> bool:
            return workers_here(chief) and len(chief.members.servers.ids()) >= num_servers

        now = self._clock.monotonic()
        deadline, say_at = now + START_DEADLINE_SECS, now + SAY_MISSING_SECS
        while not self._control.watch(here, TICK_SECS):
            now = self._clock.monotonic()
            with self._control.turn() as chief:
                preempted = chief.preempted
                missing = (
                    f"workers {chief.members.missing_workers()} have not registered; "
                    f"{len(chief.members.servers.ids())} of {self._config.servers} servers have"
                )
            if preempted:
                raise Preempted(f"asked to stop while {missing}; run the same command again")
            if now >= deadline:
                raise WaitTimeout(f"after {START_DEADLINE_SECS:g} s: {missing}")
            if now >= say_at:
                self._say(f"waiting: {missing}")
                say_at = deadline
            self._tick()


def _are_enough(chief: RunState) -> bool:
    return len(chief.members.workers.ids()) >= chief.members.num_needed()
