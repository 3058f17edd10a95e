"""The commands that SECURITY.md and docs/clusters.md name for certificates do something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync.security.identity import ROLES
from tests.command_lines import CommandLines, command_lines

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    with command_lines(tmp_path_factory.mktemp("certs"), "certs", "hybridsync.security.certificates") as ready:
        yield ready


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/clusters.md"])
def test_the_commands_in_the_text_are_taken_as_they_stand(certs: CommandLines, tmp_path: Path, page: str) -> None:
    named = re.findall(r"`hybridsync certs ([a-z]+ [^`]+)`", " ".join((ROOT / page).read_text().split()))
    assert {line.split()[0] for line in named} == {"issue", "revoke", "rotate"}
    for line in ("init --folder=certs/0", "issue --folder=certs/0 --host=1 --out=certs/1", *named):
        done = certs(*line.replace("=certs/", f"={tmp_path}/certs/").split())
        assert done.returncode == 0, (line, done.stderr)


def test_every_kind_of_certificate_is_in_both_tables() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    tables = re.findall(r"^\| certificate \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 2
    for rows in tables:
        named = {name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert named == set(ROLES)
