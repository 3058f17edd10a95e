"""Errors across the wire: one table between the named errors and gRPC's status codes, read both ways."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn

import grpc
from absl import logging

from hybridsync.core.errors import (
    AddressError,
    AgentReplaced,
    Busy,
    CheckpointError,
    ConfigError,
    CredentialsError,
    DamagedState,
    DataError,
    Diverged,
    HandshakeRefused,
    HistoryError,
    HybridSyncError,
    InvalidMessage,
    NoAnswer,
    NoTarget,
    NotRegistered,
    NotRunning,
    OptimizerError,
    PermissionDenied,
    PhaseBroken,
    PhaseRevoked,
    PlanError,
    Preempted,
    RefusedInput,
    ResumeError,
    RoleLost,
    SchemaMismatch,
    ServersApart,
    StaleAgent,
    StaleIncarnation,
    StalePhase,
    StillHeld,
    StoppedShort,
    TaskError,
    Unauthenticated,
    UnknownRole,
    VersionMismatch,
    WaitTimeout,
    WorkdirError,
    WorkdirTaken,
    described,
)
from hybridsync.transport.named_errors import KINDS, named, plain, raised

NAME_KEY = "hybridsync-error"
"""Trailing metadata: class name of the error."""

CODES: dict[type[HybridSyncError], grpc.StatusCode] = {
    RefusedInput: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    PlanError: grpc.StatusCode.INVALID_ARGUMENT,
    OptimizerError: grpc.StatusCode.INVALID_ARGUMENT,
    TaskError: grpc.StatusCode.INVALID_ARGUMENT,
    DataError: grpc.StatusCode.INVALID_ARGUMENT,
    CheckpointError: grpc.StatusCode.INVALID_ARGUMENT,
    ResumeError: grpc.StatusCode.INVALID_ARGUMENT,
    WorkdirError: grpc.StatusCode.INVALID_ARGUMENT,
    WorkdirTaken: grpc.StatusCode.ABORTED,
    AddressError: grpc.StatusCode.INVALID_ARGUMENT,
    CredentialsError: grpc.StatusCode.INVALID_ARGUMENT,
    Diverged: grpc.StatusCode.INVALID_ARGUMENT,
    HistoryError: grpc.StatusCode.INVALID_ARGUMENT,
    NoAnswer: grpc.StatusCode.INVALID_ARGUMENT,
    NoTarget: grpc.StatusCode.INVALID_ARGUMENT,
    SchemaMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidMessage: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownRole: grpc.StatusCode.UNAUTHENTICATED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    DamagedState: grpc.StatusCode.DATA_LOSS,
    StalePhase: grpc.StatusCode.FAILED_PRECONDITION,
    StaleIncarnation: grpc.StatusCode.FAILED_PRECONDITION,
    StaleAgent: grpc.StatusCode.FAILED_PRECONDITION,
    AgentReplaced: grpc.StatusCode.FAILED_PRECONDITION,
    NotRegistered: grpc.StatusCode.FAILED_PRECONDITION,
    NotRunning: grpc.StatusCode.FAILED_PRECONDITION,
    PhaseBroken: grpc.StatusCode.FAILED_PRECONDITION,
    PhaseRevoked: grpc.StatusCode.FAILED_PRECONDITION,
    WaitTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    StillHeld: grpc.StatusCode.DEADLINE_EXCEEDED,
    RoleLost: grpc.StatusCode.ABORTED,
    HandshakeRefused: grpc.StatusCode.ABORTED,
    Busy: grpc.StatusCode.ABORTED,
    ServersApart: grpc.StatusCode.ABORTED,
    Preempted: grpc.StatusCode.ABORTED,
    StoppedShort: grpc.StatusCode.ABORTED,
    HybridSyncError: grpc.StatusCode.INTERNAL,
}


_NO_PLACE = "Concurrent RPC limit exceeded!"
"""gRPC's answer when `maximum_concurrent_rpcs` are under way; a message that is too long gets the same status."""


class Guard:
    """Ends a call with the status of the error that leaves its `with` block; any other exception is a defect.

    A caller that has gone away (`grpc.RpcError`) is passed on: gRPC ends such calls in silence.
    """

    __slots__ = ("_context", "_what")

    def __init__(self, context: grpc.ServicerContext, what: str) -> None:
        self._context = context
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (grpc.RpcError, GeneratorExit)):
            return
        if not isinstance(error, HybridSyncError):
            logging.error("%s failed", self._what, exc_info=error)
            error = HybridSyncError(f"{described(error)}")
        _abort(self._context, error)


def _abort(context: grpc.ServicerContext, error: HybridSyncError) -> NoReturn:
    name, text = named(error)
    context.set_trailing_metadata(((NAME_KEY, name),))
    context.abort(CODES[KINDS[name]], text)


def is_busy(error: grpc.Call) -> bool:
    """Return whether a role had no place for a call, which it therefore has not seen."""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and error.details() == _NO_PLACE


def to_error(error: grpc.RpcError, who: str, what: str) -> HybridSyncError | None:
    """Return the named error that ended a call, or None where the same request may be sent again.

    Args:
      error: error that the stub raised.
      who: the role that was called, for the text.
      what: the call, for the text.
    """
    assert isinstance(error, grpc.Call)
    code, text = error.code(), plain(error.details() or "")
    trailing: Any = error.trailing_metadata() or ()
    if (known := raised(dict(trailing).get(NAME_KEY, ""), text, who, what)) is not None:
        return known
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return None
    if is_busy(error):
        return None
    if code is grpc.StatusCode.CANCELLED:
        return RoleLost(f"{who} ended {what} without an answer ({text}): it stopped, or the channel did")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return SchemaMismatch(f"{who} refused the size of {what}: {text}")
    return HybridSyncError(f"{who} failed in {what} with {code.name}: {text}; are both of the same version?")
