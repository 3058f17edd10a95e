"""Everything a peer can send wrong: status, named error and text of the answer.

Each case meets the job of `job.py`: phase 5 (nonce abcd) runs asp with workers 0 to 3 up to unit 40; unit 0 is issued
and applied, the primary is at sequence 1; the store, which was told of no update, is at 0. A contribution has 640
bytes, the state 768, the parameters 512.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from grpc import StatusCode

from hybridsync import __version__
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.agents import AgentReport
from hybridsync.interfaces.messages import (
    GroupRequest,
    Hello,
    LeaseRequest,
    PhaseRequest,
    Push,
    RoleEvent,
    RoleState,
    Update,
)
from hybridsync.interfaces.reports import Report
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.dialling import MESSAGE_BYTES
from tests.bad_input.job import AGENT, PHASE_ID, Job
from tests.roles import gradient_of, tally_programs

INVALID, STALE, DENIED = StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION, StatusCode.UNAUTHENTICATED


@dataclass(frozen=True)
class Wire:
    """A message, and its answer.

    Args:
      name: what is wrong, as a test id.
      send: sends it; its result counts where the answer is not an error.
      code: status of the answer.
      error: named error in the trailing metadata; empty for none.
      text: regular expression over the whole message, or over the whole result.
      before: brings the job where the message meets it.
    """

    name: str
    send: Callable[[Job], Any]
    code: StatusCode
    error: str
    text: str
    before: Callable[[Job], Any] = lambda job: None


def push(*units: int, **fields: Any) -> Push:
    return Push(PHASE_ID, 0, 1, units, 0)._replace(**fields)


def hello(**fields: Any) -> pb.Hello:
    schema = tally_programs().state_layout.schema_hash
    return encode(dataclasses.replace(Hello("worker", 0, 7, "host", "127.0.0.1:1", schema, __version__), **fields))


def role_state(completed: int = 0, **fields: Any) -> Callable[[Job], Any]:
    """Register worker 0 again, as one that stands in the job's phase but for `fields` of it, with 4 units leased."""

    def send(job: Job) -> Any:
        where = RoleState(dataclasses.replace(job.phase, **fields), True, ((0, 4),), completed)
        return job.unary("Chief", "Register", hello(role_state=where))

    return send


def report(**fields: Any) -> pb.Report:
    return encode(dataclasses.replace(Report("server", 0, 1, PHASE_ID), **fields))


def lease(**fields: Any) -> pb.LeaseRequest:
    return encode(dataclasses.replace(LeaseRequest(0, 1, PHASE_ID, 0, 0), **fields))


def phase(job: Job, **fields: Any) -> pb.Phase:
    return encode(dataclasses.replace(job.phase, id=PhaseId(6, 1), **fields))


def header(num_bytes: int, **fields: Any) -> bytes:
    return pb.Frame(header=pb.Header(num_bytes=num_bytes, push=encode(push(1)), **fields)).SerializeToString()


def updates(phase_id: PhaseId, sequence: int = 1) -> pb.Updates:
    return pb.Updates(phase_id=encode(phase_id), updates=[encode(Update(sequence, (push(1),), 1.0, ()))])


def updates_of(**fields: Any) -> pb.Updates:
    """Return update 1 of worker 0's unit 1, but for `fields` of it."""
    update = dataclasses.replace(Update(1, (push(1),), 1.0, ()), **fields)
    return pb.Updates(phase_id=encode(PHASE_ID), updates=[encode(update)])


def not_finite(value: float) -> np.ndarray:
    """Return a contribution whose first entry is that value."""
    contribution = gradient_of(1)
    leaves, treedef = jax.tree.flatten(jax.tree.map(np.array, contribution))
    leaves[0].reshape(-1)[0] = value
    return tally_programs().contribution_layout.pack(jax.tree.unflatten(treedef, leaves))


def end_phase(job: Job) -> None:
    job.primary.take_snapshot(PHASE_ID, final=True)


def replace_worker(job: Job) -> None:
    """Let a second process take worker 0's place, at the chief and at the server."""
    job.unary("Chief", "Register", hello(restart_count=1))
    job.primary.fence(PHASE_ID, 0, 1)


def freeze(job: Job) -> None:
    """Give the chief a model with one leaf that is not trained."""
    job.chief.state.frozen = {"tokens/embedding": "c0ffee"}


def lose_worker(job: Job) -> None:
    """Let the chief give up worker 3."""
    with job.chief.control.turn() as state:
        state.evict("worker", 3, "it was silent")


def lost_report() -> pb.Report:
    return encode(Report("worker", 3, 1, PHASE_ID))


def snapshot(job: Job) -> None:
    """Let the server take a snapshot; snapshots are counted from a random number."""
    job.captured = job.primary.take_snapshot(PHASE_ID, final=False).snapshot_id


def capture_twice(job: Job) -> None:
    snapshot(job)
    snapshot(job)


def spoiled(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Job], Any]:
    """Push in chunks, after `change` of the frames: a header, and 640 bytes in chunks of 200."""
    return lambda job: job.chunks(*change(job.frames(push(1))))


ADVICE = r"do both roles have the same model and optimizer\?"

