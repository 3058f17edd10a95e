"""A client's deadline is longer than the callee's longest wait behind it, so that the callee's named error arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pytest

from hybridsync.chief.service import POLL_SECS
from hybridsync.core.deadlines import UPDATES_SECS, UPLOAD_SECS, snapshot_secs, transfer_secs
from hybridsync.interfaces.agents import MOST_POLL_SECS, AgentHello, AgentReport
from hybridsync.interfaces.commands import StopRequest, SwitchRequest
from hybridsync.interfaces.messages import (
    EvaluationRequest,
    GroupRequest,
    Hello,
    LeaseRequest,
    PhaseRequest,
    Push,
    RoleEvent,
)
from hybridsync.interfaces.reports import Report
from hybridsync.runtime.control_file import ANSWER_SECS
from hybridsync.runtime.role.heartbeat import CHIEF_SECS
from hybridsync.runtime.role.worker_main import REPORT_SECS
from hybridsync.server.primary import HELD_SECS
from hybridsync.server.shard_state import RELEASE_SECS
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.transport.grpc import (
    channels,
    chief,
    optimizer_state,
    parameter_server,
    shard,
    snapshot_source,
)
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import BulkLinkClient
from hybridsync.transport.grpc.channels import CALL_SECS
from hybridsync.transport.grpc.chief import ChiefClient
from hybridsync.transport.grpc.evaluator import EVALUATION_SECS, EvaluatorClient
from hybridsync.transport.grpc.head import HeadClient
from hybridsync.transport.grpc.optimizer_state import OptimizerClient
from hybridsync.transport.grpc.parameter_server import BUFFER_SECS, ParameterClient
from hybridsync.transport.grpc.shard import ShardClient
from hybridsync.transport.grpc.snapshot_source import SnapshotClient
from tests.transport.conftest import PHASE, PHASE_ID

STATE_BYTES = 4_000_000_000
"""A state whose transfer takes longer than any fixed deadline."""
NOWHERE = "127.0.0.1:1"
PUSH = Push(PHASE_ID, 0, 1, (3,), 0)
EVENT = RoleEvent("worker", 0, 1, "exit 1", 0.0)
BUFFER = np.empty(8, np.uint8)
LARGE = np.empty(2 << 20, np.uint8)

TRANSFER_SECS = transfer_secs(STATE_BYTES)
"""A holder waits so long for another snapshot to end and for the readers of the last one, and a fetch takes it."""
PUSH_SECS = BUFFER_SECS + HELD_SECS


class Sent(BaseException):
    """A call with its deadline, instead of a call."""

    def __init__(self, secs: float, what: str) -> None:
        super().__init__(f"{what} within {secs:g} s")
        self.secs, self.what = secs, what


@pytest.fixture(autouse=True)
def unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call raise its deadline and its name."""

    def retrying(attempt: Any, deadline_secs: float, who: str, what: str, unreachable_secs: Any = None) -> NoReturn:
        raise Sent(deadline_secs, what)

    monkeypatch.setattr(channels, "retrying", retrying)
    for module in (snapshot_source, parameter_server, shard, optimizer_state):
        monkeypatch.setattr(module, "retrying", retrying)
    assert not hasattr(chief, "retrying")


@dataclass(frozen=True)
class Pair:
    """A call, and the longest that the callee waits in it."""

    method: str
    call: Callable[[], object]
    server_secs: float


def of_chief(secs: float) -> ChiefClient:
    return ChiefClient(NOWHERE, secs)


def parameters() -> ParameterClient:
    return ParameterClient(NOWHERE, state_bytes=STATE_BYTES)


def store() -> ShardClient:
    return ShardClient(NOWHERE, state_bytes=STATE_BYTES)


WHOLE = np.lib.stride_tricks.as_strided(BUFFER, (STATE_BYTES,), (0,))
"""A buffer of the state's size that takes no memory: nothing is read into it."""

POLL = AgentReport(1, "", 0, (), 0, MOST_POLL_SECS)
AGENT = AgentHello("node1", 1, "10.0.0.2", 1, "", "", "")

