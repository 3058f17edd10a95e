"""Reads what a finished run left for its replay: the configuration, the phases, and every update in order."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from hybridsync import protocols
from hybridsync.core.errors import ResumeError, WorkdirError
from hybridsync.core.plan import PhaseId
from hybridsync.core.step_assignment import StepAssignment
from hybridsync.devices.mesh import XLA
from hybridsync.protocols import base
from hybridsync.protocols.modes import SyncMode
from hybridsync.runtime.agent.host_resources import MOST_THREADS
from hybridsync.runtime.wiring import HOST, KINDS
from hybridsync.storage import apply_log
from hybridsync.storage.apply_log import APPLY_LOG
from hybridsync.storage.apply_log_entries import NOT_LOGGED, Entry, Left
from hybridsync.storage.jsonl import read_lines
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.metrics import METRICS_FILE
from hybridsync.telemetry.summary import read_config


@dataclass(frozen=True)
class LoggedPhase:
    """One phase of the run, as far as its updates were kept.

    Args:
      number: number of the phase.
      spec: protocol of the phase, as in the plan.
      members: worker ids in mesh order.
      device_choice: device choice of the mesh.
      runtime: "inprocess", "processes" or "simulated".
      fingerprint: fingerprint of the state that the phase began with.
      entries: updates of the phase.
      left: workers, as (worker, incarnation), whose uploaded optimizer states became the state's.
      after: fingerprint of the state that the run continued from; "" for the last phase, after which only a checkpoint
        has it. The state that was captured at the phase's end may have been lost, and with it what those workers
        uploaded.
      shares: units that each member took in one lock-step step; () for one each.
      collective: kind of collective among its workers: "host" or "shm" in the process runtime, "threads" or "xla" in
        one process, whose sums have the same bits with one device a worker; "" if the record lacks it.
      num_threads: number of threads with which XLA computed in the process runtime; None if the record lacks it.
    """

    number: int
    spec: str
    members: tuple[int, ...]
    device_choice: int
    runtime: str
    fingerprint: str
    entries: tuple[Entry, ...]
    left: tuple[tuple[int, int], ...] = ()
    after: str = ""
    shares: tuple[int, ...] = ()
    collective: str = ""
    num_threads: int | None = None

    @property
    def id(self) -> PhaseId:
        """Fencing token, among the phases that are replayed."""
        return PhaseId(self.number, 0)

    @property
    def protocol(self) -> base.Protocol:
        """Protocol that it ran."""
        return protocols.parse(self.spec)

    @property
    def mode(self) -> SyncMode:
        """Mode in which its members were synchronised."""
        return self.protocol.mode

    @functools.cached_property
    def assignment(self) -> StepAssignment:
        """Assignment of a lock-step step's units to members."""
        return StepAssignment(self.shares or (1,) * len(self.members))

    @property
    def first(self) -> int:
        """Sequence of the parameters that it began with."""
        return self.entries[0].sequence - 1

    def __str__(self) -> str:
        return f"phase {self.number} ({self.spec}, updates {self.first + 1} to {self.entries[-1].sequence})"


