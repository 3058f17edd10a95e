"""What tests compute on eight devices (see `forced.py`): each function returns what a test looks at."""

from __future__ import annotations

import dataclasses
import itertools
import math
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest import mock

import jax
import numpy as np
from absl import logging

from hybridsync import DeviceConfig, TelemetryConfig, Trainer
from hybridsync import trainer as trainer_module
from hybridsync.collectives.one_process import collectives_of
from hybridsync.devices import staging
from hybridsync.devices.placement import DevicePlacement, Placement, local_devices
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import replay
from hybridsync.losses import language_model
from hybridsync.telemetry.events import read_events
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.training.task import Task
from tests.compilations import count_compilations
from tests.devices.decoders import PATHS, RULES, ConstrainedDecoder, decoder, source
from tests.roles import phase_of
from tests.tasks import batchnorm_task, momentum_sgd
from tests.trainers import NEVER, mlp_trainer

BOTH = {"fsdp": 2, "tensor": 2}


def mesh_config(kind: str, mesh: dict[str, int] = BOTH) -> DeviceConfig:
    """Return a mesh for a decoder: "nnx" and "linen" lie by their annotations, "paths" and "size" have none."""
    rules = RULES if kind in ("nnx", "linen") else ()
    return DeviceConfig(mesh=mesh, rules=rules, paths=PATHS if kind == "paths" else ())


def task_of(kind: str) -> Any:
    """Return the decoder of that kind of places."""
    return decoder(kind) if kind in ("nnx", "linen") else decoder("nnx", annotated=False)


def run_of(kind: str, workers: int = 2, **fields: Any) -> Run:
    """Return a run of a decoder on meshes."""
    trainer = Trainer(
        task_of(kind),
        momentum_sgd(0.1),
        workload=1000,
        workers=workers,
        **{"unit_size": 8, "devices": mesh_config(kind), **fields},
    )
    return trainer._run


def programs_of(run: Run) -> tuple[Programs, Placement]:
    """Return a run's programs where its workers compute."""
    placement = run.placement(jax.local_devices(), run.config.workers)
    return run.programs(donate_parameters=False, placement=placement), placement


def stepped(programs: Programs, state: TrainState, units: range) -> TrainState:
    """Return the state after a lock-step step with one unit of each worker, summed as the run's threads do."""
    at = programs.placement
    state = at.put(state)
    views = at.views(Parameters(state.params, state.model_state))
    gradients = [programs.gradient(views[k % len(views)], unit, worker=k) for k, unit in enumerate(units)]
    communicator = collectives_of(programs).communicator(phase_of(members=tuple(range(len(units)))))
    total = at.at_replica(summed(communicator, gradients))
    return programs.update(state, total, units=len(units), factor=float(len(units)), blend=1.0)


