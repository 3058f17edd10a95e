"""The collective of lock-step training: one flat sum over the members of a mesh of the process group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hybridsync.collectives.mesh.process_group import CollectiveBroken
from hybridsync.core.errors import HybridSyncError

_AXIS = "worker"
_QUICK_TEST_FLOATS = 4096
_SELF_TEST_PERIOD = 251  # the self-test's sums stay exact in float32 up to 360 members


class MeshSum:
    """Sums one flat buffer, and takes the maximum of another, over the members of a mesh. Made by `ProcessGroup.mesh`.

    The sum is plain: for a mean, the caller puts the weights in the buffer. The condition's lock guards `_dead` and
    `_busy`, which the control thread reads and sets while the main thread is in a call.

    Args:
      members: slots in mesh order; the order decides the rounding.
      device_choice: number of the choice of the members' devices, for messages.
      devices: one `jax.Device` of each member, in this order.
      process_index: the slot of this process.
      arrive: `arrive(timeout_secs, check)` returns when all members have come here.

    Attributes:
      members: as given.
      device_choice: as given.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        device_choice: int,
        devices: list[Any],
        process_index: int,
        arrive: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self.members = members
        self.device_choice = device_choice
        self._mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
        self._sharding = NamedSharding(self._mesh, PartitionSpec(_AXIS))
        self._programs: dict[tuple[int, int], Any] = {}
        self._position = members.index(process_index)
        self._device = devices[self._position]
        self._arrive = arrive
        self._met = False
        self._condition = threading.Condition()
        self._dead = ""
        self._busy = False

    def __call__(self, floats: np.ndarray, ints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum `floats` and take the maximum of `ints` over the members; all of them call it alike.

        The caller's buffers may be reused as soon as this returns or raises.

        Args:
          floats: float32, one dimension, contiguous; not copied when aligned to 64 bytes.
          ints: int32, one dimension; empty where there is nothing to take the maximum of.

        Returns:
          The sum and the maximum, read-only, in memory of their own.

        Raises:
          CollectiveBroken: a member is gone or the phase was revoked; the next mesh needs another device choice.
        """
        assert floats.dtype == np.float32 and floats.ndim == 1 and floats.flags.c_contiguous
        assert ints.dtype == np.int32 and ints.ndim == 1
        with self._condition:
            self._check()
            self._busy = True
        try:
            parts = (self._place(floats), self._place(ints)) if ints.size else (self._place(floats),)
            results = self._program(floats.size, ints.size)(*parts)
            jax.block_until_ready(results)
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # the latter where it fails while it is dispatched
            self.kill(str(error).splitlines()[0])
            raise CollectiveBroken(self._obituary()) from error
        finally:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
        total, *highest = (np.asarray(result.addressable_data(0)) for result in results)
        return total, highest[0] if highest else ints

    def compile(self, num_floats: int, num_ints: int) -> None:
        """Compile what `warm` will run, without the others.

        Args:
          num_floats: size of the run's float buffer.
          num_ints: size of its integer buffer.
        """
        for size in {num_floats, min(num_floats, _QUICK_TEST_FLOATS)}:
            self._program(size, num_ints)

    def warm(self, num_floats: int, num_ints: int, *, timeout_secs: float = 60.0) -> None:
        """Meet the others, compile, connect, and prove the sum on known integers: first of a phase.

        The first time the proof has the run's full size; a mesh that is entered again proves itself on a short buffer.

        Args:
          num_floats: size of the run's float buffer.
          num_ints: size of its integer buffer.
          timeout_secs: how long to wait for the other members. When all are there, connecting is quick; should one
            die in that very moment, only `ProcessGroup.break_collective` ends the wait early.

        Raises:
          WaitTimeout: a member did not come; the message names it.
          CollectiveBroken: a member died, or the phase was revoked.
          HybridSyncError: a sum or maximum is wrong.
        """
        if not self._met:
            self.compile(num_floats, num_ints)  # before they meet: a death during connecting is noticed late
            self._meet(timeout_secs)
            self._prove(num_floats, num_ints)
        self._prove(min(num_floats, _QUICK_TEST_FLOATS), num_ints)

    def _meet(self, timeout_secs: float) -> None:
        try:
            self._arrive(timeout_secs, self._check)
        except jax.errors.JaxRuntimeError as error:  # the coordination service has gone with its host
            self.kill(str(error).splitlines()[0])
            raise CollectiveBroken(self._obituary()) from error
        self._met = True

    def _prove(self, num_floats: int, num_ints: int) -> None:
        num_members = len(self.members)
        pattern = np.resize(np.arange(1, _SELF_TEST_PERIOD + 1, dtype=np.float32), num_floats)
        ramp = np.arange(num_ints, dtype=np.int32)
        total, highest = self(pattern * np.float32(self._position + 1), ramp * (self._position + 1))
        self._verify("sum", total, pattern * np.float32(num_members * (num_members + 1) // 2))
        self._verify("maximum", highest, ramp * num_members)

    def kill(self, reason: str) -> None:
        """Refuse every later call: a mesh that lost a member never works again."""
        with self._condition:
            self._dead = self._dead or reason

    def release(self) -> None:
        """Free the compiled programs, 3 MB a mesh; a mesh that is entered again compiles them anew."""
        self._programs.clear()

    @property
    def dead(self) -> bool:
        """Return whether every later call is refused."""
        return bool(self._dead)

    def wait_idle(self, timeout_secs: float) -> bool:
        """Wait until no call is under way, and return whether that is so."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._busy, timeout_secs)

    def _program(self, num_floats: int, num_ints: int) -> Callable[..., tuple[jax.Array, ...]]:
        """Return the compiled total over buffers of these sizes.

        The jitted function is not kept: it would hold on to what it compiled.
        """
        split, whole = PartitionSpec(_AXIS), PartitionSpec()

        def total(floats: jax.Array) -> tuple[jax.Array]:
            return (jax.lax.psum(floats, _AXIS),)

        def total_and_highest(floats: jax.Array, ints: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.lax.psum(floats, _AXIS), jax.lax.pmax(ints, _AXIS)

        key = num_floats, num_ints
        if key not in self._programs:
            sizes = [(num_floats, np.float32), *([(num_ints, np.int32)] if num_ints else [])]
            shapes = [
                jax.ShapeDtypeStruct((size * len(self.members),), dtype, sharding=self._sharding)
                for size, dtype in sizes
            ]
            function = total_and_highest if num_ints else total
            mapped = jax.shard_map(
                function, mesh=self._mesh, in_specs=(split,) * len(sizes), out_specs=(whole,) * len(sizes)
            )
            self._programs[key] = jax.jit(mapped).lower(*shapes).compile()
        return self._programs[key]

    def _place(self, local: np.ndarray) -> jax.Array:
        shape = (local.size * len(self.members),)
        parts = [jax.device_put(local, self._device)]
        return jax.make_array_from_single_device_arrays(shape, self._sharding, parts)

    def _check(self) -> None:
        if self._dead:
            raise CollectiveBroken(self._obituary())

    def _obituary(self) -> str:
        return (
            f"the collective over workers {list(self.members)} on device choice {self.device_choice} is dead: "
            f"{self._dead}; enter the next phase on another device choice"
        )

    def _verify(self, what: str, got: np.ndarray, expected: np.ndarray) -> None:
        if np.array_equal(got, expected):
            return
        where = int(np.argmax(got != expected))
        raise HybridSyncError(
            f"the {what} of known integers over workers {list(self.members)} on device choice {self.device_choice} is "
            f"wrong: entry {where} of {got.size} is {got[where]}, not {expected[where]}; do not train over these "
            "collectives, report it with the versions of jax and jaxlib"
        )
