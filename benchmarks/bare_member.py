"""One of several processes that train digits in lock-step without the framework's loop, for `bsp_processes`.

They meet in the process group of the process runtime and run its three programs on its batches. Two loops in turns:
*flat* totals the gradients with one psum over the framework's flat buffer, *naive* with a psum for each
leaf of the tree. Member 0 prints the steps a second of each stretch as one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.jobs import DIGITS, ROOT
from hybridsync.collectives.backend import Place
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.config import load_config
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.runtime.wiring import HOST, collectives_of
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.run import Run

AXIS = "worker"
WARM_STEPS = 10

Total = Callable[[Any], Any]


class Everybody(NamedTuple):
    """Who sums (see `Membership`)."""

    members: tuple[int, ...]
    device_choice: int = 0
    id: PhaseId = NO_PHASE


def per_leaf(num_members: int) -> Total:
    """Return the total over all processes by one psum a leaf."""
    devices = [jax.local_devices(process_index=index)[0] for index in range(num_members)]
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    split, own = NamedSharding(mesh, PartitionSpec(AXIS)), jax.local_devices()[0]

    def psum(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf[0], AXIS), tree)

    program = jax.jit(jax.shard_map(psum, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec()))

    def place(leaf: Any) -> jax.Array:
        part = jax.device_put(np.asarray(leaf)[None], own)
        return jax.make_array_from_single_device_arrays((num_members, *leaf.shape), split, [part])

    def total(contribution: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), program(jax.tree.map(place, contribution)))

    return total


def main() -> None:
    """Join, train both ways in turns, and print how fast that was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--flat_steps", type=int, required=True)
    parser.add_argument("--naive_steps", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--compute_secs", type=float, required=True)
    options = parser.parse_args()
    slot, num_members = options.slot, options.members
    everybody = Everybody(tuple(range(num_members)))
    place = Place(options.coordinator, slot, everybody.members, "127.0.0.1", NUM_DEVICES)
    make_collectives = collectives_of(HOST).join(place)
    loaded = load_config(ROOT / DIGITS)
    run = Run(loaded.config, loaded.module.task(loaded.config), loaded.module.optimizer(loaded.config), None)
    programs = run.programs(donate_parameters=True)
    communicator = make_collectives(programs).communicator(everybody)
    communicator.enter()

    def steps_per_sec(num_steps: int, total: Total) -> float:
        state = jax.device_put(run.initial_state(), jax.local_devices()[0])
        began = 0.0
        for step in range(-WARM_STEPS, num_steps):
            if step == 0:
                began = SYSTEM_CLOCK.monotonic()
            unit = (step + WARM_STEPS) * num_members + slot
            started = SYSTEM_CLOCK.monotonic()
            contribution = programs.gradient(Parameters(state.params, state.model_state), unit)
            jax.block_until_ready(contribution)
            pause(started + options.compute_secs - SYSTEM_CLOCK.monotonic())
            state = programs.update(state, total(contribution), units=num_members, factor=float(num_members), blend=1.0)
        jax.block_until_ready(state)
        return num_steps / (SYSTEM_CLOCK.monotonic() - began)

    loops: dict[str, tuple[int, Total]] = {"flat": (options.flat_steps, lambda c: communicator.sum(slot, c))}
    if options.naive_steps:
        loops["naive"] = (options.naive_steps, per_leaf(num_members))
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(options.rounds):
        for name, (num_steps, total) in loops.items():
            found[name].append(steps_per_sec(num_steps, total))
    if slot == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