PUSHES = [
    Wire("a phase that is over", lambda job: job.push(push(1, phase_id=PhaseId(4, 1))), STALE, "StalePhase",
        "phase 4 was named, but the server is in phase 5; ask the chief again"),
    Wire("a phase that has not begun", lambda job: job.push(push(1, phase_id=PhaseId(6, 1))), STALE, "StalePhase",
        "phase 6 was named, but the server is in phase 5; ask the chief again"),
    Wire("the phase's number with another nonce", lambda job: job.push(push(1, phase_id=PhaseId(5, 1))), STALE,
        "StalePhase",
        r"phase 5 \(nonce 0000000000000001\) was named, but the server is in phase 5 \(nonce 000000000000abcd\); ask "
        "the chief again"),
    Wire("no phase", lambda job: job.small(pb.SmallPush(contribution=bytes(640)).SerializeToString()), STALE,
        "StalePhase", "phase 0 was named, but the server is in phase 5; ask the chief again"),
    Wire("a pull in an old phase", lambda job: job.pull(push(phase_id=PhaseId(4, 1))), STALE, "StalePhase",
        "phase 4 was named, but the server is in phase 5; ask the chief again"),
    Wire("a phase that has ended", lambda job: job.push(push(1)), STALE, "StalePhase",
        "phase 5 has ended; ask the chief for the next phase", end_phase),
    Wire("a pull from a phase that has ended", lambda job: job.pull(push()), STALE, "StalePhase",
        "phase 5 has ended; ask the chief for the next phase", end_phase),
    Wire("a worker that was replaced", lambda job: job.push(push(1)), STALE, "StaleIncarnation",
        "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends", replace_worker),
    Wire("a pull of a worker that was replaced", lambda job: job.pull(push()), STALE, "StaleIncarnation",
        "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends", replace_worker),
    Wire("a worker that the run does not have", lambda job: job.push(push(1, worker=9)), DENIED, "UnknownRole",
        "worker 9 takes no part in phase 5, its members are 0, 1, 2, 3; register with the chief first"),
    Wire("a negative worker", lambda job: job.pull(push(worker=-1)), DENIED, "UnknownRole",
        "worker -1 takes no part in phase 5, its members are 0, 1, 2, 3; register with the chief first"),
    Wire("no unit", lambda job: job.push(push()), INVALID, "InvalidMessage",
        "worker 0 pushes 0 units; a push offers the gradient of at least 1"),
    Wire("a unit twice in one push", lambda job: job.push(push(1, 2, 1)), INVALID, "InvalidMessage",
        "worker 0 pushes unit 1 in 2 places at once; a push is a set: name each unit once"),
    Wire("a negative unit", lambda job: job.push(push(-1)), INVALID, "InvalidMessage",
        "worker 0 pushes unit -1, but phase 5 issues units 0 to 39; push leased units only"),
    Wire("a unit behind the phase's last", lambda job: job.push(push(40)), INVALID, "InvalidMessage",
        "worker 0 pushes unit 40, but phase 5 issues units 0 to 39; push leased units only"),
    Wire("the largest unit there is", lambda job: job.push(push(2**63 - 1)), INVALID, "InvalidMessage",
        "worker 0 pushes unit 9223372036854775807, but phase 5 issues units 0 to 39; push leased units only"),
    Wire("a base from the future", lambda job: job.push(push(1, base=2)), INVALID, "InvalidMessage",
        "worker 0 pushes a gradient on sequence 2, but this server has sequences 0 to 1; name the one that was pulled"),
    Wire("a negative base", lambda job: job.push(push(1, base=-1)), INVALID, "InvalidMessage",
        "worker 0 pushes a gradient on sequence -1, but this server has sequences 0 to 1; name the one that was "
        "pulled"),
    Wire("a bad push of a newer incarnation, which must not fence the good one",
        lambda job: job.push(push(-1, incarnation=9)), INVALID, "InvalidMessage",
        "worker 0 pushes unit -1, but phase 5 issues units 0 to 39; push leased units only"),
    Wire("a push that was applied", lambda job: job.push(push(0), job.contribution(0)), StatusCode.OK, "",
        "sequence: 1\nduplicate: true\nsettled: 0\n"),
    Wire("a push that was applied, from its worker's next process", lambda job: job.push(push(0, worker=1)),
        StatusCode.OK,
        "", "sequence: 1\nduplicate: true\nsettled: 0\n", lambda job: job.pull(push(worker=1))),
    Wire("an applied unit among fresh ones", lambda job: job.push(push(0, 1)), StatusCode.OK, "",
        "sequence: 1\nduplicate: true\nsettled: 0\n"),
]

def said(job: Job, method: str, push: Push) -> Any:
    """Say a word that carries no gradient: Idle, or Ready."""
    return job.unary("ParameterServer", method, encode(push))


WORDS = [
    case
    for method in ("Idle", "Ready")
    for case in (
        Wire(f"{method} in a phase that is over", lambda job, to=method: said(job, to, push(1, phase_id=PhaseId(4, 1))),
            STALE, "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire(f"{method} in a phase that has ended", lambda job, to=method: said(job, to, push(1)), STALE, "StalePhase",
            "phase 5 has ended; ask the chief for the next phase", end_phase),
        Wire(f"{method} of a worker that was replaced", lambda job, to=method: said(job, to, push(1)), STALE,
            "StaleIncarnation", "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends",
            replace_worker),
        Wire(f"{method} of a worker that the run does not have",
            lambda job, to=method: said(job, to, push(1, worker=9)), DENIED, "UnknownRole",
            "worker 9 takes no part in phase 5, its members are 0, 1, 2, 3; register with the chief first"),
    )
]

SIZES = [
    Wire("a contribution with a byte too many", lambda job: job.push(push(1), np.zeros(641, np.uint8)), INVALID,
        "SchemaMismatch", f"the buffer has 641 bytes where 640 are expected; {ADVICE}"),
    Wire("an empty contribution", lambda job: job.push(push(1), np.zeros(0, np.uint8)), INVALID, "SchemaMismatch",
        f"the buffer has 0 bytes where 640 are expected; {ADVICE}"),
    Wire("a claim of 2^62 bytes", lambda job: job.chunks(header(2**62)), INVALID, "SchemaMismatch",
        f"the buffer has {2**62} bytes where 640 are expected; {ADVICE}"),
    Wire("a claim of no bytes", lambda job: job.chunks(header(0)), INVALID, "SchemaMismatch",
        f"the buffer has 0 bytes where 640 are expected; {ADVICE}"),
    Wire("a chunk too few", spoiled(lambda frames: frames[:-1]), INVALID, "SchemaMismatch",
        "the stream ended after 600 bytes where its header says 640"),
    Wire("a chunk too many", spoiled(lambda frames: [*frames, frames[-1]]), INVALID, "SchemaMismatch",
        "the stream carries 680 bytes or more where its header says 640"),
    Wire("a torn chunk", spoiled(lambda frames: [*frames[:-1], frames[-1][:-3]]), INVALID, "SchemaMismatch",
        "a frame of 39 bytes in the stream is not one whole chunk"),
    Wire("an empty chunk", spoiled(lambda frames: [frames[0], b"\x12\x00", *frames[1:]]), INVALID, "SchemaMismatch",
        "a frame of 2 bytes in the stream is not one whole chunk"),
    Wire("no header", spoiled(lambda frames: frames[1:]), INVALID, "SchemaMismatch",
        "the stream does not begin with a header frame"),
    Wire("two headers", spoiled(lambda frames: [frames[0], *frames]), INVALID, "SchemaMismatch",
        r"a frame of \d+ bytes in the stream is not one whole chunk"),
    Wire("a stream of nothing", spoiled(lambda frames: []), INVALID, "SchemaMismatch",
        "the stream ended before its header"),
    Wire("a header of noise", spoiled(lambda frames: [b"\xff" * 9, *frames[1:]]), INVALID, "SchemaMismatch",
        r"9 bytes are not a Frame message \(.*\); are both roles of one version\?"),
    Wire("a small push of noise", lambda job: job.small(b"\xff" * 9), INVALID, "SchemaMismatch",
        r"9 bytes are not a SmallPush message \(.*\); are both roles of one version\?"),
    Wire("a message over the limit", lambda job: job.oversize(MESSAGE_BYTES + 1), StatusCode.RESOURCE_EXHAUSTED, "",
        rf".*[Rr]eceived message larger than max \({MESSAGE_BYTES + 1} vs\. {MESSAGE_BYTES}\)"),
    Wire("a service that is not there", lambda job: job.unary("ParameterServer", "Shutdown", b""),
        StatusCode.UNIMPLEMENTED, "", "Method not found!"),
]

