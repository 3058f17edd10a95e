"""docs/performance.md says what its results file says."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers import other_machines
from benchmarks.peers.__main__ import RESULTS
from benchmarks.peers.figures import Results
from benchmarks.peers.page import FOLDER, FORMS, PAGE, plots, refreshed
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.work import ALL

TEXT = PAGE.read_text(encoding="utf-8")
FOUND = Results.read(RESULTS)
README = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_made_parts_are_those_of_the_results() -> None:
    assert refreshed(TEXT, FOUND) == TEXT, "run python -m benchmarks.peers page, and review the difference"


def test_a_figure_that_the_results_do_not_have_would_be_noticed() -> None:
    changed = re.sub(r"(\| lock-step \| )[\d,]+", r"\g<1>1", TEXT, count=1)
    assert changed != TEXT and refreshed(changed, FOUND) == TEXT


def test_the_plots_are_drawn_from_the_results_and_shown() -> None:
    drawn = plots(FOUND)
    assert sorted(path.stem for path in FOLDER.glob("*.svg")) == sorted(drawn)
    assert re.findall(r"\]\(performance/(\w+)\.svg\)", TEXT) == list(drawn)
    for name, svg in drawn.items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == svg, "run python -m benchmarks.peers page"


def test_readme_gives_the_range_over_both_machines_and_names_both_processors() -> None:
    (machine,) = other_machines.read()
    found = 0
    for figure, ours, both in other_machines.beside(FOUND, machine):
        if not figure.case.startswith("digits-") or ours is None or figure.what == "figure":
            continue
        written = FORMS[figure.what]
        said = both.written(written)
        if figure.what == "ratio":
            said = f"{said} x as fast: {ours.written(written)} on the AMD, {figure.range.written(written)} on the Intel"
        assert said in README, f"README lacks {said}"
        found += 1
    assert found == 7
    assert FOUND.machine["processor"] == "AMD EPYC" and machine.machine["processor"].startswith("Intel")


def test_figures_of_another_machine_are_of_works_and_systems_that_there_are() -> None:
    for machine in other_machines.read():
        for figure in machine.figures:
            assert figure.case in {each.case for each in FOUND.measurements} and figure.system in SYSTEMS
            assert other_machines.measured(FOUND, figure) is not None
            assert any(value is not None for value in (figure.median, figure.low))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_of_the_page_was_measured_or_its_failure_is_told(name: str) -> None:
    title = SYSTEMS[name].title
    assert f"| {title} |" in TEXT or f"| **{title}**" in TEXT
    told = any(name == each.system for each in (*FOUND.measurements, *FOUND.failures))
    assert told or re.search(rf"\| \**{re.escape(title)}\** \|  \| not asked for in this run \|", TEXT)


def test_the_results_are_of_works_and_systems_that_there_are() -> None:
    works = {work.name for work in ALL}
    assert {each.case.partition("/")[0] for each in FOUND.measurements} <= works
    assert {each.system for each in FOUND.measurements} <= SYSTEMS.keys()


def test_a_part_that_the_page_tells_to_measure_exists() -> None:
    for given in re.findall(r"--only=([\w,-]+)", TEXT):
        for name in given.split(","):
            assert any(work.name.startswith(name) for work in ALL), name
