"""Measures each switch of a run: follows it from its beginning until its stall and its commit are known, then writes.

A switch's event contains the duration of its stages, of the time without training, and of its commit. The stall is
known with the next phase's first update, the commit when the disk has it, and either may be first. A change of members
or shares alone is not committed, and has a stall only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridsync.core.clock import Clock
from hybridsync.interfaces.messages import Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.telemetry.events import FIELDS

SWITCHED = ("planned", "policy", "ordered")
"""Why a phase is entered by a switch: the others follow a loss, a join or a start."""


@dataclass
class StageTimes:
    """Seconds of each stage of the current switch."""

    secs: dict[str, float] = field(default_factory=dict)


class StageTimer:
    """Measures each stage, and puts it on the timeline.

    Args:
      clock: clock for intervals.
      span: puts a named stretch of time on the timeline, from its start to its end.

    Attributes:
      times: times of the stages since the last `restart`.
    """

    def __init__(self, clock: Clock, span: Callable[[str, float, float], None]) -> None:
        self._clock, self._span = clock, span
        self.times = StageTimes()

    def start(self) -> float:
        """Return the time now, which `record` takes as a stage's start."""
        return self._clock.monotonic()

    def restart(self) -> None:
        """Forget the stages measured so far: another phase change begins."""
        self.times = StageTimes()

    def record(self, stage: str, started: float) -> None:
        """Note that `stage`, begun at `started`, ends now."""
        ended = self._clock.monotonic()
        self.times.secs[stage] = ended - started
        self._span(stage, started, ended)


@dataclass
class PendingSwitch:
    """A switch whose stall and commit are not both known yet; a change of members alone is not committed."""

    fields: dict[str, Any]
    last_applied: float
    unit_secs: float
    commits: bool = True
    commit_secs: float | None = None
    stall_secs: float | None = None

    @property
    def known(self) -> bool:
        """Return whether it can be written."""
        return self.stall_secs is not None and (self.commit_secs is not None or not self.commits)


class Switches:
    """The switches of one run; used by the controller's thread alone.

    Args:
      write: writes a switch's event, and returns it.
      told: switch events of earlier sessions.

    Attributes:
      written: switch events of all sessions, in order.
    """

    def __init__(self, write: Callable[..., dict[str, Any]], told: list[dict[str, Any]]) -> None:
        self._write, self.written = write, told
        self._pending: list[PendingSwitch] = []

    @property
    def pending(self) -> bool:
        """Return whether the last switch still waits for its stall or its commit."""
        return bool(self._pending)

    def begin(
        self, before: Phase, after: Phase, snapshot: Snapshot, times: StageTimes, unit_secs: float, commits: bool
    ) -> None:
        """Follow a switch.

        Args:
          before: the phase that was left.
          after: the phase that was entered.
          snapshot: the state between them.
          times: times of the switch's stages.
          unit_secs: seconds that the first update of `after` computes for, which is not part of the stall.
          commits: whether the switch is committed.
        """
        fields = {
            "from": before.spec,
            "to": after.spec,
            "reason": after.reason,
            "units": snapshot.held.units,
            "fingerprint": snapshot.held.fingerprint,
            **{f"{stage}_secs": times.secs[stage] for stage in ("drain", "capture", "reserve", "enter")},
        }
        self._pending.append(PendingSwitch(fields, snapshot.last_applied, unit_secs, commits))

    def committed(self, secs: float) -> None:
        """Note that the newest state is durable, which covers all switches before it."""
        for pending in self._pending:  # more than one where a switch's own commit failed: the next one covers it
            if pending.commits and pending.commit_secs is None:
                pending.commit_secs = secs

    def write_known(self, first_applied: float, compile_secs: float) -> None:
        """Write the switches of which all is known.

        Args:
          first_applied: time of the current phase's first update; 0 before it.
          compile_secs: seconds of compilation in the roles since that phase began.
        """
        for pending in list(self._pending):
            if pending.stall_secs is None and first_applied:
                stall = first_applied - pending.last_applied - pending.unit_secs if pending.last_applied else 0.0
                pending.stall_secs = max(0.0, stall)
            if pending.known:
                secs = {"commit_secs": pending.commit_secs, "stall_secs": pending.stall_secs}
                self.written.append(self._write("switch", **pending.fields, compile_secs=compile_secs, **secs))
                self._pending.remove(pending)

    def stalls(self, *, same_protocol: bool) -> tuple[float, ...]:
        """Return for how long each switch has kept the run from training: those of members alone, or of protocols."""
        stalls = (each["stall_secs"] for each in self.written if (each["from"] == each["to"]) == same_protocol)
        return tuple(secs for secs in stalls if secs is not None)

    def write_lost(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Write the switches that an earlier chief did not live to write (see `lost_switches`)."""
        self.written += [self._write("switch", **switch) for switch in lost_switches(events)]


def commits_switch(before: str, after: str, reason: str) -> bool:
    """Return whether a switch is committed: one of members or shares alone, by a policy, is not."""
    return before != after or reason in ("planned", "ordered")


def lost_switches(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields of the switches that a chief made since the run was started and did not live to write.

    A value that is lost is None: the seconds of the stages and the stall were in the chief's memory.

    Args:
      events: the run's events, in order.
    """
    started = max((index for index, event in enumerate(events) if event["kind"] == "run_started"), default=0)
    told = {(event["to"], event["units"], event["fingerprint"]) for event in events if event["kind"] == "switch"}
    commits = [event for event in events[started:] if event["kind"] == "checkpoint"]
    entered = [event for event in events[started:] if event["kind"] == "phase_entered"]
    return [
        {
            **dict.fromkeys(FIELDS["switch"]),
            "phase": after["phase"],
            "from": before["protocol"],
            "to": after["protocol"],
            "reason": after["reason"],
            "units": after["units"],
            "fingerprint": after["fingerprint"],
            # where the switch's own commit failed, the next one covers it, as for `Switches.committed`
            "commit_secs": next((commit["secs"] for commit in commits if commit["units"] >= after["units"]), None)
            if commits_switch(before["protocol"], after["protocol"], after["reason"])
            else None,
        }
        for before, after in itertools.pairwise(entered)
        if after["reason"] in SWITCHED and (after["protocol"], after["units"], after["fingerprint"]) not in told
    ]
