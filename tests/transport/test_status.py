from __future__ import annotations

import inspect

import grpc
import pytest

from hybridsync.core import errors
from hybridsync.core.errors import HybridSyncError, StalePhase
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.status import CODES
from hybridsync.transport.named_errors import MAX_TEXT
from tests.transport.conftest import FakeChief

REQUEST = LeaseRequest(1, 1, NO_PHASE, 0, 0)
ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HybridSyncError)]


class FailingChief(FakeChief):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def lease(self, request: LeaseRequest) -> LeaseReply:
        self.seen.append(request)
        raise self.error


def received(serve, closing, error: BaseException) -> HybridSyncError:
    chief = FailingChief(error)
    client = closing(ChiefClient(serve(ChiefServicer(chief)), deadline_secs=10))
    with pytest.raises(HybridSyncError) as caught:
        client.lease(REQUEST)
    assert len(chief.seen) == 1, "an error with a name was retried"
    return caught.value


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_arrives_by_name_with_its_text(serve, closing, kind: type[HybridSyncError]) -> None:
    error = received(serve, closing, kind("unit 7 — 50 %\nsecond line"))
    assert type(error) is kind
    assert "unit 7 — 50 %\nsecond line" in str(error)
    assert kind is HybridSyncError or str(error) == "unit 7 — 50 %\nsecond line"


def test_the_table_has_every_error_and_no_status_that_is_retried_without_a_name() -> None:
    assert set(CODES) == set(ERRORS)
    assert grpc.StatusCode.UNAVAILABLE not in CODES.values() and grpc.StatusCode.UNKNOWN not in CODES.values()


def test_a_subclass_arrives_as_the_class_that_is_known(serve, closing) -> None:
    class Older(StalePhase):
        pass

    assert type(received(serve, closing, Older("phase 2, now 3"))) is StalePhase


@pytest.mark.parametrize("defect", [ZeroDivisionError("by zero"), SystemExit("thread exit")])
def test_a_defect_is_logged_with_its_traceback_and_arrives_as_our_fault(
    serve, closing, caplog: pytest.LogCaptureFixture, defect: BaseException
) -> None:
    error = received(serve, closing, defect)
    assert type(error) is HybridSyncError
    assert f"{type(defect).__name__}: {defect}" in str(error) and "the chief at 127.0.0.1:" in str(error)
    assert "hybridsync.Chief.Lease failed" in caplog.text and "raise self.error" in caplog.text


def test_a_text_without_end_is_cut(serve, closing) -> None:
    error = received(serve, closing, StalePhase("ü" * 100_000))
    assert type(error) is StalePhase and len(str(error)) == MAX_TEXT and str(error).endswith(" [cut]")
