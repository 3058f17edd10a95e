"""Checks what must hold at every moment of a simulated run, and at its end.

A `Checks` watches the simulated clusters of one run, one after another where the run was stopped and resumed. It does
not trust the run's own accounting: it keeps its own book of which updates were applied to which state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hybridsync.core.step_assignment import contribution_of
from hybridsync.core.units import UnitSet, num_units
from hybridsync.interfaces.commands import SwitchReply
from hybridsync.interfaces.messages import GroupReply, LeaseReply, LeaseRequest, PhaseRequest, Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.lab.replay.group_history import GroupHistory
from hybridsync.lab.replay.local_workers import Retracer
from hybridsync.lab.simulator.arithmetic import Counting, Counts, Sizes
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.simulated_server import Server
from hybridsync.lab.simulator.simulated_worker import Worker
from hybridsync.lab.simulator.watch import Units, Watch
from hybridsync.protocols.base import Change, Compensation
from hybridsync.protocols.modes import MESH
from hybridsync.protocols.staleness import TOO_STALE
from hybridsync.storage.apply_log_entries import Entry, Left

SIZES = Sizes(10_000, 10_000, 20_000)
"""Of messages where nothing depends on them."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Checks(Watch):
    """Keeps the book, and raises at the first entry that cannot be.

    Attributes:
      phases: number -> phase, of those that any role has entered.
      found: the first violation; None if absent.
      orders: orders of the run's user that the chief has taken, each with the newest phase then.
    """

    def __init__(self) -> None:
        self.phases: dict[int, Phase] = {}
        self.found: Violation | None = None
        self.orders: list[tuple[str, int]] = []
        self._newest = 0
        self._updates: dict[tuple[int, int], Units] = {}
        self._times: Counter[int] = Counter()
        self._held: set[int] = set()
        self._stepped: set[tuple[int, int]] = set()
        self._told: set[int] = set()
        self._too_stale: set[int] = set()
        self._lost = 0
        self.begin_session()

    def begin_session(self) -> None:
        """Watch the run's next session: other processes, whose restarts are counted from 0 again."""
        self._fences: dict[tuple[int, int], int] = {}
        self._incarnations: dict[tuple[int, int], int] = {}
        self._streams: dict[tuple[int, object], int] = {}
        self._followed = False

    def fail(self, text: str) -> Violation:
        """Return the violation that ends the trial: the first one, whatever goes wrong after it."""
        self.found = self.found or Violation(text)
        return self.found

    # --- what a cluster reports ---

    def announced(self, request: PhaseRequest, phase: Phase) -> None:
        """Check that workers are told of the newest phase alone."""
        self._meet(f"worker {request.worker} is told of phase {phase.id}", phase)
        if phase.id.number < self._newest:
            raise self.fail(f"worker {request.worker} is told of phase {phase.id}, but {self._newest} is under way")

    def entered(self, process: Process, phase: Phase, state: Any) -> None:
        """Check that a phase begins with a state that holds the units that it names."""
        who = f"{process.address} enters phase {phase.id}"
        self._meet(who, phase)
        held = {unit: count for unit, count in state.counts.items() if count}
        if held != dict.fromkeys(UnitSet(phase.applied), 1):
            raise self.fail(f"{who} with a state of units {held}, it is said to hold {phase.applied}")

    def ordered(self, reply: SwitchReply) -> None:
        """Note what the run's user was promised."""
        self.orders.append((reply.spec, self._newest if reply.changes else -1))

    def granted(self, request: LeaseRequest, reply: LeaseReply) -> None:
        """Check that units go out in the newest phase alone, to a worker's newest process, and the accounts add up.

        Newest of those that this chief has heard of: a restarted one may meet a process first whose place was taken
        before. That costs time and nothing else. Lock-step continues in a new phase, which that process enters like any
        other; the servers of an asynchronous one still refuse it, if they were notified, and apply each unit once, if
        they were not (`applied` looks at both); and its successor's first message ends it.

        Units that went out before may be sent again: a call that was late or came twice is answered with the stream as
        it ended, until the next phase is announced; the phase would refuse a worker that trained on it then.
        """
        assert self.simulated is not None
        worker, place = request.worker, (self.simulated.num_chiefs, request.worker)
        newest = self._incarnations[place] = max(self._incarnations.get(place, 0), request.incarnation)
        if request.incarnation < newest:
            raise self.fail(
                f"worker {request.worker} was given units as incarnation {request.incarnation}, but {newest} has "
                "taken its place"
            )
        served = bool(self.phases[request.phase_id.number].servers)
        stream = request.phase_id.number, (worker, request.incarnation) if served else MESH
        length, known = request.known + num_units(reply.ranges), self._streams.get(stream, 0)
        if length > known and request.phase_id.number < self._newest:
            raise self.fail(
                f"worker {request.worker} was given units {reply.ranges} in phase {request.phase_id}, but phase "
                f"{self._newest} is under way"
            )
        self._streams[stream] = max(length, known)
        self._check_accounts()

    def reported(self, report: Report) -> None:
        """Check that what the chief notes as applied was applied."""
        assert self.simulated is not None
        ledger = self.simulated.chief.state.ledger
        self._check_accounts()
        if report.role == "server" and report.phase_id.number == self._newest:
            applied = ledger.applied()
            self._told |= {unit for unit in UnitSet(report.applied) if unit in applied}
        for unit in UnitSet(report.applied):
            if not self._times[unit]:
                raise self.fail(f"{report.role} {report.id} reports unit {unit} as applied, which nobody applied")

    def applied(self, process: Process, phase: Phase, sequence: int, pushes: tuple[Push, ...], units: Units) -> None:
        """Check that an update is one of the newest phase, by one server or equally by all members, and allowed."""
        phase_id = phase.id
        who = f"{process.address} applies units {units} in phase {phase_id}"
        before = self._updates.setdefault((phase_id.number, sequence), units)
        served = isinstance(process, Server)
        if before is not units and (served or before != units):
            raise self.fail(f"{who} as update {sequence}, but that update was {before}")
        bound = phase.protocol.staleness_bound(len(phase.members))
        for push in pushes:
            if push.phase_id != phase_id:
                raise self.fail(f"{who}, which were pushed in phase {push.phase_id}")
            if self._fences.get((process.pid, push.worker), -1) >= push.incarnation:
                raise self.fail(f"{who} of worker {push.worker}, whose incarnation {push.incarnation} is fenced")
            if bound is not None and sequence - 1 - push.base > bound:
                raise self.fail(f"{who} at staleness {sequence - 1 - push.base}; {phase.spec} allows {bound}")
        if before is units:
            if served and phase_id.number < self._newest:
                raise self.fail(f"{who}, but phase {self._newest} is under way")
            if twice := [unit for unit in units if unit in self._held] if phase_id.number == self._newest else []:
                raise self.fail(f"{who}, but units {twice} are in that state already")
            self._times.update(units)
            if phase_id.number == self._newest:
                self._held.update(units)

    def stepped(self, worker: Process, phase: Phase, unit: int) -> None:
        """Check that a member of a group phase applies a unit that no replica of that phase has."""
        who = f"{worker.address} applies unit {unit} to its replica in phase {phase.id}"
        if (phase.id.number, unit) in self._stepped:
            raise self.fail(f"{who}, but somebody has done so")
        self._stepped.add((phase.id.number, unit))
        self._times[unit] += 1
        if phase.id.number == self._newest:
            if unit in self._held:
                raise self.fail(f"{who}, but it is in that state already")
            self._held.add(unit)

    def synchronised(self, worker: Process, phase: Phase, reply: GroupReply, state: Any) -> None:
        """Check that the state of a full synchronisation holds every unit that it names once, and no other."""
        held = {unit: count for unit, count in state.counts.items() if count}
        if held != dict.fromkeys(UnitSet(reply.applied), 1):
            raise self.fail(
                f"{worker.address} settles phase {phase.id} on a state of units {held}, it is said to hold "
                f"{reply.applied}"
            )

    def fenced(self, server: Process, worker: int, incarnation: int) -> None:
        """Note that from now on nothing of the process may be applied."""
        self._fences[server.pid, worker] = max(incarnation, self._fences.get((server.pid, worker), 0))

    def acknowledged(self, server: Process, push: Push, reply: PushReply) -> None:
        """Check that an acknowledged unit is applied, held, or dropped for good; who is out of date gets no answer."""
        assert isinstance(server, Server)
        sequencer = server.sequencer
        who = f"{server.address} answers worker {push.worker}"
        if push.phase_id != sequencer.phase_id:
            raise self.fail(f"{who} of phase {push.phase_id} in phase {sequencer.phase_id}")
        if self._fences.get((server.pid, push.worker), -1) >= push.incarnation:
            raise self.fail(f"{who}, incarnation {push.incarnation}, which is fenced")
        if reply.dropped.startswith(TOO_STALE):
            self._too_stale.update(push.units)
        if sequencer.phase_id.number != self._newest:
            return
        for unit in reply.settled or push.units:
            kept = unit in self._held or (sequencer.answers_early and sequencer.holds(unit))
            if not kept and (unit not in sequencer.count.dropped or not (reply.dropped or reply.duplicate)):
                raise self.fail(f"unit {unit} of worker {push.worker} was acknowledged, but nobody applied it")

    # --- the end ---

    def check_saved(self) -> None:
        """Check that a run which was asked to stop has saved the newest state.

        Raises:
          Violation: the run has not saved it.
        """
        assert self.simulated is not None
        before = self.phases.get(self._newest)
        if before is not None and before.servers and self.simulated.num_chiefs == 1:
            applied = UnitSet(self.simulated.workdir.commits[-1].snapshot.applied)
            self._check_newest(before, applied, "the run was stopped")

    def check_end(self, workload: int, unfit: frozenset[int], sessions: int) -> None:
        """Check what the run has left.

        Args:
          workload: units that were to be applied.
          unfit: units whose contribution is not finite.
          sessions: number of starts of the run.

        Raises:
          Violation: something that must hold does not.
        """
        simulated = self.simulated
        assert simulated is not None
        self._check_accounts()
        ledger, state = simulated.chief.state.ledger, simulated.final
        counts, applied = ledger.counts(), ledger.applied()
        if counts.applied != workload:
            raise self.fail(f"{counts.applied} units were applied, the workload is {workload}")
        wrong = {unit: count for unit, count in state.counts.items() if count != 1 or unit not in applied}
        missing = [unit for unit in applied if unit not in state.counts]
        if wrong or missing:
            raise self.fail(f"applied other than once: {wrong}, missing in the parameters: {missing}")
        try:
            replayed = replay(
                simulated.log, simulated.workdir.ends, self.phases, simulated.arithmetic.fingerprint(state)
            )
        except Violation as violation:
            raise self.fail(str(violation)) from None
        if replayed != state:
            raise self.fail(f"the apply log of {len(simulated.log)} updates does not lead to the final state")
        fit = ledger.dropped().difference(UnitSet((unit, unit + 1) for unit in sorted(unfit | self._too_stale)))
        gone = [unit for unit in fit if simulated.hosts.ended_on[unit] < 2]
        if gone and sessions == 1:
            raise self.fail(f"units {gone} were dropped, though nothing is wrong with them")
        again = sum(times - 1 for times in self._times.values() if times)
        at_least = 0 if simulated.num_chiefs > 1 or sessions > 1 else self._lost
        # Unfit ones count as applied until they are reported; what is rolled back may be dropped the second time.
        if not at_least <= counts.rolled_back <= again + len(unfit | self._too_stale):
            raise self.fail(
                f"{counts.rolled_back} units are said to have been rolled back, {again} were applied again and the "
                f"chief had heard of {at_least} that were lost with a server"
            )

    # --- inside ---

    def _meet(self, who: str, phase: Phase) -> None:
        """Check that the number of a phase is used once, in ascending order."""
        number = phase.id.number
        if number in self.phases:
            if self.phases[number] != phase:
                raise self.fail(f"{who}, but that number is another phase's: {self.phases[number]}, now {phase}")
        elif number <= self._newest:
            raise self.fail(f"{who}, but phase {self._newest} was entered before")
        else:
            self._begin(phase)

    def _begin(self, phase: Phase) -> None:
        """Note what a new phase's starting state has lost of what was applied before."""
        simulated, before = self.simulated, self.phases.get(self._newest)
        assert simulated is not None
        applied, dropped = UnitSet(phase.applied), UnitSet(phase.dropped)
        if before is not None and self._followed and before.mode.is_served:
            self._lost += sum(1 for unit in self._told if unit not in applied and unit not in dropped)
        if before is not None and self._followed and simulated.num_chiefs == 1:
            self._check_newest(before, applied, f"phase {phase.id} begins")
        self._followed = True
        self._told = set()
        self._held = set(applied)
        self._newest = phase.id.number
        self.phases[self._newest] = phase

    def _check_newest(self, before: Phase, applied: UnitSet, what: str) -> None:
        """Check that the newest state that somebody holds is the one that the run goes on from."""
        simulated = self.simulated
        assert simulated is not None
        lost = [unit for unit in self._held if unit not in applied]
        if not lost:
            return
        if before.servers:
            if not any(simulated.at(address).dead for address in before.servers):
                raise self.fail(f"{what} without units {lost}, which {before.servers} hold")
            return
        for worker in before.members if simulated.network.reliable else ():
            process = simulated.hosts.newest["worker", worker]
            held = process.held() if isinstance(process, Worker) and not process.dead else None
            if held is not None and held.phase_id == before.id and held.units > len(applied):
                raise self.fail(f"{what} without units {lost}, but {process.address} holds {held}")

    def _check_accounts(self) -> None:
        assert self.simulated is not None
        chief = self.simulated.chief.state
        try:
            chief.ledger.check()
        except AssertionError as error:
            raise self.fail(f"the accounting does not add up: {error}") from None
        live = {MESH, *(f"worker {worker}" for worker in chief.members.workers.ids())}
        if gone := chief.ledger.holders().keys() - live:
            raise self.fail(f"{sorted(gone)} have units leased, but are gone")


