"""What a supervisor tells the chief of a role's end."""

from __future__ import annotations

import pytest

from hybridsync.chief.bad_units import PoisonUnits
from hybridsync.runtime.running_role import RunningRole


@pytest.mark.parametrize("reason", ["signal SIGKILL", "signal SIGTERM", "signal SIGSEGV", "exit 1"])
def test_a_process_that_the_run_has_ended_proves_nothing_against_its_unit(reason: str) -> None:
    suspects = PoisonUnits()
    for restart_count in range(5):
        role = RunningRole("worker", 1, restart_count, 100 + restart_count, 0, is_given_up=True)
        assert suspects.record(role.lost(reason, 17, 0.0)) is None
    assert RunningRole("worker", 1, 0, 100, 0).lost(reason, 17, 0.0).unit == 17
