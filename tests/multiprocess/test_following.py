"""The simulator follows the order of a run whose roles were processes, to its bits."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from hybridsync.config import load_config, restore_values
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import compare
from hybridsync.lab.simulator.gradients import RealArithmetic
from hybridsync.lab.testing.log_order import follow
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.training.run import Run
from hybridsync.training.state import abstract_state
from hybridsync.workdir.resuming import CHECKPOINTS
from tests.multiprocess.job import ROOT, Job

CONFIG = "configs/digits_mlp.py"
UNITS = 300


@pytest.mark.soak
@pytest.mark.one_of_each_soak
@pytest.mark.timeout(300)
def test_the_order_of_asynchronous_processes_leads_the_simulator_to_their_bits(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    flags = ("--plan=asp", "--workers=4", "--apply_log", "--compute_secs=0.05", f"--set=workload={UNITS}")
    with Job(workdir, CONFIG, *flags) as job:
        job.until_units(UNITS // 10)
        job.kill_worker(1)
        assert job.wait() == 0, job.output + job.logs()
    record, loaded = read_record(workdir), load_config(ROOT / CONFIG)
    assert [phase.runtime for phase in record.phases] == ["processes"]
    assert max(entry.sequence - 1 - entry.base for entry in record.entries) >= 3, "nothing was stale"
    config = restore_values(loaded.config, record.config)
    run = Run(config, loaded.module.task(config), loaded.module.optimizer(config), None)
    saved = CheckpointStore(workdir / CHECKPOINTS).newest(abstract_state(run.task, run.optimizer))
    assert saved is not None
    state = jax.device_get(follow(run, record.phases, RealArithmetic(run)))
    difference = compare(state, saved.state)
    assert difference is None, str(difference)
    assert sum(len(entry.units) for entry in record.entries) == UNITS
