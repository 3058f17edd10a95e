"""One asynchronous worker in processes is a plain optax loop, bit for bit, also where it steps by itself."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from hybridsync.config import apply_overrides, load_config
from hybridsync.storage.checkpoints import CheckpointStore
from tests.multiprocess.job import ROOT, Job

OPTIMIZERS = {
    "sgd": (["optimizer.momentum=0.9"], lambda config: optax.sgd(config.learning_rate, config.momentum)),
    "adamw": (
        ["optimizer.learning_rate=0.001", "optimizer.weight_decay=0.01"],
        lambda config: optax.adamw(config.learning_rate, weight_decay=config.weight_decay),
    ),
}
NUM_UNITS = 200


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        ("asp", "adamw"),
        pytest.param("asp", "sgd", marks=pytest.mark.soak),
        pytest.param("psplus", "adamw", marks=[pytest.mark.soak, pytest.mark.one_of_each_soak]),
    ],
)
def test_one_asynchronous_worker_equals_a_plain_optax_loop(tmp_path: Path, plan: str, name: str) -> None:
    values, make = OPTIMIZERS[name]
    overrides = [f"workload={NUM_UNITS}", f"optimizer.name={name}", *values]
    flags = [flag for value in overrides for flag in ("--set", value)]
    job = Job(tmp_path / "run", "configs/digits_mlp.py", f"--plan={plan}", "--workers=1", *flags)
    assert job.wait() == 0, job.output
    restored = CheckpointStore(tmp_path / "run" / "checkpoints").newest()
    assert restored is not None and restored.units == NUM_UNITS

    loaded = load_config(ROOT / "configs/digits_mlp.py")
    config = apply_overrides(loaded.config, overrides)
    params = _plain_loop(loaded.module.task(config), make(config.optimizer), config)
    expected, got = jax.tree.leaves(params), jax.tree.leaves(restored.state["params"])
    assert len(expected) == len(got) == 6
    for mine, theirs in zip(expected, got, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _plain_loop(task, optimizer, config):
    """What a user without HybridSync would write: gradient, update, next unit."""
    key = jax.random.key(config.seed)
    params, model_state = task.init(key)

    @jax.jit
    def gradient(params, batch, unit):
        data_key, model_key = jax.random.split(jax.random.fold_in(key, unit))
        batch = task.source.augment(batch, data_key)
        return jax.grad(lambda params: task.loss(params, model_state, batch, model_key)[0])(params)

    @jax.jit
    def update(params, opt_state, grads):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    opt_state = optimizer.init(params)
    for unit in range(NUM_UNITS):
        batch = task.source.batch(unit, unit_size=config.unit_size, seed=config.seed)
        params, opt_state = update(params, opt_state, gradient(params, batch, np.int32(unit)))
    return params
