"""A run's token and certificates are drawn anew every eight hours, and when the head's folder changes."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import CredentialsError, PermissionDenied
from hybridsync.runtime.supervisor.run_keys import (
    LEAST_SECS,
    RENEW_SECS,
    ROLE_VALIDITY,
    HeadFolder,
    RunKeys,
    rotate_if_due,
)
from hybridsync.security.certificates import Authority, made_at
from hybridsync.security.credentials import Credentials
from hybridsync.security.identity import Identity
from hybridsync.security.revocations import revoke


class WallClock:
    """A wall clock that is set."""

    def __init__(self) -> None:
        self.now = SYSTEM_CLOCK.wall()

    def monotonic(self) -> float:
        return 1.0

    def wall(self) -> float:
        return self.now

    def condition(self) -> Any:
        return threading.Condition()


class Head:
    """A head's folder and the keys of its run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.said = folder, WallClock(), list[str]()
        self.authority = Authority.create(folder)
        self.authority.issue("head").write(folder, "head")
        self.keys = RunKeys(HeadFolder(folder, self.said.append), self.clock)

    def replace_certificate(self) -> Credentials:
        made = self.authority.issue("head")
        made.write(self.folder, "head", replace=True)
        return made


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path / "head")


def test_a_run_on_one_host_has_a_token_of_its_own_for_good() -> None:
    one, other = RunKeys(), RunKeys()
    assert one.own.token != other.own.token and len(one.own.token) == 64
    assert one.of("chief", 0).credentials is None and one.of("chief", 0).token == one.own.token
    assert one.look() == (False, [])


def test_a_role_gets_the_token_and_a_certificate_for_a_day(head: Head) -> None:
    keys = head.keys.of("worker", 2)
    assert keys.token == head.keys.own.token and keys.user_credentials is None and keys.credentials is not None
    found = x509.load_pem_x509_certificate(keys.credentials["certificate"].encode())
    assert made_at(keys.credentials["certificate"]) <= SYSTEM_CLOCK.wall()
    left = found.not_valid_after_utc.timestamp() - SYSTEM_CLOCK.wall()
    assert ROLE_VALIDITY.total_seconds() - 300 < left <= ROLE_VALIDITY.total_seconds()
    assert head.keys.of("chief", 0).user_credentials is not None


@pytest.mark.parametrize("forward", [True, False])
def test_new_ones_are_due_long_before_the_old_ones_are_out_of_date(head: Head, forward: bool) -> None:
    assert ROLE_VALIDITY.total_seconds() > 2 * RENEW_SECS
    former = head.keys.own.token
    head.clock.now += RENEW_SECS - 1 if forward else 1 - RENEW_SECS
    assert head.keys.look() == (False, []) and head.keys.own.token == former
    head.clock.now += 2 if forward else -2
    assert head.keys.look() == (True, []) and head.keys.own.token != former
    assert head.keys.own.shown() == (head.keys.own.token, former)
    assert head.keys.look() == (False, [])


def test_another_certificate_in_the_folder_is_met_at_once_and_new_keys_are_due(head: Head) -> None:
    made, former = head.replace_certificate(), head.keys.own.token
    assert head.keys.look() == (False, []) and head.keys.to_agents.credentials == made
    assert head.keys.own.token == former, "the run has just begun"
    head.clock.now += LEAST_SECS
    assert head.keys.look() == (True, [])
    assert head.keys.own.token != former and head.keys.own.credentials == made
    assert head.keys.look() == (False, []) and head.said == []


def test_a_folder_that_is_damaged_meanwhile_changes_nothing(head: Head) -> None:
    former = head.keys.of("worker", 1)
    (head.folder / "ca.key").write_text("-----BEGIN nothing")
    head.clock.now += LEAST_SECS
    assert head.keys.look() == (False, []) and head.keys.of("worker", 1).token == former.token
    assert len(head.said) == 1 and "the former certificate stays in use" in head.said[0]


def test_a_revoked_host_is_told_once_and_refused_from_then_on(head: Head) -> None:
    caller, own = Identity(head.authority.run, "host", 1), head.authority.issue("host", 1).certificate
    head.keys.admit(caller, own)
    revoke(head.folder, 1, SYSTEM_CLOCK.wall())
    assert head.keys.look() == (False, [1])
    with pytest.raises(PermissionDenied, match=r"the certificate of host 1 was revoked"):
        head.keys.admit(caller, own)
    head.clock.now += LEAST_SECS
    assert head.keys.look() == (True, []), "what its roles know is not good for long"


def test_a_certificate_that_ends_within_a_day_is_told_of_until_it_is_replaced(head: Head) -> None:
    caller, hour = Identity(head.authority.run, "host", 1), datetime.timedelta(hours=1)
    head.keys.admit(caller, head.authority.issue("host", 1, 30 * hour).certificate)
    head.keys.admit(Identity(head.authority.run, "worker", 1), head.authority.issue("worker", 1, hour).certificate)
    assert head.keys.expiring() == [], "the head's is good for a year, and roles get others in time"
    head.clock.now += 7 * 3600
    (line,) = head.keys.expiring()
    assert line.startswith("the certificate of host 1 is good until ") and head.keys.expiring() == []
    head.keys.admit(caller, head.authority.issue("host", 1, 40 * hour).certificate)
    head.clock.now += 2 * 3600
    assert head.keys.expiring() == []
    head.authority.issue("head", 0, 8 * hour).write(head.folder, "head", replace=True)
    head.keys.look()
    (line,) = head.keys.expiring()
    assert line.startswith("the certificate of the head is good until ")
    assert RunKeys().expiring() == []


def test_a_head_that_is_started_anew_knows_what_was_revoked(head: Head) -> None:
    own = head.authority.issue("host", 1).certificate
    revoke(head.folder, 1, SYSTEM_CLOCK.wall())
    with pytest.raises(PermissionDenied, match=r"was revoked"):
        RunKeys(HeadFolder(head.folder, print)).admit(Identity(head.authority.run, "host", 1), own)


def test_a_folder_without_an_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"cannot be read"):
        HeadFolder(tmp_path / "absent", print)


def test_a_head_with_a_certificate_for_hours_says_so_once(tmp_path: Path) -> None:
    folder, said = tmp_path / "head", list[str]()
    Authority.create(folder).issue("head", 0, datetime.timedelta(hours=3)).write(folder, "head")
    keys = RunKeys(HeadFolder(folder, said.append))
    unused: Any = None  # no keys are due, and nobody was revoked
    for _ in range(2):
        rotate_if_due(keys, unused, {}, unused, said.append)
    (line,) = said
    assert line.startswith("the certificate of the head is good until ")
