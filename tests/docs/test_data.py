"""The code blocks of the page about a user's own data run in order, as one notebook."""

from pathlib import Path

import pytest

from tests.doc_pages import TEST_SECS, blocks, output

pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]


def test_blocks_run_in_order_and_the_model_learns(tmp_path: Path) -> None:
    (accuracy,) = output(blocks("docs/data.md"), tmp_path).splitlines()
    assert float(accuracy) >= 0.9
