"""Emulated collectives: what workers sum and average takes as long as a ring over their emulated links would.

The members really meet, and the sum is really computed. From the moment at which the last of them came, all members are
kept waiting until the ring would have ended. Each member does so by itself: they came at one moment, and one formula
gives the time, here and in the simulator (`hybridsync.emulation.ring_model`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridsync.config import EmulationConfig
from hybridsync.core.clock import SYSTEM_CLOCK, Clock, pause
from hybridsync.core.errors import ConfigError
from hybridsync.emulation.link_delays import MOST_SECS, emulated_rings
from hybridsync.emulation.ring_model import Rings
from hybridsync.interfaces.messages import GroupReply

if TYPE_CHECKING:
    from hybridsync.collectives.backend import Communicator
    from hybridsync.training.averaging import AveragedPart


def emulates_rings(config: EmulationConfig) -> bool:
    """Return whether any collective of a run takes longer than this machine takes for it.

    A worker waits by itself for what slows it alone (`hybridsync.emulation.device`).

    >>> emulates_rings(EmulationConfig(link_bytes_per_sec=1e8)), emulates_rings(EmulationConfig(port_bytes_per_sec=1e8))
    (True, False)
    """
    return config.link_bytes_per_sec is not None or config.latency_secs > 0


@dataclass(frozen=True)
class CollectiveSizes:
    """Holds what one member brings to a collective, in bytes.

    Args:
      contribution: bytes for a sum.
      parameters: bytes for the mean of a group.
      state: bytes for a mean that includes the optimizer's state.
    """

    contribution: int
    parameters: int
    state: int


def check_rings(config: EmulationConfig, num_workers: int, num_bytes: int) -> None:
    """Refuse emulated links on which a collective would stand still for so long that its members are given up.

    Args:
      config: values to emulate.
      num_workers: number of workers of the run.
      num_bytes: the most that a member brings to a collective.

    Raises:
      ConfigError: a collective of all workers takes too long.
    """
    secs = emulated_rings(config).secs(num_bytes, num_workers)
    if secs > MOST_SECS:
        raise ConfigError(
            f"a ring all-reduce of {num_bytes:,} bytes among {num_workers} workers would take {secs:.3g} s with "
            f"emulation.link_bytes_per_sec={config.link_bytes_per_sec} and "
            f"emulation.latency_secs={config.latency_secs}, above the {MOST_SECS:g} s that members wait for it; "
            "emulate faster links, or a smaller model"
        )


class DelayedCommunicator:
    """The members of one phase behind emulated links: a `Communicator` around their own.

    Args:
      communicator: carries the bytes.
      members: worker ids of the phase.
      rings: computes when a collective ends.
      sizes: sizes in bytes of what a member contributes.
      clock: clock for the emulated collectives.
      wait: blocks for some seconds.
    """

    def __init__(
        self,
        communicator: Communicator,
        members: tuple[int, ...],
        rings: Rings,
        sizes: CollectiveSizes,
        clock: Clock = SYSTEM_CLOCK,
        wait: Callable[[float], None] = pause,
    ) -> None:
        self._communicator, self._members = communicator, members
        self.joint_gradient = communicator.joint_gradient
        self._rings, self._sizes, self._clock, self._wait = rings, sizes, clock, wait

    @property
    def met_at(self) -> float:
        """Return when all had come (see `Communicator.met_at`)."""
        return self._communicator.met_at

    def enter(self) -> None:
        """Meet the others (see `Communicator.enter`); that is not emulated."""
        self._communicator.enter()

    def pack(self, contribution: Any) -> bool:
        """Write a contribution where the sum reads it (see `Communicator.pack`)."""
        return self._communicator.pack(contribution)

    def sum(self, index: int, contribution: Any) -> Any:
        """Deliver a contribution (see `Communicator.sum`); the total is here when the emulated ring has ended."""
        total = self._communicator.sum(index, contribution)
        self._end_ring(self._members, self._sizes.contribution)
        return total

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why contributions are missing (see `Communicator.gather`); so few bytes take no time."""
        return self._communicator.gather(index, reasons)

    def group_mean(self, reply: GroupReply, worker: int, part: AveragedPart) -> AveragedPart:
        """Bring a part (see `Communicator.group_mean`); the mean is here when the emulated ring has ended."""
        mean = self._communicator.group_mean(reply, worker, part)
        self._end_ring(reply.members, self._sizes.state if reply.optimizer else self._sizes.parameters)
        return mean

    def break_off(self, reason: str) -> None:
        """End every pending call (see `Communicator.break_off`); a wait for a ring ends by itself."""
        self._communicator.break_off(reason)

    def _end_ring(self, members: tuple[int, ...], num_bytes: int) -> None:
        if len(members) < 2:
            return
        ring = self._rings.begin(self._communicator.met_at, members, len(members), num_bytes)
        if (secs := ring.arrives - self._clock.monotonic()) > 0:  # its ports are in no other ring until it has ended
            self._wait(secs)
