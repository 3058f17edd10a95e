"""The code blocks of the page about reading results back run in order, with fewer and shorter runs."""

import csv
from pathlib import Path

import pytest

from hybridsync.lab.report.groups import OVER
from tests.doc_pages import ROOT, TEST_SECS, blocks, output

pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]

PAGE = (ROOT / "docs" / "results.md").read_text()
BLOCKS = blocks("docs/results.md")
FEWER = {
    '("bsp", "asp", "ssp(staleness=3)", "bsp:25%,asp", "preduce")': '("bsp", "asp")',
    "range(3)": "range(2)",
    "compute_secs=0.02": "compute_secs=0.001",
    "at=0.85": "at=0.1",
}


def test_blocks_run_in_order_and_leave_the_table_and_the_figure(tmp_path: Path) -> None:
    program = "\n".join(BLOCKS)
    for there, here in FEWER.items():
        assert there in program
        program = program.replace(there, here)
    assert output([program], tmp_path).startswith("RunHistory(in memory: completed, 400 of 400 units in ")
    with open(tmp_path / "plans.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["plan"], row["runs"], row["reached"]) for row in rows] == [("asp", "2", "2"), ("bsp", "2", "2")]
    assert (tmp_path / "plans.svg").read_text().startswith("<svg ")


def test_the_figure_takes_fifteen_lines_with_its_imports() -> None:
    first, figure, *_ = BLOCKS
    before, _, _ = first.partition("result =")
    assert len([line for line in (before + figure).splitlines() if line]) <= 15


def test_the_page_names_the_axes() -> None:
    assert all(f"`{axis}`" in PAGE for axis in OVER)
