"""The captured copy of the state that a process in virtual time keeps for others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridsync.core.errors import StaleEpoch
from hybridsync.core.plan import Epoch
from hybridsync.core.units import Range
from hybridsync.interfaces.messages import Capture, Held
from hybridsync.simulator.arithmetic import Arithmetic


class CapturedState:
    """Keeps one captured state, until the next takes its place.

    Args:
      address: of the process that keeps it, for messages.
      arithmetic: tells a state's fingerprint and size.
    """

    def __init__(self, address: str, arithmetic: Arithmetic) -> None:
        self._address, self._arithmetic = address, arithmetic
        self._kept: tuple[Capture, Any] | None = None
        self._num_captures = 0

    def keep(
        self,
        state: Any,
        epoch: Epoch,
        *,
        sequence: int,
        applied: Iterable[Range],
        dropped: Iterable[Range],
        stamps: tuple[float, float] = (0.0, 0.0),
    ) -> Capture:
        """Keep `state` in place of the one before, and return what is said of it."""
        applied = tuple(applied)
        units = sum(stop - start for start, stop in applied)
        held = Held(epoch, units, sequence, self._arithmetic.fingerprint(state))
        self._num_captures += 1
        size = self._arithmetic.sizes.state
        capture = Capture(self._num_captures, held, applied, tuple(dropped), size, stamps[0], stamps[1])
        self._kept = capture, state
        return capture

    def read(self, capture_id: int) -> Any:
        """Return the state of a capture.

        Raises:
          StaleEpoch: another capture has taken its place.
        """
        if self._kept is None or self._kept[0].capture_id != capture_id:
            raise StaleEpoch(f"capture {capture_id} is no longer kept at {self._address}")
        return self._kept[1]
