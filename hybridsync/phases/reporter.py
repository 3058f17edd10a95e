"""Turns what roles report and what the controller does into events, metrics, spans and the summary."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import logging

from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.chief.run_state import RunControl
from hybridsync.core.clock import Clock
from hybridsync.core.counted import counted
from hybridsync.interfaces.commands import ENDS, Order
from hybridsync.interfaces.messages import Process, RoleEvent, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Span
from hybridsync.phases.callbacks import FOLLOWED, Callbacks, Guests, name_of
from hybridsync.phases.run_context import Commit, Measured
from hybridsync.policies.straggler_detector import Decision
from hybridsync.storage.jsonl import plain
from hybridsync.telemetry.events import NO_FIGURES, read_events, started_at
from hybridsync.telemetry.host_units import HostWorker, nested
from hybridsync.telemetry.metrics import Metrics, Staleness
from hybridsync.telemetry.older_times import TRAINING_STARTED
from hybridsync.telemetry.process_registry import Roster
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary, Units, write_summary
from hybridsync.telemetry.switch_costs import StageTimes, Switches
from hybridsync.telemetry.tensorboard import hyperparameters
from hybridsync.training.evaluation import numbers
from hybridsync.training.run import Run

Hook = Callable[[Metrics], None]
_TAKEN = {*NO_FIGURES, "self"}
"""Names that no figure of an evaluation may have: its event has them already."""


SLOW_CHECKPOINT_SECS = 5.0
"""A checkpoint that takes so long is mentioned, and again one that takes twice as long as the last one mentioned."""


@dataclass
class Interval:
    """What a line of metrics tells of: from when and from how many units on, and what was reported since."""

    since: float
    units: int
    loss_sum: float = 0.0
    num_losses: int = 0
    staleness: Staleness = field(default_factory=Staleness)
    workers: Mapping[int, float] = field(default_factory=dict)
    """Units a second of each worker at its end; empty while it lasts."""

    def add(self, reports: Interval | ReportBuffer) -> None:
        """Take what was reported later."""
        self.loss_sum += reports.loss_sum
        self.num_losses += reports.num_losses
        self.staleness.add(reports.staleness)


class Reporter:
    """Writes the run's record; used by the controller's thread alone.

    Args:
      run: the run.
      control: the chief, which collects the roles' reports.
      recorder: events, metrics, timeline, progress.
      clock: clock for intervals.
      hooks: (function, every so many units): called with the newest metrics.
      switches: switch events of earlier sessions.
    """

    def __init__(
        self,
        run: Run,
        control: RunControl,
        recorder: Recorder,
        clock: Clock,
        *,
        hooks: list[tuple[Hook, int]],
        switches: list[dict[str, Any]],
    ) -> None:
        self._run, self._control, self._recorder, self._clock = run, control, recorder, clock
        self._hooks = hooks
        told = read_events(run.workdir) if run.workdir else []
        self._since = started_at(told)
        started = [event for event in told if event["kind"] == TRAINING_STARTED and event["t"] >= self._since]
        self._start_up_secs = math.fsum(event["start_up_secs"] or 0.0 for event in started)
        self._switches = Switches(self.event, switches)
        self._next_log = clock.monotonic() + run.config.telemetry.log_secs
        with control.turn() as chief:
            applied = chief.ledger.num_applied
        self._interval = Interval(clock.monotonic(), applied)
        self._before: Interval | None = None
        self._slow_checkpoint_secs = SLOW_CHECKPOINT_SECS
        self._over, self._shown = False, 0
        self._done_since = 0.0  # nothing is applied from here on, until another phase is entered; 0 for no
        self._news: tuple[float, int] = (0.0, 0)
        self._whole = Staleness()
        self._compile_secs = 0.0
        self._compute_secs: Counter[int] = Counter()
        self._read_secs: Counter[int] = Counter()
        self._wait_secs: Counter[int] = Counter()
        self._peak_secs: Counter[int] = Counter()
        self._sent_bytes: Counter[int] = Counter()
        self._received_bytes: Counter[int] = Counter()
        self._applied_by: Counter[HostWorker] = Counter()
        self._phase: Phase | None = None
        self._roster = Roster(told)
        self._due = [(applied // every + 1) * every for _, every in hooks]
        self._final: dict[str, Any] = {}
        self._num_skipped = 0
        self.guests = Guests(self.event, self.show_line, self._preempt, clock)
        self._stragglers: set[int] = set()
        self._orders_told = _newest_order(told)
        self._sharers: frozenset[int] = frozenset()
        self._has_said_sharing = False
        self._callbacks = Callbacks(run, control, self.guests, self.show_line, clock)
        self._callbacks.call("on_start")
        shown = run.optimizer.shown_values(run.config.unit_size, run.config.workload)
        recorder.board.started(applied, hyperparameters(run.config, shown))

    def _preempt(self) -> None:
        with self._control.turn() as chief:
            chief.preempt()

    # --- what the controller reports ---

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Write one event, of the current phase if `fields` name none."""
        self._look_for_start()
        phase_number = self._phase.id.number if self._phase else 0
        if kind == "straggler_flagged":
            self._stragglers.add(fields["worker"])
        elif kind in ("straggler_cleared", "worker_left"):
            self._stragglers.discard(fields.get("worker", -1))
        event = self._recorder.events.write(kind, **{"phase": phase_number, **fields})
        if method := FOLLOWED.get(kind):
            self._callbacks.call(method, event)
        return event

    def _look_for_start(self) -> None:
        """Let the run's time go on from this session's first unit, once that is leased."""
        elapsed = self._recorder.events.elapsed
        if elapsed.runs:
            return
        with self._control.turn() as chief:
            leased = chief.leases.first_leased
        if not leased:
            return
        secs = elapsed.start_up_secs(leased)
        wall = self._clock.wall() - (self._clock.monotonic() - leased)
        phase_number = self._phase.id.number if self._phase else 0
        self._recorder.events.write(TRAINING_STARTED, phase=phase_number, wall=wall, start_up_secs=secs)
        elapsed.begin(leased)
        self._start_up_secs += secs
        self._interval.since = leased
        self._next_log = leased + self._run.config.telemetry.log_secs

    def show_line(self, text: str) -> None:
        """Show one line that stays."""
        self._recorder.progress.show_line(text)

    def entered(self, phase: Phase, units: int, why: str = "", stage: int = 0) -> None:
        """Write that `phase` was announced, and why the one before it broke, if it did.

        Args:
          phase: phase that begins.
          units: applied before it.
          why: the one before it could not go on; "" where it ended.
          stage: stage of the plan, counted from 1, that the phase is for; 0 if unknown.
        """
        self._phase, self._over, self._done_since = phase, False, 0.0
        protocol = phase.protocol
        per_update = sum(phase.shares) or protocol.units_per_update(len(phase.members))
        self.event(
            "phase_entered",
            protocol=phase.spec,
            members=list(phase.members),
            lane=phase.device_choice,
            reason=phase.reason,
            units=units,
            learning_rate=self._learning_rate(units),
            units_per_update=per_update,
            fingerprint=phase.fingerprint,
            compile_secs=self._compile_secs,
            **({"shares": list(phase.shares)} if phase.shares else {}),
            **({"why": why} if why else {}),
        )
        of_plan = f" (stage {stage} of {len(self._run.plan.stages)})" if stage else ""
        text = f"phase {phase.id}{of_plan}: {phase.spec} from unit {units:,} to {phase.end_units:,} ({phase.reason})"
        self.show_line(text)
        self._recorder.board.entered(units, text)

    def continues(self, phase: Phase) -> None:
        """Go on with a phase that an earlier chief announced, and write what that one had no time to."""
        workdir = self._run.workdir
        if workdir is None:  # no chief is restarted there
            self._phase = phase
            return
        if phase.id.number not in {event["phase"] for event in read_events(workdir, "phase_entered")}:
            units = sum(stop - start for start, stop in phase.applied)
            self.entered(phase, units, "the chief was lost while it began")
        self._phase = phase
        self._switches.write_lost(read_events(workdir))

    @property
    def present(self) -> list[Process]:
        """The processes that the record says take part; the chief, which writes it, is among them."""
        return self._roster.present

    def meshes_used(self) -> list[tuple[tuple[int, ...], int]]:
        """Return members and device choice of each phase that an earlier chief announced in this process group."""
        found: list[tuple[tuple[int, ...], int]] = []
        for event in read_events(self._run.workdir) if self._run.workdir else []:
            if event["kind"] in ("run_started", "world_renewed"):
                found.clear()
            if event["kind"] == "phase_entered":
                found.append((tuple(event["members"]), event["lane"]))
        return found

    def measured_until(self, applied: int) -> int:
        """Return the units up to which no place of `evaluate_units` is left to measure.

        A restarted chief takes up the places where its predecessor's record ends: no place is measured twice, and one
        that was being measured is measured late, or not at all if the record says that a later one was skipped. A
        session measures only what comes after its start.

        Args:
          applied: units applied in the state from which a session starts that has no record yet.
        """
        measured = None
        for event in read_events(self._run.workdir) if self._run.workdir else []:
            if event["kind"] == "run_started":
                measured = None
            elif event["kind"] == "phase_entered" and measured is None:
                measured = event["units"]
            elif event["kind"] in ("evaluation", "evaluation_skipped") and measured is not None:
                measured = max(measured, event.get("last", event.get("units", 0)))
        return applied if measured is None else measured

    def renewed(self, why: str) -> None:
        """Write that the workers start again in a new process group."""
        self.event("world_renewed", why=why)
        with self._control.turn() as chief:
            units = chief.ledger.num_applied
        self.show_line(f"{why}: all workers start again in a new one and go on from unit {units:,}")

    def ended(self, snapshot: Snapshot) -> None:
        """Write that the current phase is over; its snapshot knows the first update even of the shortest phase."""
        self._settle_switches(snapshot.first_applied)
        self._compile_secs = 0.0
        self._over = True
        self._note_done(snapshot.last_applied)
        self.event("phase_ended", units=snapshot.held.units, fingerprint=snapshot.held.fingerprint)

    def broke(self, snapshot: Snapshot, why: str, rolled_back: int) -> None:
        """Write that the current phase broke, and that the run goes on from `snapshot`."""
        self._compile_secs = 0.0
        if self._phase is not None and not self._over:
            self.event("phase_ended", units=snapshot.held.units, fingerprint=snapshot.held.fingerprint, why=why)
        if rolled_back:
            # They are applied again: both times count for the interval's rate.
            for interval in (self._interval, self._before):
                if interval is not None:
                    interval.units -= rolled_back
            self.event("rollback", to_units=snapshot.held.units, rolled_back=rolled_back)
            self.show_line(f"{rolled_back:,} units after the last commit were lost and are done again")

    def switching(
        self, before: Phase, after: Phase, snapshot: Snapshot, times: StageTimes, unit_secs: float, commits: bool = True
    ) -> None:
        """Note a switch; its event follows when the stall is known, and the commit where it has one."""
        self._switches.begin(before, after, snapshot, times, unit_secs, commits=commits)

    def committed(self, commit: Commit) -> None:
        """Write that a state is durable."""
        if commit.bytes:
            self.event("checkpoint", units=commit.units, bytes=commit.bytes, secs=commit.secs)
            if commit.secs >= self._slow_checkpoint_secs:
                self._slow_checkpoint_secs = 2 * commit.secs
                self.show_line(
                    f"the checkpoint at unit {commit.units:,} took {commit.secs:.1f} s for "
                    f"{commit.bytes / 1e6:.3g} MB: the workdir's disk is slow; the end of a phase waits for it, and a "
                    "failure costs what was applied after the last one"
                )
        self._switches.committed(commit.secs)
        self._settle_switches()

    def decided(self, **numbers: Any) -> None:
        """Write what the online policy has decided, and show it."""
        self.event("policy_decided", **numbers)
        saves = f": saves {numbers['saved_secs']:.3g} s, costs {numbers['cost_secs']:.3g} s"
        numbers_told = saves if numbers["saved_secs"] or numbers["cost_secs"] else ""
        who = f" (workers {numbers['workers']})" if numbers["workers"] else ""
        self.show_line(f"policy {numbers['policy']}: {numbers['action']}, {numbers['why']}{numbers_told}{who}")

    def stalls(self, *, same_protocol: bool) -> tuple[float, ...]:
        """Return for how long each switch has kept the run from training: those of members alone, or of protocols."""
        return self._switches.stalls(same_protocol=same_protocol)

    def not_durable(self, units: int, why: str) -> None:
        """Say that the state at `units` could not be saved, and that training goes on."""
        self.event("save_failed", units=units, error=why)
        self.show_line(f"not durable since unit {units:,}, training goes on and the save is tried again: {why}")

    def evaluated(self, units: int, captured: float, outcome: Callable[[], Any], place: int = 0) -> None:
        """Write what a task measured of the state at `units`; what is no number is left out, and reported.

        Args:
          units: units applied in the state.
          captured: the run's seconds at which that state was captured: training went on while it was measured.
          outcome: returns what was `Measured`, None for nothing; raises what the task's functions raised.
          place: multiple of `evaluate_units` that the state is evaluated for; 0 for none.
        """
        task, name = self._run.task, f"the evaluation at unit {units:,}"

        def measured() -> tuple[dict[str, float], list[str], float] | None:
            found: Measured | None = outcome()
            return (*numbers(found.figures), found.secs) if found is not None else None

        found = self.guests.call(name, measured, ({}, [], 0.0), function=task.summarize or task.evaluate)
        if found is None:
            return
        figures, wrong, secs = found
        wrong += [f"{each!r} is a name that each event has" for each in sorted(_TAKEN & figures.keys())]
        self._final = figures = {each: value for each, value in figures.items() if each not in _TAKEN}
        if wrong:
            self.guests.failed(name, f"{'; '.join(wrong)}: return numbers by name")
        if not figures:
            if place:  # a restarted chief reads here that no later state is to be measured for it
                self.skipped((place,), units, "its evaluation gave no figures")
            return
        fields = {"accuracy": None, "loss": None, **figures}
        at = {"units": units, "state_t": round(self._since + captured, 6), "secs": round(secs, 6)}
        self.event("evaluation", examples=units * self._run.config.unit_size, **at, **fields)
        self._recorder.board.evaluated(units, figures)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
        self.show_line(f"unit {units:,}: {shown}")

    def suspect_hang(self, role: str, role_id: int, what: str, limit_secs: float, setting: str) -> None:
        """Warn that a process may hang, which is ended when its limit is over."""
        self.event("hang_suspected", role=role, id=role_id, doing=what, limit_secs=limit_secs, setting=setting)
        self.show_line(
            f"{role} {role_id} has been {what} for long: it may hang, and is ended after {limit_secs:.3g} s ({setting})"
        )

    def skipped(self, places: Sequence[int], units: int, why: str) -> None:
        """Write which places have no evaluation.

        `units` are those of the state that was captured next, or whose evaluation failed.
        """
        first, last = places[0], places[-1]
        self._num_skipped += len(places)
        self.event("evaluation_skipped", first=first, last=last, places=len(places), units=units, why=why)

    def span(self, name: str, started: float, ended: float) -> None:
        """Put a stretch of the chief's time on the timeline."""
        phase_number = self._phase.id.number if self._phase else 0
        self._recorder.timeline.add(
            "chief", 0, [Span(name, "switch", start=started, secs=ended - started, phase=phase_number, units=0)]
        )

    # --- the beat ---

    def _came_and_went(self, reports: ReportBuffer) -> None:
        """Write which processes are new and which are gone: the loss of a place stands before its next holder."""
        new = {hello.process for hello in reports.joined}
        quick = [lost for lost in reports.lost if lost.process in new]
        for lost in reports.lost:
            if lost not in quick:
                self._lost(lost)
        for hello in reports.joined:
            self._roster.joined(hello.process)
            told = {"pid": hello.pid, "host": hello.host, "address": hello.address}
            self.event("role_started", role=hello.role, id=hello.id, restart_count=hello.restart_count, **told)
            if hello.role == "worker":
                self.event("worker_joined", worker=hello.id)
        for lost in quick:
            self._lost(lost)
        for event in reports.restarted:
            self.show_line(f"{event.role} {event.id}: {event.reason}")

    def _lost(self, lost: RoleEvent) -> None:
        is_news, leaves = self._roster.record_end(lost.process)
        if not is_news:
            return
        told = {"reason": lost.reason, "pid": lost.pid, "restart_count": lost.restart_count}
        self.event("role_lost", role=lost.role, id=lost.id, **told)
        if lost.role == "worker" and leaves:
            self.event("worker_left", worker=lost.id)
        self.show_line(f"{lost.role} {lost.id} lost: {lost.reason}")

    def _ordered(self, order: Order) -> None:
        if order.number <= self._orders_told:  # an earlier chief has written it
            return
        self._orders_told = order.number
        self.event("switch_ordered", number=order.number, protocol=order.spec, units=order.units, why=order.reason)
        why = f": {order.reason}" if order.reason else ""
        self.show_line(f"the run was told at unit {order.units:,} to go on under {order.spec}{why}")

    def _judged(self, decision: Decision) -> None:
        numbers = asdict(decision)
        self.event("straggler_flagged" if numbers.pop("flagged") else "straggler_cleared", **numbers)
        said = "is slow" if decision.flagged else "is as fast as the others again"
        self.show_line(
            f"worker {decision.worker} {said}: {decision.rate:.3g} units a second, "
            f"the threshold is {decision.threshold:.3g}"
        )

    def take_losses(self) -> tuple[float, int]:
        """Return the losses that came since the last call: their sum, and how many units' they are."""
        news, self._news = self._news, (0.0, 0)
        return news

    def tick(self) -> None:
        """Take what roles reported; write what is due."""
        with self._control.turn() as chief:
            reports, stop_reason = chief.take_reports(), chief.stop_reason
        self._look_for_start()  # before spans, which may be of the first unit
        self._came_and_went(reports)
        for role, role_id, spans, offset in reports.spans:
            self._recorder.timeline.add(role, role_id, spans, offset)
        for found in reports.quarantined:
            self.event("unit_quarantined", unit=found.unit, workers=list(found.workers), reason=found.reason)
            self.show_line(f"unit {found.unit:,} is left out from now on: {found.reason}; see their logs")
        for event in reports.unfit:
            self.event("worker_quarantined", worker=event.id, reason=event.reason)
            self.show_line(f"worker {event.id} is quarantined, the others go on without it: {event.reason}")
        self._sharers |= reports.sharers
        if self._sharers and self._phase is not None and not self._has_said_sharing:  # all have registered by then
            self._has_said_sharing = True
            if self._run.config.policy.detects:
                workers = ", ".join(map(str, sorted(self._sharers)))
                self.show_line(
                    f"workers {workers} share devices: their compute times include each other's, so none of them is "
                    "held for a straggler"
                )
        for decision in reports.decisions:
            self._judged(decision)
        for order in self._control.orders.take_news():
            self._ordered(order)
        for why in reports.stops:
            for_good = why == stop_reason
            self.event("stop_ordered", why=why, for_good=for_good)
            asked = "a callback stops the run for good" if for_good else "the run was asked to save and stop"
            self.show_line(f"{asked}{f': {why}' if why else ''}")
        self._news = self._news[0] + reports.loss_sum, self._news[1] + reports.num_losses
        self._interval.add(reports)
        self._whole.add(reports.staleness)
        self._compile_secs += reports.compile_secs
        self._compute_secs.update(reports.compute_secs)
        self._read_secs.update(reports.read_secs)
        self._wait_secs.update(reports.wait_secs)
        self._peak_secs.update(reports.peak_secs)
        self._sent_bytes.update(reports.sent_bytes)
        self._received_bytes.update(reports.received_bytes)
        self._applied_by.update(reports.applied_by)
        self._settle_switches()
        self._callbacks.look()
        if self._phase is None or not self._recorder.events.elapsed.runs:
            return
        with self._control.turn() as chief:
            now, units = self._clock.monotonic(), chief.ledger.num_applied
            _, last_applied = chief.phase_members.first_and_last()
        is_last = units >= self._run.config.workload
        if is_last:
            self._note_done(last_applied)
        elif not self._over:  # units may have been rolled back
            self._done_since = 0.0
        if self._done_since:  # until the next phase, or for good: then the state is saved
            if units > self._shown and is_last:
                self._show(self._metrics(self._joined(), self._done_since))
        elif now >= self._next_log or any(units >= at for at in self._due):
            self._next_log = now + self._run.config.telemetry.log_secs
            metrics = self._metrics(self._interval, now)
            with self._control.turn() as chief:
                self._interval.workers = chief.worker_rates()
            self._before, self._interval = self._interval, Interval(now, metrics.units)
            self._write_metrics(metrics, now)

    def _note_done(self, last_applied: float) -> None:
        """Note that nothing more is applied in this phase, by when the last update was; 0 for unknown."""
        now = self._clock.monotonic()
        self._done_since = self._done_since or max(min(last_applied or now, now), self._interval.since)

    def _joined(self) -> Interval:
        """Return this interval and the one before: the rest at the end is too short for rates and means."""
        if self._before is None:
            return self._interval
        both = Interval(self._before.since, self._before.units, workers=self._before.workers)
        both.add(self._before)
        both.add(self._interval)
        return both

    def _metrics(self, told: Interval, until: float) -> Metrics:
        assert self._phase is not None
        with self._control.turn() as chief:
            units, rates = chief.ledger.num_applied, told.workers or chief.worker_rates()
        unit_size = self._run.config.unit_size
        secs = max(until - told.since, 1e-9)
        own_secs = max(until - self._interval.since, 1e-9)  # of what is cleared with each line
        return Metrics(
            units=units,
            examples=units * unit_size,
            phase=self._phase.id.number,
            protocol=self._phase.spec,
            loss=told.loss_sum / told.num_losses if told.num_losses else None,
            learning_rate=self._learning_rate(units),
            examples_per_sec=(units - told.units) * unit_size / secs,
            staleness=told.staleness.summary(),
            workers={worker: rate * unit_size for worker, rate in rates.items()},
            compute_secs=dict(self._compute_secs),
            wait_secs=dict(self._wait_secs),
            mfu={worker: round(peak / own_secs, 4) for worker, peak in self._peak_secs.items()},
            sent_bytes=dict(self._sent_bytes),
            received_bytes=dict(self._received_bytes),
            read_secs=dict(self._read_secs),
            applied_by=nested(self._applied_by),
            secs=round(secs, 6),
        )

    def _show(self, metrics: Metrics) -> None:
        self._shown = metrics.units
        self._recorder.progress.update(metrics, sorted(self._stragglers))

    def _write_metrics(self, metrics: Metrics, at: float) -> None:
        times = (self._compute_secs, self._read_secs, self._wait_secs, self._peak_secs)
        for each in (*times, self._sent_bytes, self._received_bytes, self._applied_by):
            each.clear()
        self._recorder.metrics.write(metrics, at)
        self._show(metrics)
        self._recorder.board.metrics(metrics)
        if self._callbacks:
            t = round(self._recorder.events.elapsed.at(at), 6)
            self._callbacks.call("on_metrics", plain({"t": t, **asdict(metrics)}))
        for index, (hook, every) in enumerate(self._hooks):
            if metrics.units >= self._due[index]:
                self._due[index] = (metrics.units // every + 1) * every
                self.guests.call(f"the hook {name_of(hook)}", partial(hook, metrics), None, function=hook)

    def _settle_switches(self, first_applied: float = 0.0) -> None:
        if self._switches.pending:
            with self._control.turn() as chief:
                first_known, _ = chief.phase_members.first_and_last()
            self._switches.write_known(first_applied or first_known, self._compile_secs)

    # --- the end ---

    @property
    def switch_pending(self) -> bool:
        """Return whether the last switch still waits for its stall or its commit."""
        return self._switches.pending

    def seconds(self) -> float:
        """Seconds since the first unit was leased, earlier sessions and a chief's absence from a phase included."""
        self._look_for_start()
        return self._recorder.events.elapsed() - self._since

    def finish(self, how: Any, error: str | None) -> Summary:
        """Write the last metrics and the summary, let the workers go, and return the summary.

        A run that failed calls no hooks any more: the user may have broken off one of them, which would go on.

        Raises:
          WorkdirTaken: another chief writes the run's record by now.
        """
        try:
            return self._finish(how, error)
        finally:
            self._callbacks.end()  # else their threads would wait for calls as long as the process lives

    def _finish(self, how: Any, error: str | None) -> Summary:
        with contextlib.suppress(OSError):  # the summary's write asks again
            self._recorder.fence()
        self._hooks = [] if how == "failed" else self._hooks
        self.tick()
        with self._control.turn() as chief:
            applied = chief.ledger.num_applied
        news = applied > self._interval.units or self._interval.num_losses or self._applied_by
        if self._phase is not None and news:
            until = self._done_since or self._clock.monotonic()
            self._write_metrics(self._metrics(self._joined(), until), until)
        with self._control.turn() as chief:  # after the last metrics: no line of theirs has more units than the summary
            counts, stop_reason = chief.ledger.counts(), chief.stop_reason
            quarantined = dict(chief.members.quarantined)
        self._look_for_start()
        ended = self._recorder.events.elapsed.stop()  # else a session that resumes would count what callbacks take
        summary = Summary(
            exit=how,
            units=Units(**counts.to_json()),
            examples=counts.applied * self._run.config.unit_size,
            seconds=ended - self._since,
            plan=str(self._run.plan),
            switches=self._switches.written,
            final=self._final,
            staleness=self._whole.summary(),
            error=error,
            units_by_host=self._recorder.figures.read().hosts_of(counts.applied),
            start_up_secs=self._start_up_secs,
            quarantined_workers={str(worker): why for worker, why in sorted(quarantined.items())},
            stop_reason=stop_reason or "" if how == "stopped" else "",
            callback_secs=self._callbacks.seconds,
        )
        if self._callbacks:
            # First: they may take their time. The process may be ended meanwhile, and no worker is to wait for them.
            self._write_summary(summary)
            self._control.finish()
            self._callbacks.close(plain(asdict(summary)))
            summary = replace(summary, callback_secs=self._callbacks.seconds)
            each = ", ".join(f"{name} {secs:.1f} s" for name, secs in summary.callback_secs.items())
            self.show_line(f"callbacks took, in a thread of their own: {each or '0 s'}")
        self.guests.close()
        self.event("run_finished", exit=how, units=counts.applied, error=error)
        if how in ENDS:
            self._recorder.board.completed(counts.applied)
        self._recorder.progress.close()
        if self._num_skipped:
            left_out, every = counted(self._num_skipped, "evaluation"), self._run.config.telemetry.evaluate_units
            self.show_line(
                f"{left_out} of telemetry.evaluate_units={every} left out; events evaluation_skipped say why"
            )
        self.show_line(
            f"{how}: {counts.applied:,} of {counts.workload:,} units in {summary.seconds:.1f} s, "
            f"{counted(len(self._switches.written), 'switch', 'switches')}"
            + (f"; everything is in {self._run.workdir}" if self._run.workdir is not None else "")
        )
        self._write_summary(summary)
        return summary

    def _write_summary(self, summary: Summary) -> None:
        if self._run.workdir is not None:
            try:
                write_summary(self._run.workdir, summary, self._recorder.fence)
            except OSError as refusal:  # what was trained is saved, and the same command writes it once there is room
                logging.error("%s: %s; it lacks its summary.json", self._run.workdir, refusal)

    def _learning_rate(self, units: int) -> float:
        assert self._phase is not None
        protocol = self._phase.protocol
        workers = len(self._phase.members)
        factor = protocol.lr_factor(sum(self._phase.shares) or protocol.units_per_update(workers), workers)
        config = self._run.config

        def rate() -> float:
            found = self._run.optimizer.learning_rate_after(jnp.int32(units), config.unit_size, config.workload)
            return float(found * np.float32(factor))

        return self.guests.call("the schedule of the learning rate", rate, math.nan)


def _newest_order(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of the newest order that a run's record tells of; 0 where there is none."""
    newest = 0
    for event in events:
        if event["kind"] == "run_started" and event.get("reason") != "resume":
            newest = 0
        newest = event["number"] if event["kind"] == "switch_ordered" else newest
    return newest
