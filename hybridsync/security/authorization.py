"""Says who may make each call, and for whom a call may speak. Pure: what a certificate names, against one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridsync.core.errors import PermissionDenied
from hybridsync.security.identity import CHIEF, HEAD, HOLDERS, HOST, SERVER, USER, WORKER, Identity

PRIMARY = f"{SERVER} 0"
"""The one server that decides; the others take its word."""


@dataclass(frozen=True)
class Rule:
    """Says who may make a call.

    Args:
      callers: roles, or names of single ones, as `Identity.name` writes them.
      names_sender: whether the message names its sender, which has to be the certificate's holder.
    """

    callers: frozenset[str]
    names_sender: bool = False


def _from(*callers: str) -> Rule:
    return Rule(frozenset(callers))


def _signed_by(*callers: str) -> Rule:
    return Rule(frozenset(callers), names_sender=True)


RULES: dict[str, Rule] = {
    "Chief/Register": _signed_by(SERVER, WORKER),
    "Chief/NextPhase": _signed_by(WORKER),
    "Chief/Lease": _signed_by(WORKER),
    "Chief/JoinGroup": _signed_by(WORKER),
    "Chief/Report": _signed_by(SERVER, WORKER),
    "Chief/RoleStarted": _from(HEAD),
    "Chief/RoleLost": _from(HEAD),
    "Chief/Preempt": _from(HEAD),
    "Chief/Status": _from(USER, HEAD),
    "Chief/Switch": _from(USER, HEAD),
    "Chief/Stop": _from(USER, HEAD),
    "SnapshotSource/TakeSnapshot": _from(CHIEF),
    "SnapshotSource/Read": _from(*HOLDERS),
    "Evaluator/Evaluate": _from(CHIEF),
    "BulkLink/Open": _from(*HOLDERS),
    "PhaseServer/Enter": _from(CHIEF),
    "PhaseServer/Fence": _from(CHIEF),
    "ParameterServer/PushPull": _signed_by(WORKER),
    "ParameterServer/PushPullSmall": _signed_by(WORKER),
    "ParameterServer/Pull": _signed_by(WORKER),
    "ParameterServer/Idle": _signed_by(WORKER),
    "ParameterServer/Ready": _signed_by(WORKER),
    "OptimizerState/Download": _signed_by(WORKER),
    "OptimizerState/Upload": _signed_by(WORKER),
    "Shard/Stage": _signed_by(WORKER),
    "Shard/PullAt": _signed_by(WORKER),
    "Shard/Apply": _from(PRIMARY),
    "Shard/Discard": _from(PRIMARY),
    "Shard/Forget": _from(PRIMARY),
    "Shard/SnapshotPart": _from(PRIMARY),
    "Head/Attach": _signed_by(HOST),
    "Head/Exchange": _signed_by(HOST),
}
"""Every method of `hybridsync.proto`, as Service/Method. A call without a row is refused."""


Admit = Callable[[Identity, str], None]
"""Holder of a certificate, and the certificate as PEM; raises PermissionDenied where it is not let in."""


def admit_all(caller: Identity, certificate: str) -> None:
    """Let every caller in that may make the call."""


def check_caller(method: str, caller: Identity) -> None:
    """Refuse a call that the holder of a certificate may not make.

    >>> check_caller("Chief/Lease", Identity("0c4f", "worker", 3))

    Args:
      method: name of the method, as Service/Method.
      caller: identity that the certificate names.

    Raises:
      PermissionDenied: the caller may not make this call, or no caller may.
    """
    rule = RULES.get(method)
    if rule is None or rule.callers.isdisjoint((caller.role, caller.name)):
        allowed = f"only {' or '.join(sorted(rule.callers))} may" if rule else "no certificate allows that"
        raise PermissionDenied(
            f"{method} was called with the certificate of {caller.name}, and {allowed}; each process is to use the "
            "certificate that was issued for it"
        )


def check_sender(method: str, caller: Identity, role: str, id: int) -> None:
    """Refuse a message that speaks for another one than the holder of the certificate.

    >>> check_sender("Chief/Lease", Identity("0c4f", "worker", 3), "worker", 3)

    Args:
      method: name of the method, as Service/Method.
      caller: identity that the certificate names.
      role: role that the message names.
      id: number of the role that the message names.

    Raises:
      PermissionDenied: the message names another sender.
    """
    if (caller.role, caller.id) != (role, id):
        raise PermissionDenied(
            f"{method} speaks for {role[:20]} {id} with the certificate of {caller.name}; each process is to use the "
            "certificate that was issued for it"
        )
