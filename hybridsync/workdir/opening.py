"""Opening a run: a fresh start, or the newest good checkpoint of its workdir, with what that means for the record."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.user_commands import Orders, OrderStore
from hybridsync.config.resume_rules import ACCEPT
from hybridsync.core.errors import ResumeError, WorkdirError
from hybridsync.core.paths import local_path
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range
from hybridsync.interfaces.commands import Order
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.phases.schedule import kept_orders, rescaled, resumed
from hybridsync.policies.plan_checks import CheckOrder, checked_order, order_warning
from hybridsync.storage import apply_log
from hybridsync.storage.checkpoints import CheckpointStore, Restored
from hybridsync.storage.durable import Fence, HeldLock, PhaseNumberFile, WorkdirLock, make_directory, unfenced
from hybridsync.storage.orders_file import OrdersFile
from hybridsync.telemetry.events import read_events, read_sound_events, started_at
from hybridsync.telemetry.metrics import read_metrics
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import read_config, read_identity, read_summary, versions, write_config
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.frozen import digests, frozen_leaves
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.workdir.resuming import CHECKPOINTS, Allowed, Resume, check_init_from, check_record, check_workdir
from hybridsync.workdir.trained import TRACED_BY, Trained, changes, frozen_changes
from hybridsync.workdir.trial import gradient_digest, try_functions


class PhaseIdsInMemory:
    """Reserves the phase numbers of a run that leaves nothing behind."""

    def __init__(self) -> None:
        self._number = 0

    def reserve(self, above: int = 0) -> PhaseId:
        """Return the next phase."""
        self._number = max(self._number, above) + 1
        return PhaseId(self._number, 0)


@dataclass
class Opening:
    """Holds everything that a chief starts from.

    Args:
      run: the run, with the workload converted if units were.
      state: starting state on the host, until `take_state`.
      ledger: accounting before the first unit.
      sequence: number of updates applied before.
      reason: "start", "resume" or "init_from".
      phase_number: newest phase number of an earlier session.
      committed: whether `state` is durable already.
      t: the run's time after its earlier sessions.
      switches: switch events of earlier sessions.
      rolled_back: units of an earlier session that were lost with it, and are counted as such in `ledger`.
      known: units that the chief before this one knew to be applied, and whose loss is not reported yet: the roles that
        continue may hold them. 0 if there are no such roles.
      quarantined: damaged checkpoints that were set aside, newest first, as (running number of the commit, reason).
      detours: detours from the plan so far, by units applied at their begin and end.
      given_up: units applied where lock-step had ended early, which is not what the configuration asks for now.
      orders: orders of the run's user that stay in force.
      store, phase_ids, lock: store of checkpoints, of phase numbers, and the lock of the workdir; None, in memory, None
        without one.
      orders_dropped: orders of the run's user that the configuration has no place for any more, each with the reason.
      accepted: what the run trains otherwise from now on, because its user accepts it.
      frozen: digest of each leaf that is not trained, by its path; None where nobody computed them.
    """

    run: Run
    state: TrainState | None
    ledger: Ledger
    sequence: int
    reason: str
    phase_number: int
    committed: bool
    t: float
    switches: list[dict[str, Any]]
    rolled_back: int
    known: int
    quarantined: tuple[tuple[int, str], ...]
    detours: tuple[Range, ...]
    given_up: tuple[int, ...]
    orders: Orders
    store: CheckpointStore | None
    phase_ids: Any
    lock: WorkdirLock | None
    orders_dropped: tuple[tuple[Order, str], ...] = ()
    accepted: tuple[str, ...] = ()
    frozen: Mapping[str, str] | None = None

    def take_state(self) -> TrainState:
        """Return the starting state, which this object keeps no longer: it is as large as the model."""
        state, self.state = self.state, None
        assert state is not None, "the starting state was taken before"
        return state

    @property
    def fence(self) -> Fence:
        """Return the check that is called before each rename in the workdir."""
        return unfenced if self.lock is None else self.lock.check

    def announce(self, recorder: Recorder, **fields: Any) -> None:
        """Write down that the run starts, with `fields`, what was lost before, and what was found damaged."""
        recorder.events.elapsed.not_before(self.t)
        quarantined = [list(step) for step in self.quarantined]
        fields = {"micro_steps": self.run.config.devices.micro_steps, "quarantined": quarantined, **fields}
        recorder.events.write("run_started", phase=self.phase_number, reason=self.reason, **fields)
        if self.rolled_back:
            units = self.ledger.num_applied
            recorder.events.write("rollback", phase=self.phase_number, to_units=units, rolled_back=self.rolled_back)
            recorder.progress.show_line(
                f"{self.rolled_back:,} units after the last commit were lost and are done again"
            )
        for change in self.accepted:
            recorder.progress.show_line(f"accepted: the run goes on with another {change}")
        for step, reason in self.quarantined:
            recorder.progress.show_line(f"checkpoint {step} is damaged and was set aside: {reason}")
        if warning := order_warning(self.run.plan, self.run.config.workers):
            recorder.progress.show_line(warning)
        if warning := self.run.evaluation_warning():
            recorder.progress.show_line(warning)
        for end in self.given_up:
            recorder.progress.show_line(
                f"lock-step had ended early at unit {end:,}; with policy.trigger={self.run.config.policy.trigger} and "
                f"the plan {self.run.config.plan} it goes by its share again"
            )
        for order, why in self.orders_dropped:
            recorder.events.write(
                "order_dropped", phase=self.phase_number, number=order.number, protocol=order.spec, why=why
            )
            recorder.progress.show_line(
                f"the order to go on under {order.spec}, given at unit {order.units:,}, is dropped: {why}"
            )


def start_snapshot(opening: Opening, layout: Layout) -> Snapshot:
    """Return the snapshot of the state that a run begins with."""
    applied, dropped = opening.ledger.applied(), opening.ledger.dropped()
    return Snapshot(
        snapshot_id=secrets.randbits(40),  # another process at this address must not have the same
        held=StateVersion(PhaseId(opening.phase_number, 0), len(applied), opening.sequence, fingerprint(opening.state)),
        applied=applied.ranges(),
        dropped=dropped.ranges(),
        num_bytes=layout.nbytes,
        first_applied=0.0,
        last_applied=0.0,
    )


class AlreadyCompleted(Exception):
    """The workdir's run has reached its workload, or a callback has stopped it; nothing is left to do.

    Args:
      message: text for the user, with the units.
      state: the final state.
      summary: content of summary.json.
    """

    def __init__(self, message: str, state: TrainState, summary: dict[str, Any]) -> None:
        super().__init__(message)
        self.state, self.summary = state, summary


def open_run(
    run: Run,
    *,
    resume: Resume = "auto",
    init_from: Path | None = None,
    convert_units: bool = False,
    accept_changes: bool = False,
    alive: bool = False,
    held: HeldLock | None = None,
    check_order: CheckOrder = checked_order,
) -> Opening:
    """Lock the workdir, and find where the run begins.

    Args:
      run: the run, with its configuration and workdir.
      resume: "auto" starts fresh or resumes, "must" refuses without a checkpoint, "never" refuses a used workdir.
      init_from: workdir of another run whose newest parameters, optax and model state to start from, at unit 0.
      convert_units: whether a checkpoint with another unit size may be resumed.
      accept_changes: whether a run may be resumed that would train another model, loss or optimizer.
      alive: only the chief was lost: what was applied after the last commit may still be held, and is not cut off.
      held: the workdir's lock, which a supervisor has taken; None if it is not taken.
      check_order: checks what the run's user orders, and what was ordered before (see `checked_order`).

    Raises:
      AlreadyCompleted: nothing is left to do.
      WorkdirError: the workdir is in use, not writable, another user's, or used and `resume` is "never".
      ResumeError: the run in the workdir contradicts the configuration, or there is no checkpoint and there must be.
      TaskError, DataError, OptimizerError: a function of the user's cannot be trained with (see `try_functions`).
      CheckpointError: no checkpoint of the workdir can be used.
      DataError: the source has no units of the size that is asked for.
      WorkdirTaken: another host has taken the workdir over from the supervisor.
    """
    if run.workdir is None and resume == "must":
        raise ResumeError("resume is 'must', but the run has no workdir to resume from; name one")
    allowed: Allowed = {"convert_units": convert_units, "accept_changes": accept_changes}
    used = None
    if run.workdir is not None:
        used = check_workdir(run.workdir, run.config, resume=resume, **allowed)
    if init_from is not None and used is None:  # before the workdir is made, so that a refusal leaves no trace
        check_init_from(init_from, run.workdir)
    # While the roles prepare; a run in progress has passed it.
    asked = dataclasses.replace(run, config=used or run.config)
    trained = None if alive else try_functions(asked, digests_programs=run.workdir is not None)
    if run.workdir is None:
        return _fresh(
            run, None, PhaseIdsInMemory(), lock=None, init_from=init_from, orders=None, check_order=check_order
        )
    try:
        workdir = make_directory(local_path(run.workdir))
    except OSError as error:
        raise WorkdirError(
            f"the workdir {run.workdir} cannot be made: {error.strerror}; name a writable directory"
        ) from None
    lock = WorkdirLock(workdir, held)
    lock.acquire()
    try:
        return _open_locked(
            run,
            workdir,
            lock,
            resume=resume,
            init_from=init_from,
            allowed=allowed,
            trained=trained,
            check_order=check_order,
        )
    except BaseException:
        lock.release()
        raise


def _open_locked(
    run: Run,
    workdir: Path,
    lock: WorkdirLock,
    resume: Resume,
    init_from: Path | None,
    allowed: Allowed,
    trained: Trained | None,
    check_order: CheckOrder,
) -> Opening:
    lock.check()  # the supervisor's lock may be another host's by now, as where it stood still
    workload_asked = run.config.workload
    used = check_workdir(workdir, run.config, resume=resume, **allowed)
    saved = (read_config(workdir) if used or trained is None else None) or {}
    run = dataclasses.replace(run, config=used or run.config)
    PhaseNumberFile(workdir).read()  # a damaged one is refused before anything is written
    identity = read_identity(workdir) or secrets.token_hex(8)
    store = CheckpointStore(workdir / CHECKPOINTS, keep=run.config.checkpoint.keep, run=identity, fence=lock.check)
    restored = store.newest(run.abstract_state()) if used else None
    orders = OrdersFile(workdir, run.config.plan, lock.check)
    if restored is None and resume == "must":
        raise ResumeError(
            f"resume is 'must', but {run.workdir} holds no checkpoint; check the path, or start with 'auto'"
        )
    if restored is None:
        orders.clear()
        opening = _fresh(
            run,
            store,
            PhaseNumberFile(workdir, lock.check),
            lock=lock,
            init_from=init_from,
            orders=orders,
            check_order=check_order,
        )
        (workdir / apply_log.APPLY_LOG).unlink(missing_ok=True)
    else:
        _check_goes_on(run, workdir, restored)
        found = _changes(run, saved, trained, accept=allowed["accept_changes"])
        opening = _resumed(
            run,
            workdir,
            store,
            lock=lock,
            restored=restored,
            alive=trained is None,
            orders=orders,
            check_order=check_order,
        )
        opening.accepted = found
    accepted = [*(saved.get("accepted", ()) if restored else ()), *opening.accepted]
    now = saved.get("trained") if trained is None else dataclasses.asdict(trained)
    opening.frozen = (now or {}).get("frozen")
    write_config(
        workdir,
        opening.run.config,
        opening.run.file,
        workload_asked=workload_asked,
        run=identity,
        fence=lock.check,
        trained=now,
        accepted=accepted,
    )
    return opening


def _changes(run: Run, saved: Mapping[str, Any], trained: Trained | None, *, accept: bool) -> tuple[str, ...]:
    """Return what a resumed run trains otherwise than before.

    Args:
      run: the run as it goes on.
      saved: content of config.json before.
      trained: what the run would train now; None for a run in progress.
      accept: whether the user accepts changes.

    Raises:
      ResumeError: there are changes, and the user has not accepted them.
    """
    before = saved.get("trained")
    if trained is None or before is None:  # an older version wrote none
        return ()
    theirs, ours = saved.get("versions", {}), versions()
    comparable = all(theirs.get(name) == ours[name] for name in TRACED_BY)
    gradient_of = partial(gradient_digest, run)
    found = tuple(changes(before, trained, run.config.workload, comparable=comparable, gradient_of=gradient_of))
    if found and not accept:
        raise ResumeError(
            f"this run cannot go on with another {'; another '.join(found)}; train what it began with, take a fresh "
            f"workdir, or {ACCEPT}"
        )
    return found


def orders_of(run: Run, store: OrderStore | None, check: CheckOrder = checked_order) -> Orders:
    """Return the orders of a run's user, each of which is checked against the run's configuration."""
    return Orders(store, lambda spec: check(spec, run.config))


def _fresh(
    run: Run,
    store: Any,
    phase_ids: Any,
    lock: Any,
    init_from: Path | None,
    orders: OrderStore | None,
    check_order: CheckOrder,
) -> Opening:
    state = jax.device_get(run.initial_state())
    if init_from is not None:
        state = _adopt(run, init_from, state)
    ledger = Ledger(run.config.workload)
    reason = "start" if init_from is None else "init_from"
    return Opening(
        run,
        state,
        ledger,
        sequence=0,
        reason=reason,
        phase_number=0,
        committed=False,
        t=0.0,
        switches=[],
        rolled_back=0,
        known=0,
        quarantined=(),
        detours=(),
        given_up=(),
        orders=orders_of(run, orders, check_order),
        store=store,
        phase_ids=phase_ids,
        lock=lock,
    )


def _adopt(run: Run, init_from: Path, state: TrainState) -> TrainState:
    """Return `state` with the parameters, optax and model state of another run."""
    check_init_from(init_from)
    with WorkdirLock(init_from) as lock:  # a run that is still writing there is left alone
        store = CheckpointStore(init_from / CHECKPOINTS, run=read_identity(init_from), fence=lock.check)
        restored = store.newest(state)
    if restored is None:
        raise ResumeError(f"init_from names {init_from}, which holds no checkpoint; name a run that has saved one")
    before = ((read_config(init_from) or {}).get("trained") or {}).get("frozen") or {}
    if before and (others := [*frozen_changes(before, digests(frozen_leaves(run.task, run.config.seed)))]):
        raise ResumeError(
            f"{init_from} trained with another {'; another '.join(others)}; start from the same frozen leaves: the "
            "same seed, or the same weights"
        )
    found = _with_own_values(run, restored.state)
    return dataclasses.replace(state, params=found.params, opt_state=found.opt_state, model_state=found.model_state)


def _with_own_values(run: Run, state: TrainState) -> TrainState:
    """Return a restored state with the hyperparameters that this run asks for, whatever the saved ones were."""
    return dataclasses.replace(state, opt_state=run.optimizer.with_own_values(state.opt_state, state.params))


def _check_goes_on(run: Run, workdir: Path, restored: Restored) -> None:
    """Check that a run can go on from its checkpoint, which fits its state.

    Raises:
      AlreadyCompleted: nothing is left to do.
      ResumeError: the data have changed.
      CheckpointError: the checkpoint lacks something.
    """
    record = restored.run
    check_record(record, restored.ledger, f"checkpoint {restored.step} in {workdir / CHECKPOINTS}")
    summary = read_summary(workdir)
    workload, how = run.config.workload, None if summary is None else summary["exit"]
    if summary is not None and how == "completed" and restored.units >= workload:
        message = f"{run.workdir} is complete: {restored.units} of {workload} units applied; nothing is left to do"
        raise AlreadyCompleted(message, restored.state, summary)
    if summary is not None and how == "stopped" and restored.units >= summary["units"]["applied"]:
        why = f": {summary['stop_reason']}" if summary.get("stop_reason") else ""
        raise AlreadyCompleted(
            f"{run.workdir} was stopped for good by a callback at {restored.units} of {workload} units{why}; to train "
            f"more from its state, take a fresh workdir, with init_from={run.workdir}",
            restored.state,
            summary,
        )
    source = run.describe_source()
    if record["source"] != source:
        changed = sorted(key for key in {*source, *record["source"]} if source.get(key) != record["source"].get(key))
        both = ", ".join(f"{key} was {record['source'].get(key)!r}, is {source.get(key)!r}" for key in changed)
        raise ResumeError(f"the data of this run have changed: {both}; restore them, or start in a fresh workdir")


def _resumed(
    run: Run,
    workdir: Path,
    store: CheckpointStore,
    lock: WorkdirLock,
    restored: Restored,
    alive: bool,
    orders: OrdersFile,
    check_order: CheckOrder,
) -> Opening:
    record = restored.run
    ledger, state = Ledger.from_json(restored.ledger), _with_momenta(run, _with_own_values(run, restored.state))
    before = record["config"]["unit_size"]
    if before != run.config.unit_size:
        ledger, state = _convert(run, before, ledger, state)
    told = [(start, stop) for start, stop in record.get("detours", ())]
    kept = resumed(told, record["config"], run.config)
    events, lines = read_sound_events(workdir), read_metrics(workdir)
    told_lost, known = _progress_told(events, [line for line in lines if line["phase"] >= record["phase"]])
    ledger.rolled_back = max(ledger.rolled_back, told_lost)  # a chief may have been lost before it committed its count
    known = known if before == run.config.unit_size else 0
    lost = 0 if alive else max(0, known - restored.units)
    ledger.rolled_back += lost
    orders_kept, orders_dropped = kept_orders(orders.read(), orders.told_plan, run.config, check_order)
    if orders_kept != orders.read():
        orders.write(orders_kept)
    if not alive:
        lock.check()
        apply_log.forget(workdir / apply_log.APPLY_LOG, record["sequence"])
    return Opening(
        run=run,
        state=state,
        ledger=ledger,
        sequence=record["sequence"],
        reason="resume",
        phase_number=record["phase"],
        committed=True,
        # A checkpoint knows only the time up to it, and the record may be another one, or lost.
        t=max([started_at(events) + record["seconds"], *(sign["t"] for sign in (*events[-1:], *lines[-1:]))]),
        switches=read_events(workdir, "switch"),
        rolled_back=lost,
        known=known if alive else 0,
        quarantined=restored.quarantined,
        detours=rescaled(kept, lambda units: _units(run, before, units)),
        orders=orders_of(run, orders, check_order),
        given_up=tuple(_units(run, before, start) for start, stop in told if (start, stop) not in kept),
        store=store,
        phase_ids=PhaseNumberFile(workdir, lock.check),
        lock=lock,
        orders_dropped=orders_dropped,
    )


def _with_momenta(run: Run, state: TrainState) -> TrainState:
    """Return a restored state with the momenta that the plan's protocols keep: what was not saved is 0."""
    momenta = dict(state.protocol_state)
    for name in run.kept:
        if name not in momenta:
            momenta[name] = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), state.params)
    return dataclasses.replace(state, protocol_state=momenta)