@dataclass(frozen=True)
class Record:
    """Holds what a run left.

    Args:
      workdir: workdir that the record was read from.
      config: resolved configuration, as JSON.
      phases: those with updates, in order.
    """

    workdir: Path
    config: dict[str, Any]
    phases: tuple[LoggedPhase, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All updates in order."""
        return tuple(entry for phase in self.phases for entry in phase.entries)


def is_of_processes(workdir: Path) -> bool:
    """Return whether the process runtime did all of the run in `workdir`; its roles compute on CPU."""
    return all(event["runtime"] == "processes" for event in read_events(workdir, "run_started"))


def read_record(workdir: Path) -> Record:
    """Read and check what the run in `workdir` left.

    Raises:
      WorkdirError: there is no run, no apply log, the run is not finished, or the log is cut or damaged.
      ResumeError: the run began from another run, or changed its unit size: its log is not complete.
    """
    config = read_config(workdir)
    if config is None:
        raise WorkdirError(f"{workdir} holds no run; give the --workdir of one")
    if not config["config"]["telemetry"]["apply_log"]:
        raise WorkdirError(f"{workdir} holds no apply log, or not all of it; run with --apply_log to replay")
    _check_ended(workdir)
    if not (workdir / APPLY_LOG).exists():
        raise WorkdirError(f"{workdir} holds no apply log: nothing was trained, or the file is gone")
    _check_origin(workdir, config["config"]["unit_size"])
    if accepted := config.get("accepted"):
        raise ResumeError(
            f"the run in {workdir} went on with another {'; another '.join(accepted)} (--accept_changes); only a run "
            "that trained the same from its start can be replayed"
        )
    entries, ends = _read_entries(workdir / APPLY_LOG)
    micro_steps = config["config"].get("devices", {}).get("micro_steps", 1)
    return Record(workdir, config["config"], _phases(workdir, entries, ends, micro_steps))


def _check_ended(workdir: Path) -> None:
    """Refuse a run that goes on, or died: it has updates that no checkpoint holds."""
    last = [event for event in read_events(workdir) if event["kind"] in ("run_started", "run_finished")][-1:]
    if not last or last[0]["kind"] != "run_finished":
        raise WorkdirError(f"the run in {workdir} is not finished; let it end, or resume it, then replay")
    if last[0]["exit"] == "failed":
        raise WorkdirError(f"the run in {workdir} failed: {last[0]['error']}; resume it to its end, then replay")


def _check_origin(workdir: Path, unit_size: int) -> None:
    starts = [event["reason"] for event in read_events(workdir, "run_started") if event["reason"] != "resume"]
    if starts[-1:] == ["init_from"]:
        raise ResumeError(
            f"the run in {workdir} began from another run's state (--init_from), not from its seed; "
            "replay the run that it began from"
        )
    for line in read_lines(workdir / METRICS_FILE):
        if line["examples"] != line["units"] * unit_size:
            raise ResumeError(
                f"the run in {workdir} was resumed with another unit size: {line['examples'] // line['units']} at "
                f"unit {line['units']}, {unit_size} at its end; only runs of one unit size can be replayed"
            )


def _read_entries(path: Path) -> tuple[tuple[Entry, ...], dict[int, Left]]:
    """Return the log's entries, each of which must follow from those before it, and how phases ended."""
    entries: list[Entry] = []
    ends: dict[int, Left] = {}
    applied: dict[int, int] = {}
    try:
        for entry in apply_log.records(path):
            if isinstance(entry, Left):
                ends[entry.phase] = entry
                continue
            entries.append(entry)
            expected = len(entries)
            if entry.sequence != expected:
                raise WorkdirError(
                    f"the apply log {path} is incomplete from update {expected} on: update {entry.sequence} stands "
                    "there; the disk refused lines, or a session of the run was without --apply_log: the run cannot be "
                    "replayed"
                )
            for base in entry.versions:
                if not 0 <= base < entry.sequence:
                    raise WorkdirError(
                        f"the apply log {path} is damaged: update {entry.sequence} says that its gradient was "
                        f"computed on update {base}'s parameters"
                    )
            listed = tuple(unit for part in entry.parts for unit in part.units)
            if entry.parts and (listed != entry.units or min(entry.versions) != entry.base):
                raise WorkdirError(
                    f"the apply log {path} is damaged: update {entry.sequence} has units {list(entry.units)} on update "
                    f"{entry.base}'s parameters, but its parts hold {list(listed)} on {min(entry.versions)}'s"
                )
            if not (entry.units or entry.group) or entry.weight != len(entry.units):
                raise WorkdirError(
                    f"the apply log {path} is damaged: update {entry.sequence} has weight {entry.weight:g} and units "
                    f"{list(entry.units)}"
                )
            if entry.stepped and (
                sum(push.num_units for push in entry.stepped) != len(entry.units)
                or min(push.base for push in entry.stepped) != entry.base
                or max(push.base for push in entry.stepped) >= entry.sequence
            ):
                raise WorkdirError(
                    f"the apply log {path} is damaged: update {entry.sequence} has units {list(entry.units)} on update "
                    f"{entry.base}'s parameters, and its pushes are {[list(push) for push in entry.stepped]}"
                )
            if entry.group and not len(entry.units) == len(entry.slots) == len(entry.bases):
                raise WorkdirError(
                    f"the apply log {path} is damaged: group round {entry.sequence} has {len(entry.units)} units in "
                    f"{len(entry.slots)} places, computed behind {len(entry.bases)} group rounds"
                )
            # A member may bring several to a group round.
            slots = sorted(entry.slots if entry.group else {*entry.slots})
            if entry.slots and (len(entry.slots) != len(entry.units) or list(entry.slots) != slots):
                raise WorkdirError(
                    f"the apply log {path} is damaged: update {entry.sequence} has units {list(entry.units)} in the "
                    f"places {list(entry.slots)} of its mesh"
                )
            for unit in entry.units:
                if unit in applied:
                    raise WorkdirError(
                        f"unit {unit} was applied twice: the apply log {path} has it in updates {applied[unit]} and "
                        f"{entry.sequence}"
                    )
                applied[unit] = entry.sequence
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, WorkdirError):
            raise
        raise WorkdirError(f"the apply log {path} is damaged behind update {len(entries)}: {error}") from error
    return tuple(entries), ends


