"""Makes the mesh backend's communicator of each phase: sums over all members' mesh, means over those of groups."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from hybridsync.collectives.backend import CommunicatorPhase, JointGradient
from hybridsync.collectives.mesh.flat_sum import MeshSum
from hybridsync.collectives.mesh.process_group import CollectiveBroken, ProcessGroup
from hybridsync.collectives.packing import FlatContributions, FlatParts
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import PhaseRevoked
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.state import TrainState

REASON_BYTES = 256
"""Longest text that is told of why a unit was dropped."""

MAX_MESHES = 64
"""Groups whose compiled sums are kept, 3 MB each; one that is formed again later compiles its own anew."""

MAX_AHEAD = 16
"""Groups that are compiled before anybody trains: all of a worker's, of up to five workers."""


class MeshCommunicator:
    """The members of one phase (see `Communicator`). A group's mesh takes the devices of the phase's device choice.

    The lock guards the mesh that is in use, which the control thread breaks. One that lost a member is never entered
    again, because the next phase has another device choice.

    Args:
      process_group: the process group of the workers.
      phase: the phase whose members sum.
      flat: the run's packing of contributions, shared by all phases.
      flats: the run's packing of what groups average, shared by all phases.

    Attributes:
      met_at: the end of the last sum or mean, because gloo does not report when the last member came (see
        `Communicator.met_at`).
    """

    joint_gradient: JointGradient | None = None  # each runs its own program

    def __init__(
        self, process_group: ProcessGroup, phase: CommunicatorPhase, flat: FlatContributions, flats: FlatParts
    ) -> None:
        self._process_group, self._phase, self._flat, self._flats = process_group, phase, flat, flats
        self._lock = threading.Lock()
        self._mesh: MeshSum  # of all members, once it is entered
        self._current: MeshSum | None = None
        self._broken = ""
        self._packed: Any = None  # the contribution in the buffer, until it is summed
        self._met: set[tuple[int, ...]] = set()
        self._compiled: OrderedDict[tuple[int, ...], MeshSum] = OrderedDict()
        self.met_at = 0.0

    def enter(self) -> None:
        """Meet the others and prove the sum on known integers (see `Communicator.enter`)."""
        with _revoking():
            self._mesh = self._use(self._phase.members)
            self._mesh.warm(self._flat.num_floats, self._flat.num_ints)

    def pack(self, contribution: Any) -> bool:
        """Write a contribution into the buffer that is summed (see `Communicator.pack`)."""
        self._flat.split(contribution)
        self._packed = contribution
        return self._flat.layout.is_finite(self._flat.buffer)

    def sum(self, index: int, contribution: Any) -> Any:
        """Deliver a contribution (see `Communicator.sum`)."""
        if contribution is not self._packed:
            self._flat.split(contribution)
        self._packed = None
        with _revoking():
            floats, ints = self._mesh(*self._flat.parts(self._flat.buffer))
        self.met_at = SYSTEM_CLOCK.monotonic()
        return self._flat.join(floats, ints)

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why contributions are missing (see `Communicator.gather`).

        Each member fills its own rows with the bytes of its reasons, at most REASON_BYTES of each, and the sum has the
        rows of all members.
        """
        rows = np.zeros((len(self._phase.members), len(reasons), REASON_BYTES), np.float32)
        for row, reason in zip(rows[index], reasons, strict=True):
            text = reason.encode()[:REASON_BYTES]
            row[: len(text)] = np.frombuffer(text, np.uint8)
        with _revoking():
            total, _ = self._mesh(rows.reshape(-1), np.empty(0, np.int32))
        texts = total.reshape(rows.shape).astype(np.uint8)
        return tuple(tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in member) for member in texts)

    def group_mean(self, reply: GroupReply, worker: int, part: AveragedPart) -> AveragedPart:
        """Bring a part (see `Communicator.group_mean`)."""
        kind = self._flats[reply.optimizer]
        floats, ints = kind.split(part)
        try:
            with _revoking():
                total, highest = self._enter_group(reply.members, kind.flat)(floats, ints)
        finally:
            with self._lock:
                self._current = None
        self.met_at = SYSTEM_CLOCK.monotonic()
        return kind.join(total / np.float32(len(reply.members)), highest)

    def break_off(self, reason: str) -> None:
        """Make the current call raise; called by the control thread (see `Communicator.break_off`)."""
        with self._lock:
            self._broken = self._broken or reason
            mesh = self._current
        if mesh is not None:
            self._process_group.break_collective(mesh, reason)

    def _use(self, members: tuple[int, ...]) -> MeshSum:
        """Return the members' mesh, as the one that the control thread breaks from now on."""
        mesh = self._process_group.mesh(members, self._phase.device_choice)
        with self._lock:
            if self._broken:
                raise PhaseRevoked(self._broken)
            self._current = mesh
        return mesh

    def _enter_group(self, members: tuple[int, ...], flat: FlatContributions) -> MeshSum:
        """Return the members' mesh, connected: the first time they meet, and prove the sum on known integers."""
        mesh = self._use(members)
        if members not in self._met:  # which all of them find alike; what is compiled is each one's own affair
            mesh.warm(flat.num_floats, flat.num_ints)
            self._met.add(members)
        self._compiled[members] = mesh
        self._compiled.move_to_end(members)
        if len(self._compiled) > MAX_MESHES:
            _, oldest = self._compiled.popitem(last=False)
            oldest.release()
        return mesh


class MeshCollectives:
    """Makes the communicators of one worker (see `Collectives`).

    Args:
      process_group: the process group that this worker has joined.
      programs: the run's compiled programs.
    """

    def __init__(self, process_group: ProcessGroup, programs: Programs) -> None:
        self._process_group, self._state = process_group, programs.moving(programs.state)
        self._flat, self._flats = FlatContributions(programs.contribution_layout), FlatParts(self._state)

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """Compile for the first device choice: the members meet when a phase names it (see `Collectives.prepare`)."""
        process_group = self._process_group
        process_group.mesh(process_group.slots, 0).compile(self._flat.num_floats, self._flat.num_ints)
        if groups:
            compile_groups(process_group, self._flats, self._state)

    def rest(self) -> None:
        """Let go of the buffers of contributions (see `Collectives.rest`)."""
        self._flat.rest()

    def communicator(self, phase: CommunicatorPhase) -> MeshCommunicator:
        """Return the communicator of a phase (see `Collectives.communicator`)."""
        return MeshCommunicator(self._process_group, phase, self._flat, self._flats)


def compile_groups(process_group: ProcessGroup, flats: FlatParts, state: TrainState) -> None:
    """Compile the programs of all groups on the run's first device choice, where the workers are few enough.

    Args:
      process_group: the process group of the workers.
      flats: the run's packing.
      state: training state, for its shapes.
    """
    flats.compile(state)
    others = [worker for worker in process_group.slots if worker != process_group.process_index]
    if 2 ** len(others) > MAX_AHEAD:
        return
    for size in range(1, len(others) + 1):
        for chosen in itertools.combinations(others, size):
            mesh = process_group.mesh(sorted((process_group.process_index, *chosen)), 0)
            for optimizer in (False, True)[: 1 + (size == len(others))]:
                mesh.compile(flats[optimizer].flat.num_floats, flats[optimizer].flat.num_ints)


@contextlib.contextmanager
def _revoking() -> Iterator[None]:
    """Say that the phase is revoked where a collective breaks."""
    try:
        yield
    except CollectiveBroken as broken:
        raise PhaseRevoked(str(broken)) from broken
