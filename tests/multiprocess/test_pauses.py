"""Pauses of data, disk, chief and workers cost time and nothing else; a short case of each protocol's soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.pauses import KINDS, PLANS, pauses_at_random
from tests.sweeps import swept


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plan", swept(PLANS))
def test_short_pauses_of_each_kind_end_nobody_and_cost_no_unit(tmp_path: Path, plan: str) -> None:
    outcome = pauses_at_random(tmp_path / "run", plan, secs=0.0, seed=3, longest_secs=5.0)
    assert outcome.pauses == dict.fromkeys(KINDS, 1)
    assert outcome.is_good, outcome


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plan", PLANS)
def test_pauses_of_up_to_half_a_minute_end_nobody_and_cost_no_unit(tmp_path: Path, plan: str) -> None:
    outcome = pauses_at_random(tmp_path / "run", plan, secs=180.0, seed=1)
    assert outcome.is_good, outcome
