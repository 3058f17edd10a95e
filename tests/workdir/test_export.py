"""Exports hold what the checkpoint holds; what cannot be exported is refused with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx, serialization
from flax.traverse_util import unflatten_dict
from safetensors.flax import load_file

from hybridsync import KeepBest, TelemetryConfig, Trainer, export
from hybridsync.core.errors import ConfigError, WorkdirError
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.storage.durable import WorkdirLock
from tests.lora import lora_task
from tests.tasks import batchnorm_task, plain_sgd
from tests.trainers import NEVER

pytestmark = pytest.mark.usefixtures("quickly_compiled")

FORMATS = ("orbax", "flax", "safetensors")
JOB: dict[str, Any] = {"workload": 4, "unit_size": 4, "workers": 1, "plan": "asp", "progress": False}


def read(path: Path, form: str) -> Any:
    if form == "orbax":
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path)
    if form == "flax":
        return serialization.msgpack_restore(path.read_bytes())
    return unflatten_dict(load_file(path), sep="/")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("export") / "run"
    telemetry = TelemetryConfig(evaluate_units=2)
    trainer = Trainer(
        batchnorm_task(), plain_sgd(0.1), workdir=folder, telemetry=telemetry, callbacks=[KeepBest("loss")], **JOB
    )
    return folder, trainer.fit().state


@pytest.mark.parametrize("best", [False, True], ids=["newest", "best"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_holds_the_checkpoints_bits(form: Any, best: bool, trained: Any, tmp_path: Path) -> None:
    run, state = trained
    tree = read(export(run, tmp_path / "new" / "model", form, best=best), form)
    assert tree.keys() == {"params", "model_state"}
    wanted = {"params": state.params, "model_state": state.model_state}
    if best:
        saved = CheckpointStore(run / "best").newest()
        assert saved is not None
        wanted = {name: saved.state[name] for name in wanted}
    jax.tree.map(np.testing.assert_array_equal, tree, wanted)
    assert jax.tree.map(lambda leaf: leaf.dtype, tree) == jax.tree.map(lambda leaf: leaf.dtype, wanted)


@pytest.mark.parametrize("form", FORMATS)
def test_bfloat16_and_scalars_keep_their_type_and_bits(form: Any, tmp_path: Path) -> None:
    from hybridsync.storage.checkpoints.arrays import write_tree
    from hybridsync.workdir import export as module

    tree = {"params": {"w": np.asarray(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3).T / 7), "step": np.int32(3)}}
    import safetensors.numpy

    write = {
        "orbax": write_tree,
        "flax": module._write_flax,
        "safetensors": lambda path, tree: module._write_safetensors(safetensors.numpy, path, tree),
    }[form]
    write(tmp_path / "model", tree)
    found = read(tmp_path / "model", form)["params"]
    assert found["w"].dtype == jnp.bfloat16 and np.shape(found["step"]) == ()
    assert np.asarray(found["w"]).tobytes() == tree["params"]["w"].tobytes("C")
    assert int(found["step"]) == 3


def test_frozen_leaves_come_from_the_task(tmp_path: Path) -> None:
    task = lora_task()
    result = Trainer(task, plain_sgd(0.1), workdir=tmp_path / "run", checkpoint=NEVER, **JOB).fit()
    with pytest.raises(ConfigError, match=r"frozen leaves, which no checkpoint holds.*task="):
        export(tmp_path / "run", tmp_path / "model")
    tree = read(export(tmp_path / "run", tmp_path / "model", "flax", task=task), "flax")
    expected = nnx.to_pure_dict(nnx.state(result.model(), nnx.Any(nnx.Param, nnx.LoRAParam)))
    assert sorted(map(float, map(jnp.sum, jax.tree.leaves(tree["params"])))) == sorted(
        map(float, map(jnp.sum, jax.tree.leaves(expected)))
    )


def test_what_cannot_be_exported_is_refused(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = trained
    with pytest.raises(WorkdirError, match="holds no run"):
        export(tmp_path, tmp_path / "model")
    assert not os.listdir(tmp_path)
    (tmp_path / "taken").touch()
    with pytest.raises(WorkdirError, match="is there already"):
        export(run, tmp_path / "taken", "flax")
    with pytest.raises(ConfigError, match="to is 'onnx'; name one of orbax, flax, safetensors"):
        export(run, tmp_path / "model", "onnx")  # pyright: ignore[reportArgumentType]
    with WorkdirLock(run), pytest.raises(WorkdirError):
        export(run, tmp_path / "model")
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ConfigError, match=r"pip install 'hybridsync\[safetensors\]'"):
        export(run, tmp_path / "model", "safetensors")
    assert os.listdir(tmp_path) == ["taken"]


def test_command_writes_the_file_and_refuses_without_a_run(trained: Any, tmp_path: Path) -> None:
    run, state = trained
    command = [sys.executable, "-m", "hybridsync", "export"]
    done = subprocess.run(
        [*command, run, "--to=flax", f"--out={tmp_path}/model"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"written: {tmp_path}/model\n"), done.stderr
    jax.tree.map(np.testing.assert_array_equal, read(tmp_path / "model", "flax")["params"], state.params)
    done = subprocess.run([*command, "--out=x"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1 and "hybridsync export RUN --out=PATH" in done.stderr
