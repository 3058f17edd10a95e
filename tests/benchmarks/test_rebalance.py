"""What shares bring and cost: what the table says of short runs."""

from __future__ import annotations

import json

import pytest

from benchmarks import rebalance


def test_each_slowness_stands_beside_the_ideal_and_each_step_beside_one_unit_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--units=4000", "--factors", "3", "--most", "4", "--seeds=1", "--workload=120"]
    assert rebalance.main(arguments) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = found["speeds"]
    assert row["shares"] == [3] * 7 + [1]
    assert row["ideal"] == 2.75 >= row["fixed"] > row["rebalance"] > row["elastic"] > 2.0
    assert [job["job"] for job in found["accuracies"]] == list(rebalance.JOBS)
    for job in found["accuracies"]:
        assert [each["units"] for each in job["rows"]] == [8, 22]
        assert job["rows"][0]["points"] == 0.0


def test_a_step_of_no_unit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rebalance.main(["--most", "0", "--seeds=0"])
    assert "--most must be at least 1, got 0" in capsys.readouterr().err
