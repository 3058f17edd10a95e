"""A host's certificate that was taken back is refused, and one that is issued later is good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.errors import CredentialsError, PermissionDenied
from hybridsync.security.certificates import Authority, made_at
from hybridsync.security.identity import Identity
from hybridsync.security.keyring import Keyring
from hybridsync.security.revocations import REVOKED_FILE, Revocations, read_revoked, revoke
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.head import HeadServicer
from tests.security.conftest import HOUR, now
from tests.security.roles import Role, dialled, messages, outcome


def test_a_certificate_says_when_it_was_made(authority: Authority) -> None:
    then = now() - HOUR
    assert made_at(authority.issue("host", 1, now=then).certificate) == int(then.timestamp())


def test_what_was_made_until_then_is_refused_and_what_is_made_later_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "head").mkdir(mode=0o700)
    begun = now()
    revoke(tmp_path / "head", 1, begun.timestamp())
    revoke(tmp_path / "head", 7, begun.timestamp())
    revoked = read_revoked(tmp_path / "head")
    assert set(revoked) == {1, 7} and (tmp_path / "head" / REVOKED_FILE).stat().st_mode & 0o777 == 0o600
    found = Revocations(made_at, revoked)
    for index, at, is_refused in ((1, begun, True), (1, begun + HOUR, False), (2, begun, False)):
        certificate = authority.issue("host", index, now=at).certificate
        caller = Identity(authority.run, "host", index)
        if is_refused:
            with pytest.raises(PermissionDenied, match=r"the certificate of host 1 was revoked"):
                found.admit(caller, certificate)
        else:
            found.admit(caller, certificate)


def test_the_hosts_that_called_with_what_is_revoked_later_are_told(authority: Authority) -> None:
    found = Revocations(made_at, {})
    begun = now()
    for index in (1, 2, 3):
        at = begun + HOUR if index == 3 else begun
        found.admit(Identity(authority.run, "host", index), authority.issue("host", index, now=at).certificate)
    second = int(begun.timestamp()) + 1
    assert found.replace({1: second, 3: second, 4: second}) == [1]
    assert found.replace({1: second, 3: second, 4: second}) == [], "once"


@pytest.mark.parametrize("text", ["1", "one 2\n", "1 2 3\n", "1 2\n\n"])
def test_a_damaged_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / REVOKED_FILE).write_text(text)
    (tmp_path / REVOKED_FILE).chmod(0o600)
    with pytest.raises(CredentialsError, match=r"revoked is damaged"):
        read_revoked(tmp_path)


def test_a_list_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / REVOKED_FILE).write_text("1 2\n")
    (tmp_path / REVOKED_FILE).chmod(0o644)
    with pytest.raises(CredentialsError, match=r"has to be its user's alone"):
        read_revoked(tmp_path)


def test_a_revoked_host_makes_no_call_on_a_connection_that_is_there(authority: Authority) -> None:
    role, found = Role(), Revocations(made_at, {})
    head: Any = role
    server, address = make_server([HeadServicer(head)], keys=Keyring("", authority.issue("head")), admit=found.admit)
    server.start()
    with dialled(address, authority.issue("host", 2), "head") as channel:
        assert outcome(channel, "Head/Exchange", messages("Head/Exchange"))[0] == "FAILED_PRECONDITION"
        assert found.replace({2: int(now().timestamp()) + 1}) == [2]
        for method in ("Head/Exchange", "Head/Attach"):
            status, text = outcome(channel, method, messages(method))
            assert status == "PERMISSION_DENIED" and "was revoked" in text
    server.stop(None)
    assert role.seen == ["exchange"]
