from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridsync import DeviceConfig, Task, Trainer
from hybridsync.config import EmulationConfig
from hybridsync.core.errors import ConfigError, TaskError, WorkdirError
from hybridsync.data import ArraySource
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import replay
from hybridsync.losses import language_model
from hybridsync.models.transformer import DecoderBlock, DecoderLM
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from tests.devices.decoders import LENGTH, NUM_TOKENS, source
from tests.tasks import batchnorm_task, momentum_sgd
from tests.trainers import LOGGED, fit_and_stop

UNIT_SIZE = 16


def programs_of(task: Task, micro_steps: int, unit_size: int = UNIT_SIZE) -> Programs:
    return Programs(
        task,
        momentum_sgd(0.1),
        unit_size=unit_size,
        workload=10,
        seed=0,
        donate_parameters=False,
        micro_steps=micro_steps,
    )


def gradient(task: Task, micro_steps: int, unit: int = 0) -> Any:
    params, model_state = task.init(jax.random.key(0))
    return jax.device_get(programs_of(task, micro_steps).gradient(Parameters(params, model_state), unit))


def decoder(dropout: float = 0.0, loss: Any = language_model, block: Any = None, num_layers: int = 1) -> Task:
    def model(rngs: nnx.Rngs) -> DecoderLM:
        sizes = {"dim": 32, "num_layers": num_layers, "num_heads": 4, "max_length": LENGTH}
        made = DecoderLM(NUM_TOKENS, **sizes, rngs=rngs, dropout=dropout)
        if block is not None:  # drawn a second time, and so in both
            made.blocks = nnx.List([block(32, 4, rngs=rngs, dropout=dropout) for _ in made.blocks])
        return made

    return Task.from_nnx(model, source(), loss)


class RematBlock(DecoderBlock):
    __call__ = nnx.remat(DecoderBlock.__call__)


def masked(predict: Any, batch: Any) -> Any:
    """Sum over the examples that begin with a small token; many parts of a unit have none of them."""
    tokens = batch["tokens"]
    weights = (tokens[:, 0] < 12).astype(jnp.float32)
    losses = jnp.square(predict(tokens[:, :-1])).mean((1, 2))
    return {"count": weights.sum(), "loss": (weights * losses).sum()}


