"""What docs/control.md says of commands and metrics is what there is."""

from __future__ import annotations

import re
from pathlib import Path

from hybridsync.cli import COMMANDS
from hybridsync.telemetry.prometheus import families_of
from tests.telemetry.test_prometheus import ON_HOSTS, STATUS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "control.md").read_text()


def test_every_metric_is_in_the_table_and_none_besides() -> None:
    served = {sample.name for status in (STATUS, ON_HOSTS) for each in families_of(status) for sample in each.samples}
    assert set(re.findall(r"`(hybridsync_[a-z_]+)`", TEXT)) == served


def test_every_label_is_in_the_row_of_its_metric() -> None:
    rows = [row for row in TEXT.splitlines() if row.startswith("| `hybridsync_")]
    for family in (*families_of(STATUS), *families_of(ON_HOSTS)):
        for sample in family.samples:
            (row,) = (row for row in rows if f"`{sample.name}`" in row)
            assert all(f"`{label}`" in row for label in sample.labels), (sample.name, sample.labels)


def test_every_command_of_the_page_is_one() -> None:
    assert set(re.findall(r"^    hybridsync ([a-z]+)", TEXT, re.MULTILINE)) <= set(COMMANDS)
    assert {"status", "logs", "switch", "stop"} <= set(re.findall(r"^\| `([a-z]+) RUN", TEXT, re.MULTILINE))
