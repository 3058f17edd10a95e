"""The tutorial runs in a kernel, with a bar; a worker of its job is killed, and the curve shows."""

from __future__ import annotations

import json
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.doc_pages import ROOT
from tests.trainers import events_of

TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
CELL_SECS = 500
pytestmark = [pytest.mark.integration, pytest.mark.timeout(4 * CELL_SECS)]


def shown(cell: Any, kind: str) -> str:
    """Return what a cell shows in one kind of content."""
    return "".join(output["data"][kind] for output in cell.outputs if kind in output.get("data", {}))


def test_the_tutorial_runs_and_the_worker_that_it_kills_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = import_module("nbclient")
    nbformat = import_module("nbformat")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(TUTORIAL, as_version=4)
    context = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=CELL_SECS, kernel_name="python3", resources=context).execute()

    fitted, result, *_ = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert shown(fitted, "text/html").startswith('<progress value="2000" max="2000"></progress> ')
    assert "completed: 2,000 of 2,000 units" in shown(fitted, "text/plain")
    assert not [output for output in fitted.outputs if output.output_type == "stream"], "nothing is in red"
    assert "<svg " in shown(result, "text/html")

    workdir = tmp_path / "runs" / "killed"
    (lost,) = [event for event in events_of(workdir, "role_lost") if "SIGKILL" in event["reason"]]
    assert (lost["role"], lost["id"]) == ("worker", 1)
    summary = json.loads((workdir / "summary.json").read_text())
    assert (summary["exit"], summary["units"]["applied"]) == ("completed", 3000)
    (read,) = [cell for cell in notebook.cells if cell.source.endswith('"runs/killed")\nrun')]
    page = shown(read, "text/html")
    assert "<svg " in page and re.search(r"<li>[\d.]+ s: worker 1 lost: signal SIGKILL</li>", page)