PAIRS = [
    Pair("Chief.Register", lambda: of_chief(CHIEF_SECS).register(Hello("worker", 0, 1, "", "", "", "")), 0.0),
    Pair("Chief.NextPhase", lambda: of_chief(CHIEF_SECS).next_phase(PhaseRequest(0, 1, PHASE_ID, None)), POLL_SECS),
    Pair("Chief.Lease", lambda: of_chief(CHIEF_SECS).lease(LeaseRequest(0, 1, PHASE_ID, 0, 0)), POLL_SECS),
    Pair("Chief.JoinGroup", lambda: of_chief(CHIEF_SECS).join_group(GroupRequest(0, 1, PHASE_ID, 1)), POLL_SECS),
    Pair("Chief.Report", lambda: of_chief(CHIEF_SECS).report(Report("worker", 0, 1, PHASE_ID)), REPORT_SECS),
    Pair("Chief.RoleStarted", lambda: of_chief(5.0).role_started(EVENT), 0.0),
    Pair("Chief.RoleLost", lambda: of_chief(5.0).role_lost(EVENT), 0.0),
    Pair("Chief.Preempt", lambda: of_chief(5.0).preempt(), 0.0),
    Pair("Chief.Status", lambda: of_chief(ANSWER_SECS).status(), 0.0),
    Pair("Chief.Switch", lambda: of_chief(ANSWER_SECS).switch(SwitchRequest("asp")), 0.0),
    Pair("Chief.Stop", lambda: of_chief(ANSWER_SECS).stop(StopRequest()), 0.0),
    Pair("Head.Attach", lambda: HeadClient(NOWHERE).attach(AGENT), 0.0),
    Pair(
        "Head.Exchange",
        lambda: HeadClient(NOWHERE).exchange(AgentReport(1, "", 0, (), 0, MOST_POLL_SECS)),
        MOST_POLL_SECS,
    ),
    Pair(
        "Evaluator.Evaluate",
        lambda: EvaluatorClient(NOWHERE, STATE_BYTES).evaluate(EvaluationRequest("holder", 1, "")),
        TRANSFER_SECS + EVALUATION_SECS - 4.0,
    ),
    Pair("PhaseServer.Enter", lambda: parameters().enter(PHASE), TRANSFER_SECS),
    Pair("PhaseServer.Fence", lambda: parameters().fence(PHASE_ID, 0, 1), 0.0),
    Pair("SnapshotSource.Read", lambda: SnapshotClient(NOWHERE).read(1, WHOLE), 0.0),
    Pair(
        "SnapshotSource.TakeSnapshot",
        lambda: parameters().take_snapshot(PHASE_ID, final=True),
        TRANSFER_SECS + UPLOAD_SECS + snapshot_secs(STATE_BYTES) + TRANSFER_SECS,
    ),
    Pair("ParameterServer.Pull", lambda: parameters().pull(PUSH, BUFFER), 0.0),
    Pair("ParameterServer.Idle", lambda: parameters().idle(PUSH), 0.0),
    Pair("ParameterServer.Ready", lambda: parameters().ready(PUSH), HELD_SECS),
    Pair("ParameterServer.PushPull", lambda: parameters().push_pull(PUSH, LARGE, LARGE), PUSH_SECS),
    Pair("ParameterServer.PushPullSmall", lambda: parameters().push_pull(PUSH, BUFFER, BUFFER), PUSH_SECS),
    Pair("Shard.Stage", lambda: store().stage(PUSH, BUFFER), BUFFER_SECS),
    Pair("Shard.PullAt", lambda: store().pull_at(PUSH, BUFFER), RELEASE_SECS),
    Pair("Shard.Apply", lambda: store().apply(PHASE_ID, ()), 0.0),
    Pair("Shard.Discard", lambda: store().discard(PUSH), 0.0),
    Pair("Shard.Forget", lambda: store().forget(PHASE_ID, 0, 1), 0.0),
    Pair("Shard.SnapshotPart", lambda: store().snapshot_part(PHASE_ID, 1, final=True), TRANSFER_SECS),
    Pair("OptimizerState.Download", lambda: OptimizerClient(NOWHERE, 8).download_opt_state(PUSH), 0.0),
    Pair("BulkLink.Open", lambda: BulkLinkClient(NOWHERE, "a role").open(2), 0.0),
    Pair("OptimizerState.Upload", lambda: OptimizerClient(NOWHERE, 8).upload_opt_state(PUSH, BUFFER), 0.0),
]


def deadline_of(pair: Pair) -> float:
    with pytest.raises(Sent) as sent:
        pair.call()
    assert sent.value.what in pair.method
    return sent.value.secs


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.method)
def test_a_call_lasts_longer_than_the_callee_may_wait(pair: Pair) -> None:
    assert deadline_of(pair) >= pair.server_secs + 4.0


def test_every_call_is_in_the_table() -> None:
    services = pb.DESCRIPTOR.services_by_name.values()
    assert {pair.method for pair in PAIRS} == {f"{s.name}.{method.name}" for s in services for method in s.methods}


@pytest.mark.parametrize(
    "method", ["PhaseServer.Enter", "SnapshotSource.Read", "SnapshotSource.TakeSnapshot", "Shard.SnapshotPart"]
)
def test_a_call_behind_a_transfer_of_the_state_has_time_for_its_bytes(method: str) -> None:
    (pair,) = (pair for pair in PAIRS if pair.method == method)
    assert deadline_of(pair) >= transfer_secs(STATE_BYTES) > CALL_SECS + STATE_BYTES / 25e6


def test_a_deadline_that_was_given_is_that_of_every_call() -> None:
    client = ParameterClient(NOWHERE, 7.0, state_bytes=STATE_BYTES)
    for call in (
        lambda: client.enter(PHASE),
        lambda: client.take_snapshot(PHASE_ID, False),
        lambda: client.read(1, WHOLE),
    ):
        with pytest.raises(Sent) as sent:
            call()
        assert sent.value.secs == 7.0


def test_a_snapshot_waits_for_another_server_longer_than_the_calls_to_it_last() -> None:
    """They go out one after the other: updates, then the one for its part."""
    snapshot = deadline_of(next(pair for pair in PAIRS if pair.method == "Shard.SnapshotPart"))
    apply = deadline_of(next(pair for pair in PAIRS if pair.method == "Shard.Apply"))
    assert snapshot_secs(STATE_BYTES) > snapshot + apply and apply < UPDATES_SECS


def test_a_holder_waits_for_readers_as_long_as_a_transfer_of_its_state_may_take() -> None:
    layout = Layout.of({"w": np.zeros(1000, np.float32)})
    assert SnapshotBuffer(layout)._read_secs == transfer_secs(layout.nbytes)