def replay(log: list[Entry], ends: Mapping[int, Left], phases: Mapping[int, Phase], final: str = "") -> Counts:
    """Return the state that the updates of `log` lead to, each on the versions that it names.

    Args:
      log: log of a run.
      ends: number of a phase -> the workers whose optimizer states became the state's at its end; a state that was lost
        since may have had them.
      phases: phases by their number.
      final: fingerprint of the state that the run ended with.

    Raises:
      Violation: the log is not one.
    """
    arithmetic = Counting(SIZES)
    state = arithmetic.start()
    versions = {0: arithmetic.parameters(state)}
    for number, entries in itertools.groupby(log, lambda entry: entry.phase):
        phase, updates = phases[number], [*entries]
        protocol, first = phase.protocol, updates[0].sequence - 1
        start = sum(map(int, state.counts.values()))
        group_history = GroupHistory(arithmetic, state, first, start) if protocol.mode.has_group_rounds else None
        retracer: Retracer | None = None
        if protocol.local_updates:
            members = len(phase.members)
            opt_state = arithmetic.opt_state(state)
            retracer = Retracer(
                protocol,
                arithmetic,
                arithmetic.gradient,
                opt_state,
                num_workers=members,
                start=start,
                first=first,
                entries=updates,
            )
        for entry in updates:
            if not entry.versions <= versions.keys() or entry.sequence != len(versions):
                raise Violation(
                    f"update {entry.sequence} names versions {sorted(entry.versions)}, the log goes to "
                    f"{len(versions) - 1}"
                )
            if group_history is not None:
                state = group_history.average_round(entry)
            else:
                if retracer is not None:
                    contributions = retracer.contributions(entry, versions)
                elif protocol.mode.moves_together:
                    divided = phase.assignment.divide(entry.by_slot().items())
                    contributions = [contribution_of(arithmetic, versions[entry.base], units) for units in divided]
                else:
                    contributions = _computed(arithmetic, versions, entry, protocol.compensated)
                state = _updated(arithmetic, state, contributions, entry, protocol.change(len(phase.members)))
            versions[entry.sequence] = arithmetic.parameters(state)
        if retracer is not None and number in ends:
            left = arithmetic.with_mean_opt_state(state, retracer.opt_states_left(ends[number].left))
            # A phase without updates may have begun with a state that was lost before the next one
            followed = sorted({entry.phase for entry in log if entry.phase > number})
            after = phases[followed[0]].fingerprint if followed else final
            if arithmetic.fingerprint(left) == after:
                state, versions[updates[-1].sequence] = left, arithmetic.parameters(left)
    return state


def _computed(arithmetic: Counting, versions: Mapping[int, Any], entry: Entry, how: Compensation | None) -> list[Any]:
    """Return an update's contributions, made up for their staleness where the protocol says so."""
    contributions = []
    for part in entry.pushes:
        handed = versions[part.base]
        made = [arithmetic.gradient(handed, unit) for unit in part.units]
        if how is not None:
            now = versions[entry.sequence - 1]
            made = [arithmetic.compensate(gradient, handed, now, how, None)[0] for gradient in made]
        contributions += made
    return contributions


def _updated(arithmetic: Counting, state: Counts, contributions: list[Any], entry: Entry, change: Change) -> Counts:
    weights = tuple(part.weight for part in entry.parts) if {part.weight for part in entry.parts} - {1.0} else ()
    return arithmetic.update(
        state,
        contributions,
        units=len(entry.units),
        factor=entry.rate,
        blend=entry.blend,
        weights=weights,
        change=change,
    )
