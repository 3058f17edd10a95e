"""Several parameter servers in processes of their own: exactly once on each of them, and replayed bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.multiprocess.job import assert_exactly_once
from tests.multiprocess.scenarios import GRPC, tally
from tests.multiprocess.test_replay_processes import launch

TWO_COUNTERS = "--set=model.copies=2"
UNITS = 1200


@pytest.mark.timeout(600)
def test_every_unit_is_applied_once_on_each_server_in_lives_that_have_one_two_and_three(tmp_path: Path) -> None:
    def start(servers: int, unit_secs: float = 0.02):
        flags = (TWO_COUNTERS, f"--servers={servers}", *([GRPC] if servers == 2 else []))  # a life may change that, too
        return tally(tmp_path / "run", *flags, plan="bsp:20%,asp", units=UNITS, workers=2, unit_secs=unit_secs)

    for servers in (1, 2):
        with start(servers) as job:
            job.until_phase("asp")
            if servers > 1:
                job.until_lost(job.kill_worker(1))
            job.send(signal.SIGTERM)
            assert job.wait() == 75, job.output + job.logs()
            assert UNITS // 5 < job.summary()["units"]["applied"] < UNITS
    with start(3, unit_secs=0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert sorted(
            e["id"] for e in job.session_events() if e["kind"] == "role_started" and e["role"] == "server"
        ) == [0, 1, 2]
        assert job.tracebacks() == []


@pytest.mark.soak
@pytest.mark.one_of_each_soak
@pytest.mark.timeout(300)
def test_an_optimizer_that_cannot_be_divided_is_refused_before_a_role_is_told_to_begin(tmp_path: Path) -> None:
    config = tmp_path / "clipped.py"
    config.write_text(
        "import configs.digits_mlp as base\n"
        "config, task = base.config, base.task\n"
        "def optimizer(config):\n"
        "    import optax\n"
        "    from hybridsync.training.optimizer import Optimizer\n"
        "    def make(learning_rate):\n"
        "        return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate))\n"
        "    return Optimizer(make, learning_rate=0.1)\n"
    )
    done = launch("train", f"--config={config}", f"--workdir={tmp_path / 'run'}", "--servers=2", "--workers=1")
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "cannot be divided among 2 servers" in errors[0] and "use one server" in errors[0]
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"lock", "logs"}, "refused before the run was opened"
    for role in ("server-0", "server-1", "worker-0"):
        log = (tmp_path / "run" / "logs" / f"{role}.log").read_text()
        assert "Traceback" not in log and "error" not in log, log


@pytest.mark.soak
@pytest.mark.one_of_each_soak
@pytest.mark.timeout(620)
def test_a_run_on_two_servers_replays_bit_for_bit(tmp_path: Path) -> None:
    flags = ["--plan=bsp:20%,asp", "--workers=2", "--servers=2", "--apply_log", "--set=workload=150"]
    job = launch("train", "--config=configs/digits_mlp.py", f"--workdir={tmp_path}", *flags)
    assert job.returncode == 0, job.stdout + job.stderr
    done = launch("replay", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith("135 updates replayed, bit for bit: fingerprint ")
