from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError, WorkdirError
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import SIMULATION_FILE, shown_records
from hybridsync.lab.simulator.campaign import carry_out
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario, Slow
from hybridsync.lab.simulator.study import Column, Study
from hybridsync.lab.simulator.table import table
from hybridsync.training.run import Run
from tests.lab.simulator.runs import tally_run

BASE = tally_run()
UNEVEN = Scenario(cluster=Cluster(devices=(Device(0.05, 0.2),)))


def run_of(config: RunConfig) -> Run:
    return dataclasses.replace(BASE, config=config)


def study(*plans: str, seeds: int = 1, scenario: Scenario = UNEVEN) -> Study:
    return Study(BASE.config, plans, seeds, scenario, "uneven", "none")


def drawn(columns: list[Column]) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(table(columns))
    return text.getvalue()


def test_plans_stand_side_by_side_with_ratios_to_the_first() -> None:
    columns = carry_out(study("bsp", "asp"), run_of)
    text = drawn(columns)
    ratio = columns[1].results[0].seconds / columns[0].results[0].seconds
    head, time, *_ = text.splitlines()
    assert head.split() == ["bsp", "asp"]
    assert time.startswith("time, s")
    assert f"({ratio:.2f}x)" in time
    assert "±" not in text


def test_seeds_differ_and_their_spread_is_told() -> None:
    (column,) = carry_out(study("asp", seeds=3), run_of)
    assert [result.seed for result in column.results] == [0, 1, 2]
    mean, spread = column.over_seeds(lambda result: result.seconds)
    assert 0 < spread < 0.1 * mean
    assert "±" in drawn([column])


def test_every_run_of_a_study_has_its_folder_and_the_whole_has_one_file(tmp_path: Path) -> None:
    carry_out(study("bsp", "bsp:6.25%,asp", seeds=2), run_of, workdir=tmp_path / "study")
    told = json.loads((tmp_path / "study" / SIMULATION_FILE).read_text())
    assert [(plan["plan"], [run["seed"] for run in plan["runs"]]) for plan in told["plans"]] == [
        ("bsp", [0, 1]),
        ("bsp:6.25%,asp", [0, 1]),
    ]
    folders = [tmp_path / "study" / plan / seed for plan in ("bsp", "bsp-6.25-asp") for seed in ("seed0", "seed1")]
    html = page(shown_records([str(folder) for folder in folders]))
    assert html.count("completed, simulated") == 4


def test_one_run_is_in_the_workdir_itself_and_says_that_it_is_simulated(tmp_path: Path) -> None:
    carry_out(study("asp"), run_of, workdir=tmp_path)
    html = page(shown_records([tmp_path]))
    assert "completed, simulated" in html
    assert "time alone; uneven" in html
    assert "1970" not in html


def test_what_a_study_leaves_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        carry_out(study("asp", "bsp"), run_of, workdir=tmp_path / name, events=tmp_path / f"{name}.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    one, two = ((tmp_path / name / SIMULATION_FILE).read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"num_seeds": 2**32 + 1}, "above 2"),
        ({"plans": ("asp", "asp")}, "is there twice"),
        ({"plans": ()}, "there is no plan"),
        ({"plans": ("bsp:50%",)}, "50"),
        ({"plans": ("abc",)}, "abc"),
        ({"scenario": Scenario(slow=(Slow(9, 0.1),))}, "names worker 9, but the run has workers 0 to 3"),
    ],
)
def test_an_impossible_study_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        dataclasses.replace(study("asp"), **change)
    assert said in str(refused.value)


def test_files_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write --events"):
        carry_out(study("asp"), run_of, events=tmp_path / "absent" / "events.jsonl")
    carry_out(study("asp"), run_of, workdir=tmp_path)
    with pytest.raises(WorkdirError, match="holds a simulation already"):
        carry_out(study("asp"), run_of, workdir=tmp_path)