def _progress_told(events: list[dict[str, Any]], lines: list[dict[str, Any]]) -> tuple[int, int]:
    """Return how many units the record says were rolled back, and how many were applied at its end.

    A rollback loses what an earlier session had applied before it. The same units are not lost again.

    Args:
      events: events of all sessions; those before a start from unit 0 are another run's.
      lines: lines of metrics, from the last commit on.
    """
    rolled_back, applied, since = 0, 0, 0.0
    for event in events:
        if event["kind"] == "run_started" and event.get("reason") != "resume":
            rolled_back, applied, since = 0, 0, event["t"]
        if event["kind"] == "rollback":
            rolled_back, applied, since = rolled_back + event["rolled_back"], event["to_units"], event["t"]
    return rolled_back, max([applied, *(line["units"] for line in lines if line["t"] > since)])


def _units(run: Run, before: int, units: int) -> int:
    """Return how many units make up as many examples as `units` of `before` examples each."""
    return math.ceil(units * before / run.config.unit_size)


def _convert(run: Run, before: int, ledger: Ledger, state: TrainState) -> tuple[Ledger, TrainState]:
    """Go on with units of another size: the first one is ceil(examples / B), the workload keeps its examples.

    Raises:
      DataError: the source has no units of that size.
    """
    run.task.source.batch(0, unit_size=run.config.unit_size, seed=run.config.seed)  # before anything is written
    first = _units(run, before, ledger.num_applied)
    counters = {**state.counters, "units": np.int32(first)}
    applied = [(0, first)] if first else []
    converted = Ledger(run.config.workload, issued=first, applied=applied, rolled_back=ledger.rolled_back)
    return converted, dataclasses.replace(state, counters=counters)
