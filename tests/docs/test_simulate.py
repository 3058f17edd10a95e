"""The commands of docs/simulate.md print what it says that they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.lab.simulator.scenarios import load_scenario
from tests.doc_pages import ROOT, blocks

GUIDE = (ROOT / "docs" / "simulate.md").read_text()
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
COMMAND = r"^    hybridsync simulate ([^\n]*)\n"
TABLE = r"((?:    \d+ workers, [^\n]*\n)(?:    [^\n]*\n)+)"
SHOWN = re.findall(COMMAND + r"(?:(?!    )[^\n]*\n)+?" + TABLE, GUIDE, re.MULTILINE)


def near(told: str, printed: str) -> bool:
    """Whether two lines say the same, but for figures that differ by a twentieth at most."""
    if NUMBER.sub("", told).split() != NUMBER.sub("", printed).split():
        return False
    pairs = zip(NUMBER.findall(told), NUMBER.findall(printed), strict=True)
    return all(
        float(one.replace(",", "")) == pytest.approx(float(other.replace(",", "")), rel=0.05, abs=0.02)
        for one, other in pairs
    )


def test_the_guide_shows_what_a_command_prints() -> None:
    assert len(SHOWN) == 1


@pytest.mark.parametrize(("command", "block"), SHOWN)
def test_a_command_prints_what_the_guide_shows(command: str, block: str) -> None:
    flags = [quoted or plain for quoted, plain in re.findall(r'(--\w+="[^"]*")|(\S+)', command)]
    done = subprocess.run(
        [sys.executable, "-m", "hybridsync", "simulate", *(flag.replace('"', "") for flag in flags)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines, told = done.stdout.splitlines(), block.splitlines()
    assert len(lines) == len(told)
    assert all(map(near, told, lines)), done.stdout


def test_the_guides_scenario_is_one(tmp_path: Path) -> None:
    (text,) = blocks("docs/simulate.md")
    (tmp_path / "guide.py").write_text(text)
    assert load_scenario(tmp_path / "guide.py").slow[0].factor == 2.0


def test_every_flag_of_the_guide_is_one_of_the_launchers() -> None:
    text = (ROOT / "hybridsync" / "cli" / "simulate.py").read_text()
    for flag in sorted(set(re.findall(r"--(\w+)", GUIDE)) - {"set", "compute_secs"}):
        assert f'"{flag}"' in text, f"--{flag} is not a flag of hybridsync simulate"


def test_every_scenario_file_is_named() -> None:
    for path in (ROOT / "configs" / "scenarios").glob("[a-z]*.py"):
        assert path.name in GUIDE
