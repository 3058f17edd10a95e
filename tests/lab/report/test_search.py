"""The page of a search."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hybridsync.cli.report import write_report
from hybridsync.core.errors import WorkdirError
from hybridsync.lab.report.reading import SEARCH, SEARCH_FILE, SETTING, read_search
from hybridsync.lab.report.search import search_page
from hybridsync.lab.tuning.search_record import record_of, write_record
from hybridsync.lab.tuning.search_rules import Outcome, Rules, Search, advance


def searched(num_runs: int, runs: int = 3) -> Search:
    """Return a search after so many runs; shares below a fifth are too small."""
    outcomes: list[Outcome] = []
    for _ in range(num_runs):
        missing = advance(Rules(runs=runs, doubt=0), outcomes).missing
        if missing is None:
            break
        accuracy = 0.92 + min(0.0, float(missing.share) - 0.2) + missing.repeat * 0.002
        diverged = missing.share == Fraction(1, 8) and missing.repeat == 1
        outcomes.append(Outcome(missing.share, missing.repeat, None if diverged else accuracy, 12.5))
    return advance(Rules(runs=runs, doubt=0), outcomes)


def test_a_record_holds_what_the_page_reads(tmp_path: Path):
    for num_runs in (0, 2, 5, 99):
        record = record_of(searched(num_runs), "digits", "equal workers")
        assert tuple(record) == tuple(SEARCH)
        assert all(tuple(setting) == tuple(SETTING) for setting in record["settings"])
    write_record(tmp_path, searched(99), "digits", "equal workers")
    assert read_search(tmp_path) == record


def test_every_share_is_on_the_page_in_its_order_and_its_colour():
    search = searched(99)
    text = search_page("tune", record_of(search, "digits", "equal workers"))
    plans = re.findall(r"<code>([^<]+)</code>", text)
    assert plans[:4] == ["bsp", "bsp:50%,asp", "bsp:25%,asp", "bsp:12.5%,asp"]
    assert len(re.findall(r'class="line solid k2"', text)) == sum(bool(each.accepted) for each in search.settings)
    rejected = [each for each in search.settings if each.accepted is False and each.accuracies]
    assert len(re.findall(r'class="line solid k1"', text)) == len(rejected)
    assert "rejected: diverged" in text and ">found</span>" in text


def test_a_search_under_way_says_what_is_missing():
    assert "no run has ended yet" in search_page("tune", record_of(searched(0), "digits", "here"))
    text = search_page("tune", record_of(searched(4), "digits", "here"))
    assert "under way" in text and "bsp:50%,asp: run 2 of 3" in text


def test_names_are_text_whatever_is_in_them():
    text = search_page("<script>", record_of(searched(5), "<b>job</b>", "&"))
    assert "<b>job" not in text and "&lt;b&gt;job" in text and "<h1>&lt;script&gt;" in text


def test_the_report_of_a_searchs_folder_is_its_page(tmp_path: Path):
    write_record(tmp_path, searched(99), "digits", "equal workers")
    assert "The search&#x27;s path" in write_report([str(tmp_path)], None).read_text()


def test_a_damaged_record_is_named(tmp_path: Path):
    path = tmp_path / SEARCH_FILE
    path.write_text(json.dumps({"job": "digits"}))
    with pytest.raises(WorkdirError, match=r"search\.json is damaged: the line .* lacks where, runs"):
        read_search(tmp_path)
    path.write_text("{")
    with pytest.raises(WorkdirError, match="is damaged"):
        read_search(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("job", 3, "a text"),
        ("where", None, "a text"),
        ("runs", 2.5, "a count"),
        ("runs", True, "a count"),
        ("tolerance", "0.01", "a number"),
        ("target", float("nan"), "a number or null"),
        ("settings", {"plan": "bsp"}, "a list"),
        ("missing", ["bsp"], "a text or null"),
        ("answer", 0.25, "a text or null"),
        ("lines", "found", "texts"),
        ("lines", [1], "texts"),
        ("settings.plan", None, "a text"),
        ("settings.share", 0, "a number above 0"),
        ("settings.share", "50%", "a number above 0"),
        ("settings.accuracies", [0.9, "0.8"], "numbers or nulls"),
        ("settings.mean", "0.9", "a number or null"),
        ("settings.spread", [], "a number or null"),
        ("settings.secs_a_run", False, "a number or null"),
        ("settings.accepted", "yes", "true, false or null"),
        ("settings.verdict", 1, "a text"),
    ],
)
def test_a_value_of_another_kind_is_named_with_where_it_stands(tmp_path: Path, name: str, value: Any, kind: str):
    record = record_of(searched(99), "digits", "equal workers")
    where = name.replace("settings.", "settings[1].")
    (record["settings"][1] if "." in name else record)[name.rpartition(".")[2]] = value
    path = tmp_path / SEARCH_FILE
    path.write_text(json.dumps(record))
    with pytest.raises(WorkdirError) as error:
        read_search(tmp_path)
    assert str(error.value) == f"{path} is damaged: {where} is {json.dumps(value)}, not {kind}; restore it"


def test_a_setting_that_is_none_is_named(tmp_path: Path):
    record = {**record_of(searched(99), "digits", "equal workers"), "settings": ["bsp"]}
    (tmp_path / SEARCH_FILE).write_text(json.dumps(record))
    with pytest.raises(WorkdirError, match=r'settings\[0\] is "bsp", not an object; restore it'):
        read_search(tmp_path)
