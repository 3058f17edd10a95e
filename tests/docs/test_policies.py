"""docs/policies.md speaks of the policies, flags and numbers that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from hybridsync.config import PolicyConfig
from hybridsync.policies.actions import EPISODE_SECS, SWITCH_SECS
from hybridsync.policies.online import ALIKE, MARGIN, RETURN_UNITS, SMALLER, WORTH
from hybridsync.policies.step_shares import AS_GOOD, MOST, shares
from hybridsync.policies.straggler_detector import RobustRule
from hybridsync.telemetry.events import FIELDS
from hybridsync.worker.self_probe import BURST, DUTY

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "policies.md").read_text()
IN_WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 50: "fifty"}
OTHERS = {"real"}
"""Flags of the benchmark in it."""


def test_every_policy_has_its_row_and_nothing_else_has() -> None:
    first = GUIDE.split("## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", first, re.M)) == get_args(PolicyConfig.__annotations__["online"])


def test_every_flag_and_file_of_the_guide_is_there() -> None:
    text = (ROOT / "hybridsync" / "cli" / "train.py").read_text()
    for flag in sorted(set(re.findall(r"--(\w+)", GUIDE)) - OTHERS):
        assert f'"{flag}"' in text, f"--{flag} is not a flag of hybridsync train"
    for name in set(re.findall(r"configs/[\w/]+\.py", GUIDE)):
        assert (ROOT / name).is_file(), name


def test_the_numbers_are_those_of_the_code() -> None:
    text = " ".join(GUIDE.split())
    assert f"a switch is taken to cost {SWITCH_SECS:g} s, and an episode to last {EPISODE_SECS:g} s" in text
    assert f"the others do {100 * MARGIN:g} % more units" in text and f"for {RETURN_UNITS} of their units" in text
    rule = RobustRule()
    (share, rounds), *worse = rule.severe
    assert f"below {100 * share:g} % of the median is flagged after {IN_WORDS[rounds]} windows" in text
    others = ", ".join(f"one below {100 * least:g} % after {IN_WORDS[fewest]}" for least, fewest in worse)
    assert f"{others}, any other after {IN_WORDS[rule.consecutive]}" in text
    assert f"only windows that lost {1e3 * rule.hiccup:g} ms against the median" in text
    assert f"cleared, which takes {IN_WORDS[rule.consecutive]} windows" in text
    assert f"{IN_WORDS[BURST]} in a row" in text and DUTY == 0.25 and "in a quarter of its time" in text


def test_the_shares_of_the_guide_are_those_of_the_code() -> None:
    text = " ".join(GUIDE.split())
    assert f"`policy.most_units` ({MOST})" in text and PolicyConfig().most_units == MOST
    assert f"within {100 * AS_GOOD:g} % of them" in text and f"other shares {100 * MARGIN:g} % faster" in text
    assert (SMALLER, ALIKE, WORTH) == (2 / 3, 0.1, 10)
    assert "with two thirds of the units" in text and "a tenth of their median" in text and "ten times what" in text
    assert "one that is 4 x slow the shares are 4, 4, 4 and 1" in text and shares([1, 1, 1, 4], least=1) == (4, 4, 4, 1)
    number = r"\| ([\d.]+) "
    rows = re.findall(rf"^{6 * number}", GUIDE, re.M)
    assert len(rows) == 5
    for factor, _, _, four, _, eight in rows:
        for most, units in ((4, four), (8, eight)):
            assert sum(shares([1.0] * 7 + [float(factor)], most, least=1)) == int(units)


def test_every_number_of_a_decision_is_named() -> None:
    for name in ("rates", "threshold", "expected_secs", "saved_secs", "cost_secs", "units_left"):
        assert f"`{name}`" in GUIDE and name in FIELDS["policy_decided"]
