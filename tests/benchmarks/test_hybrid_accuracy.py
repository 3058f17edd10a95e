"""The table of accuracies: what it says of a short job."""

from __future__ import annotations

import json

import pytest

from benchmarks import hybrid_accuracy
from hybridsync.core.plan import Plan


def test_the_order_experiment_has_equal_shares_of_lock_step_first_and_last() -> None:
    assert hybrid_accuracy.order_plans()[:4] == ("bsp:12.5%,asp", "asp:87.5%,bsp", "bsp:25%,asp", "asp:75%,bsp")
    ends = [Plan.parse(plan).ends(1000)[0] for plan in hybrid_accuracy.order_plans()]
    assert ends[::2] == [1000 - end for end in ends[1::2]]


def test_every_plan_stands_beside_the_others_with_its_spread(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workers", "2", "--seeds", "2", "--plans", "bsp", "asp", "bsp:50%,asp", "--set", "workload=60"]
    assert hybrid_accuracy.main(arguments) == 0
    *printed, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)["workers"]["2"]
    assert list(found) == ["bsp", "asp", "bsp:50%,asp"]
    assert all(len(row["accuracies"]) == 2 and 0 < row["mean"] < 1 for row in found.values())
    assert any("asp loses" in line for line in printed)


def test_runs_that_diverge_count_as_guessing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workers", "2", "--seeds", "1", "--plans", "asp", "--set", "workload=60"]
    wild = ["--set", "optimizer.learning_rate=1e30", "--set", "optimizer.clip=none"]
    assert hybrid_accuracy.main([*arguments, *wild]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["workers"]["2"]["asp"]["accuracies"] == [hybrid_accuracy.GUESSING]


def test_a_value_that_the_job_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert hybrid_accuracy.main(["--set", "optimizer.rate=1"]) == 1
    assert "error:" in capsys.readouterr().err
