"""docs/tune.md speaks of flags that exist, and its table is one that a search prints."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

from hybridsync.lab.tuning.search_rules import Outcome, Rules, advance
from hybridsync.lab.tuning.search_table import verdict_lines

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "tune.md").read_text()
OTHERS = {"calibrate", "plan", "policy", "repeats", "searches", "set", "write_scenario"}
"""Flags of the other commands in it."""


def test_every_flag_of_the_guide_is_one_of_the_launchers() -> None:
    text = (ROOT / "hybridsync" / "cli" / "tune.py").read_text()
    for flag in sorted(set(re.findall(r"--(\w+)", GUIDE)) - OTHERS):
        assert f'"{flag}"' in text, f"--{flag} is not a flag of hybridsync tune"
    assert '"history"' in (ROOT / "hybridsync" / "cli" / "train.py").read_text()


def test_every_file_of_the_guide_is_there() -> None:
    for name in set(re.findall(r"configs/[\w/]+\.py", GUIDE)):
        assert (ROOT / name).is_file(), name


def test_the_lines_below_the_table_are_those_of_a_search() -> None:
    share = Fraction(1, 2)
    outcomes = [
        Outcome(at, repeat, accuracy, 10.0 + 10 * float(at))
        for at, accuracy in ((Fraction(1), 0.92), (share, 0.92), (share / 2, 0.8), (share * 3 / 4, 0.8))
        for repeat in range(3)
    ]
    printed = [line.split(":")[0] for line in verdict_lines(advance(Rules(runs=3, settings=3), outcomes))]
    assert printed == re.findall(r"^    (answer|cost|break-even|confidence):", GUIDE, re.MULTILINE)
