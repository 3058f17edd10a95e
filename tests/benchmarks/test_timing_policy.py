"""Resampled searches: which runs stand for a share, what comes out of it, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks import timing_policy

HEADER = "bsp_share,source_run,converged_accuracy,best_accuracy,seconds_without_switch_gap,excluded_by_authors\n"
RUNS = """0.0,a,0.80,0.8,10,0
0.0,a,nan,0.8,10,0
0.0,a,0.82,0.8,10,0
0.2,b,0.90,0.9,28,0
0.2,b,0.91,0.9,28,0
0.2,b,0.92,0.9,28,0
0.5,c,0.92,0.9,55,0
1.0,d,0.91,0.9,100,0
1.0,d,0.93,0.9,100,0
1.0,d,0.10,0.9,900,1
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + RUNS)
    return path


def test_rows_that_the_authors_left_out_are_left_out_and_nan_is_a_run_that_diverged(table: Path) -> None:
    runs = {float(share): some for share, some in timing_policy.read_runs(table).items()}
    assert {share: len(some) for share, some in runs.items()} == {0.0: 3, 0.2: 3, 0.5: 1, 1.0: 2}
    assert runs[0.0][1] == (None, 10.0)


def test_the_last_line_says_how_often_each_answer_came_and_what_it_cost(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--runs={table}", "--repeats=5", "--searches=50", "--settings=3"]
    assert timing_policy.main(flags) == 0
    *_, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert sorted(found) == ["answers", "mean_cost_bsp_runs"]
    assert sum(found["answers"].values()) == pytest.approx(1.0)
    assert {0.25, 0.125} & set(map(float, found["answers"]))
    assert 1 < found["mean_cost_bsp_runs"] < 10
    assert timing_policy.main(flags) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found, "the same seed gives the same figures"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no column 'bsp_share', but nothing"),
        (HEADER, "it needs runs of share 1"),
        (HEADER + "1.0,a,0.9,0.9,15,0\n", "runs of pure BSP alone"),
        (HEADER + "0.0,a,0.9,0.9,15,0\n", "it needs runs of share 1"),
        (HEADER + "1.0,a,nan,0.9,15,0\n", "it needs runs of share 1 that have an accuracy"),
        (HEADER + "half,a,0.9,0.9,15,0\n", "line 2 of"),
        (HEADER + "1/0,a,0.9,0.9,15,0\n", "line 2 of"),
        (HEADER + "1.5,a,0.9,0.9,15,0\n", "the BSP share '1.5' is not in"),
        (HEADER + "1.0,a,91.9,0.9,15,0\n", "the accuracy '91.9' is not in"),
        (HEADER + "1.0,a,0.9,0.9,0,0\n", "the time '0' is not above 0"),
        (HEADER + "1.0,a\n", "line 2 of"),
        (HEADER + "1.0,a,0.9,0.9,,0\n", "line 2 of"),
        (HEADER + "1.0,a,0.9,0.9,15,maybe\n", "the column 'excluded_by_authors' has 'maybe'"),
        ("share,secs\n0.5,3\n", "names no column 'bsp_share', but share, secs"),
        ("\0" * 64, "error"),
    ],
)
def test_a_table_of_something_else_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    assert timing_policy.main([f"--runs={path}"]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_diverged_run_without_seconds_takes_those_of_its_share_or_of_the_line_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    head = "excluded_by_authors,seconds_without_switch_gap,bsp_share,converged_accuracy\n"
    path.write_text(head + "0,,0,\n,nan,0.25,nan\n0,44,0.25,0.8\nnan,60,0.5,0.9\n0,100,1,0.9\n")
    runs = {float(share): some for share, some in timing_policy.read_runs(path).items()}
    assert runs == {0.0: [(None, 28.0)], 0.25: [(None, 44.0), (0.8, 44.0)], 0.5: [(0.9, 60.0)], 1.0: [(0.9, 100.0)]}


def test_a_diverged_run_takes_the_nearest_shares_seconds_where_the_line_comes_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + "0,a,,,,0\n0.25,a,0.8,0.8,60,0\n1,b,0.9,0.9,300,0\n")
    assert timing_policy.read_runs(path)[Fraction(0)] == [(None, 60.0)]


def test_runs_of_lock_step_that_diverged_give_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + "0.5,a,0.88,0.9,60,0\n" * 3 + "1,b,0.9,0.9,100,0\n" + "1,b,,0.9,100,0\n" * 3)
    assert timing_policy.main([f"--runs={path}", "--searches=20", "--repeats=1"]) == 0
    assert "target 0.9000, the mean of 1 run" in capsys.readouterr().out
    runs = timing_policy.read_runs(path)
    found = timing_policy.search_often(runs, timing_policy.Rules(0.5, settings=1, runs=1), 20, seed=0, of_target=2)
    assert found.answers == {1: 1.0}, "a target of runs that diverged would be lower, and a half good enough"


def test_bytes_that_are_no_text_and_a_file_that_is_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.csv").write_bytes(b"\xff\xfe\x00")
    assert timing_policy.main([f"--runs={tmp_path / 'runs.csv'}"]) == 1
    assert "is no table of runs" in capsys.readouterr().err
    assert timing_policy.main([f"--runs={tmp_path / 'none.csv'}"]) == 1
    assert "none.csv cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--searches=0", "--repeats=0", "--settings=0", "--tolerance=0"])
def test_a_search_of_nothing_is_refused(table: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert timing_policy.main([f"--runs={table}", flag]) == 1
    assert capsys.readouterr().err.startswith("error: ")
