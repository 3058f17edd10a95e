"""HybridSync on the peers' work: whole jobs, the sums of `benchmarks.collectives`, its digits for the peers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import collectives
from benchmarks.jobs import DIGITS, ROOT, phase_rates, train
from benchmarks.peers.systems import OUR_GLOO, OURS
from benchmarks.peers.work import ASYNC, LOCKSTEP, MOMENTUM, RATE, UNIT_SIZE, WORKERS, AllReduce, Digits
from hybridsync.config import apply_overrides, load_config
from hybridsync.data import DigitsSource
from hybridsync.data.digits import MAX_INTENSITY
from hybridsync.training.run import Run

PLANS = {LOCKSTEP: "bsp", ASYNC: "asp"}
OVERRIDES = (
    "model.hidden=(256, 256)",
    f"unit_size={UNIT_SIZE}",
    f"optimizer.learning_rate={RATE / WORKERS}",  # of a unit; a lock-step update of four has four times the rate
    f"optimizer.momentum={MOMENTUM}",
)
SLOW_WORKER = 1


def digits(work: Digits, kind: str) -> tuple[float, float]:
    """Train a whole job; returns its examples a second without the first and last tenth, and its test accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        flags = [f"--workers={WORKERS}", f"--plan={PLANS[kind]}", f"--set=workload={work.units}"]
        flags += [f"--set={each}" for each in OVERRIDES]
        if work.compute_secs:
            flags.append(f"--compute_secs={work.compute_secs}")
        if work.slowdown > 1:
            flags.append(f"--stragglers=worker={SLOW_WORKER},factor={work.slowdown:g}")
        summary = train(workdir, *flags)
        (phase,) = phase_rates(workdir)
    return phase.steady * UNIT_SIZE, summary["final"]["accuracy"]


def sums(work: AllReduce) -> dict[str, float]:
    """Return the milliseconds of a sum over shared memory and over gloo, by the system's name."""
    rows = collectives.measure(work.floats, WORKERS, work.calls, rounds=1)
    found = {
        name: [row.figure for row in rows if row.unit == "ms" and f": {said} (" in row.name]
        for name, said in ((OURS, "shared memory"), (OUR_GLOO, "gloo"))
    }
    if wrong := [name for name, figures in found.items() if len(figures) != 1]:
        raise RuntimeError(f"benchmarks.collectives has not one row of milliseconds for {wrong}: {rows}")
    return {name: figures[0] for name, figures in found.items()}


def write_digits(path: Path) -> None:
    """Write the digits as our jobs split them, and the parameters that they begin with, as an .npz file."""
    loaded = load_config(ROOT / DIGITS)
    config = apply_overrides(loaded.config, list(OVERRIDES))
    state = Run(config, loaded.module.task(config), loaded.module.optimizer(config), None).initial_state()
    source = DigitsSource()
    whole = source.batch(0, unit_size=source.num_examples, seed=0)
    (test,) = source.test_batches(1 << 20)
    arrays = {"images": whole["image"], "test_images": test["image"]}
    found = {name: np.asarray(each, np.float32).reshape(len(each), -1) / MAX_INTENSITY for name, each in arrays.items()}
    found |= {"labels": whole["label"].astype(np.int64), "test_labels": test["label"].astype(np.int64)}
    everything: dict[str, Any] = {**found, **in_layers(state.params)}
    np.savez(path, **everything)


def in_layers(params: object) -> dict[str, np.ndarray]:
    """Return kernel and bias of each layer in turn, as param0, param1 ...

    Raises:
      RuntimeError: the tree is not one of dense layers.
    """
    leaves = {
        jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    kernels = [name for name in leaves if "kernel" in name]
    biases = [name for name in leaves if "bias" in name]
    if len(kernels) != len(biases) or len(kernels) + len(biases) != len(leaves):
        raise RuntimeError(f"these are not kernels and biases of dense layers: {sorted(leaves)}")
    ordered = [leaves[name] for pair in zip(sorted(kernels), sorted(biases), strict=True) for name in pair]
    return {f"param{index}": leaf for index, leaf in enumerate(ordered)}
