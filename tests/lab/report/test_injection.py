"""No text of a run's files becomes part of the page's markup: every leaf of every file is a script in turn."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridsync import compare
from hybridsync.cli.report import write_report
from hybridsync.core.errors import HybridSyncError
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_record, shown_records
from tests.lab.report.workdirs import completed
from tests.trainers import tally_trainer

SCRIPT = "<script>alert(1)</script>"
LINES = ("events.jsonl", "metrics.jsonl")
OBJECTS = ("config.json", "summary.json", "timeline.json")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every leaf, and to every container."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], what: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = what


def read(folder: Path, name: str) -> Any:
    text = (folder / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name in LINES else json.loads(text)


def write(folder: Path, name: str, value: Any) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in value) if name in LINES else json.dumps(value)
    (folder / name).write_text(lines)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return completed(tmp_path_factory.mktemp("injected") / "run")


def check(folder: Path, what: str) -> bool:
    """Draw the page, or have it refused by name; return whether it was drawn."""
    try:
        page = write_report([str(folder)], None).read_text(encoding="utf-8")
    except HybridSyncError:
        return False
    assert what not in page, page[max(0, page.find(what) - 80) : page.find(what) + 40]
    return True


@pytest.mark.parametrize("name", [*LINES, *OBJECTS])
def test_a_script_in_place_of_any_value_is_no_part_of_the_page(run: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    whole, drawn = read(folder, name), 0
    for path in leaves(whole):
        changed = json.loads(json.dumps(whole))
        put(changed, path, SCRIPT)
        write(folder, name, changed)
        drawn += check(folder, SCRIPT)
    assert drawn > 5, "pages are drawn although something in them is no number"


TEXTS = st.text(st.sampled_from("<>&\"'a/="), max_size=20).map(lambda text: f"{text}<img src=x onerror=a>")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from([*LINES, *OBJECTS]), text=TEXTS)
def test_no_text_leaves_its_place(run: Path, data: st.DataObject, name: str, text: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run", dirs_exist_ok=True))
    whole = read(folder, name)
    put(whole, data.draw(st.sampled_from(list(leaves(whole)))), text)
    write(folder, name, whole)
    check(folder, "<img src=x")


def test_a_line_with_a_text_for_a_number_is_left_out_and_counted(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    metrics = read(folder, "metrics.jsonl")
    metrics[0]["units"] = SCRIPT
    write(folder, "metrics.jsonl", metrics)
    assert check(folder, SCRIPT)
    assert "1 line with something else" in (folder / "report.html").read_text()


def test_no_line_of_a_real_run_is_left_out(tmp_path: Path) -> None:
    tally_trainer("bsp:50%,asp", workdir=tmp_path / "run").fit()
    assert shown_record(tmp_path / "run", "run").num_unreadable == 0


@pytest.mark.parametrize("by", [(), ("plan",)])
def test_no_name_or_value_of_several_runs_is_part_of_the_page_or_of_their_figure(
    run: Path, tmp_path: Path, by: tuple[str, ...]
) -> None:
    folders = []
    for number in range(3):
        folder = Path(shutil.copytree(run, tmp_path / f"<b>{number}"))
        config = read(folder, "config.json")
        for key in ("plan", "seed", "rate"):
            config["config"][key] = f"{SCRIPT}{number % 2}"
        write(folder, "config.json", config)
        folders.append(folder)
    text = page(shown_records(folders), by=by)
    assert SCRIPT not in text and "<b>" not in re.sub(r"<b>(?!\d)", "", text)
    table = compare(folders)
    table.svg(tmp_path / "figure.svg")
    assert SCRIPT not in table._repr_html_() and SCRIPT not in (tmp_path / "figure.svg").read_text()
    ET.fromstring((tmp_path / "figure.svg").read_text())


def test_a_browser_runs_the_pages_own_script_alone(run: Path) -> None:
    page = write_report([str(run)], None).read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{seal}'; style-src 'unsafe-inline'")
