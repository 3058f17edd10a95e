"""What the launcher refuses: one message, exit code 1, no traceback in any role, the last checkpoint untouched.

A running job's faults: multiprocess/.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.storage.durable import WorkdirLock
from hybridsync.training.buffer_layout import fingerprint
from tests.command_lines import CommandLines, command_lines
from tests.multiprocess.job import users_environment

ROOT = Path(__file__).resolve().parents[2]
CPU_SECS = 1.0
"""What an answer may cost that needs no role; JAX alone would take longer to import."""

SMALL_CONFIG = """
from pathlib import Path

from hybridsync.config import OptimizerConfig, RunConfig

WIDTH = 4


def config():
    return RunConfig(workload=200, unit_size=8, workers=1, plan="bsp:10%,asp", optimizer=OptimizerConfig())


def task(config):
    import jax.numpy as jnp

    from hybridsync.data.text import TextSource
    from hybridsync.training.task import Task

    def init(key):
        return {"w": jnp.zeros(WIDTH)}, {}

    def loss(params, model_state, batch, key):
        error = jnp.mean(batch["tokens"] / 256.0) - jnp.mean(params["w"])
        return error * error, ({}, model_state)

    return Task(init, loss, TextSource(Path(__file__).with_name("text.txt"), 16))


def optimizer(config):
    from hybridsync.training.optimizer import from_config

    return from_config(config.optimizer, config.workload, config.unit_size)
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    text: str
    cpu_secs: float