def summed(communicator: Any, contributions: list[Any]) -> Any:
    """Return the sum that every member gets."""
    totals: dict[int, Any] = {}

    def member(index: int) -> None:
        totals[index] = communicator.sum(index, contributions[index])

    threads = [threading.Thread(target=member, args=(index,)) for index in range(len(contributions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return totals[0]


def places(tree: Any) -> dict[str, str]:
    """Return the path of each leaf -> its axes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(keys, simple=True, separator="/"): str(tuple(leaf.sharding.spec)) for keys, leaf in leaves
    }


def staged_shards() -> dict[str, Any]:
    """Return how divided leaves came through pinned memory, and whether they are what they were."""
    programs, placement = programs_of(run_of("size"))
    leaves = jax.tree.leaves(placement.put(jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), programs.state)))
    divided = [leaf for leaf in leaves if not leaf.sharding.is_fully_replicated]
    assert divided
    with mock.patch.object(staging, "STAGED_PLATFORMS", frozenset({"cpu"})):
        pinned = staging._to_pinned(tuple(leaf.sharding for leaf in divided))(divided)
        arrays = staging.host_arrays(leaves)
    return {
        "kinds": sorted({leaf.sharding.memory_kind for leaf in pinned}),
        "equal": all(np.array_equal(leaf, array) for leaf, array in zip(leaves, arrays, strict=True)),
    }


def flops_of_a_unit() -> tuple[float, float, list[str]]:
    """Return the operations of a device for a unit on one device, and on a mesh of four, and what was compiled."""
    run = run_of("size")
    found, compiled = [], []
    for programs in (run.programs(donate_parameters=False), programs_of(run)[0]):
        state = programs.placement.put(run.initial_state())
        parameters = Parameters(state.params, state.model_state)
        jax.block_until_ready(programs.gradient(parameters, 0))
        batch = programs.batch(1)
        with count_compilations() as names:
            found.append(programs.gradient_flops(parameters, batch))
        compiled += names
    return found[0], found[1], compiled


def where_leaves_lie(kind: str) -> tuple[dict[str, str], dict[str, str], Any]:
    """Return the places of a state's parameters and optimizer state after an update, and each worker's device ids."""
    run = run_of(kind)
    programs, placement = programs_of(run)
    start = jax.device_get(run.initial_state())
    state = stepped(programs, stepped(programs, start, range(2)), range(2, 4))
    views = placement.views(Parameters(state.params, state.model_state))
    for view in views:
        assert places(view.params) == places(state.params), "what a worker sees is divided alike"
    ids = [sorted(device.id for device in jax.tree.leaves(view)[0].sharding.device_set) for view in views]
    return places(state.params), places(state.opt_state), ids


def farthest_from_one_device(kind: str, steps: int) -> float:
    """Return the largest difference that one step makes, each from the state of the mesh, to a step on one device."""
    run = run_of(kind)
    programs, _ = programs_of(run)
    alone = run.programs(donate_parameters=False)
    state, farthest = jax.device_get(run.initial_state()), 0.0
    for step in range(steps):
        units = range(2 * step, 2 * step + 2)
        after = jax.device_get(stepped(programs, state, units))
        other = jax.device_get(stepped(alone, state, units))
        for ours, theirs in zip(jax.tree.leaves(after.params), jax.tree.leaves(other.params), strict=True):
            farthest = max(farthest, float(np.abs(ours - theirs).max()))
        state = after
    return farthest


def hand_over(kind: str) -> tuple[str, str, str]:
    """Return the fingerprint of a state on a mesh, packed from it, and back on the devices."""
    run = run_of(kind)
    programs, placement = programs_of(run)
    state = stepped(programs, jax.device_get(run.initial_state()), range(2))
    packed = Layout.of(state).pack(state)
    unpacked = programs.state_layout.unpack(packed)
    return fingerprint(state), fingerprint(unpacked), fingerprint(jax.device_get(placement.put(unpacked)))


def put_and_written_again(kind: str) -> tuple[str, str]:
    """Return the fingerprint of a state, and of what lies on the devices when its memory has been written again."""
    programs, placement = programs_of(run_of(kind))
    layout = programs.state_layout
    buffer = np.frombuffer(mmap.mmap(-1, layout.nbytes), np.uint8)  # aligned as memory that roles lend is
    buffer[:] = 3
    before = fingerprint(layout.unpack(buffer))
    put = placement.put(layout.unpack(buffer))
    buffer[:] = 5
    return before, fingerprint(jax.device_get(put))


def trained(kind: str, plan: str, workload: int, mesh: dict[str, int] = BOTH, **options: Any) -> tuple[bool, float]:
    """Train a decoder on 2 workers with meshes; returns whether it completed, and the loss on held-out windows."""
    trainer = Trainer(
        task_of(kind),
        momentum_sgd(0.02),
        workload=workload,
        unit_size=8,
        workers=2,
        plan=plan,
        progress=False,
        checkpoint=NEVER,
        devices=mesh_config(kind, mesh),
        **options,
    )
    result = trainer.fit()
    assert result.loss is not None
    return result.completed, result.loss


def bits(task: str, plan: str, workload: int, collective: str, num_devices: int, **options: Any) -> str:
    """Return the fingerprint of a run's final state on so many devices."""
    devices = local_devices("auto")[:num_devices]
    with mock.patch.object(trainer_module, "local_devices", lambda platform: devices):
        trainer = mlp_trainer(plan, workload, devices=DeviceConfig(collective=cast("Any", collective)), **options)
        if task == "batchnorm":
            config = trainer._run.config
            trainer = Trainer(batchnorm_task(), momentum_sgd(0.02), config, progress=False, **options)
        return fingerprint(trainer.fit().state)


ODD_UNIT = 21
"""A unit in the middle of a step in the middle of a run."""


class OddSource:
    """A source with a field `odd`, whose unit `ODD_UNIT` is not as the others: of another value, or another length."""

    def __init__(self, source: Any, odd: str) -> None:
        self._source, self._odd = source, odd

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def batch(self, unit: int, *, unit_size: int, seed: int) -> Any:
        is_odd = unit == ODD_UNIT
        shape = unit_size, 2 if is_odd and self._odd == "length" else 1
        value = np.nan if is_odd and self._odd == "value" else 1.0
        return {
            **self._source.batch(unit, unit_size=unit_size, seed=seed),
            "odd": np.full(shape, value, np.float32),
        }

    def augment(self, batch: Any, key: Any) -> Any:
        return {**self._source.augment(batch, key), "odd": batch["odd"]}


def with_an_odd_unit(odd: str, collective: str) -> tuple[str, int, list[int]]:
    """Train lock-step steps of four workers; return the final bits, the units dropped, and who ran a program alone."""
    task, alone = batchnorm_task(), []

    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        value, rest = task.loss(params, model_state, batch, key)
        return value * batch["odd"].mean(), rest

    gradient = Programs.gradient

    def noted(programs: Programs, parameters: Any, unit: int, *args: Any, **named: Any) -> Any:
        alone.append(unit)
        return gradient(programs, parameters, unit, *args, **named)

    config = mlp_trainer("bsp", 80, devices=DeviceConfig(collective=cast("Any", collective)))._run.config
    task = dataclasses.replace(task, source=cast("Any", OddSource(task.source, odd)))
    odd_task = dataclasses.replace(task, loss=loss)
    devices = local_devices("auto")[: 1 if collective == "auto" else 4]
    with (
        mock.patch.object(trainer_module, "local_devices", lambda platform: devices),
        mock.patch.object(Programs, "gradient", noted),
    ):
        result = Trainer(odd_task, momentum_sgd(0.02), config, progress=False).fit()
    return fingerprint(result.state), result.summary.units.dropped, sorted(alone)


def joint_gradients_of(members: list[int]) -> bool:
    """Return whether an update of gradients of one program has the bits of one of their own, if they may share one."""
    programs, at = programs_of(mlp_trainer("bsp", devices=DeviceConfig(collective="xla"))._run)
    state, other = (at.put(jax.device_get(mlp_trainer("bsp")._run.initial_state())) for _ in range(2))
    parameters = Parameters(state.params, state.model_state)
    communicator = cast("Any", collectives_of(programs).communicator(phase_of(members=tuple(members))))
    if communicator.joint_gradient is None:
        return False

    def step(index: int) -> Any:
        share = communicator.joint_gradient(index, 7 + index, programs.batch(7 + index), parameters)
        return communicator.sum(index, share)

    with ThreadPoolExecutor(len(members)) as threads:
        total, *_ = threads.map(step, range(len(members)))
    views = at.views(parameters)
    own = [programs.gradient(views[worker], 7 + k, worker=worker) for k, worker in enumerate(members)]
    expected = summed(collectives_of(programs).communicator(phase_of(members=tuple(members))), own)
    how = {"units": len(members), "factor": 1.0, "blend": 1.0}
    after = programs.update(state, at.at_replica(total), **how)
    assert fingerprint(after) == fingerprint(programs.update(other, at.at_replica(expected), **how))
    return True


def compiled_while_members_change() -> tuple[list[str], list[str], int]:
    """Return what is compiled in a step of all, then in steps of fewer members and of all again; and the units."""
    run = run_of("size", workers=4, devices=DeviceConfig())
    programs, at = programs_of(run)
    collectives = collectives_of(programs)
    state, units = at.put(jax.device_get(run.initial_state())), itertools.count()

    def step(members: tuple[int, ...]) -> None:
        nonlocal state
        views = at.views(Parameters(state.params, state.model_state))
        gradients = [programs.gradient(views[worker], next(units), worker=worker) for worker in members]
        total = at.at_replica(summed(collectives.communicator(phase_of(members=members)), gradients))
        assert float(total["floats"]["weight"]) == len(members)
        state = programs.update(state, total, units=len(members), factor=1.0, blend=1.0)

    with count_compilations() as at_first:
        step((0, 1, 2, 3))
    with count_compilations() as later:
        for members in ((0, 1, 3), (2,), (3, 1), (0, 1, 2, 3)):
            step(members)
    return at_first, later, int(state.counters["units"])


def sum_of_fewer(members: list[int]) -> bool:
    """Return whether the sum of some members has the bits of their ordered sum."""
    run = run_of("size", workers=4, devices=DeviceConfig())
    programs, at = programs_of(run)
    random = np.random.default_rng(0)

    def contribution() -> Any:
        return jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), programs.contribution)

    brought = [contribution() for _ in members]
    placed = [at.at_worker(each, worker) for each, worker in zip(brought, members, strict=True)]
    total = summed(collectives_of(programs).communicator(phase_of(members=tuple(members))), placed)
    expected = run.programs(donate_parameters=False).total(tuple(brought))
    return fingerprint(jax.device_get(total)) == fingerprint(jax.device_get(expected))


def resumed_on_another_mesh(folder: str) -> tuple[bool, bool, float]:
    """Train half on one mesh, the rest on another; returns whether each completed, and the loss."""
    trainer_of = lambda mesh: Trainer(  # noqa: E731
        task_of("nnx"),
        momentum_sgd(0.02),
        workload=64,
        unit_size=8,
        workers=2,
        plan="bsp:50%,asp",
        progress=False,
        workdir=folder,
        devices=mesh_config("nnx", mesh),
    )
    first = trainer_of(BOTH)
    first.add_hook(lambda metrics: first.preempt(), every=16)
    begun = first.fit()
    ended = trainer_of({"fsdp": 4}).fit()
    assert ended.loss is not None
    return begun.completed, ended.completed, ended.loss


def warned_of_whole_leaves() -> list[str]:
    """Return what is logged of parameters that their axes do not divide."""
    said: list[str] = []
    run = run_of("nnx", devices=DeviceConfig(mesh={"fsdp": 3}, rules=RULES), unit_size=9)
    with mock.patch.object(logging, "warning", lambda text, *args: said.append(text % args)):
        placement = run.placement(jax.local_devices(), 2)
    assert isinstance(placement, DevicePlacement)
    state = placement.put(jax.device_get(run.initial_state()))
    assert set(places(state.params).values()) == {"()"}
    return said


def loss_of_a_model_with_constraints(num_devices: int, mesh: dict[str, int]) -> float:
    """Train a model that divides its activations by axes and by names, and return the loss on held-out windows."""
    devices = local_devices("auto")[:num_devices]
    task = Task.from_nnx(lambda rngs: ConstrainedDecoder(True, rngs=rngs), source(), language_model)
    with mock.patch.object(trainer_module, "local_devices", lambda platform: devices):
        trainer = Trainer(
            task,
            momentum_sgd(0.02),
            workload=32,
            unit_size=8,
            workers=2,
            plan="bsp:50%,asp",
            progress=False,
            devices=mesh_config("nnx", mesh),
        )
        loss = trainer.fit().loss
    assert loss is not None
    return loss


def logged(folder: str, mesh: dict[str, int]) -> str:
    """Train a small MLP on four devices with an apply log, and return how its workers summed."""
    trainer = mlp_trainer(
        "bsp:50%,asp",
        48,
        workdir=folder,
        workers=4 // math.prod(mesh.values()),
        devices=DeviceConfig(mesh=mesh),
        telemetry=TelemetryConfig(apply_log=True),
    )
    trainer.fit()
    (started,) = read_events(Path(folder), "run_started")
    assert started["mesh"] == mesh
    return started["collective"]


def replayed(folder: str) -> list[Any]:
    """Compute the run in the folder again, and return the first difference and the number of updates."""
    found = replay(read_record(Path(folder)), mlp_trainer("bsp:50%,asp", 48)._run)
    return [found.difference, found.updates]


def trained_parts(kind: str) -> tuple[dict[str, str], float]:
    """Train a part of a decoder on meshes; returns the places of what is frozen, and how far one step is off."""
    run = dataclasses.replace(run_of(kind), task=decoder(kind, trainable=("norm/scale", "norm/bias", "qkv/kernel")))
    programs, _ = programs_of(run)
    alone = run.programs(donate_parameters=False)
    start = jax.device_get(run.initial_state())
    after, other = (jax.device_get(stepped(each, start, range(2))) for each in (programs, alone))
    leaves = zip(jax.tree.leaves(after.params), jax.tree.leaves(other.params), strict=True)
    first, second = (programs.frozen.at(worker) for worker in range(2))
    assert places(first) == places(second)
    assert {device.id for leaf in jax.tree.leaves(second) for device in leaf.sharding.device_set} == {4, 5, 6, 7}
    return places(first), max(float(np.abs(ours - theirs).max()) for ours, theirs in leaves)
