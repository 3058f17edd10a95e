"""What docs/report.md says of the page is on the page."""

import re
from pathlib import Path

from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_records
from hybridsync.lab.report.scales import MOST_POINTS
from tests.lab.report.workdirs import completed

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "report.md").read_text()


def test_the_guide_names_every_part_of_the_page_in_its_order(tmp_path: Path) -> None:
    folder = completed(tmp_path / "run")
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace('"host":"here"', '"host":"there"', 1))  # of two hosts, as it seems
    parts = re.findall(r"<h2>(.*?)</h2>", page(shown_records([folder])))
    named = re.findall(r"^\| ([A-Z][^|]*?) \|", GUIDE, re.MULTILINE)
    assert [part.replace("&#x27;", "'") for part in parts] == named


def test_the_guides_figures_are_the_codes() -> None:
    assert f"about {MOST_POINTS} points" in GUIDE
