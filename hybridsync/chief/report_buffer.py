"""Buffers what roles report until the controller takes it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hybridsync.chief.bad_units import Quarantined
from hybridsync.interfaces.messages import Hello, RoleEvent
from hybridsync.interfaces.reports import Report, Span
from hybridsync.policies.straggler_detector import Decision
from hybridsync.telemetry.host_units import HostWorker


@dataclass
class ReportBuffer:
    """Adds up what roles reported since the controller took the last buffer.

    Args:
      loss_sum: sum of the losses of `num_losses` units.
      staleness: staleness of each update, in updates.
      compile_secs: compilation time of all roles together, in seconds.
      compute_secs: worker -> seconds.
      read_secs: worker -> seconds that it read the data of its units, or waited for them.
      wait_secs: worker -> seconds that it waited for others or for a transfer.
      peak_secs: worker -> seconds that its units would have taken at the peak of its devices.
      sent_bytes, received_bytes: worker -> bytes of gradients and states.
      applied_by: (host, worker) -> units that were applied while that worker had them there.
      spans: (role, id, spans, seconds that its clock lacks to the chief's).
      joined: first words of new processes.
      restarted: processes that were started in the place of others.
      lost: roles that are gone.
      quarantined: units that are left out from now on.
      unfit: workers whose place stays empty from now on.
      decisions: changes of the stragglers: which worker is one from now on, and which no longer.
      stops: reasons for which the run's user stops it.
      sharers: workers that compute on devices of each other, where these have changed.
    """

    loss_sum: float = 0.0
    num_losses: int = 0
    staleness: list[int] = field(default_factory=list)
    compile_secs: float = 0.0
    compute_secs: dict[int, float] = field(default_factory=dict)
    read_secs: dict[int, float] = field(default_factory=dict)
    wait_secs: dict[int, float] = field(default_factory=dict)
    peak_secs: dict[int, float] = field(default_factory=dict)
    sent_bytes: dict[int, int] = field(default_factory=dict)
    received_bytes: dict[int, int] = field(default_factory=dict)
    applied_by: Counter[HostWorker] = field(default_factory=Counter)
    spans: list[tuple[str, int, tuple[Span, ...], float]] = field(default_factory=list)
    joined: list[Hello] = field(default_factory=list)
    restarted: list[RoleEvent] = field(default_factory=list)
    lost: list[RoleEvent] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    unfit: list[RoleEvent] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    sharers: frozenset[int] = frozenset()

    def add(self, report: Report, offset: float) -> None:
        """Add a report of a role whose clock lacks `offset` seconds to the chief's."""
        self.loss_sum += report.loss_sum
        self.num_losses += report.num_losses
        self.staleness.extend(report.staleness)
        self.compile_secs += report.compile_secs
        if report.role == "worker":
            self.compute_secs[report.id] = self.compute_secs.get(report.id, 0.0) + report.compute_secs
            self.read_secs[report.id] = self.read_secs.get(report.id, 0.0) + report.read_secs
            self.wait_secs[report.id] = self.wait_secs.get(report.id, 0.0) + report.wait_secs
            if report.peak_secs:
                self.peak_secs[report.id] = self.peak_secs.get(report.id, 0.0) + report.peak_secs
            self.sent_bytes[report.id] = self.sent_bytes.get(report.id, 0) + report.sent_bytes
            self.received_bytes[report.id] = self.received_bytes.get(report.id, 0) + report.received_bytes
        if report.spans:
            self.spans.append((report.role, report.id, report.spans, offset))
