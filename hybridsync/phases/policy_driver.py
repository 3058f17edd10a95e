"""Decides when the current phase is left, and for what: a user's order, the knee of the loss, an online policy, a join.

`change_of` is asked again and again while a phase is in progress. The first of these that wants a change has it:

1. An order of the run's user. For the rest of its stage the run enters the ordered protocol, with all workers.
2. The trigger: the loss has passed its knee, so that the stage of lock-step has done its part.
3. The online policy, which may leave stragglers out, weigh the shares of a step, or detour to another protocol. No
   other module asks it, in no runtime and not in the simulator.
4. Workers that have come since a lock-step phase began.

A change is one of two events of the one mechanism. `EndPhase` is a switch, which is committed: another protocol.
`Regroup` is not: other members or shares of the same one. What was decided takes effect in `next_segment`, where the
next phase is entered, and only if the stage is not done by then.

A restarted chief knows the detours from the last commit and from the phase that its roles are in (`adopt`); its
detector, and so its policy, start without a memory. A resumed run begins with its plan's stage and all workers; an
early end that was decided before is handed in only while the configuration still asks for it (`schedule.resumed`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hybridsync.chief.run_state import RunControl
from hybridsync.core.clock import Clock
from hybridsync.core.units import Range
from hybridsync.interfaces.commands import PENDING, Order
from hybridsync.interfaces.phase import Phase
from hybridsync.phases import state_machine
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.schedule import Segment, StageSchedule, StageSpan
from hybridsync.policies.actions import (
    PLANNED,
    Action,
    Choice,
    Episodes,
    ExcludeWorkers,
    TemporaryProtocol,
    View,
    WeightedShares,
)
from hybridsync.policies.knee import WINDOWS, Knee
from hybridsync.policies.momentum import is_asynchronous
from hybridsync.policies.online import Policy
from hybridsync.policies.step_shares import of_members
from hybridsync.training.run import Run

PhaseChange = tuple[state_machine.Event, str]
"""How a phase is to be left, and the reason that the next one is announced with."""

KEEP_AGAIN_SECS = 1.0
"""After so long the disk is asked again to keep what an order is bound to."""


class PolicyDriver:
    """Decides what is entered next, and whether the current phase is to be left for it.

    Args:
      run: the run's plan and configuration.
      control: live workers, and how they are held.
      reporter: writes decisions, and knows what switches have cost.
      policy: decides about stragglers and the end of lock-step.
      clock: clock for how long stragglers have been some.
      detours: detours that the run has made before, as a schedule saves them.

    Attributes:
      schedule: rest of the plan.
    """

    def __init__(
        self,
        run: Run,
        control: RunControl,
        reporter: Reporter,
        policy: Policy,
        clock: Clock,
        detours: tuple[Range, ...] = (),
    ) -> None:
        self._control, self._reporter, self._policy, self._clock = control, reporter, policy, clock
        self._planned_shares = run.config.policy.shares
        stages = zip(run.plan.stages, run.stages, run.plan.ends(run.config.workload), strict=True)
        self.schedule = StageSchedule(
            tuple(
                StageSpan(
                    stage.spec,
                    end,
                    lock_step=protocol.mode.moves_together,
                    asynchronous=protocol.mode.is_served and is_asynchronous(protocol, run.config.workers),
                )
                for stage, protocol, end in stages
            )
        ).with_saved_detours(detours)
        # None where no trigger is configured. It is one knee of the run, not of each stage.
        self._knee = Knee(max(1, run.config.workload // WINDOWS)) if run.config.policy.trigger == "knee" else None
        # How the current phase carries lock-step out, and how the next one is to. They differ from the policy's answer
        # until the next phase is entered. Both are PLANNED in a stage that is not one of lock-step.
        self._current: Action = PLANNED
        self._next: Action = PLANNED
        self._ends_stage = False  # the knee was passed: the schedule ends the stage where the next phase is entered
        self._episodes = Episodes()
        self._keep_orders_at = 0.0  # monotonic seconds
        self._last_reported: tuple[str, str, tuple[int, ...]] = ("", "", ())  # action, why, stragglers

    # --- while a phase is in progress ---

    def change_of(self, phase: Phase) -> PhaseChange | None:
        """Return how the phase is to be left, and why: its members or its protocol are to change; None to stay."""
        now = self._clock.monotonic()
        if now >= self._keep_orders_at:
            self._control.orders.keep()
            self._keep_orders_at = now + KEEP_AGAIN_SECS
        # Before the return: an episode is as long as it is, whether or not anything may change meanwhile.
        with self._control.turn() as chief:
            first_applied, _ = chief.phase_members.first_and_last()
            applied = chief.ledger.num_applied  # read once: a report may end the run between two reads
            self._episodes.record(chief.detector.flagged, now)
        if not first_applied or self._reporter.switch_pending:
            return None  # a change costs what the last one did, which is not known before this phase's first update
        if applied < phase.end_units and (order := self._order(applied)) is not None:
            change = self._change_to_order(phase, order, applied)
        elif self._passes_knee(phase, applied):
            self._ends_stage, change = True, (state_machine.EndPhase(), "policy")
        else:
            change = self._change_by_policy(phase, applied)
        return change or self._join(phase)

    def _change_to_order(self, phase: Phase, order: Order, applied: int) -> PhaseChange | None:
        is_changed_by_policy = self.schedule.since is not None or self._current != PLANNED
        if order.spec != phase.spec or is_changed_by_policy:  # what a policy has changed ends with the order, too
            return state_machine.EndPhase(), "ordered"
        if order.stage == PENDING:  # the ordered protocol is entered already
            self._control.orders.begin(self.schedule.stage(applied))
        return None

    def _change_by_policy(self, phase: Phase, applied: int) -> PhaseChange | None:
        self._current = self._living(self._current)
        if not (units_left := self._units_left(phase, applied)):
            return None
        self._next = self._living(self._ask(self._current, applied, units_left))
        if self._next == self._current:
            return None
        changes_protocol = isinstance(self._next, TemporaryProtocol) or isinstance(self._current, TemporaryProtocol)
        return (state_machine.EndPhase() if changes_protocol else state_machine.Regroup()), "policy"

    def _join(self, phase: Phase) -> PhaseChange | None:
        """Return that a lock-step phase is to go on with more members, if there are more."""
        if not phase.servers and set(self.members()) - set(phase.members):
            return state_machine.Regroup(), "join"
        return None

    def _order(self, units: int) -> Order | None:
        """Return what the run's user has ordered for the current stage."""
        return self._control.orders.of(self.schedule.stage(units))

    def _units_left(self, phase: Phase, applied: int) -> int:
        """Return the units that lock-step has still to do in the phase's stage; 0 where it is none of lock-step."""
        if applied >= phase.end_units:
            return 0
        schedule = self.schedule.end_detour(applied)
        stage = schedule.stage(applied)
        return schedule.end(stage) - applied if schedule.spans[stage].lock_step else 0

    # --- when the next one is entered ---

    def saved_detours(self, units: int) -> tuple[Range, ...]:
        """Return what a checkpoint of `units` keeps of the schedule (see `StageSchedule.saved_detours`).

        The state that a switch hands over is committed before the next phase is entered: what was decided by then is
        in its checkpoint, too, so that a resume from it does not go back to the stage that was left.
        """
        return self._with_early_end(units).saved_detours(units)

    def next_segment(self, units: int) -> Segment:
        """Return what is entered at `units`, where the phase before it has ended, as decided."""
        self.schedule, self._ends_stage = self._with_early_end(units), False
        schedule = self.schedule.rolled_back(units)
        if (order := self._control.orders.begin(schedule.stage(units))) is not None:
            self._current = self._next = PLANNED
            self.schedule = schedule.end_detour(units)
            stage = self.schedule.stage(units)
            return Segment(order.spec, self.schedule.end(stage), stage, order=order.number)
        if not schedule.spans[schedule.stage(units)].lock_step:
            self._next = PLANNED
        elif self._next == PLANNED:  # a worker may be slow where a stage begins, or is entered again
            planned = schedule.end_detour(units)
            self._next = self._ask(PLANNED, units, planned.end(planned.stage(units)) - units)
        is_detour = isinstance(self._next, TemporaryProtocol)
        self.schedule = schedule.begin_detour(units) if is_detour else schedule.end_detour(units)
        self._current = self._next
        return self.schedule.at(units)

    def members(self) -> tuple[int, ...]:
        """Return the members of lock-step: the live workers that are not left out; all live ones if none remain."""
        live, out = self._live(), self._out(self._current)
        return tuple(worker for worker in live if worker not in out) or live

    def shares(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Return the units of a lock-step step that each member takes, () for one each."""
        if isinstance(self._current, WeightedShares):
            own = self._current.of(members)
            return own if set(own) != {1} else ()
        return of_members(self._planned_shares, members)

    def left_out(self, phase: Phase) -> tuple[int, ...]:
        """Return the live workers that the policy leaves out of a phase."""
        live, out = self._live(), self._out(self._current)
        return tuple(worker for worker in live if worker in out and worker not in phase.members)

    def step_secs(self, phase: Phase) -> float:
        """Return for how long the first update of a phase computes; 0 while nobody was measured.

        In lock-step that is the slowest member with all its units, else the fastest one with one.
        """
        with self._control.turn() as chief:
            rates = chief.judged().units_per_sec
        units = zip(phase.members, phase.assignment.shares, strict=True)
        secs = [each / rates[worker] for worker, each in units if worker in rates]
        return (min if phase.servers else max)(secs, default=0.0)

    def adopt(self, phase: Phase) -> None:
        """Take up a phase that an earlier chief announced, which may be a detour of which no commit tells.

        The phase itself records whether it was ordered. The order that is bound to its stage does not show it: that may
        be a later order, whose phase the earlier chief was about to announce.
        """
        units = sum(stop - start for start, stop in phase.applied)
        self.schedule = schedule = self.schedule.rolled_back(units)
        span = schedule.spans[schedule.stage(units)]
        self._control.orders.enter(schedule.stage(units))
        if phase.order:
            pending = self._control.orders.pending
            if pending is not None and pending.number == phase.order:  # the disk had refused to keep its stage
                self._control.orders.begin(schedule.stage(units))
            return
        if phase.mode.is_served and span.lock_step and self._knee is not None:
            self.schedule = schedule.end_stage_early(units)
        elif phase.mode.is_served and span.lock_step:
            self.schedule = schedule.begin_detour(units)
            self._current = self._next = TemporaryProtocol(phase.spec)

    # --- inside ---

    def _with_early_end(self, units: int) -> StageSchedule:
        """Return the schedule on which a lock-step stage has ended at `units`, if that was decided."""
        return self.schedule.rolled_back(units).end_stage_early(units) if self._ends_stage else self.schedule

    def _passes_knee(self, phase: Phase, applied: int) -> bool:
        """Follow the loss; returns whether it says that the current lock-step stage has done its part."""
        if self._knee is None:
            return False
        passed = self._knee.observe(applied, *self._reporter.take_losses())
        if not passed or applied >= phase.end_units or self.schedule.since is not None:
            return False
        stage = self.schedule.stage(applied)
        if not self.schedule.can_end_early(stage) or any(each.lock_step for each in self.schedule.spans[:stage]):
            return False  # the knee is one of the run: a later stage of lock-step keeps its share
        after, units_left = self.schedule.spans[stage + 1].spec, self.schedule.end(stage) - applied
        fall, steepest = self._knee.fall or 0.0, self._knee.steepest or 0.0
        self._reporter.decided(
            policy="knee",
            action=f"{after} from here on",
            why=f"the loss falls by {fall:.3g} in {self._knee.window:,} units, where {steepest:.3g} was the most",
            workers=[],
            rates={},
            threshold=None,
            expected_secs=None,
            saved_secs=0.0,
            cost_secs=0.0,
            units_left=units_left,
        )
        return True

    def _live(self) -> tuple[int, ...]:
        with self._control.turn() as chief:
            return chief.members.workers.ids()

    def _living(self, action: Action) -> Action:
        """Return an action without the workers that are gone; a successor in a place is another worker."""
        if not isinstance(action, ExcludeWorkers):
            return action
        live = self._live()
        out = tuple(worker for worker in action.workers if worker in live)
        return ExcludeWorkers(out) if out else PLANNED

    @staticmethod
    def _out(action: Action) -> tuple[int, ...]:
        return action.workers if isinstance(action, ExcludeWorkers) else ()

    def _ask(self, holds: Action, applied: int, units_left: int) -> Action:
        with self._control.turn() as chief:
            judged, live = chief.judged(), chief.members.workers.ids()
        view = View(
            now=self._clock.monotonic(),
            units_left=units_left,
            live=live,
            slow={worker: since for worker, since in self._episodes.slow.items() if worker in judged.flagged},
            units_per_sec=judged.units_per_sec,
            holds=holds,
            detour=self.schedule.detour_of(self.schedule.stage(applied)),
            switch_secs=self._reporter.stalls(same_protocol=self._policy.keeps_protocol),
            episodes=self._episodes.lengths,
        )
        choice = self._policy.decide(view)
        self._report(choice, view, judged.threshold)
        return choice.action

    def _report(self, choice: Choice, view: View, threshold: float | None) -> None:
        """Write a decision, once: a change, or why there is none though somebody is slow."""
        slow = tuple(sorted(view.slow))
        news = choice.action.name, choice.why, slow
        if not choice.why or news == self._last_reported:
            if not slow and choice.action == view.holds:
                self._last_reported = ("", "", ())
            return
        self._last_reported = news
        stays = choice.action == view.holds
        numbers: dict[str, Any] = dataclasses.asdict(choice)
        del numbers["action"]
        concerned = {*slow, *self._out(choice.action), *self._out(view.holds)}
        self._reporter.decided(
            policy=self._policy.name,
            action="stay" if stays else choice.action.name,
            workers=sorted(concerned),
            rates={str(worker): rate for worker, rate in view.units_per_sec.items()},
            threshold=threshold,
            units_left=view.units_left,
            **numbers,
        )
