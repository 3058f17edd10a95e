"""What docs/control.md says of commands and metrics is what there is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

from hybridsync.cli import COMMANDS
from hybridsync.interfaces.commands import Figure, MemberStatus
from hybridsync.telemetry.prometheus import families_of
from hybridsync.telemetry.status import ENDING, INTERRUPTED, STARTING, UNREACHED, answered, lines_of
from hybridsync.telemetry.summary import Summary
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


def table(heading: str) -> list[str]:
    """Return the first cells of the table whose head begins with `heading`, without backticks."""
    rows = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert rows is not None, heading
    return [re.split(r" *\| *", row)[1].strip("`") for row in rows[1].splitlines()]


def test_every_state_of_a_run_is_in_the_table_and_none_besides() -> None:
    answers = {answered(replace(STATUS, is_stopping=stops)).state for stops in (False, True)}
    ended = {*get_args(get_type_hints(Summary)["exit"]), INTERRUPTED}
    assert set(table("state")) == answers | ended | {STARTING, ENDING, UNREACHED}


def test_every_state_of_a_role_is_in_the_table_and_none_besides() -> None:
    told = re.search(r"state: (.*?)\n +units_per_sec:", MemberStatus.__doc__ or "", re.DOTALL)
    assert told is not None
    assert set(table("state of a role")) == {*re.findall(r'"([a-z ]+)"', told[1]), "unknown"}


def test_the_lines_that_status_is_said_to_print_are_those_that_it_prints() -> None:
    shown = re.findall(r"^    (\w+(?: \d+)?)  +\S", TEXT, re.MULTILINE)
    figures = (*STATUS.figures, Figure("staleness_mean", 3.0))
    members = (MemberStatus("server", 0, "training"), *(MemberStatus("worker", i, "training") for i in range(4)))
    status = replace(STATUS, evaluations=STATUS.evaluations[-1:] * 3, figures=figures, members=members)
    assert shown == [line[:10].strip() for line in lines_of(answered(status))]
