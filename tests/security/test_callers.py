"""Each method of each service, called with each kind of certificate, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from hybridsync.security.authorization import RULES
from hybridsync.security.certificates import Authority
from hybridsync.security.identity import ROLES
from tests.security.roles import METHODS, REACHED, Role, call, dialled, messages, outcome, served

ID = 2
"""Of every caller but the primary."""

CALLERS = [(role, ID) for role in ROLES] + [("server", 0)]


class Place:
    """A role behind TLS, and a channel to it for each certificate."""

    def __init__(self, authority: Authority, open_places: ExitStack) -> None:
        self.role = Role()
        address = open_places.enter_context(served(self.role, authority.issue("chief")))
        self.channels = {
            caller: open_places.enter_context(dialled(address, authority.issue(*caller), "chief")) for caller in CALLERS
        }

    def outcome(self, caller: tuple[str, int], method: str, sent: list[bytes]) -> tuple[str, str, list[str]]:
        """Return status and text of a call, and what has reached the role of it."""
        self.role.seen.clear()
        status, text = outcome(self.channels[caller], method, sent)
        return status, text, [*self.role.seen]


@pytest.fixture(scope="module")
def place(authority: Authority) -> Iterator[Place]:
    with ExitStack() as open_places:
        yield Place(authority, open_places)


def may_call(caller: tuple[str, int], method: str) -> bool:
    role, id = caller
    return bool(RULES[method].callers & {role, f"{role} {id}"})


@pytest.mark.parametrize("method", METHODS)
def test_a_method_answers_the_roles_of_its_row_alone(place: Place, method: str) -> None:
    for caller in CALLERS:
        role, id = caller
        status, text, seen = place.outcome(caller, method, messages(method, id, role, id))
        if may_call(caller, method):
            assert (status, text, len(seen)) == ("FAILED_PRECONDITION", REACHED, 1), (caller, seen)
        else:
            assert status == "PERMISSION_DENIED" and seen == [], (caller, text)
            assert text.startswith(f"{method} was called with the certificate of {role} {id}, and only "), text


@pytest.mark.parametrize("method", METHODS)
def test_a_caller_that_may_not_ask_is_refused_before_its_message_is_read(place: Place, method: str) -> None:
    caller = next(caller for caller in CALLERS if not may_call(caller, method))
    status, _, seen = place.outcome(caller, method, [b"\xff no message"])
    assert (status, seen) == ("PERMISSION_DENIED", [])


@pytest.mark.parametrize("method", [method for method in METHODS if RULES[method].names_sender])
def test_a_message_that_speaks_for_another_one_reaches_nobody(place: Place, method: str) -> None:
    role = "host" if method.startswith("Head/") else "worker"
    status, text, seen = place.outcome((role, ID), method, messages(method, ID + 1, role, ID + 1))
    assert (status, seen) == ("PERMISSION_DENIED", []), text
    assert text.startswith(f"{method} speaks for {role} {ID + 1} with the certificate of {role} {ID}")


@pytest.mark.parametrize("method", ["Chief/Register", "Chief/Report"])
def test_a_role_does_not_speak_for_one_of_another_kind_with_its_number(place: Place, method: str) -> None:
    status, text, seen = place.outcome(("server", ID), method, messages(method, role="worker", id=ID))
    assert (status, seen) == ("PERMISSION_DENIED", []), text


def test_a_later_message_of_a_stream_speaks_for_its_caller_as_well(authority: Authority) -> None:
    role = Role()
    accepted: list[int] = []
    role.begin_push = lambda push: accepted.append(push.worker) or _refuse  # pyright: ignore[reportAttributeAccessIssue]
    with served(role, authority.issue("server")) as address, dialled(address, authority.issue("worker", ID)) as channel:
        method = "ParameterServer/PushPullSmall"
        own, other = (messages(method, worker)[0] for worker in (ID, ID + 1))
        status, _ = outcome(channel, method, [other, own])
        assert (status, accepted) == ("PERMISSION_DENIED", [])
        outcome(channel, method, [own, other])
        assert accepted == [ID]


def _refuse(contribution: object) -> None:
    raise ValueError("no update here")


def test_a_method_that_does_not_exist_is_nobodys(place: Place) -> None:
    place.role.seen.clear()
    for path in ("/hybridsync.Chief/Format", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/x/y"):
        with pytest.raises(grpc.RpcError) as refused:
            place.channels[("head", ID)].unary_unary(path)(b"", timeout=60, metadata=(("hybridsync-token", "0"),))
        assert isinstance(refused.value, grpc.Call)
        assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED)
    assert place.role.seen == []


def test_without_certificates_the_token_alone_is_asked_for() -> None:
    role = Role()
    with served(role, None) as address, dialled(address, None) as channel:
        for method in METHODS:
            with pytest.raises(grpc.RpcError, match=REACHED):
                call(channel, method, messages(method))
        assert len(role.seen) == len(METHODS)
