"""A run whose disk is full for a while: it says so, goes on, and is durable again when there is space."""

from __future__ import annotations

import pytest

from hybridsync.storage.apply_log import APPLY_LOG, read
from hybridsync.storage.checkpoints import CheckpointStore
from tests.disk.oracle import check_nothing_left
from tests.trainers import events_of, is_exact

WORKLOAD = 400


@pytest.mark.timeout(180)
def test_training_goes_on_while_the_disk_is_full_and_is_saved_when_there_is_space_again(victim, tmp_path):
    workdir = tmp_path / "run"
    answer = victim.ask("train_on_full_disk", workdir=workdir, workload=WORKLOAD)
    assert answer["exit"] == "completed"
    assert is_exact(answer["final"])
    kinds = [event["kind"] for event in events_of(workdir) if event["kind"] in ("checkpoint", "save_failed")]
    failed = events_of(workdir, "save_failed")
    assert failed, kinds
    assert all("No space left on device" in event["error"] for event in failed)
    assert 0 < failed[0]["units"] < WORKLOAD, "the disk was not full while it trained"
    assert kinds.index("save_failed") > 0, "the disk was full before the first save"
    assert kinds[-1] == "checkpoint"
    assert events_of(workdir, "checkpoint")[-1]["units"] == WORKLOAD
    restored = CheckpointStore(workdir / "checkpoints").newest()
    assert restored is not None
    assert restored.units == WORKLOAD
    logged = [entry.sequence for entry in read(workdir / APPLY_LOG)]
    assert logged == list(range(1, WORKLOAD + 1)), "the apply log lost updates, or has them in another order"
    check_nothing_left(workdir / "checkpoints", keep=3)
