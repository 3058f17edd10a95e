"""A resume compares what trains: hyperparameters, schedule, and what model, loss and optimizer compute."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from hybridsync import Optimizer, Task, Trainer
from hybridsync.core.errors import ResumeError
from hybridsync.data.synthetic import SyntheticSource
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.losses import cross_entropy
from hybridsync.workdir.trained import Trained, changes
from hybridsync.workdir.trial import try_functions
from tests.trainers import LOGGED, NEVER, fit_and_stop, lines_of
from tests.workdir.test_opening import SLOW

WORKLOAD = 48
SOURCE = SyntheticSource(512, (4, 4, 1), num_classes=4, num_test=64)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, activation: Callable[..., jax.Array] = nnx.relu, scale: float = 1.0) -> None:
        self.first = nnx.Linear(16, 8, rngs=rngs)
        self.second = nnx.Linear(8, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self._activation, self._scale = activation, scale

    def __call__(self, image: jax.Array) -> jax.Array:
        hidden = self._activation(self.first(image.reshape(len(image), -1)))
        return self._scale * self.second(self.dropout(hidden))


def task(loss: Any = cross_entropy, **values: Any) -> Task:
    return Task.from_nnx(lambda rngs: Net(rngs, **values), SOURCE, loss)


def sgd(learning_rate: Any = 0.01, **values: Any) -> Optimizer:
    return Optimizer(optax.sgd, learning_rate=learning_rate, **{"momentum": 0.9, "nesterov": False, **values})


def trainer(task: Task, optimizer: Optimizer, **options: Any) -> Trainer:
    options = {"workload": WORKLOAD, "unit_size": 8, "workers": 2, "progress": False, "checkpoint": NEVER, **options}
    return Trainer(task, optimizer, plan="bsp", telemetry=LOGGED, **options)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("stopped") / "run"
    assert fit_and_stop(trainer(task(), sgd(), workdir=workdir, emulation=SLOW), 8).summary.exit == "preempted"
    return workdir


@pytest.fixture
def workdir(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def twice(predict: Any, batch: Any) -> Any:
    sums = cross_entropy(predict, batch)
    return {**sums, "loss": 2 * sums["loss"]}


class Doubled(SyntheticSource):
    def augment(self, batch: Any, key: jax.Array) -> Any:
        return {**batch, "image": 2.0 * super().augment(batch, key)["image"]}


def doubled() -> Task:
    return dataclasses.replace(task(), source=Doubled(512, (4, 4, 1), num_classes=4, num_test=64))


def step_at_24(units: jax.Array) -> jax.Array:
    return jnp.where(units < 24 * 8, 0.01, 0.001)


CHANGES: dict[str, tuple[Callable[[], Task], Callable[[], Optimizer], str]] = {
    "momentum": (task, lambda: sgd(momentum=0.5), "momentum of the optimizer: it was 0.9, is 0.5"),
    "a switch": (task, lambda: sgd(nesterov=True), "nesterov of the optimizer: it was False, is True"),
    "clip": (task, lambda: sgd(clip=1.0), "clip of the optimizer: it was None, is 1.0"),
    "rate": (task, lambda: sgd(0.02), "learning rate: at unit 0 of 48 it was 0.01, is 0.02"),
    "schedule": (task, lambda: sgd(step_at_24), "learning rate: at unit 24 of 48 it was 0.01, is 0.001"),
    "loss": (lambda: task(twice), sgd, "gradient (the model, the loss or the augmentation computes something else)"),
    "activation": (lambda: task(activation=nnx.gelu), sgd, "gradient (the model, the loss or the augmentation"),
    "a constant of the model": (lambda: task(scale=0.5), sgd, "gradient (the model, the loss or the augmentation"),
    "augmentation": (doubled, sgd, "gradient (the model, the loss or the augmentation computes something else)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_resume_that_would_train_something_else_is_refused_with_both_values(workdir: Path, name: str) -> None:
    make_task, make_optimizer, named = CHANGES[name]
    with pytest.raises(ResumeError) as refusal:
        trainer(make_task(), make_optimizer(), workdir=workdir).fit()
    said = str(refusal.value)
    assert said.startswith("this run cannot go on with another ") and named in said, said
    assert "pass --accept_changes (Trainer(accept_changes=True))" in said
    assert trainer(task(), sgd(), workdir=workdir).fit().completed, "what was refused has left no trace"


def test_who_knows_accepts_the_changes_and_the_record_has_them(workdir: Path) -> None:
    changed = sgd(0.02, momentum=0.5)
    result = trainer(task(twice), changed, workdir=workdir, accept_changes=True).fit()
    assert result.completed and float(result.state.opt_state.hyperparams["momentum"]) == 0.5
    kept = json.loads((workdir / "config.json").read_text())["accepted"]
    assert [change.partition(" ")[0].rstrip(":") for change in kept] == ["momentum", "learning", "gradient"]
    with pytest.raises(ResumeError, match=r"went on with another momentum of the optimizer.*--accept_changes"):
        read_record(workdir)
    entered = [line for line in lines_of(workdir / "events.jsonl") if line["kind"] == "phase_entered"]
    assert [event["reason"] for event in entered] == ["start", "resume"]


def test_the_same_in_other_words_goes_on(workdir: Path) -> None:
    """Written anew, with the rate as a schedule and a function of another name: it computes the same."""

    def objective(predict: Any, batch: Any) -> Any:
        unused = jnp.sin(batch["image"]).sum()
        del unused
        return cross_entropy(predict, batch)

    same = Optimizer(
        lambda learning_rate, momentum, nesterov: optax.sgd(learning_rate, momentum, nesterov),
        learning_rate=lambda examples: 0.01 + 0.0 * examples,
        momentum=0.9,
        nesterov=False,
    )
    assert trainer(task(objective), same, workdir=workdir).fit().completed


def test_units_of_another_size_are_compared_at_the_size_that_they_had(workdir: Path) -> None:
    with pytest.raises(ResumeError, match="another gradient"):
        trainer(task(twice), sgd(), workdir=workdir, unit_size=4, convert_units=True).fit()
    assert trainer(task(), sgd(), workdir=workdir, unit_size=4, convert_units=True).fit().completed


@pytest.mark.parametrize(
    "edit", [lambda saved: saved.pop("trained"), lambda saved: saved["versions"].update(jax="0.1")]
)
def test_programs_are_compared_only_where_the_same_versions_traced_them(
    workdir: Path, edit: Callable[[dict[str, Any]], Any]
) -> None:
    saved = json.loads((workdir / "config.json").read_text())
    edit(saved)
    (workdir / "config.json").write_text(json.dumps(saved))
    assert trainer(task(twice), sgd(), workdir=workdir).fit().completed


BEFORE = Trained({"momentum": "0.9", "clip": "None"}, [0.1, 0.1, 0.05, 0.05], "a1", "b1", 8)


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ({}, []),
        ({"values": {"momentum": "0.90", "clip": "None"}}, []),
        (
            {"values": {"momentum": "0.9", "clip": "None", "decay": "1"}},
            ["decay of the optimizer: it was nothing, is 1"],
        ),
        ({"values": {"clip": "None"}}, ["momentum of the optimizer: it was 0.9, is nothing"]),
        ({"rates": [0.1, 0.1, 0.05, 0.01]}, ["learning rate: at unit 300 of 400 it was 0.05, is 0.01"]),
        ({"rates": [0.1, 0.1, 0.05, 0.05 * (1 + 1e-7)]}, []),
        ({"update": "b2"}, ["update (the optimizer's factory computes something else): its digest was b1, is b2"]),
        ({"unit_size": 4, "rates": [1.0] * 4, "gradient": "other"}, []),
    ],
)
def test_changes_are_told_with_both_values(now: dict[str, Any], found: list[str]) -> None:
    trained = dataclasses.replace(BEFORE, **now)
    told = changes(dataclasses.asdict(BEFORE), trained, 400, comparable=True, gradient_of=lambda size: f"a{size // 8}")
    assert list(told) == found


PRINTED = """
import dataclasses, json, sys
from hybridsync.trainer import Trainer
from hybridsync.workdir.trial import try_functions
for recipe in sys.argv[1:]:
    print(json.dumps(dataclasses.asdict(try_functions(Trainer.from_config(recipe)._run))))
"""


def test_digests_are_the_same_in_every_process() -> None:
    """Sets and addresses are ordered otherwise in each."""
    files = ["configs/digits_mlp.py", "configs/synthetic.py", "configs/text_lm.py", "configs/tally.py"]
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PRINTED, *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True, env=environment)
        found.add(done.stdout)
    (lines,) = found
    gradients = [json.loads(line)["gradient"] for line in lines.splitlines()]
    assert len(set(gradients)) == len(files)


def test_a_function_among_the_values_counts_by_what_it_does() -> None:
    def digest_of(mask: Callable[[Any], Any]) -> tuple[Any, str]:
        adamw = Optimizer(optax.adamw, learning_rate=0.01, weight_decay=0.1, mask=mask)
        found = try_functions(trainer(task(), adamw)._run)
        return found.values, found.update

    one, same, other = (
        digest_of(mask)
        for mask in (
            lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
            lambda params: jax.tree.map(lambda leaf: leaf.ndim != 1, params),
            lambda params: jax.tree.map(lambda leaf: True, params),
        )
    )
    assert one == same and one[0] == other[0] and one[1] != other[1]
