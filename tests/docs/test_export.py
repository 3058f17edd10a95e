"""The code blocks of the page about exports run in order, and every format gives the model's own outputs back."""

from pathlib import Path

import pytest

from tests.doc_pages import TEST_SECS, blocks, output

pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]


def test_every_format_is_read_without_hybridsync_bit_for_bit(tmp_path: Path) -> None:
    assert output(blocks("docs/export.md"), tmp_path).splitlines() == ["orbax True", "flax True", "safetensors True"]
