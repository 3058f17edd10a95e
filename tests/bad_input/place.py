"""A folder to launch in: a small configuration with its data, and a run of it that was stopped on its way."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from absl.testing import flagsaver

from hybridsync.cli import train
from hybridsync.config import EmulationConfig, load_config
from hybridsync.storage.checkpoints import CheckpointStore, Restored
from hybridsync.trainer import Trainer
from hybridsync.training.run import Run
from tests.trainers import fit_and_stop

CONFIG = """
from dataclasses import dataclass
from pathlib import Path

from hybridsync.config import OptimizerConfig, RunConfig


@dataclass(frozen=True)
class Mean:
    width: int = 4
    scale: float = 1.0


@dataclass(frozen=True)
class Text:
    name: str = "text.txt"
    length: int = 16


def config():
    return RunConfig(workload=200, unit_size=8, workers=2, plan="bsp:10%,asp", model=Mean(), data=Text())


def task(config):
    import jax.numpy as jnp

    from hybridsync.data.text import TextSource
    from hybridsync.training.task import Task

    def init(key):
        return {"w": jnp.zeros(config.model.width)}, {}

    def loss(params, model_state, batch, key):
        error = jnp.mean(batch["tokens"] / 256.0) - jnp.mean(params["w"])
        return error * error, ({}, model_state)

    path = Path(__file__).with_name(config.data.name)
    return Task(init, loss, TextSource(path, config.data.length))


def optimizer(config):
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
"""
TEXT = bytes(range(256)) * 8
PID = os.getpid()


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, and what it wrote to the terminal."""

    code: int
    text: str


@dataclass(frozen=True)
class Place:
    """A folder with `small.py`, `text.txt`, and the stopped run in `run`; there is no `fresh` yet."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "small.py"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def steps(self) -> list[Path]:
        """The folders of the run's checkpoints, oldest first."""
        folders = [path for path in (self.run / "checkpoints").iterdir() if path.name.isdecimal()]
        return sorted(folders, key=lambda path: int(path.name))

    def change_config(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text, f"{old!r} is not in the configuration"
        self.config.write_text(text.replace(old, new))

    def change_json(self, name: str, **values: object) -> None:
        """Replace keys of a JSON file of the run; None removes one."""
        record = json.loads((self.run / name).read_text()) | values
        (self.run / name).write_text(json.dumps({key: value for key, value in record.items() if value is not None}))

    def save(self, **changes: object) -> None:
        """Commit another checkpoint with keys of its `run` record replaced, or removed where they are None."""
        store = CheckpointStore(self.run / "checkpoints", keep=9)
        restored = store.newest()
        assert isinstance(restored, Restored)
        record = {key: value for key, value in {**restored.run, **changes}.items() if value is not None}
        store.save(restored.state, units=restored.units, ledger=restored.ledger, run=record)
        store.close()

    def loaded_run(self) -> Run:
        """Return the run that small.py asks for."""
        return train.Launch(load_config(self.config), self.config, self.run).run()

    def digest(self) -> str:
        """Return a digest of every file below the folder and its name, but for locks."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.name not in ("lock", "beat") and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(self.folder)}\0".encode() + path.read_bytes())
        return digest.hexdigest()

    def launch(self, flags: tuple[str, ...]) -> Ended:
        """Run the launcher in this process, as the command line would."""
        argv = ["train", f"--config={self.config}", f"--workdir={self.run}", *flags]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        text = io.StringIO()
        try:
            with flagsaver.flagsaver(), contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
                code = train.main(train.FLAGS(argv))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return Ended(code, text.getvalue())


def make_place(folder: Path) -> Place:
    """Return a folder whose run was stopped among its asynchronous units."""
    place = Place(folder)
    place.config.write_text(CONFIG)
    (folder / "text.txt").write_bytes(TEXT)
    loaded = load_config(place.config)
    config = dataclasses.replace(loaded.config, emulation=EmulationConfig(compute_secs=0.02))
    task, optimizer = loaded.module.task(config), loaded.module.optimizer(config)
    trainer = Trainer(task, optimizer, config, workdir=place.run, file=place.config, progress=False)
    result = fit_and_stop(trainer, 24)
    assert result.summary.exit == "preempted" and len(place.steps) == 3, result.summary
    return place


def flip(step: Path) -> None:
    """Flip one bit in the middle of the largest file of a checkpoint's state."""
    # The manifest is the largest of all wherever the state happened to be written in many files.
    path = max((path for path in (step / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