STATES = [
    Wire("a snapshot that was never taken", lambda job: job.read(job.to_server, 77, 768), STALE, "StalePhase",
        r"snapshot 77 is no longer kept here \(kept: none\); ask the chief again"),
    Wire("a snapshot whose place another one took", lambda job: job.read(job.to_server, job.captured - 1, 768), STALE,
        "StalePhase", r"snapshot \d+ is no longer kept here \(kept: \d+\); ask the chief again", capture_twice),
    Wire("a reader of another size", lambda job: job.read(job.to_server, job.captured, 769), INVALID, "SchemaMismatch",
        f"the buffer has 769 bytes where 768 are expected; {ADVICE}", snapshot),
    Wire("a reader of 2^62 bytes", lambda job: job.read(job.to_chief, 1, 2**62), INVALID, "SchemaMismatch",
        f"a state of {2**62} bytes is over the limit, {2**36}"),
    Wire("an empty phase", lambda job: job.unary("PhaseServer", "Enter", b""), INVALID, "PlanError",
        r"the plan is empty; write name\[\(key=value,\.\.\.\)\]\[:length\], .*"),
    Wire("a phase that is older than the one served",
        lambda job: job.unary("PhaseServer", "Enter", encode(dataclasses.replace(job.phase, id=PhaseId(4, 1)))),
        STALE, "StalePhase", "phase 4 is not newer than phase 5, which is served; reserve another"),
    Wire("a phase of the served one's number and another nonce",
        lambda job: job.unary("PhaseServer", "Enter", encode(dataclasses.replace(job.phase, id=PhaseId(5, 1)))),
        STALE, "StalePhase",
        r"phase 5 \(nonce 0000000000000001\) is not newer than phase 5 \(nonce 000000000000abcd\), "
        "which is served; reserve another"),
    Wire("a phase of an unknown protocol", lambda job: job.unary("PhaseServer", "Enter", phase(job, spec="aps")),
        INVALID, "PlanError", r"unknown protocol 'aps'; did you mean 'asp'\?"),
    Wire("a lock-step phase at a parameter server",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, spec="bsp")), INVALID, "PlanError",
        "phase 6 runs 'bsp' in the mode 'sync', this is a role of the mode 'server'; enter it at the workers"),
    Wire("a phase of an order below 0", lambda job: job.unary("PhaseServer", "Enter", phase(job, order=-1)), INVALID,
        "InvalidMessage", r"phase \d+ carries out order -1; orders are counted from 1 to \d+, and 0 is none"),
    Wire("a phase with places less than 0 units apart",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, evaluate_units=-5)), INVALID, "InvalidMessage",
        r"phase \d+ has its state kept every -5 units; send 1 or more, or 0 for never"),
    Wire("a phase without members", lambda job: job.unary("PhaseServer", "Enter", phase(job, members=())), INVALID,
        "InvalidMessage", "phase 6 runs 'asp' with 0 members; it needs at least 1"),
    Wire("a phase of more units than there is memory for",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, end_units=2**62)), INVALID, "InvalidMessage",
        f"phase 6 ends with {2**62} units applied, but this run has 64; end it with 0 to 64"),
    Wire("a phase of more units than the run has",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, end_units=2**31, applied=((0, 2**31),))), INVALID,
        "InvalidMessage", f"phase 6 ends with {2**31} units applied, but this run has 64; end it with 0 to 64"),
    Wire("a phase of a plan instead of a stage",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, spec="asp(" + "a=1," * 100_000 + ")")), INVALID,
        "InvalidMessage", "spec of Phase has 400005 characters, above the 256 of a message; shorten it"),
    Wire("a phase of more ranges than a state has",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, applied=((0, 1),) * 100_001)), INVALID,
        "InvalidMessage", "applied of Phase has 100001 entries, above the 100000 of a message; send several messages"),
    Wire("a phase with a unit applied twice",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, applied=((0, 3), (2, 5)))), INVALID,
        "InvalidMessage", "phase 6 has 6 units applied or dropped, of which only 5 differ; name each unit once"),
    Wire("a phase with a unit applied and dropped",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, applied=((0, 3),), dropped=((2, 3),))), INVALID,
        "InvalidMessage", "phase 6 has 4 units applied or dropped, of which only 3 differ; name each unit once"),
    Wire("a phase with overlapping ranges at the other server",
        lambda job: job.unary_at_store("PhaseServer", "Enter", phase(job, applied=((0, 2**11), (0, 2**11)))), INVALID,
        "InvalidMessage", "phase 6 has 4096 units applied or dropped, of which only 2048 differ; name each unit once"),
    Wire("a lock-step phase at the other server",
        lambda job: job.unary_at_store("PhaseServer", "Enter", phase(job, spec="bsp")), INVALID, "PlanError",
        "phase 6 runs 'bsp' in the mode 'sync', this is a role of the mode 'server'; enter it at the workers"),
    Wire("a phase with a member twice", lambda job: job.unary("PhaseServer", "Enter", phase(job, members=(0, 1, 1))),
        INVALID, "InvalidMessage", r"phase 6 has the members \(0, 1, 1\); name each once, from 0"),
    Wire("a phase behind the largest update there is",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, sequence=2**63 - 1)), INVALID, "InvalidMessage",
        f"phase 6 begins behind update {2**63 - 1}; both are numbers from 0 to {2**62 - 1}"),
    Wire("the fence of a worker that no run has",
        lambda job: job.unary("PhaseServer", "Fence", pb.FenceRequest(phase_id=encode(PHASE_ID), worker=-1)), DENIED,
        "UnknownRole", "there is no worker -1: workers are numbered from 0 to 9999"),
    Wire("a phase with an applied unit far behind its last",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, applied=((2**62, 2**62 + 1),))), INVALID,
        "InvalidMessage", f"phase 6 counts units up to {2**62 + 1}, above the 2048 that a run of 64 units issues .*"),
    Wire("a phase with a dropped unit far behind its last",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, dropped=((3, 2**40),))), INVALID,
        "InvalidMessage", f"phase 6 counts units up to {2**40}, above the 2048 that a run of 64 units issues .*"),
    Wire("a phase that ends before its first unit",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, end_units=-1)), INVALID, "InvalidMessage",
        "phase 6 ends with -1 units applied, but this run has 64; end it with 0 to 64"),
    Wire("a phase whose state arrives with other bits",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, fingerprint="f00d")), StatusCode.DATA_LOSS,
        "DamagedState",
        r"the state handed over by 127\.0\.0\.1:\d+ has fingerprint [0-9a-f]{32}, but f00d was captured; "
        "nothing was trained on it, run the same command again to resume from the last checkpoint"),
    Wire("a phase whose starting state is gone",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, fingerprint="f00d", snapshot_id=9)), STALE,
        "StalePhase", r"snapshot 9 is no longer kept here \(kept: \d+\); ask the chief again"),
    Wire("a range of units that ends before it begins",
        lambda job: job.unary("PhaseServer", "Enter", phase(job, applied=((9, 4),))), INVALID, "SchemaMismatch",
        r"a range of units needs 0 <= start < stop, got \(9, 4\)"),
    Wire("a phase of noise", lambda job: job.unary("PhaseServer", "Enter", b"\xff" * 5), INVALID, "SchemaMismatch",
        r"5 bytes are not a Phase message \(.*\); are both roles of one version\?"),
]

