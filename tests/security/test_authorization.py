"""The table of who may call what has a row for every method, and lets nobody make a call by default."""

from __future__ import annotations

import pytest

from hybridsync.core.errors import PermissionDenied
from hybridsync.security.authorization import RULES, check_caller, check_sender
from hybridsync.security.identity import ROLES, Identity
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.link_session import METHODS

SERVICES = pb.DESCRIPTOR.services_by_name
METHODS_OF_PROTO = {f"{service}/{method.name}" for service, found in SERVICES.items() for method in found.methods}


def test_every_method_has_a_row_and_every_row_of_a_service_a_method() -> None:
    assert METHODS_OF_PROTO - set(RULES) == set()
    assert {method for method in RULES if method.split("/")[0] in SERVICES} - METHODS_OF_PROTO == set()


def test_every_call_of_a_link_goes_by_the_row_of_a_method() -> None:
    assert set(METHODS.values()) <= METHODS_OF_PROTO


def test_every_row_names_roles_that_there_are() -> None:
    names = {*ROLES, *(f"{role} 0" for role in ROLES)}
    assert all(rule.callers and rule.callers <= names for rule in RULES.values())


def test_a_row_that_names_its_sender_is_of_a_message_that_does() -> None:
    def says_who(message: object) -> bool:
        fields = set(message.fields_by_name)  # pyright: ignore[reportAttributeAccessIssue]
        if "push" in fields:
            return True
        return {"role", "id"} <= fields or "worker" in fields or "index" in fields

    for service, found in SERVICES.items():
        for method in found.methods:
            rule, message = RULES[f"{service}/{method.name}"], method.input_type
            carries = message.name == "Frame" or says_who(message)
            if rule.names_sender:
                assert carries, method.full_name
            else:  # what names a role or a worker without being from it
                assert not carries or message.name in ("RoleEvent", "FenceRequest", "Push"), method.full_name


def test_a_method_without_a_row_is_nobodys() -> None:
    for role in ROLES:
        with pytest.raises(PermissionDenied, match=r"Chief/Format was called .* and no certificate allows that"):
            check_caller("Chief/Format", Identity("r", role, 0))


def test_only_the_first_server_decides() -> None:
    check_caller("Shard/Apply", Identity("r", "server", 0))
    for caller in (Identity("r", "server", 1), Identity("r", "worker", 0)):
        with pytest.raises(
            PermissionDenied, match=rf"Shard/Apply was called with .* of {caller.name}, and only server 0"
        ):
            check_caller("Shard/Apply", caller)


@pytest.mark.parametrize(("role", "id"), [("worker", 3), ("server", 2), ("w" * 99, 2)])
def test_a_message_speaks_for_its_caller_alone(role: str, id: int) -> None:
    check_sender("Chief/Report", Identity("r", "worker", 2), "worker", 2)
    with pytest.raises(PermissionDenied, match=rf"Chief/Report speaks for {role[:20]} {id} with .* of worker 2"):
        check_sender("Chief/Report", Identity("r", "worker", 2), role, id)
