"""What is measured, the same for every system: settings of digits, sizes of transfers and of sums; pure."""

from __future__ import annotations

from dataclasses import dataclass

WORKERS = 4
UNIT_SIZE = 32
RATE, MOMENTUM = 0.05, 0.9
"""Of SGD, for a lock-step update of all four workers' examples; an update of one worker's has a quarter of the rate."""
NUM_LEAVES = 100
"""Arrays of equal size that a transfer's parameters are made of."""
LOCKSTEP, ASYNC = "lockstep", "async"
PULL, EXCHANGE, UPDATE = "pull", "exchange", "update"


@dataclass(frozen=True)
class Digits:
    """Training of an MLP (64-256-256-10, 85,002 parameters) on the digits, by four workers.

    Args:
      name: of the setting.
      title: for people.
      units: batches of 32 that all workers together compute.
      compute_secs: what a unit takes at least; the rest is slept.
      slowdown: of one worker's compute.
    """

    name: str
    title: str
    units: int
    compute_secs: float = 0.0
    slowdown: float = 1.0

    def ideal(self, kind: str) -> float | None:
        """Return the examples a second that the compute alone allows; None where it is not emulated."""
        if not self.compute_secs:
            return None
        fast, slow = 1 / self.compute_secs, 1 / self.compute_secs / self.slowdown
        return UNIT_SIZE * (WORKERS * slow if kind == LOCKSTEP else (WORKERS - 1) * fast + slow)


@dataclass(frozen=True)
class Transfer:
    """Parameters between one worker and one server: 100 float32 arrays.

    Args:
      name: of the size.
      megabytes: of all parameters, one way.
      calls: of each operation.
    """

    name: str
    megabytes: float
    calls: int

    @property
    def title(self) -> str:
        return f"{self.megabytes:g} MB"

    def megabytes_of(self, operation: str) -> float:
        """Return what one call moves; a push with its reply counts both ways."""
        return self.megabytes * (1 if operation == PULL else 2)


@dataclass(frozen=True)
class AllReduce:
    """The sum of one float32 buffer over four processes.

    Args:
      name: of the size.
      floats: in the buffer.
      calls: in a row.
    """

    name: str
    floats: int
    calls: int

    @property
    def title(self) -> str:
        return f"{self.floats * 4e-6:g} MB" if self.floats >= 250_000 else f"{self.floats * 4e-3:g} kB"


Work = Digits | Transfer | AllReduce

DIGITS = (
    Digits("digits-busy", "as fast as it goes", 2400),
    Digits("digits-20ms", "emulated 20 ms", 1200, 0.02),
    Digits("digits-straggler", "emulated 20 ms, one worker 5 x slow", 480, 0.02, 5.0),
)
TRANSFERS = (Transfer("transfer-2MB", 2.0, 200), Transfer("transfer-100MB", 100.0, 15))
ALL_REDUCES = (
    AllReduce("allreduce-340kB", 85_000, 1000),
    AllReduce("allreduce-2MB", 500_000, 300),
    AllReduce("allreduce-20MB", 5_000_000, 40),
)
ALL: tuple[Work, ...] = (*DIGITS, *TRANSFERS, *ALL_REDUCES)
OPERATIONS = {
    PULL: "pull",
    EXCHANGE: "push and pull, stored",
    UPDATE: "push and pull, SGD with momentum",
}
"""What a worker and a server do, and how people read it: the server stores what it is sent, or updates with it."""


def case_of(work: Work, part: str = "") -> str:
    """Return the name of one figure of a work: of a kind of synchronisation, or of an operation.

    >>> case_of(DIGITS[0], LOCKSTEP), case_of(ALL_REDUCES[0])
    ('digits-busy/lockstep', 'allreduce-340kB')
    """
    return f"{work.name}/{part}" if part else work.name