SHARD = [
    Wire("a block of a phase that is over", lambda job: job.stage(push(1, phase_id=PhaseId(4, 1))), STALE, "StalePhase",
        "phase 4 was named, but the server is in phase 5; ask the chief again"),
    Wire("a block of the phase's number with another nonce", lambda job: job.stage(push(1, phase_id=PhaseId(5, 1))),
        STALE,
        "StalePhase", r"phase 5 \(nonce 0000000000000001\) was named, but the server is in phase 5 \(nonce "
        r"000000000000abcd\); ask the chief again"),
    Wire("a block of a worker that was lost", lambda job: job.stage(push(1)), STALE, "StaleIncarnation",
        "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends",
        lambda job: job.store.forget(PHASE_ID, 0, 1)),
    Wire("a block with a byte too many", lambda job: job.stage(push(1), np.zeros(641, np.uint8)), INVALID,
        "SchemaMismatch", f"the buffer has 641 bytes where 640 are expected; {ADVICE}"),
    Wire("a block that is not finite", lambda job: job.stage(push(1), not_finite(np.nan)), StatusCode.OK, "",
        r'non_finite: "leaf \S+, first index \[0\]"\n'),
    Wire("an update in an old phase", lambda job: job.unary("Shard", "Apply", updates(PhaseId(4, 1))), STALE,
        "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
    Wire("an update that was applied", lambda job: job.unary("Shard", "Apply", updates(PHASE_ID, sequence=0)),
        StatusCode.OK, "", ""),
    Wire("an update without pushes", lambda job: job.unary("Shard", "Apply", updates_of(pushes=())), INVALID,
        "InvalidMessage", "update 1 has 0 pushes and 0 weights; give at least 1 push, and a weight for each or none"),
    Wire("an update with more weights than pushes",
        lambda job: job.unary("Shard", "Apply", updates_of(weights=(1.0, 1.0))), INVALID, "InvalidMessage",
        "update 1 has 1 pushes and 2 weights; give at least 1 push, and a weight for each or none"),
    Wire("an update whose weights sum to nothing",
        lambda job: job.unary("Shard", "Apply", updates_of(weights=(0.0,))), INVALID, "InvalidMessage",
        r"update 1 has the rate 1 and the weights \(0\.0,\); give numbers from 0 to 1e\+30, and not all weights 0"),
    Wire("an update with a weight that is no number",
        lambda job: job.unary("Shard", "Apply", updates_of(weights=(math.nan,))), INVALID, "InvalidMessage",
        "a number in a list is nan; send a finite number"),
    Wire("an update at an infinite rate", lambda job: job.unary("Shard", "Apply", updates_of(rate=math.inf)), INVALID,
        "InvalidMessage", "rate of Update is inf; send a finite number"),
    Wire("an update at a rate that overflows", lambda job: job.unary("Shard", "Apply", updates_of(rate=1e38)), INVALID,
        "InvalidMessage", r"update 1 has the rate 1e\+38 and the weights \(\); give numbers from 0 to 1e\+30, .*"),
    Wire("an update of one push twice", lambda job: job.unary("Shard", "Apply", updates_of(pushes=(push(1),) * 2)),
        INVALID, "InvalidMessage", "2 pushes are to be applied, 1 of them twice"),
    Wire("an update whose contribution never came", lambda job: job.unary("Shard", "Apply", updates(PHASE_ID)),
        StatusCode.ABORTED, "ServersApart", "server 0 is at update 0 of phase 5 and is to apply update 1, but the "
        "contribution of worker 0 to it never came: the servers have come apart; .*"),
    Wire("more updates than a message has",
        lambda job: job.unary("Shard", "Apply", pb.Updates(phase_id=encode(PHASE_ID), updates=[pb.Update()] * 10_001)),
        INVALID, "InvalidMessage",
        "updates of Updates has 10001 entries, above the 10000 of a message; send several messages"),
    Wire("a snapshot after an update that never came",
        lambda job: job.unary("Shard", "SnapshotPart", pb.PartSnapshotRequest(phase_id=encode(PHASE_ID), sequence=7)),
        StatusCode.ABORTED, "ServersApart", "server 0 is at update 0 of phase 5 and is asked for its state after "
        "update 7: the servers have come apart; .*"),
    Wire("a last snapshot with the state of a worker that left none",
        lambda job: job.unary("Shard", "SnapshotPart", pb.PartSnapshotRequest(phase_id=encode(PHASE_ID), final=True,
        left=[3])),
        StatusCode.ABORTED, "ServersApart", "server 0 is at update 0 of phase 5 and is to take the optimizer state of "
        "worker 3, which never came: .*"),
    Wire("a last snapshot with a worker's state twice",
        lambda job: job.unary("Shard", "SnapshotPart", pb.PartSnapshotRequest(phase_id=encode(PHASE_ID), final=True,
        left=[3, 3])),
        INVALID, "InvalidMessage", "2 workers left states, 1 of them different; name each once"),
    Wire("a block of a worker that the run does not have", lambda job: job.stage(push(1, worker=9)), DENIED,
        "UnknownRole", "worker 9 takes no part in phase 5, its members are 0, 1, 2, 3; register with the chief first"),
    Wire("a block of a unit that the run does not have", lambda job: job.stage(push(2**40)), INVALID,
        "InvalidMessage", rf"worker 0 stages a part of a push with 1 units \({2**40},\); push at least 1, each once, "
        "from 0 to 2047"),
    Wire("parameters for a worker that the run does not have", lambda job: job.pull_at(push(worker=9)), DENIED,
        "UnknownRole", "worker 9 takes no part in phase 5, its members are 0, 1, 2, 3; register with the chief first"),
    Wire("a farewell to a worker that no run has",
        lambda job: job.unary("Shard", "Forget", pb.FenceRequest(phase_id=encode(PHASE_ID), worker=2**40)), DENIED,
        "UnknownRole", f"there is no worker {2**40}: workers are numbered from 0 to 9999"),
    Wire("parameters of an old phase", lambda job: job.pull_at(push(phase_id=PhaseId(4, 1))), STALE, "StalePhase",
        "phase 4 was named, but the server is in phase 5; ask the chief again"),
    Wire("parameters that are not kept", lambda job: job.pull_at(push(base=-1)), STALE, "StalePhase",
        r"the parameters after update -1 are no longer kept for worker 0, only those after \[0\]; ask the chief again"),
    Wire("a snapshot in an old phase",
        lambda job: job.unary("Shard", "SnapshotPart", pb.PartSnapshotRequest(phase_id=encode(PhaseId(4, 1)))), STALE,
        "StalePhase",
        "phase 4 was named, but the server is in phase 5; ask the chief again"),
]

CHIEF = [
    Wire("another schema", lambda job: job.unary("Chief", "Register", hello(schema="other")), INVALID, "SchemaMismatch",
        "worker 0 was built for the state schema other, the chief for [0-9a-f]{32}; start every role with the same "
        "configuration and version"),
    Wire("another frozen leaf", lambda job: job.unary("Chief", "Register", hello(frozen=("beef",))), INVALID,
        "SchemaMismatch", "the frozen leaf tokens/embedding of worker 0 has the digest beef, the chief's c0ffee; make "
        "them from the run's seed, or give each host the same weights and versions", before=freeze),
    Wire("no frozen leaf", lambda job: job.unary("Chief", "Register", hello()), INVALID, "SchemaMismatch",
        "worker 0 has 0 leaves that are not trained, the chief 1; make them from the run's seed, or give each host the "
        "same weights and versions", before=freeze),
    Wire("the package's next minor series",
        lambda job: job.unary("Chief", "Register", hello(version="0.2.0", schema="other")), STALE, "VersionMismatch",
        rf"worker 0 runs hybridsync 0\.2\.0, the chief {__version__}; install one version for every role of a run, "
        r"0\.1\.\*"),
    Wire("a version that is none", lambda job: job.unary("Chief", "Register", hello(version="latest")), STALE,
        "VersionMismatch", rf"worker 0 runs hybridsync latest, the chief {__version__}; install .*, 0\.1\.\*"),
    Wire("no version", lambda job: job.unary("Chief", "Register", hello(version="")), STALE, "VersionMismatch",
        rf"worker 0 runs hybridsync \(none named\), the chief {__version__}; install .*, 0\.1\.\*"),
    Wire("a worker outside the run's slots", lambda job: job.unary("Chief", "Register", hello(id=4)), DENIED,
        "UnknownRole", "there is no worker 4 in this run: its workers are 0 to 3; start it with one of these numbers"),
    Wire("a worker with a negative number", lambda job: job.unary("Chief", "Register", hello(id=-1)), DENIED,
        "UnknownRole", "there is no worker -1 in this run: its workers are 0 to 3; start it with one of these numbers"),
    Wire("a second server", lambda job: job.unary("Chief", "Register", hello(role="server", id=1)), DENIED,
        "UnknownRole", "there is no server 1 in this run: its servers are 0 to 0; start it with one of these numbers"),
    Wire("a role that is none", lambda job: job.unary("Chief", "Register", hello(role="gopher")), DENIED, "UnknownRole",
        "there is no role 'gopher': a chief takes in 'worker' and 'server'; name one"),
    Wire("an empty registration", lambda job: job.unary("Chief", "Register", b""), DENIED, "UnknownRole",
        "there is no role '': a chief takes in 'worker' and 'server'; name one"),
    Wire("a role state with shares of other members", role_state(spec="bsp", shares=(2, 1, 1)), INVALID,
        "InvalidMessage",
        r"worker 0 stands in phase 5 with the shares \[2, 1, 1\] for the members \[0, 1, 2, 3\]; give each of them its "
        "units of a step, 0 or more and not all 0, or no shares at all"),
    Wire("a role state with a share below 0", role_state(spec="bsp", shares=(2, 1, 1, -1)), INVALID, "InvalidMessage",
        r"worker 0 stands in phase 5 with the shares \[2, 1, 1, -1\] for the members .*"),
    Wire("a role state in which nobody has a share", role_state(spec="bsp", shares=(0, 0, 0, 0)), INVALID,
        "InvalidMessage", r"worker 0 stands in phase 5 with the shares \[0, 0, 0, 0\] for the members .*"),
    Wire("a role state without members", role_state(members=()), INVALID, "InvalidMessage",
        r"worker 0 stands in phase 5 with the members \[\], but this run's workers are 0 to 3, each once; it serves "
        "another run: stop it"),
    Wire("a role state with a member twice", role_state(members=(0, 1, 1)), INVALID, "InvalidMessage",
        r"worker 0 stands in phase 5 with the members \[0, 1, 1\], but this run's workers are 0 to 3, each once; .*"),
    Wire("a role state with a member outside the run", role_state(members=(0, 4)), INVALID, "InvalidMessage",
        r"worker 0 stands in phase 5 with the members \[0, 4\], but this run's workers are 0 to 3, each once; .*"),
    Wire("a role state in a protocol that is none", role_state(spec="gossip"), INVALID, "PlanError",
        r"unknown protocol 'gossip'; did you mean 'ssp'\?"),
    Wire("a role state with more units done than leased", role_state(5), INVALID, "InvalidMessage",
        "worker 0 says that 5 of 4 units received in phase 5 are done; count both from 0"),
    Wire("a text that is not UTF-8", lambda job: job.unary("Chief", "Register", b"\x0a\x02\xff\xfe"), INVALID,
        "SchemaMismatch", r"4 bytes are not a Hello message \(.*\); are both roles of one version\?"),
    Wire("a lease in an old phase", lambda job: job.unary("Chief", "Lease", lease(phase_id=PhaseId(4, 1))), STALE,
        "StalePhase", "phase 4 was named, but phase 5 is active; ask for the next phase"),
    Wire("a lease in a phase of another nonce", lambda job: job.unary("Chief", "Lease", lease(phase_id=PhaseId(5, 1))),
        STALE, "StalePhase", r"phase 5 \(nonce 0000000000000001\) was named, but phase 5 \(nonce 000000000000abcd\) is "
        "active; ask for the next phase"),
    Wire("a lease of a replaced worker", lambda job: job.unary("Chief", "Lease", lease()), STALE, "StaleIncarnation",
        "worker 0 speaks as incarnation 1, but incarnation 2 has taken its place; this process ends", replace_worker),
    Wire("a lease of a worker that never registered", lambda job: job.unary("Chief", "Lease", lease(worker=9)), STALE,
        "NotRegistered", "worker 9 has not registered with this chief; register and call again"),
    Wire("a lease behind a negative position", lambda job: job.unary("Chief", "Lease", lease(known=-1, completed=-1)),
        INVALID, "InvalidMessage", "worker 0 says that -1 of -1 units received in phase 5 are done; count both from 0"),
    Wire("more units done than received", lambda job: job.unary("Chief", "Lease", lease(known=1, completed=2)), INVALID,
        "InvalidMessage", "worker 0 says that 2 of 1 units received in phase 5 are done; count both from 0"),
    Wire("a group round in a phase without groups", lambda job: job.unary("Chief", "JoinGroup", encode(GroupRequest(0,
        1, PHASE_ID,
        1))), INVALID, "InvalidMessage",
        "worker 0 comes to a group round in phase 5, but asp has none; ask for the next "
        "phase"),
    Wire("a phase for a worker that never registered",
        lambda job: job.unary("Chief", "NextPhase", encode(PhaseRequest(9, 3, NO_PHASE, None))), STALE,
        "NotRegistered", "worker 9 has not registered with this chief; register and call again"),
    Wire("a rest of negative seconds",
        lambda job: job.unary("Chief", "NextPhase", encode(PhaseRequest(0, 1, NO_PHASE, None, rest_secs=-1.5))),
        INVALID, "InvalidMessage", r"worker 0 says that it rests for -1\.5 s; rest for 0 s or more"),
    Wire("a rest of no number of seconds",
        lambda job: job.unary("Chief", "NextPhase", encode(PhaseRequest(0, 1, NO_PHASE, None, rest_secs=math.nan))),
        INVALID, "InvalidMessage", "rest_secs of PhaseRequest is nan; send a finite number"),
    *[Wire(f"{what} of a process that was never counted", lambda job, send=send: send(job), STALE, "NotRegistered",
        "worker 9 has not registered with this chief; register and call again") for what, send in (
        ("a lease", lambda job: job.unary("Chief", "Lease", lease(worker=9, incarnation=0))),
        ("a request", lambda job: job.unary("Chief", "NextPhase", encode(PhaseRequest(9, 0, NO_PHASE, None)))),
        ("a group round", lambda job: job.unary("Chief", "JoinGroup", encode(GroupRequest(9, 0, PHASE_ID, 1)))))],
    Wire("a restart count below 0", lambda job: job.unary("Chief", "Register", hello(restart_count=-1)), INVALID,
        "InvalidMessage", "worker 0 has the restart count -1; count from 0"),
    Wire("an answer that waits for ever", lambda job: job.unary("Chief", "Report", report(hold_secs=math.inf)), INVALID,
        "InvalidMessage", "hold_secs of Report is inf; send a finite number"),
    Wire("an answer that waits for no number of seconds",
        lambda job: job.unary("Chief", "Report", report(hold_secs=math.nan)), INVALID, "InvalidMessage",
        "hold_secs of Report is nan; send a finite number"),
    Wire("an answer that waits for a day", lambda job: job.unary("Chief", "Report", report(hold_secs=86_400.0)),
        INVALID, "InvalidMessage", "server 0 lets the answer wait for 86400 s, but an answer waits for 60 s at most; "
        "ask again instead"),
    Wire("an answer that waited already", lambda job: job.unary("Chief", "Report", report(hold_secs=-1.0)), INVALID,
        "InvalidMessage", "server 0 lets the answer wait for -1 s, but an answer waits for 60 s at most; .*"),
    Wire("a heartbeat of more ranges than a message has",
        lambda job: job.unary("Chief", "Report", report(applied=((0, 1),) * 80_000)), INVALID, "InvalidMessage",
        "applied of Report has 80000 entries, above the 10000 of a message; send several messages"),
    Wire("a negative staleness", lambda job: job.unary("Chief", "Report", report(staleness=(3, -1))), INVALID,
        "InvalidMessage", "server 0 reports update 0, 0 losses and staleness from -1 on; count all of them from 0"),
    Wire("more units done than the run has",
        lambda job: job.unary("Chief", "Report", report(role="worker", completed=2**62)), INVALID, "InvalidMessage",
        f"worker 0 says that {2**62} units of its stream are done, but this run's units are below 40; .*"),
    Wire("a host that would write on the terminal",
        lambda job: job.unary("Chief", "Register", hello(host="\x1b[2Jhost")), INVALID, "InvalidMessage",
        r"host of Hello is '\\x1b\[2Jhost'; send a text without control characters"),
    Wire("a host of a thousand characters", lambda job: job.unary("Chief", "Register", hello(host="h" * 1000)), INVALID,
        "InvalidMessage", "host of Hello has 1000 characters, above the 256 of a message; shorten it"),
    Wire("a reason of two lines",
        lambda job: job.unary("Chief", "RoleLost", encode(RoleEvent("worker", 1, 1, "exit 1\nall is well", 0.0))),
        INVALID, "InvalidMessage", r"reason of RoleEvent is 'exit 1\\nall is well'; send a text without control "
        "characters"),
    Wire("a dropped unit whose reason moves the cursor",
        lambda job: job.unary("Chief", "Report", report(dropped=((1, "stale\r"),))), INVALID, "InvalidMessage",
        r"reason of DroppedUnit is 'stale\\r'; send a text without control characters"),
    Wire("the start of a role that is none",
        lambda job: job.unary("Chief", "RoleStarted", encode(RoleEvent("gopher", 0, 1, "restart", 0.0))), DENIED,
        "UnknownRole", "there is no role 'gopher': a chief takes in 'worker' and 'server'; name one"),
    Wire("the loss of a server that the run does not have",
        lambda job: job.unary("Chief", "RoleLost", encode(RoleEvent("server", 9, 1, "exit 1", 0.0))), DENIED,
        "UnknownRole", "there is no server 9 in this run: its servers are 0 to 0; start it with one of these numbers"),
    Wire("a process that ended on a unit that the run does not have",
        lambda job: job.unary("Chief", "RoleLost", encode(RoleEvent("worker", 1, 1, "exit 1", 0.0, 2**40))), INVALID,
        "InvalidMessage", f"worker 1 ended on unit {2**40}, but this run's units are below 1664; .*"),
    Wire("a role state with units that the run does not have", role_state(applied=((0, 2**31),)), INVALID,
        "InvalidMessage", f"phase 5 counts units up to {2**31}, above the 1664 that a run of 40 units issues .*"),
    Wire("a heartbeat of a later process", lambda job: job.unary("Chief", "Report", report(incarnation=2)), STALE,
        "NotRegistered", "server 0 has not registered with this chief; register and call again"),
    Wire("a heartbeat of a worker whose place is free", lambda job: job.unary("Chief", "Report", lost_report()), STALE,
        "StaleIncarnation", "worker 3 speaks as incarnation 1, but its lease has expired; this process ends",
        lose_worker),
    Wire("an earlier process of a place that was taken",
        lambda job: job.unary("Chief", "Register", hello()), STALE, "StaleIncarnation",
        "worker 0 speaks as incarnation 1, but incarnation 2 has taken its place; this process ends", replace_worker),
    Wire("a heartbeat about a unit that the run does not have",
        lambda job: job.unary("Chief", "Report", report(applied=((0, 41),))), INVALID, "InvalidMessage",
        "server 0 says that unit 40 was applied, but this run's units are below 40; it serves another run: stop it"),
    Wire("a heartbeat about units up to the largest there is",
        lambda job: job.unary("Chief", "Report", report(applied=((0, 2**63 - 1),))), INVALID, "InvalidMessage",
        f"server 0 says that unit {2**63 - 2} was applied, but this run's units are below 40; it serves another "
        "run: stop it"),
    Wire("a negative unit dropped", lambda job: job.unary("Chief", "Report", report(dropped=((-1, "too stale"),))),
        INVALID, "InvalidMessage",
        "server 0 says that unit -1 was dropped, but this run's units are below 40; it serves another run: stop it"),
    Wire("a heartbeat from a negative position",
        lambda job: job.unary("Chief", "Report", report(role="worker", completed=-1)), INVALID, "InvalidMessage",
        "worker 0 says that -1 units of its stream are done; count from 0"),
    Wire("a range of units that is empty",
        lambda job: job.unary("Chief", "Report", pb.Report(role="server", applied=[pb.Range(start=3, stop=3)])),
        INVALID, "SchemaMismatch", r"a range of units needs 0 <= start < stop, got \(3, 3\)"),
    Wire("a range of units that is negative",
        lambda job: job.unary("Chief", "Report", pb.Report(role="server", applied=[pb.Range(start=-3, stop=3)])),
        INVALID, "SchemaMismatch", r"a range of units needs 0 <= start < stop, got \(-3, 3\)"),
    Wire("the loss of a worker that the run does not have",
        lambda job: job.unary("Chief", "RoleLost", encode(RoleEvent("worker", 9, 1, "exit 1", 0.0))), DENIED,
        "UnknownRole", "there is no worker 9 in this run: its workers are 0 to 3; start it with one of these numbers"),
    Wire("a snapshot at the chief, which trains nothing",
        lambda job: job.unary("SnapshotSource", "TakeSnapshot", pb.SnapshotRequest(phase_id=encode(PHASE_ID))), STALE,
        "StalePhase",
        "the chief keeps the last committed state only and takes no part in phase 5"),
]


def switch(spec: str, reason: str = "") -> Callable[[Job], Any]:
    return lambda job: job.unary("Chief", "Switch", pb.SwitchRequest(spec=spec, reason=reason))


def finish(job: Job) -> None:
    job.chief.control.finish()


def ordered(job: Job) -> None:
    """Have the protocol under way be its stage's order, as the controller does."""
    job.chief.control.orders.give("asp", 0)
    job.chief.control.orders.begin(0)


COMMANDS = [
    Wire("a switch to a protocol that is none", switch("sps"), INVALID, "PlanError",
        r"unknown protocol 'sps'; did you mean 'ssp'\?"),
    Wire("a switch to nothing", switch(""), INVALID, "PlanError", "plan '': cannot read ''; write .*"),
    Wire("a switch with an argument that is none", switch("ssp(stale=2)"), INVALID, "PlanError",
        "protocol 'ssp' has no argument 'stale'; .*"),
    Wire("a switch to a plan", switch("asp:50%,bsp"), INVALID, "PlanError",
        "'asp:50%,bsp' is a plan; name one protocol without a length, for example 'asp'"),
    Wire("a switch for a reason that is none", switch("ssp", "line\nbreak"), INVALID, "InvalidMessage",
        r"reason of SwitchRequest is 'line\\nbreak'; send a text without control characters"),
    Wire("a switch to a very long protocol", switch("s" * 300), INVALID, "InvalidMessage",
        "spec of SwitchRequest has 300 characters, above the 256 of a message; shorten it"),
    Wire("a switch of a run that is over", switch("ssp"), STALE, "NotRunning",
        "the run is saving and stopping; start it again, then give the command", finish),
    Wire("a switch that is ordered and under way already", switch("asp"), StatusCode.OK, "",
        r'spec: "asp"\nbefore: "asp"\nphase: 5\n', ordered),
    Wire("a stop for a reason that is none",
        lambda job: job.unary("Chief", "Stop", pb.StopRequest(reason="\x1b[2J")), INVALID, "InvalidMessage",
        r"reason of StopRequest is '.*'; send a text without control characters"),
    Wire("a stop of a run that is over", lambda job: job.unary("Chief", "Stop", pb.StopRequest()), STALE, "NotRunning",
        "the run is over; there is nothing to stop", finish),
    Wire("a heartbeat of less than no bytes",
        lambda job: job.unary("Chief", "Report", encode(Report("worker", 0, 1, PHASE_ID, sent_bytes=-1))), INVALID,
        "InvalidMessage", rf"worker 0 says that it has sent -1 bytes since .*; count from 0 to {2**44 - 1}"),
    Wire("a heartbeat of more bytes than there are",
        lambda job: job.unary("Chief", "Report", encode(Report("worker", 0, 1, PHASE_ID, received_bytes=2**50))),
        INVALID, "InvalidMessage", f"worker 0 says that it has received {2**50} bytes since .*"),
    Wire("a question that is no message", lambda job: job.unary("Chief", "Status", b"\x0a"), INVALID, "SchemaMismatch",
        "1 bytes are not a Empty message .*"),
]

def attach(**fields: Any) -> Callable[[Job], Any]:
    return lambda job: job.unary("Head", "Attach", encode(dataclasses.replace(AGENT, **fields)))


def exchange(*events: str, **fields: Any) -> Callable[[Job], Any]:
    """Tell events as host 1, whose next event has number 1, with one order that it has not seen."""
    report = dataclasses.replace(AgentReport(1, AGENT.session, 1, events, 0, 0.0), **fields)
    return lambda job: job.unary("Head", "Exchange", encode(report))


def replace_agent(job: Job) -> None:
    job.head.attach(dataclasses.replace(AGENT, session="2" * 32, host="node9"))
    job.head.take()


def silence_agent(job: Job) -> None:
    """Let the lease of host 1 end."""
    job.hosts[0].heard_at -= 60.0
    job.head.expire()


HEAD = [
    Wire("an agent with the head's own number", attach(index=0), DENIED, "UnknownRole",
        "there is no host 0 in this run: its further hosts are 1 to 2; start the agent with one of these numbers"),
    Wire("an agent that the run has no place for", attach(index=3), DENIED, "UnknownRole",
        "there is no host 3 in this run: its further hosts are 1 to 2; start the agent with one of these numbers"),
    Wire("an agent with another configuration", attach(session="2" * 32, config_digest="beef"), INVALID, "ConfigError",
        r"the agent of host 1 \(node1\) has the configuration beef, the head c0ffee; give every host the same "
        "configuration file and --set"),
    Wire("an agent that was told of more hosts", attach(session="2" * 32, num_hosts=4), INVALID, "ConfigError",
        r"the agent of host 1 \(node1\) was told of 4 hosts, and the head of 3; give every host the same --hosts"),
    Wire("an agent of another version", attach(session="2" * 32, version="9.9"), STALE, "VersionMismatch",
        rf"the agent of host 1 \(node1\) runs hybridsync 9.9, the head {__version__}; install one version .*"),
    Wire("an agent without slots", attach(session="2" * 32, slots=0), INVALID, "InvalidMessage",
        r"the agent of host 1 \(node1\) says that it has 0 slots; have 1 to 10000"),
    Wire("an agent without an address", attach(session="2" * 32, address=""), INVALID, "InvalidMessage",
        r"the agent of host 1 \(node1\) has the address ''; name the host, and where its processes serve"),
    Wire("an agent with a session that is none", attach(session="2" * 33), INVALID, "InvalidMessage",
        r"the agent of host 1 \(node1\) names the session '2{33}'; draw 32 hexadecimal digits"),
    Wire("an agent with a very long name", attach(host="n" * 300), INVALID, "InvalidMessage",
        "host of AgentHello has 300 characters, above the 256 of a message; shorten it"),
    Wire("other first words in the same session", attach(slots=5), INVALID, "InvalidMessage",
        r"host 1 \(node1\) attaches with two hellos in one session; draw another session"),
    Wire("first words of an agent that was replaced", attach(), STALE, "AgentReplaced",
        r"host 1 \(node1\) was replaced: .*; host 1 \(node9\) has the place now, and this agent ends: does another one "
        r"have the same --index\?", replace_agent),
    Wire("events of an agent that was replaced", exchange("x"), STALE, "AgentReplaced",
        r"host 1 \(node1\) was replaced: .*; host 1 \(node9\) has the place now, and this .*", replace_agent),
    Wire("events of an agent that was silent", exchange("x"), STALE, "StaleAgent",
        r"host 1 \(node1\) was silent for 60 s, the time of its lease; end what runs under it, and attach again",
        silence_agent),
    Wire("events of a host that is not attached", exchange("x", index=2), STALE, "StaleAgent",
        "host 2 has no session '1{32}' here; end what runs under it, and attach again"),
    Wire("events of no session", exchange("x", session=""), STALE, "StaleAgent", "host 1 has no session '' here; .*"),
    Wire("events behind a gap", exchange("x", first=2), INVALID, "InvalidMessage",
        "events from number 2 on have arrived, but number 1 is the next one; send those that were not acknowledged"),
    Wire("events before the first", exchange("x", first=-1), INVALID, "InvalidMessage",
        "events from number -1 on have arrived, but number 1 is the next one; .*"),
    Wire("orders that were never sent", exchange(seen=2), INVALID, "InvalidMessage",
        "2 orders are said to have arrived, but 1 were sent; count those of this session"),
    Wire("less than no orders", exchange(seen=-1), INVALID, "InvalidMessage", "-1 orders are said to have arrived, .*"),
    Wire("an event with control characters", exchange("\x1b[2J"), INVALID, "InvalidMessage",
        r"a line in a list is '\\x1b\[2J'; send a text without control characters"),
    Wire("an event without end", exchange("x" * 65_537), INVALID, "InvalidMessage",
        "a line in a list has 65537 characters, above the 65536 of a message; shorten it"),
    Wire("too many events", exchange(*["x"] * 1001), INVALID, "InvalidMessage",
        "events of AgentReport has 1001 entries, above the 1000 of a message; send several messages"),
    Wire("an answer that is held for too long", exchange(hold_secs=5.5), INVALID, "InvalidMessage",
        "the agent of host 1 lets the answer wait for 5.5 s, but an answer waits for 5 s at most; ask again instead"),
    Wire("an answer that is held for ever", exchange(hold_secs=math.inf), INVALID, "InvalidMessage",
        "hold_secs of AgentReport is inf; send a finite number"),
    Wire("an answer from before", exchange(hold_secs=-1.0), INVALID, "InvalidMessage",
        "the agent of host 1 lets the answer wait for -1 s, .*"),
    Wire("events that are no message", lambda job: job.unary("Head", "Exchange", b"\x0a"), INVALID, "SchemaMismatch",
        "1 bytes are not a AgentReport message .*"),
]

WIRE = {
    "command": COMMANDS, "push": PUSHES, "word": WORDS, "size": SIZES, "state": STATES, "shard": SHARD,
    "chief": CHIEF, "head": HEAD,
}
