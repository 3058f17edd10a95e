"""The table of published runs is read as it is meant, and the model is fitted to its two ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import syncswitch_times

HEADER = "bsp_share,source_run,seconds_without_switch_gap,excluded_by_authors\n"
RUNS = "0.0,a,15,0\n0.0,b,17,0\n0.25,c,36.5,0\n0.5,d,57,0\n0.75,e,80,0\n1.0,f,100,0\n1.0,g,900,1\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + RUNS)
    return path


def test_means_leave_out_what_the_authors_excluded(table: Path) -> None:
    means = syncswitch_times.read_means(table)
    assert {float(share): secs for share, secs in means.items()} == {0: 16, 0.25: 36.5, 0.5: 57, 0.75: 80, 1: 100}


def test_shares_up_to_a_half_are_predicted_from_the_two_ends(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert syncswitch_times.main([f"--runs={table}", "--workers=4", "--workload=400"]) == 0
    *printed, last = capsys.readouterr().out.splitlines()
    assert "work accounting" in printed[0]
    found = json.loads(last)
    assert sorted(found["shares"]) == ["0.25", "0.5"]
    assert found["shares"]["0.25"] == {"published": 36.5, "predicted": pytest.approx(37, rel=0.01)}
    assert found["shares"]["0.5"]["predicted"] == pytest.approx(58, rel=0.01)
    assert found["worst_error"] == pytest.approx(58 / 57 - 1, abs=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it needs 0 and 1"),
        (HEADER, "it needs 0 and 1"),
        (HEADER + "0.0,a,15,0\n1.0,b,100,0\n", "one up to 0.5 to predict"),
        (HEADER + "half,a,15,0\n", "line 2 of"),
        (HEADER + "0.5,a\n", "line 2 of"),
        ("share,secs\n0.5,3\n", "line 2 of"),
        (HEADER + "0.0,a,100,0\n0.5,b,80,0\n1.0,c,10,0\n", "no step that is faster than its units"),
    ],
)
def test_a_table_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    assert syncswitch_times.main([f"--runs={path}", "--workload=400"]) == 1
    assert message in capsys.readouterr().err


def test_a_table_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert syncswitch_times.main([f"--runs={tmp_path / 'none.csv'}"]) == 1
    assert "none.csv cannot be read" in capsys.readouterr().err
