"""The captured copy of the state that a process in virtual time keeps for others."""

from __future__ import annotations

from typing import Any

from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.lab.simulator.arithmetic import Arithmetic
from hybridsync.training.snapshot import Account


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
        account: Account,
    ) -> Snapshot:
        """Keep `state` in place of the one before, and return what is said of it."""
        held = StateVersion(phase_id, account.units, account.sequence, self._arithmetic.fingerprint(state))
        self._num_snapshots += 1
        snapshot = Snapshot(
            self._num_snapshots,
            held,
            account.applied,
            dropped=account.dropped,
            num_bytes=self._arithmetic.sizes.state,
            first_applied=account.first_applied,
            last_applied=account.last_applied,
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
