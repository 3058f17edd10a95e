"""Forty faults on every role, each plan once; and four, which is what `make integration` can wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.random_faults import everybody_is_hurt_at_random


@pytest.mark.soak
@pytest.mark.one_of_each_soak
@pytest.mark.timeout(600)
def test_four_faults_leave_every_unit_applied_once(tmp_path: Path) -> None:
    everybody_is_hurt_at_random(tmp_path / "run", plan="asp", faults=4, seed=4, units=1200, unit_secs=0.05)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("plan", "servers"), [("bsp", 1), ("asp", 1), ("asp", 2), ("bsp:30%,asp:40%,bsp", 2)])
def test_forty_faults_on_every_role_leave_every_unit_applied_once(tmp_path: Path, plan: str, servers: int) -> None:
    everybody_is_hurt_at_random(tmp_path / "run", plan=plan, faults=40, seed=40, servers=servers)
