"""The tutorial's notebook is committed as it was executed, and small. `make integration` executes it again."""

import json

from tests.doc_pages import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
MOST_BYTES = 60_000
CELLS = [cell for cell in json.loads(TUTORIAL.read_text())["cells"] if cell["cell_type"] == "code"]


def test_every_cell_was_executed_in_order_without_an_error() -> None:
    assert [cell["execution_count"] for cell in CELLS] == [*range(1, len(CELLS) + 1)]
    assert {output["output_type"] for cell in CELLS for output in cell["outputs"]} <= {
        "stream",
        "display_data",
        "execute_result",
    }


def test_the_outputs_show_the_bar_the_curve_and_the_loss_of_the_worker() -> None:
    outputs = json.dumps([cell["outputs"] for cell in CELLS])
    assert "<progress value" in outputs and "<svg " in outputs
    assert "worker 1 lost: signal SIGKILL" in outputs


def test_the_file_is_small() -> None:
    assert TUTORIAL.stat().st_size <= MOST_BYTES