def assert_close(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("loss", [language_model, masked])
def test_parts_add_up_to_the_unit(loss: Any) -> None:
    """Also where a part has no example that counts: its own mean would be no number."""
    task = decoder(loss=loss)
    whole = gradient(task, 1)
    assert np.isfinite(whole["floats"]["loss"])
    for micro_steps in (2, 16):
        assert_close(gradient(task, micro_steps), whole)


@pytest.mark.usefixtures("quickly_compiled")
def test_each_part_has_a_key_of_its_own() -> None:
    """A unit whose examples are all the same has the same loss in each part, but for dropout."""
    images = ArraySource("same", {"image": np.ones((16, 512), np.float32), "label": np.zeros(16, np.int32)})

    class Dropped(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.scale = nnx.Param(jnp.ones(512))
            self.dropout = nnx.Dropout(0.5, rngs=rngs, broadcast_dims=(0,))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.dropout(x * self.scale[...])

    def sum_of_outputs(predict: Any, batch: Any) -> Any:
        return {"count": batch["label"].size, "loss": predict(batch["image"]).sum()}

    dropped = [gradient(Task.from_nnx(Dropped, images, sum_of_outputs), k)["floats"]["grads"]["scale"] for k in (1, 4)]
    assert {*np.unique(dropped[0])} == {0.0, 2.0}
    assert {*np.unique(dropped[1])} == {0.0, 0.5, 1.0, 1.5, 2.0}


@pytest.mark.usefixtures("quickly_compiled")
def test_model_state_goes_from_part_to_part() -> None:
    task = batchnorm_task()
    params, model_state = task.init(jax.random.key(0))
    raw = task.source.batch(0, unit_size=UNIT_SIZE, seed=0)
    batch = task.source.prepare({name: jnp.asarray(field) for name, field in raw.items()})
    for part in range(4):
        examples = {name: field[part::4] for name, field in batch.items()}
        _, (_, model_state) = task.loss(params, model_state, examples, jax.random.key(0))
    assert_close(gradient(task, 4)["floats"]["stats"], model_state)


def test_a_loss_without_sums_counts_each_part_once() -> None:
    def loss(params: Any, model_state: Any, batch: Any, key: Any) -> Any:
        return (params["shift"] * batch["x"]).mean(), ({}, {"seen": model_state["seen"] + 1})

    task = Task(
        lambda key: ({"shift": jnp.float32(1.0)}, {"seen": jnp.int32(0)}),
        loss,
        ArraySource("numbers", {"x": np.arange(16, dtype=np.float32)}),
    )
    whole, parts = gradient(task, 1), gradient(task, 4)
    assert_close(parts["floats"], whole["floats"])
    assert (whole["ints"], parts["ints"]) == ({"seen": 1}, {"seen": 4})


def test_parts_need_less_memory() -> None:
    task = decoder()

    def temporary(micro_steps: int) -> int:
        programs = programs_of(task, micro_steps, unit_size=64)
        arguments = programs.parameters, programs.batch(0), np.int32(0), programs.keys[0], None
        return programs.unit_gradient.lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    assert temporary(8) < 0.5 * temporary(1)


def test_remat_of_each_block_has_the_same_bits_with_dropout() -> None:
    plain, again = (gradient(decoder(0.1, block=block, num_layers=2), 1) for block in (DecoderBlock, RematBlock))
    assert fingerprint(plain) == fingerprint(again)


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize("plan", ["bsp", "asp", "localsgd(steps=2)"])
def test_a_run_in_micro_steps_learns_what_one_without_does(plan: str) -> None:
    def loss(micro_steps: int) -> float | None:
        devices = DeviceConfig(micro_steps=micro_steps)
        options: dict[str, Any] = {"workload": 12, "unit_size": UNIT_SIZE, "workers": 1, "progress": False}
        return Trainer(decoder(), momentum_sgd(0.1), plan=plan, devices=devices, **options).fit().loss

    assert loss(4) == pytest.approx(loss(1), abs=1e-5)


def test_a_run_replays_with_the_parts_it_had_and_is_refused_where_they_changed(tmp_path: Path) -> None:
    def trainer(micro_steps: int) -> Trainer:
        options: dict[str, Any] = {"workload": 200, "unit_size": UNIT_SIZE, "workers": 1, "progress": False}
        devices = DeviceConfig(micro_steps=micro_steps)
        options |= {"workdir": tmp_path, "telemetry": LOGGED, "emulation": EmulationConfig(compute_secs=0.01)}
        return Trainer(batchnorm_task(), momentum_sgd(0.1), plan="bsp", devices=devices, **options)

    first = trainer(4)
    fit_and_stop(first, units=8)
    assert replay(read_record(tmp_path), first._run).difference is None
    fit_and_stop(trainer(2), units=16)
    with pytest.raises(WorkdirError, match=r"with micro_steps=4, and a replay computes with 2"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("unit_size", "devices", "message"),
    [
        (10, {"micro_steps": 4}, r"unit_size 10 does not divide into devices\.micro_steps=4 equal parts"),
        (
            *(8, {"micro_steps": 4, "mesh": {"fsdp": 4}}),
            r"unit_size 8, 2 for each device along the mesh's axes .* devices\.micro_steps=4",
        ),
        (8, {"micro_steps": 0}, r"devices\.micro_steps must be 1 or more"),
    ],
)
def test_parts_that_do_not_divide_are_refused(unit_size: int, devices: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(decoder(), momentum_sgd(0.1), workload=10, unit_size=unit_size, devices=DeviceConfig(**devices))


def test_a_field_that_does_not_divide_is_refused_before_a_role_starts() -> None:
    class Flipped(ArraySource):
        def augment(self, batch: Any, key: Any) -> Any:
            return {**batch, "times": jnp.float32(1.0)}

    images = Flipped("one", {"image": np.ones((8, 4), np.float32), "label": np.zeros(8, np.int32)})
    task = Task.from_nnx(lambda rngs: nnx.Linear(4, 2, rngs=rngs), images)
    trainer = Trainer(
        task, momentum_sgd(0.1), workload=8, unit_size=4, workers=1, progress=False, devices=DeviceConfig(micro_steps=2)
    )
    with pytest.raises(TaskError, match=r"micro_steps=2 divides .* the field 'times' as float32"):
        trainer.fit()
