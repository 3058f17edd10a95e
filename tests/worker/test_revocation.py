"""A phase that another thread breaks off."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync.core.errors import PhaseRevoked
from hybridsync.core.plan import PhaseId
from hybridsync.worker.revocation import Revocation

FIRST, SECOND = PhaseId(1, 7), PhaseId(2, 8)


class Wait:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def break_off(self, reason: str) -> None:
        self.reasons.append(reason)


def begun(phase_id: PhaseId = FIRST) -> Revocation:
    revocation = Revocation()
    revocation.begin(phase_id)
    return revocation


def test_what_is_waited_in_is_broken_off():
    revocation = begun()
    wait: Any = Wait()
    revocation.attach(wait)
    revocation.check()
    revocation.revoke(FIRST, "worker 2 was lost")
    assert wait.reasons == ["worker 2 was lost"]
    with pytest.raises(PhaseRevoked, match="worker 2 was lost"):
        revocation.check()


def test_whoever_comes_to_wait_after_the_revocation_does_not():
    revocation = begun()
    revocation.revoke(FIRST, "worker 2 was lost")
    wait: Any = Wait()
    with pytest.raises(PhaseRevoked, match="worker 2 was lost"):
        revocation.attach(wait)
    assert wait.reasons == []


def test_another_phase_is_none_of_its_business():
    revocation = begun(SECOND)
    wait: Any = Wait()
    revocation.attach(wait)
    revocation.revoke(FIRST, "worker 2 was lost")
    revocation.check()
    assert wait.reasons == []


def test_the_next_phase_begins_unbroken_and_without_what_the_last_one_waited_in():
    revocation = begun()
    old: Any = Wait()
    revocation.attach(old)
    revocation.revoke(FIRST, "worker 2 was lost")
    revocation.begin(SECOND)
    revocation.check()
    revocation.revoke(SECOND, "worker 1 was lost")
    assert old.reasons == ["worker 2 was lost"]
