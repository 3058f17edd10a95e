"""Signs of lock-step: a trace of a short job, rules that end lock-step, and bounds that are fitted on other jobs."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import early_signs
from benchmarks.early_signs import CASES, SIGNS, Measured, Point, Signs, fitted, held_out, judged, knee, passes
from benchmarks.reproduction.definition import Given
from benchmarks.reproduction.jobs import HURT
from benchmarks.reproduction.record import missing, read

NORM = SIGNS["norm over its start"]
LOST = {0.0: 0.09, 0.25: 0.03, 0.5: 0.0, 1.0: 0.0}
RISING = [Point(units, 1.0 + units / 400, 10.0, 1.0 / (1 + units)) for units in range(0, 900, 20)]


def test_the_trace_of_a_longer_run_begins_as_that_of_a_shorter_one() -> None:
    short, long = (
        early_signs.read_trace(str(Signs(replace(HURT, sets=(f"workload={units}",)), 1).measure(Given())["trace"]))
        for units in (160, 480)
    )
    before_the_rate_falls = [point for point in short if point.units < 0.3 * 160]
    assert len(before_the_rate_falls) > 3
    assert long[: len(before_the_rate_falls)] == before_the_rate_falls
    assert all(point.norm > 0 and point.noise > 0 for point in long)


def test_gradients_without_a_common_direction_have_no_finite_noise_scale() -> None:
    assert early_signs.noise_scale([1.0, 1.0], 0.5, 10) == math.inf


def test_a_rule_ends_lock_step_at_its_bound_or_where_the_rate_falls() -> None:
    case = Measured(CASES[0], [RISING], LOST, 1)
    assert case.share(lambda trace: passes(NORM, 2.0, trace)) == 400 / 1600
    assert case.share(lambda trace: passes(NORM, 99.0, trace)) == 0.5
    assert case.needed() == 0.5
    assert judged([case], [0.25]) == (0, 0.03, 0.25 + 0.75 / early_signs.SPEED)


def test_the_knee_is_that_of_the_trigger() -> None:
    assert knee(RISING, 1600) == 400
    assert knee([Point(units, 1.0, 1.0, 3.0 - units / 400) for units in range(0, 900, 20)], 1600) == math.inf


def test_a_bound_is_fitted_on_the_jobs_of_other_families() -> None:
    mlp, digits = Measured(CASES[0], [RISING], LOST, 1), Measured(CASES[-2], [RISING], {0.0: 0.0, 1.0: 0.0}, 1)
    assert fitted([digits], NORM) == RISING[1].norm, "the cheapest, as every share is good enough"
    assert held_out([mlp, digits], NORM)[0] == 20 / 1600
    assert 0.3 < mlp.share(lambda trace: passes(NORM, fitted([mlp], NORM), trace)) <= 0.5


def test_published_runs_are_told_by_their_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [["bsp_share", "source_run", "converged_accuracy", "excluded_by_authors"]]
    for number in range(6):
        run, jump = f"run{number}", 1 + number % 3
        (tmp_path / run).mkdir()
        (tmp_path / run / "weight_decay.csv").write_text(f"Step,Value\n1,1\n101,{jump**2}\n5001,99\n")
        lines.append([("0.25", "0.5")[number // 3], run, str(0.9 - jump / 100), "0"])
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    early_signs.tell_published(tmp_path / "runs.csv", tmp_path)
    told = capsys.readouterr().out
    assert "share 0.25    3 runs, early norm 2.000" in told
    assert "r within shares -1.00; the share accounts for 0%" in told


def test_every_run_is_recorded_and_the_page_quotes_what_the_bounds_come_to() -> None:
    found = read(early_signs.EXPERIMENT, early_signs.RESULTS)
    lines = (early_signs.RESULTS / "early_signs.csv").read_text(encoding="utf-8").count("\n") - 1
    assert len(found) == lines and missing(early_signs.EXPERIMENT, early_signs.RESULTS) == []
    cases = early_signs.measured(early_signs.RESULTS)
    page = (early_signs.ROOT / "docs" / "tune.md").read_text(encoding="utf-8")
    page = page.replace(" of 10 ", " ").replace(" points ", " ")
    knees = [case.share(lambda trace, case=case: knee(trace, case.case.job.config().workload)) for case in cases]
    signs = [sign for name, sign in SIGNS.items() if "growth" not in name]
    rows = [
        [[early_signs.PAPERS] * len(cases)],
        [knees, [early_signs.falls(case.case.job) for case in cases]],
        [held_out(cases, sign) for sign in signs],
        [early_signs.new_seeds(cases, sign) for sign in signs],
    ]
    for rules in rows:
        verdicts = [judged(cases, shares) for shares in rules]
        columns = zip(*((v.enough, f"-{100 * v.worst:.1f}", f"{1 / v.time:.2f}x") for v in verdicts), strict=True)
        told = " | ".join("; ".join(map(str, column)) for column in columns)
        assert f"| {told} |".replace("-0.", "-.") in page