def launch(workdir: Path, *flags: str, config: Path | str = "configs/digits_mlp.py") -> Ended:
    """Run the launcher to its end."""
    command = [sys.executable, "-m", "launch.train", f"--config={config}", f"--workdir={workdir}", *flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=users_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_secs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ended(done.returncode, done.stdout, cpu_secs)


def assert_refused(ended: Ended, workdir: Path, *messages: str) -> None:
    """Check exit code and message, and that no role shows a traceback."""
    assert ended.code == 1, ended.text
    errors = [line for line in ended.text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.text
    for message in messages:
        assert message in errors[0]
    logs = {path.name: path.read_text() for path in (workdir / "logs").glob("*.log")}
    assert [name for name, text in {**logs, "terminal": ended.text}.items() if "Traceback" in text] == []


# --- refused before any role starts ---

REFUSED_AT_ONCE = [
    (["--config=configs/digit_mlp.py"], "/configs/digits_mlp.py'?"),
    (["--set=optimiser.learning_rate=0.1"], "unknown configuration key 'optimiser'; did you mean 'optimizer'?"),
    (["--set=optimizer.learning_rat=0.1"], "did you mean 'optimizer.learning_rate'?"),
    (["--set=model.hiden=(8,)"], "did you mean 'model.hidden'?"),
    (["--set=optimizer.learning_rate=fast"], "optimizer.learning_rate must be float, got 'fast'"),
    (["--plan=bsp:60%,asp:60%"], "the shares sum to 120 %"),
    (["--plan=bsp:0.001%,asp"], "would get no unit"),
    (["--plan=bsp:"], "bsp:"),
    (["--plan=bps"], "'bps'"),
    (["--plan=asp(stale=3)"], "stale"),
    (["--plan=bsp:10%,preduce(size=1)"], "preduce(size=1) is below 2"),
    (["--plan=asp", "--set=policy.trigger=knee"], "no lock-step stage of the plan 'asp' has an asynchronous one"),
    (["--workers=0"], "workers must be at least 1, got 0"),
    (["--servers=0"], "servers must be at least 1, got 0"),
    (["--set=workload=0"], "workload must be at least 1 unit, got 0"),
    (["--stragglers=worker=9,delay_ms=30"], "got 9"),
    (["--bind=0.0.0.0"], "--bind=0.0.0.0 is refused"),
    (["--port=70000"], "--port=70000 is not a port"),
    (["--threads_per_role=2000"], "--threads_per_role=2000 is refused; use 1 to 1024"),
    (["--collective=host", "--runtime=inprocess"], "--collective=host is for processes"),
    (["--resume=must"], "resume is 'must'"),
    (["--resume=must", "--runtime=inprocess", "--plan=bps"], "'bps'"),
    (["left.over"], "unexpected argument 'left.over'"),
]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    with command_lines(tmp_path_factory.mktemp("printed"), "train") as train:
        yield train


@pytest.mark.parametrize(("flags", "message"), REFUSED_AT_ONCE, ids=[" ".join(f) for f, _ in REFUSED_AT_ONCE])
def test_what_is_wrong_by_itself_is_refused_without_starting_a_role(
    train: CommandLines, tmp_path: Path, flags: list[str], message: str
) -> None:
    workdir = tmp_path / "run"
    done = train("--config=configs/digits_mlp.py", f"--workdir={workdir}", *flags)
    assert_refused(Ended(done.returncode, done.stdout + done.stderr, 0.0), workdir, message)
    assert not workdir.exists(), "a refused command left something behind"


def test_a_refusal_comes_at_once(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    ended = launch(workdir, "--servers=0")
    assert_refused(ended, workdir, "servers must be at least 1, got 0")
    assert ended.cpu_secs < CPU_SECS


# --- refused because of the run that the workdir holds ---


@dataclass(frozen=True)
class Saved:
    """A run that was stopped on its way, with its configuration file and data."""

    config: Path
    workdir: Path

    def checkpoints(self) -> str:
        """Return a digest of every byte of every checkpoint and its name."""
        digest = hashlib.sha256()
        for path in sorted((self.workdir / "checkpoints").rglob("*")):
            digest.update(str(path.relative_to(self.workdir)).encode())
            digest.update(path.read_bytes() if path.is_file() else b"")
        return digest.hexdigest()

    def newest(self) -> tuple[int, str]:
        """Return the units of the newest good checkpoint, and the fingerprint of its state."""
        store = CheckpointStore(self.workdir / "checkpoints")
        restored = store.newest()
        store.close()
        assert restored is not None
        return restored.units, fingerprint(restored.state)

    def steps(self) -> list[Path]:
        """Return the folders of the checkpoints, oldest first."""
        folders = [path for path in (self.workdir / "checkpoints").iterdir() if path.name.isdecimal()]
        return sorted(folders, key=lambda path: int(path.name))

    def launch(self, *flags: str) -> Ended:
        return launch(self.workdir, *flags, config=self.config)

    def assert_refused(self, *messages: str, flags: tuple[str, ...] = ()) -> Ended:
        """Launch, and check that it is refused and that neither checkpoints nor record have changed."""
        before = self.checkpoints(), (self.workdir / "config.json").read_bytes()
        ended = self.launch(*flags)
        assert_refused(ended, self.workdir, *messages)
        assert (self.checkpoints(), (self.workdir / "config.json").read_bytes()) == before
        return ended


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A run with checkpoints at units 0, 20 and where SIGTERM met it; made once, not to be changed."""
    folder = tmp_path_factory.mktemp("stopped")
    saved = Saved(folder / "small.py", folder / "run")
    saved.config.write_text(SMALL_CONFIG)
    saved.config.with_name("text.txt").write_bytes(bytes(range(256)) * 8)
    code = (
        "import signal, sys\n"
        "from hybridsync.phases.reporter import Reporter\n"
        "entered = Reporter.entered\n"
        "def stop(self, phase, units, *rest):\n"
        "    entered(self, phase, units, *rest)\n"
        "    if phase.spec == 'asp': signal.raise_signal(signal.SIGTERM)\n"
        "Reporter.entered = stop\n"
        "from absl import app\n"
        "from hybridsync.cli import train\n"
        "app.run(train.main)\n"
    )
    flags = [f"--config={saved.config}", f"--workdir={saved.workdir}", "--runtime=inprocess", "--compute_secs=0.05"]
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 75, done.stdout + done.stderr
    return saved


@pytest.fixture
def saved(stopped: Saved, tmp_path: Path) -> Saved:
    """A copy of the stopped run, to be resumed."""
    copy = Path(shutil.copytree(stopped.config.parent, tmp_path / "copy"))
    return Saved(copy / stopped.config.name, copy / stopped.workdir.name)


OTHER_RUN = [
    (("--resume=never",), ["holds a run already", "resume is 'never'"]),
    (("--seed=7",), ["another seed", "started with 0", "says 7"]),
    (("--set=optimizer.momentum=0.5",), ["another optimizer.momentum", "started with 0.9", "says 0.5"]),
    (("--set=workload=300",), ["another workload", "started with 200", "says 300"]),
    (("--set=unit_size=16",), ["another unit_size", "started with 8", "says 16", "--convert_units"]),
]


@pytest.mark.parametrize(("flags", "messages"), OTHER_RUN, ids=[" ".join(flags) for flags, _ in OTHER_RUN])
def test_another_run_than_the_workdirs_is_refused_at_once_with_both_values(
    saved: Saved, flags: tuple[str, ...], messages: list[str]
) -> None:
    ended = saved.assert_refused(*messages, flags=flags)
    assert not (saved.workdir / "logs").exists(), "a role was started"
    assert ended.cpu_secs < CPU_SECS


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_port_in_use_is_refused_by_its_number_at_once(saved: Saved, used: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"--port={port} cannot be served on at 127.0.0.1: Address already in use"
        if used:
            ended = saved.assert_refused(message, flags=(f"--port={port}",))
        else:
            fresh = saved.workdir.with_name("fresh")
            ended = launch(fresh, f"--port={port}", config=saved.config)
            assert_refused(ended, fresh, message)
            assert not fresh.exists(), "a refused command left something behind"
    assert ended.cpu_secs < CPU_SECS


@pytest.mark.soak
def test_a_checkpoint_of_another_model_is_refused_by_the_leaf(saved: Saved) -> None:
    saved.config.write_text(SMALL_CONFIG.replace("WIDTH = 4", "WIDTH = 5"))
    saved.assert_refused("is of another model or optimizer", "params/w")


def test_data_that_changed_since_are_refused_with_both_hashes(saved: Saved) -> None:
    saved.config.with_name("text.txt").write_bytes(bytes(reversed(range(256))) * 8)
    ended = saved.assert_refused("the data of this run have changed", "hash was '")
    was, now = re.findall(r"(?:was|is) '([0-9a-f]{64})'", ended.text)
    assert was != now


def test_a_workdir_in_use_is_refused_with_the_process_that_has_it(saved: Saved) -> None:
    with WorkdirLock(saved.workdir):
        ended = saved.assert_refused(f"is in use by process {os.getpid()} on {socket.gethostname()}")
    assert not (saved.workdir / "logs").exists(), "a role was started"
    assert ended.cpu_secs < CPU_SECS


@pytest.mark.soak
def test_a_workdir_whose_every_checkpoint_is_damaged_is_refused(saved: Saved) -> None:
    for step in saved.steps():
        for file in [path for path in step.rglob("*") if path.is_file()]:
            file.write_bytes(b"")
    saved.assert_refused("none of the 3 checkpoints", "bring a copy back")


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_run_goes_on_from_the_one_before(saved: Saved) -> None:
    *_, before, newest = saved.steps()
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    ended = saved.launch()
    assert ended.code == 0, ended.text
    assert f"checkpoint {newest.name} is damaged and was set aside" in ended.text
    assert (saved.workdir / "checkpoints" / "quarantine" / newest.name / "reason.txt").exists()
    events = [json.loads(line) for line in (saved.workdir / "events.jsonl").read_text().splitlines()]
    resumed = [event for event in events if event["kind"] == "phase_entered"][-1]
    assert (resumed["reason"], resumed["units"], resumed["protocol"]) == ("resume", 20, "asp")
    assert saved.newest()[0] == 200
    assert int(before.name) < int(newest.name)


def test_other_units_go_on_where_conversion_is_asked_for_and_a_completed_run_says_so(saved: Saved) -> None:
    units, _ = saved.newest()
    ended = saved.launch("--set=unit_size=16", "--convert_units")
    assert ended.code == 0, ended.text
    summary = json.loads((saved.workdir / "summary.json").read_text())
    assert summary["exit"] == "completed"
    assert summary["units"]["workload"] == summary["units"]["applied"] == 100
    assert f"asp from unit {-(-units * 8 // 16)} to 100 (resume)" in ended.text

    before = saved.checkpoints(), (saved.workdir / "summary.json").read_bytes()
    again = saved.launch("--set=unit_size=16", "--convert_units")
    assert again.code == 0, again.text
    assert "is complete: 100 of 100 units applied; nothing is left to do" in again.text
    assert (saved.checkpoints(), (saved.workdir / "summary.json").read_bytes()) == before


def test_a_ready_gradient_transformation_is_refused_with_the_way_to_pass_it(saved: Saved) -> None:
    ready = SMALL_CONFIG[: SMALL_CONFIG.index("def optimizer")] + (
        "def optimizer(config):\n    import optax\n\n    return optax.sgd(0.1)\n"
    )
    saved.config.write_text(ready)
    saved.assert_refused("a ready GradientTransformation", "Optimizer(optax.adamw, learning_rate=1e-3)")


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_data_file_that_is_cut_short_is_refused_with_both_sizes(tmp_path: Path) -> None:
    record = 3073
    for name in [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]:
        (tmp_path / name).write_bytes(bytes(10 * record))
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(10 * record - 1))
    flags = [f"--set=data.folder={tmp_path}", "--set=data.num_train=50", "--set=data.num_test=10", "--workers=1"]
    ended = launch(tmp_path / "run", *flags, config="configs/cifar_resnet8.py")
    wrong, right = f"{10 * record - 1} bytes", f"expected {10 * record}"
    assert_refused(ended, tmp_path / "run", "data_batch_3.bin", wrong, right)