def _check_mesh(workdir: Path, event: dict[str, Any]) -> None:
    """Check the members and shares that an event says a phase had, before a mesh is made of them."""
    members, shares = event.get("members"), event.get("shares", [])
    if not _are_counts(members) or not members or len(set(members)) < len(members):
        raise WorkdirError(
            f"the events of {workdir} are damaged: phase {event['phase']} was entered with the members {members}, "
            "which are no worker ids, each once; restore events.jsonl"
        )
    if not _are_counts(shares) or (shares and (len(shares) != len(members) or not sum(shares))):
        raise WorkdirError(
            f"the events of {workdir} are damaged: phase {event['phase']} was entered with the shares {shares} for the "
            f"members {members}, which are not the units of a step of each; restore events.jsonl"
        )


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    """Return whether a value is a list of integers of 0 or more."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _devices_unlike(event: dict[str, Any], micro_steps: int) -> str:
    """Say how else than a replay a run began to compute on its devices; "" where they are alike."""
    if (parts := event.get("micro_steps", 1)) != micro_steps:
        return f"with micro_steps={parts}, and a replay computes with {micro_steps}, as the run's last session did"
    mesh, platform = event.get("mesh") or {}, event.get("platform", "auto")
    if any(size != 1 for size in mesh.values()):
        return f"on the mesh {mesh} for each worker, and a replay computes on one CPU device a worker"
    if platform not in ("auto", "cpu") and (event["runtime"] == "processes" or event.get("collective") == XLA):
        return f"on {platform}, and a replay computes on one CPU device a worker"
    return ""


def _phases(
    workdir: Path, entries: tuple[Entry, ...], ends: dict[int, Left], micro_steps: int
) -> tuple[LoggedPhase, ...]:
    """Divide the entries into their phases, all of which are replayed in so many micro steps."""
    entered: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    how: dict[str, Any] = {}
    unlike, refused = "", {}
    for event in read_events(workdir):
        if event["kind"] == "run_started":
            runtime, num_threads = event["runtime"], event.get("num_threads")
            collective = event.get("collective", HOST if runtime == "processes" else "")  # older runs had one kind
            if runtime == "processes" and collective not in KINDS:
                raise WorkdirError(
                    f"the events of {workdir} say that the run's collective was {collective!r}, which is none of "
                    f"{', '.join(KINDS)}; restore events.jsonl, or replay with the version that ran it"
                )
            if num_threads is not None and not (type(num_threads) is int and 1 <= num_threads <= MOST_THREADS):
                raise WorkdirError(
                    f"the events of {workdir} say that the run's roles had {num_threads!r} threads each, which is no "
                    f"number from 1 to {MOST_THREADS}; restore events.jsonl"
                )
            how = {"runtime": runtime, "collective": collective, "num_threads": num_threads}
            unlike = _devices_unlike(event, micro_steps)
        elif event["kind"] == "phase_entered":
            _check_mesh(workdir, event)
            entered[event["phase"]] = event, how
            refused[event["phase"]] = unlike
    by_phase: dict[int, list[Entry]] = {}
    for entry in entries:
        by_phase.setdefault(entry.phase, []).append(entry)
    phases, units = [], 0
    for number, updates in by_phase.items():
        if number not in entered:
            raise WorkdirError(
                f"update {updates[0].sequence} is of phase {number}, which no event of {workdir} announces; the log "
                "and the events are of different runs"
            )
        event, how = entered[number]
        if unlike := refused[number]:
            raise WorkdirError(
                f"phase {number} of {workdir} was computed {unlike}: sums would be divided otherwise, and their last "
                "bits differ; it cannot be replayed here"
            )
        if event["units"] != units:
            raise WorkdirError(
                f"the apply log of {workdir} is cut: phase {number} began at unit {event['units']}, but the updates "
                f"before it hold {units} units"
            )
        phase = LoggedPhase(
            number=number,
            spec=event["protocol"],
            members=tuple(event["members"]),
            device_choice=event["lane"],
            **how,
            fingerprint=event["fingerprint"],
            entries=tuple(updates),
            shares=tuple(event.get("shares", ())),
            left=ends[number].left if number in ends else (),
        )
        if phase.protocol.local_updates and not all(entry.stepped for entry in updates):
            raise WorkdirError(
                f"the apply log of {workdir} is damaged: {phase} does not say whose its pushes were, and its workers "
                "made local updates"
            )
        if old := [entry for entry in updates if any(push.newest == NOT_LOGGED for push in entry.stepped)]:
            raise WorkdirError(
                f"update {old[0].sequence} in {phase} of {workdir} does not say which version its workers knew as the "
                "newest: an older version of hybridsync has recorded it; replay it with that version"
            )
        if early := [entry for entry in updates if entry.base < phase.first]:
            raise WorkdirError(
                f"update {early[0].sequence} was computed on update {early[0].base}'s parameters, which are older "
                f"than its phase, {phase}"
            )
        places = phase.assignment.num_places
        if wide := [entry for entry in updates if max((*entry.slots, *entry.group), default=0) >= places]:
            raise WorkdirError(
                f"the apply log of {workdir} is damaged: update {wide[0].sequence} has units in the places "
                f"{list(wide[0].slots)} of a mesh of {len(phase.members)} members with {places} places"
            )
        if phase.mode.moves_together and (long := [entry for entry in updates if len(entry.units) > places]):
            raise WorkdirError(
                f"the apply log of {workdir} is damaged: update {long[0].sequence} holds {len(long[0].units)} units, "
                f"a step of {phase} has {places} places"
            )
        units += sum(len(entry.units) for entry in updates)
        phases.append(phase)
    # The next phase that was entered may have begun from a state that was lost then: it has no update in the log.
    begun = [*(phase.fingerprint for phase in phases[1:]), ""]
    return tuple(replace(phase, after=after) for phase, after in zip(phases, begun, strict=True))
