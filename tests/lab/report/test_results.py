"""Runs are compared over their seeds: figures, files, and what cannot be compared."""

from __future__ import annotations

import csv
import dataclasses
import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridsync import compare, read_run
from hybridsync.core.errors import ConfigError, HybridSyncError, WorkdirError
from hybridsync.lab.report.model import differing
from hybridsync.telemetry.summary import Summary, Units, write_config, write_summary
from tests.lab.report.workdirs import CONFIG, WrittenRun

Measured = Sequence[tuple[int, float]]


def made(workdir: Path, plan: str, seed: int, measured: Measured, *, ended: bool = True, **config: Any) -> Path:
    """Leave a run with these accuracies at these units; a second lies between two of them."""
    run = WrittenRun(workdir)
    write_config(workdir, dataclasses.replace(CONFIG, plan=plan, seed=seed, **config))
    run.start()
    run.phase(plan, 0, "start")
    for units, accuracy in measured:
        figures = {"accuracy": accuracy, "loss": 1 - accuracy, "units": units}
        run.event("evaluation", examples=8 * units, **figures)
    if ended:
        final = {"accuracy": measured[-1][1], "loss": 1 - measured[-1][1]}
        units, secs = Units(400, 400, 400, 0, 0, 0), float(len(measured))
        write_summary(workdir, Summary("completed", units, 3200, secs, plan, [], final, {}))
        run.event("run_finished", exit="completed", error=None)
    run.close()
    return workdir


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Leave two seeds of one plan, and three of another, of which one has not ended."""
    made(tmp_path / "bsp-0", "bsp", 0, [(100, 0.5), (200, 0.9), (400, 0.94)])
    made(tmp_path / "bsp-1", "bsp", 1, [(100, 0.5), (200, 0.7), (400, 0.9)])
    made(tmp_path / "asp-0", "asp", 0, [(150, 0.6), (400, 0.8)])
    made(tmp_path / "asp-1", "asp", 1, [(160, 0.5), (400, 0.7)])
    made(tmp_path / "asp-2", "asp", 2, [(150, 0.95)], ended=False)
    return tmp_path


def test_a_group_has_mean_deviation_and_number_of_its_runs(runs: Path) -> None:
    asp, bsp = compare(runs / "*", at=0.9).rows
    assert (asp["plan"], asp["runs"], asp["completed"], asp["accuracy_n"]) == ("asp", 3, 2, 2)
    assert (asp["accuracy_mean"], asp["accuracy_sd"]) == pytest.approx((0.75, 0.1 / math.sqrt(2)))
    assert (bsp["accuracy_mean"], bsp["loss_mean"]) == pytest.approx((0.92, 0.08))
    assert (bsp["seconds_mean"], bsp["examples_per_sec_mean"], asp["seconds_mean"]) == (
        3.0,
        pytest.approx(3200 / 3),
        2.0,
    )


def test_what_a_run_has_reached_counts_though_it_has_not_ended(runs: Path) -> None:
    asp, bsp = compare([runs / "*"], at=0.9).rows
    assert (asp["reached"], asp["units_to_reach_mean"], asp["units_to_reach_sd"]) == (1, 150, None)
    assert (bsp["reached"], bsp["units_to_reach_mean"], bsp["secs_to_reach_mean"]) == (2, 300, 2.5)
    falling = compare([runs / "bsp-*"], at=0.1, figure="loss").rows[0]
    assert (falling["reached"], falling["units_to_reach_mean"]) == (2, 300)
    never = compare([runs / "bsp-*"], at=0.99)
    assert never.rows[0]["reached"] == 0 and never.rows[0]["secs_to_reach_mean"] is None
    assert "0 of 2" in repr(never)


def test_the_table_says_how_many_runs_are_in_each_figure(runs: Path) -> None:
    table = compare(runs / "*", at=0.9)
    head, asp, bsp = repr(table).splitlines()
    assert head.split("  ")[0] == "plan" and "seconds to 0.9" in head and head.endswith("reached 0.9")
    assert "2 of 3" in asp and "0.75 ± 0.071" in asp and asp.endswith("1 of 3")
    assert "0.92 ± 0.028" in bsp and bsp.endswith("2 of 2")
    page = table._repr_html_()
    assert page.startswith("<table>") and page.rstrip().endswith("</svg>") and "0.75 ± 0.071" in page


def test_files_hold_a_row_a_group_or_a_row_a_run(runs: Path, tmp_path: Path) -> None:
    table = compare(runs / "*", at=0.9)
    table.csv(tmp_path / "groups.csv")
    table.csv(tmp_path / "runs.csv", of="runs")
    with open(tmp_path / "groups.csv", newline="") as file:
        groups = [*csv.DictReader(file)]
    assert [row["plan"] for row in groups] == ["asp", "bsp"]
    assert float(groups[1]["accuracy_mean"]) == pytest.approx(0.92)
    with open(tmp_path / "runs.csv", newline="") as file:
        each = [*csv.DictReader(file)]
    assert [(row["plan"], row["seed"], row["exit"]) for row in each[:3]] == [
        ("asp", "0", "completed"),
        ("asp", "1", "completed"),
        ("asp", "2", "unfinished"),
    ]
    assert each[2]["accuracy"] == "" and each[2]["units_to_reach"] == "150"


@pytest.mark.parametrize("x", ["secs", "units", "examples"])
def test_a_figure_has_a_line_and_a_band_a_group(runs: Path, tmp_path: Path, x: Any) -> None:
    path = tmp_path / "figure.svg"
    compare(runs / "*").svg(path, x=x)
    image = ET.fromstring(path.read_text())
    paths = [*image.iter("{http://www.w3.org/2000/svg}path")]
    assert len([each for each in paths if each.get("opacity")]) == 2
    texts = [each.text for each in image.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Accuracy, band of one standard deviation" and {"asp (2 of 3 runs)", "bsp (2 runs)"} <= {*texts}
    assert "var(" not in path.read_text(), "a program that draws it knows no style sheet"


def test_a_curve_enters_its_figure_from_below_where_it_has_risen_so_far(tmp_path: Path) -> None:
    made(tmp_path / "fast", "asp", 0, [(10, 0.1), (12, 0.2), (30, 0.8), (40, 0.9), (50, 0.9)])
    made(tmp_path / "slow", "bsp", 0, [(60, 0.1), (80, 0.2), (300, 0.8), (400, 0.9)])
    compare(tmp_path / "*").svg(tmp_path / "figure.svg", x="units")
    image = ET.fromstring((tmp_path / "figure.svg").read_text())
    curves = [each.get("d", "") for each in image.iter("{http://www.w3.org/2000/svg}path") if each.get("stroke-width")]
    starts = [curve.removeprefix("M").split("L")[:2] for curve in curves if "L" in curve]
    rises = [float(first.split()[1]) - float(second.split()[1]) for first, second in starts]
    assert len(rises) == 2 and all(rise > 0 for rise in rises), "no stretch runs along the axis"


def test_runs_are_grouped_by_any_value_of_the_configuration(tmp_path: Path) -> None:
    for workers in (2, 4):
        for seed in range(2):
            made(tmp_path / f"{workers}-{seed}", "asp", seed, [(400, 0.9)], workers=workers)
    table = compare(tmp_path / "*", by=("plan", "workers"))
    assert [(row["plan"], row["workers"], row["runs"]) for row in table.rows] == [("asp", 2, 2), ("asp", 4, 2)]
    assert table.mixed == [] and "differ in" not in repr(table)
    assert table.labels == ["2", "4"] and table.chart().title.startswith("Accuracy, mean of 2 runs, band")
    assert [line.style for line in table.chart().lines] == ["solid", "dashed"], "told apart without colours"
    hidden = compare(tmp_path / "*")
    assert hidden.mixed == ["workers"] and "runs of one group differ in workers" in repr(hidden)


def test_groups_and_their_runs_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for lead in (10, 2):
        for seed in (11, 9):
            made(tmp_path / f"{lead}-{seed}", f"ssp(staleness={lead})", seed, [(400, 0.9)])
    table = compare(tmp_path / "*")
    assert [run["run"].rpartition("/")[2] for run in table.runs] == ["2-9", "2-11", "10-9", "10-11"]
    assert [row[0] for row in table.cells()[1:]] == table.labels == ["ssp(staleness=2)", "ssp(staleness=10)"]


def test_histories_are_compared_as_folders_are(runs: Path) -> None:
    histories = [read_run(path) for path in sorted(runs.glob("bsp-*"))]
    assert compare(histories).rows == compare([runs / "bsp-0", runs / "bsp-1"]).rows
    assert len(compare([runs / "bsp-*", runs / "bsp-0"]).groups[0].runs) == 2, "each run counts once"


def test_of_a_pattern_what_is_no_run_is_passed_over_and_what_is_damaged_is_named(runs: Path) -> None:
    (runs / "figures").mkdir()
    (runs / "notes.txt").write_text("")
    (runs / "asp-0" / "metrics.jsonl").write_text("[]\n{}\n")
    table = compare(runs / "*")
    assert [row["runs"] for row in table.rows] == [2, 2]
    (reason,) = table.left_out
    assert "metrics.jsonl is damaged" in reason and f"left out: {reason}" in repr(table)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runs": "gone/*"}, "there is no run in gone/*"),
        ({"runs": []}, "there is no run in an empty list"),
        ({"runs": "gone"}, "there is no folder"),
        ({"by": "plam"}, "no run's configuration has a value 'plam'; did you mean 'plan'?"),
        ({"figure": "bleu"}, "no run has a figure 'bleu'; they have accuracy, loss"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(runs: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(HybridSyncError) as refused:
        compare(**{"runs": runs / "*", **given})
    assert said in str(refused.value)


def test_a_file_that_cannot_be_written_and_an_axis_that_there_is_not_are_refused(runs: Path, tmp_path: Path) -> None:
    table = compare(runs / "*")
    for write in (table.csv, table.svg):
        with pytest.raises(WorkdirError, match="cannot write"):
            write(tmp_path / "gone" / "file")
    with pytest.raises(ConfigError, match="x must be one of secs, units, examples, got 'time'"):
        table.svg(tmp_path / "file", x="time")  # pyright: ignore[reportArgumentType]


def test_a_task_without_an_accuracy_is_compared_by_its_loss(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.phase("asp", 0)
    run.event("evaluation", examples=8, units=1, accuracy=None, loss=0.5)
    run.close()
    assert compare(tmp_path / "run").figure == "loss"


def test_differing_values_are_named_by_their_keys() -> None:
    configs = [{"a": 1, "b": {"c": 2, "d": [1]}}, {"a": 1, "b": {"c": 3, "d": [1]}}, {"a": 1, "b": {"d": [1]}}]
    assert differing(configs) == ["b.c"]
    assert differing(configs[:1]) == []
