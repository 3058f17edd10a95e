"""Whom a certificate names: one way to write it, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.core.errors import Unauthenticated
from hybridsync.security.identity import MOST_ID, ROLES, Identity, checked, identity_of, server_names


@given(st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True), st.sampled_from(ROLES), st.integers(0, MOST_ID))
def test_what_is_written_is_read_again(run: str, role: str, id: int) -> None:
    identity = Identity(run, role, id)
    assert identity_of(identity.uri) == checked(identity) == identity


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://hybridsync/0c4f/worker",
        "spiffe://hybridsync/0c4f/worker/3/4",
        "spiffe://hybridsync/0c4f/worker/03",
        "spiffe://hybridsync/0c4f/worker/+3",
        "spiffe://hybridsync/0c4f/worker/-3",
        "spiffe://hybridsync/0c4f/worker/3_0",
        "spiffe://hybridsync/0c4f/worker/٣",
        "spiffe://hybridsync/0c4f/worker/3 ",
        "spiffe://hybridsync/0c4f/worker/3?role=head",
        "spiffe://hybridsync/0c4f/worker/3#",
        "spiffe://hybridsync/0c4f/Worker/3",
        "SPIFFE://hybridsync/0c4f/worker/3",
        "spiffe://HYBRIDSYNC/0c4f/worker/3",
        "spiffe://user@hybridsync/0c4f/worker/3",
        "spiffe://hybridsync:443/0c4f/worker/3",
        "spiffe://hybridsync.evil/0c4f/worker/3",
        "https://hybridsync/0c4f/worker/3",
        "spiffe://hybridsync//worker/3",
        "spiffe://hybridsync/0C4F/worker/3",
        "spiffe://hybridsync/0c%34f/worker/3",
        "spiffe://hybridsync/../worker/3",
        f"spiffe://hybridsync/{'a' * 65}/worker/3",
        "spiffe://hybridsync/0c4f/root/3",
        f"spiffe://hybridsync/0c4f/worker/{MOST_ID + 1}",
        "spiffe://hybridsync/0c4f/worker/3\n",
        "spiffe://[hybridsync/0c4f/worker/3",
    ],
)
def test_nothing_else_names_anybody(uri: str) -> None:
    with pytest.raises(Unauthenticated, match=r"names|is no"):
        identity_of(uri)


@given(st.text(max_size=80))
def test_no_text_ends_the_reader(text: str) -> None:
    with pytest.raises(Unauthenticated):
        identity_of(text)


def test_only_holders_of_a_state_can_be_dialled_as_one() -> None:
    members = {role for role in ROLES if "member.hybridsync.internal" in server_names(role)}
    assert members == {"chief", "server", "worker"}
    assert all(server_names(role)[0] == f"{role}.hybridsync.internal" for role in ROLES)
