"""Saves that fail while training goes on: what else is to be done is done, and an end waits no longer than it must."""

from __future__ import annotations

import pytest

from hybridsync.lab.simulator.cluster import Hang, Scenario
from tests.lab.simulator.test_hangs import EVEN, STUCK_SECS, UNIT_SECS, tried

SAVE_SECS = 4.0
"""Between two saves. The first one fails 4.4 s after the start; it is tried again at 5.4, 7.6 and 11.8 s."""
UNITS_PER_SEC = 4 / UNIT_SECS
LAST_SECS = 0.6
"""What the first and the last save of a run take."""


def refused(num: int) -> tuple[int, ...]:
    """Return the first saves after the start's."""
    return tuple(range(1, 1 + num))


@pytest.mark.parametrize("plan", ["bsp", "ssp(staleness=2)"])
def test_a_worker_that_hangs_while_the_disk_refuses_saves_is_given_up_within_its_limit(plan: str) -> None:
    hang = Hang(1, 7.0)
    scenario = Scenario(cluster=EVEN, hangs=(hang,), save_fails=refused(4))
    _, lost = tried(plan, scenario, units=int(11 * UNITS_PER_SEC), save_secs=SAVE_SECS)
    ((at, event), *more) = lost
    assert (event["role"], event["id"], more) == ("worker", 1, [])
    assert hang.at_secs + STUCK_SECS < at < hang.at_secs + STUCK_SECS + 2.0


@pytest.mark.parametrize("plan", ["bsp", "asp", "preduce"])
def test_an_end_that_comes_before_a_save_is_tried_again_has_it_tried_at_once(plan: str) -> None:
    scenario = Scenario(cluster=EVEN, save_fails=refused(3))
    outcome, lost = tried(plan, scenario, units=int(10 * UNITS_PER_SEC), save_secs=SAVE_SECS)
    assert (outcome.sessions, lost) == (1, [])
    assert outcome.seconds < 10 + LAST_SECS + 0.5


@pytest.mark.parametrize("plan", ["bsp:50%,asp", "asp:50%,bsp"])
def test_a_switch_waits_seconds_for_a_disk_that_recovers(plan: str) -> None:
    """It comes at 6.5 s. The save is tried at once, and one and two seconds later."""
    scenario = Scenario(cluster=EVEN, save_fails=refused(4))
    outcome, lost = tried(plan, scenario, units=int(13 * UNITS_PER_SEC), save_secs=SAVE_SECS)
    assert (outcome.sessions, lost) == (1, [])
    assert outcome.seconds < 13 + LAST_SECS + 1 + 2 + 3 * 0.3
