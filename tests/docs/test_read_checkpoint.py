"""A checkpoint is read as the page says, by plain Orbax and Flax."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybridsync.data import ArraySource
from hybridsync.losses import language_model
from hybridsync.models import DecoderLM
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.trainer import Trainer
from hybridsync.training.task import Task
from tests.doc_pages import blocks
from tests.sweeps import swept
from tests.tasks import Normalized, batchnorm_task, plain_sgd
from tests.trainers import NEVER

pytestmark = pytest.mark.usefixtures("quickly_compiled")

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS / "read_checkpoint.py"
BLOCKS = blocks("docs/read_checkpoint.md")


def test_a_plain_program_reads_the_newest_state(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for rows in (2, 3):
        state = {"params": {"w": np.ones((rows, 4), np.float32)}, "counters": {"units": np.int32(7)}}
        store.save(state, units=7, ledger={}, run={})
    command = [sys.executable, str(SCRIPT), str(tmp_path / "checkpoints")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert result.stdout.splitlines() == ["counters/units int32 ()", "params/w float32 (3, 4)"]


def test_the_script_is_plain_and_short():
    text = SCRIPT.read_text()
    code = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert not any("hybridsync" in line for line in code)
    assert len(code) <= 10


def decoder(rngs: nnx.Rngs) -> DecoderLM:
    return DecoderLM(11, dim=8, num_layers=1, num_heads=2, max_length=8, rngs=rngs)


def decoder_task() -> Task:
    tokens = np.random.RandomState(0).randint(0, 11, (32, 9)).astype(np.int32)
    return Task.from_nnx(decoder, ArraySource("tokens", {"tokens": tokens}), language_model)


CASES = {
    "DecoderLM": (decoder_task, decoder, jnp.arange(16).reshape(2, 8) % 11),
    "BatchNorm": (batchnorm_task, Normalized, jnp.linspace(-1.0, 1.0, 32).reshape(2, 4, 4, 1)),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", swept(["BatchNorm", "DecoderLM"]))
def test_the_page_makes_the_trained_model_of_a_checkpoint_with_and_without_the_task(name, tmp_path):
    make, build, example = CASES[name]
    task = make()
    options = {"workload": 2, "unit_size": 4, "workers": 1, "plan": "asp", "checkpoint": NEVER, "progress": False}
    expected = Trainer(task, plain_sgd(0.1), workdir=tmp_path / "RUN", **options).fit().model()
    names: dict[str, Any] = {"task": task, "Net": lambda rngs: build(rngs)}
    page = "\n".join(BLOCKS).replace("RUN/", f"{tmp_path}/RUN/")
    exec(page, names)  # noqa: S102  # the test runs the page's own code blocks, as a reader would
    for model in (names["model"], names["plain"]):
        assert type(model) is type(expected)
        np.testing.assert_allclose(model(example), expected(example), rtol=1e-6)
        ours, theirs = (jax.tree.leaves(nnx.state(each, nnx.Not(nnx.RngState))) for each in (model, expected))
        for read, trained in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(read, trained)
