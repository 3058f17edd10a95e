"""Models train on the data sets of Grain, Hugging Face and PyTorch, with the real packages."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from hybridsync import Optimizer, Task, Trainer
from hybridsync.data import ArraySource, IndexedSource

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LABELS = np.arange(400) % 2
IMAGES = (np.random.default_rng(0).normal(size=(400, 2)) + 2 * LABELS[:, None] - 1).astype(np.float32)


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner, self.outer = nnx.Linear(2, 16, rngs=rngs), nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, image: Any) -> Any:
        return self.outer(nnx.relu(self.inner(image)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, image: Any) -> Any:
        return linen.Dense(2)(linen.relu(linen.Dense(16)(image)))


def check(task: Task) -> None:
    """The task's source serves the units of the arrays in memory, and its model learns them."""
    arrays = ArraySource("arrays", {"image": IMAGES, "label": LABELS.astype(np.int32)})
    batch, expected = (source.batch(3, unit_size=16, seed=1) for source in (task.source, arrays))
    assert {field: (array.dtype, array.tolist()) for field, array in batch.items()} == {
        field: (array.dtype, array.tolist()) for field, array in expected.items()
    }
    optimizer = Optimizer(optax.adamw, learning_rate=1e-2)
    result = Trainer(task, optimizer, workload=200, unit_size=16, workers=2, plan="bsp:20%,asp", progress=False).fit()
    assert (result.accuracy or 0) >= 0.85


def test_nnx_model_trains_on_a_grain_map_dataset() -> None:
    grain = import_module("grain")

    def rows() -> Any:
        return grain.MapDataset.source(np.arange(400)).map(lambda i: {"image": IMAGES[i], "label": LABELS[i]})

    check(Task.from_nnx(NnxNet, IndexedSource(rows(), rows())))


def test_linen_model_trains_on_a_hugging_face_dataset_by_rows_and_by_batches() -> None:
    datasets = import_module("datasets")
    data = datasets.Dataset.from_dict({"pixels": IMAGES, "label": LABELS, "text": ["a"] * 400}).with_format("numpy")
    source = IndexedSource(data, data, fields={"image": "pixels", "label": "label"})
    assert source.describe()["hash"] == IndexedSource(data, data, fields={"image": "pixels"}).describe()["hash"]
    check(Task.from_linen(LinenNet(), source))


def test_model_trains_on_a_torch_dataset_of_tuples() -> None:
    torch = import_module("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    check(Task.from_nnx(NnxNet, IndexedSource(data, data, fields=("image", "label"))))


def test_grain_batches_and_endless_repeats_are_refused() -> None:
    grain = import_module("grain")
    rows = grain.MapDataset.source(np.arange(400)).map(lambda i: {"image": IMAGES[i], "label": LABELS[i]})
    for batched in (rows.batch(8), rows.batch(8).map(lambda batch: batch), rows.batch(8).seed(1).shuffle()):
        with pytest.raises(ValueError, match=r"has a Grain batch\(\) step"):
            IndexedSource(batched)
    with pytest.raises(ValueError, match="repeats without end"):
        IndexedSource(rows.repeat())


def test_grain_iterator_is_refused_with_advice() -> None:
    grain = import_module("grain")
    stream = grain.MapDataset.source(np.arange(4)).to_iter_dataset()
    with pytest.raises(ValueError, match=r"Pass the MapDataset before \.to_iter_dataset"):
        IndexedSource(stream)


def test_hugging_face_text_column_is_refused_by_name() -> None:
    datasets = import_module("datasets")
    data = datasets.Dataset.from_dict({"x": [1.0, 2.0], "text": ["a", "b"]})
    with pytest.raises(ValueError, match=r"field 'text' is .* which is no number"):
        IndexedSource(data, fingerprint="x").batch(0, unit_size=2, seed=0)
    assert jnp.asarray(IndexedSource(data, fields=("x",)).batch(0, unit_size=2, seed=0)["x"]).dtype == jnp.float32
