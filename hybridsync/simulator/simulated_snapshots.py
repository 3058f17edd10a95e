"""The captured copy of the state that a process in virtual time keeps for others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.simulator.arithmetic import Arithmetic


class SimulatedSnapshots:
    """Keeps one captured state, until the next takes its place.

    Args:
      address: address of the process that keeps it, for messages.
      arithmetic: computes a state's fingerprint and size.
    """

    def __init__(self, address: str, arithmetic: Arithmetic) -> None:
        self._address, self._arithmetic = address, arithmetic
        self._kept: tuple[Snapshot, Any] | None = None
        self._num_snapshots = 0

    def store(
        self,
        state: Any,
        phase_id: PhaseId,
        *,
        sequence: int,
        applied: Iterable[Range],
        dropped: Iterable[Range],
        stamps: tuple[float, float] = (0.0, 0.0),
    ) -> Snapshot:
        """Keep `state` in place of the one before, and return what is said of it."""
        applied = tuple(applied)
        units = sum(stop - start for start, stop in applied)
        held = StateVersion(phase_id, units, sequence, self._arithmetic.fingerprint(state))
        self._num_snapshots += 1
        size = self._arithmetic.sizes.state
        snapshot = Snapshot(
            self._num_snapshots,
            held,
            applied,
            dropped=tuple(dropped),
            num_bytes=size,
            first_applied=stamps[0],
            last_applied=stamps[1],
        )
        self._kept = snapshot, state
        return snapshot

    def read(self, snapshot_id: int) -> Any:
        """Return the state of a snapshot.

        Raises:
          StalePhase: another snapshot has taken its place.
        """
        if self._kept is None or self._kept[0].snapshot_id != snapshot_id:
            raise StalePhase(f"snapshot {snapshot_id} is no longer kept at {self._address}")
        return self._kept[1]
