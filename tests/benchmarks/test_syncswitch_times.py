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
        ("", "names no column 'bsp_share', but nothing"),
        (HEADER, "the fit needs those of 1"),
        (HEADER + "0.0,a,15,0\n0.5,b,40,0\n", "the fit needs those of 1"),
        (HEADER + "0.75,a,80,0\n1.0,b,100,0\n", "of 0 or another share up to 0.5"),
        (HEADER + "0.0,a,15,0\n1.0,b,100,0\n", "one up to 0.5 to predict"),
        (HEADER + "0.5,a,40,0\n1.0,b,100,0\n", "leaves asynchrony no time"),
        (HEADER + "half,a,15,0\n", "the column 'bsp_share' has 'half', which is no number"),
        (HEADER + "0.0,a,0:15:00,0\n", "the column 'seconds_without_switch_gap' has '0:15:00'"),
        (HEADER.replace("source_run", "bsp_share") + "0.0,0.5,15,0\n", "names the column 'bsp_share' twice"),
        (HEADER + "6.25,a,15,0\n", "the BSP share '6.25' is not in"),
        (HEADER + "0.5,a\n", "ends before its column 'seconds_without_switch_gap'"),
        (HEADER + "0.5,a,,0\n", "has no seconds"),
        ("share,secs\n0.5,3\n", "names no column 'bsp_share', but share, secs"),
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


@pytest.mark.parametrize(
    "text",
    [
        "seconds_without_switch_gap,note,bsp_share\n15,a,0.0\n17,b,0.0\n36.5,c,0.25\n57,d,0.5\n100,f,1.0\n",
        "\ufeffbsp_share, seconds_without_switch_gap ,excluded_by_authors\n0,16,\n0.25,36.5,0\n1/2,57,0\n1,100,0.0\n",
        "bsp_share,seconds_without_switch_gap\n0%,16\n25 %,36.5\n50%,57\n100%,100\n",
    ],
)
def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
    means = syncswitch_times.read_means(tmp_path / "runs.csv")
    assert {float(share): secs for share, secs in means.items()} == {0: 16, 0.25: 36.5, 0.5: 57, 1: 100}


def test_the_smallest_share_takes_the_place_of_asynchrony_that_never_came_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    lines = [
        "bsp_share,converged_accuracy,seconds_without_switch_gap",
        "0,,",
        "0,nan,nan",
        "0.125,0.9,30",
        "0.5,0.9,60",
    ]
    path.write_text("\n".join([*lines, "1,0.9,100"]) + "\n")
    assert syncswitch_times.main([f"--runs={path}", "--workers=16", "--workload=1600"]) == 0
    *printed, last = capsys.readouterr().out.splitlines()
    assert "100.0 s of pure BSP and 30.0 s of bsp:12.5%,asp" in printed[1]
    assert json.loads(last)["shares"] == {"0.5": {"published": 60.0, "predicted": pytest.approx(60, rel=0.02)}}


@pytest.mark.parametrize("flags", [["--workers=0"], ["--workload=3"]])
def test_a_run_without_a_step_is_refused(table: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert syncswitch_times.main([f"--runs={table}", *flags]) == 1
    assert "make no step" in capsys.readouterr().err


def test_a_table_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert syncswitch_times.main([f"--runs={tmp_path / 'none.csv'}"]) == 1
    assert "none.csv cannot be read" in capsys.readouterr().err
