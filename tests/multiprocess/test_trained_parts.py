"""LoRA in worker processes: what travels and is saved is the trained leaves, and the base is each process's own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from hybridsync.core.errors import EXIT_REFUSED
from tests.lora import lora_task, write_embedding
from tests.multiprocess.job import Job
from tests.sweeps import swept
from tests.training.test_frozen import plain_loop

pytestmark = pytest.mark.timeout(600)
CONFIG = "tests/lora_config.py"
TRAINED_BYTES = 4 * 1536
MOST_BESIDE = 1024
"""Of a message besides its leaves: the loss, the weight, and how it is packed."""


@pytest.mark.parametrize("plan", swept(["bsp:50%,asp", "asp:50%,bsp"]))
def test_processes_train_as_a_plain_loop_and_send_the_trained_leaves(tmp_path: Path, plan: str) -> None:
    # Slow enough that heartbeats report the bytes of most units before the run ends.
    with Job(tmp_path / "run", CONFIG, f"--plan={plan}", "--compute_secs=0.1") as job:
        assert job.wait() == 0, job.output + job.logs()
        assert job.summary()["final"]["loss"] == pytest.approx(plain_loop(24), abs=1e-6)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    sent = sum(sum(line.get("sent_bytes", {}).values()) for line in metrics)
    base = 4 * sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(lora_task().abstract_frozen))
    assert 12 * TRAINED_BYTES <= sent <= 24 * (TRAINED_BYTES + MOST_BESIDE) + 3 * TRAINED_BYTES < 24 * base / 2


OTHER_BASE = """
import os
from pathlib import Path

from tests.lora_config import Model, config, optimizer


def task(config):
    from tests.lora import lora_task, write_embedding

    return lora_task(write_embedding(Path(f"{config.model.embedding}-{os.getpid()}.npy"), 1 / os.getpid()))
"""


def test_a_worker_with_another_base_than_the_chief_is_refused(tmp_path: Path) -> None:
    """Another host may have other weights under the same path: each process writes its own here."""
    config = tmp_path / "other_base.py"
    config.write_text(OTHER_BASE)
    with Job(tmp_path / "run", str(config), f"--set=model.embedding={tmp_path / 'base'}") as job:
        assert job.wait() == EXIT_REFUSED, job.output + job.logs()
        refusal = "the frozen leaf tokens/embedding of worker 0 has the digest"
        assert refusal in job.output
        summary = job.summary()
        assert summary["exit"] == "preempted" and refusal in summary["error"]


def test_a_resume_with_another_base_is_refused_before_a_role_starts(tmp_path: Path) -> None:
    weights = tmp_path / "weights.npy"
    flags = (f"--set=model.embedding={write_embedding(weights, 0.1)}", "--set=workload=4000")
    with Job(tmp_path / "run", CONFIG, *flags) as job:
        job.until_units(8)
        job.send(signal.SIGINT)
        assert job.wait() == 75, job.output + job.logs()
    write_embedding(weights, 0.2)
    with Job(tmp_path / "run", CONFIG, *flags) as job:
        assert job.wait() not in (0, 75)
        assert "another frozen leaf tokens/embedding: its digest was" in job.output
        assert len(job.events("run_started")) == 1
