"""What a worker can ask wrongly over shared memory, of the job of `job.py` (see `wire_cases.py`).

The checks of pushes are those of the other link; here is one of each that stands in a request's way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from grpc import StatusCode

from hybridsync.core.plan import PhaseId
from tests.bad_input.job import TOKEN, Job
from tests.bad_input.wire_cases import (
    ADVICE,
    DENIED,
    INVALID,
    STALE,
    Wire,
    end_phase,
    not_finite,
    push,
    replace_worker,
    snapshot,
)

PARAMETERS_BYTES, CONTRIBUTION_BYTES, STATE_BYTES = 512, 640, 768


def wrong_token(job: Job) -> None:
    """Let the next connection show the token of another run."""
    job.to_server_memory._token = "of another run"


def pull_and_show_the_right_one(job: Job) -> Any:
    try:
        return job.ask("pull", push(), PARAMETERS_BYTES)
    finally:
        job.to_server_memory._token = TOKEN


# fmt: off
SHARED_MEMORY = {
    "a push over shared memory": [
        Wire("of a phase that is over", lambda job: job.offer("push_pull", push(1, phase_id=PhaseId(4, 1))), STALE,
            "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire("of a phase that has ended", lambda job: job.offer("push_pull", push(1)), STALE, "StalePhase",
            "phase 5 has ended; ask the chief for the next phase", end_phase),
        Wire("of a worker that was replaced", lambda job: job.offer("push_pull", push(1)), STALE, "StaleIncarnation",
            "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends", replace_worker),
        Wire("of a worker that the run does not have", lambda job: job.offer("push_pull", push(1, worker=9)), DENIED,
            "UnknownRole",
            "worker 9 takes no part in phase 5, its members are 0, 1, 2, 3; register with the chief first"),
        Wire("of no unit", lambda job: job.offer("push_pull", push()), INVALID, "InvalidMessage",
            "worker 0 pushes 0 units; a push offers the gradient of at least 1"),
        Wire("of a unit behind the phase's last", lambda job: job.offer("push_pull", push(40)), INVALID,
            "InvalidMessage",
            "worker 0 pushes unit 40, but phase 5 issues units 0 to 39; push leased units only"),
        Wire("with a base from the future", lambda job: job.offer("push_pull", push(1, base=2)), INVALID,
            "InvalidMessage",
            "worker 0 pushes a gradient on sequence 2, but this server has sequences 0 to 1; name the one that was "
            "pulled"),
        Wire("of too many units", lambda job: job.offer("push_pull", push(*range(10_001))), INVALID, "InvalidMessage",
            "units of Push has 10001 entries, above the 10000 of a message; send several messages"),
        Wire("without memory for a contribution", lambda job: job.ask("push_pull", push(1), CONTRIBUTION_BYTES),
            INVALID, "InvalidMessage", "there is no memory for a contribution yet; ask for it first"),
        Wire("of another size", lambda job: job.ask("push_pull", push(1), 641), INVALID, "SchemaMismatch",
            f"the buffer has 641 bytes where 640 are expected; {ADVICE}",
            lambda job: job.to_server_memory.contribution),
        Wire("that was applied", lambda job: job.offer("push_pull", push(0), job.contribution(0)), StatusCode.OK, "",
            r"reply \{\n  sequence: 1\n  duplicate: true\n  settled: 0\n\}\nslab: \d\nanswers: true\n"),
        Wire("that asks for no parameters", lambda job: job.offer("push_pull", push(0)._replace(push_only=True)),
            StatusCode.OK, "", r"reply \{\n  sequence: 1\n  duplicate: true\n  settled: 0\n\}\nanswers: true\n"),
    ],
    "another call over shared memory": [
        Wire("a pull of another size", lambda job: job.ask("pull", push(), 5), INVALID, "SchemaMismatch",
            f"the buffer has 5 bytes where 512 are expected; {ADVICE}"),
        Wire("a pull in an old phase", lambda job: job.ask("pull", push(phase_id=PhaseId(4, 1)), PARAMETERS_BYTES),
            STALE, "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire("a word of a worker that was replaced", lambda job: job.ask("idle", push()), STALE, "StaleIncarnation",
            "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends", replace_worker),
        Wire("a block without memory", lambda job: job.ask("stage", push(1), CONTRIBUTION_BYTES), INVALID,
            "InvalidMessage", "there is no memory for a contribution yet; ask for it first"),
        Wire("a block in an old phase", lambda job: job.offer("stage", push(1, phase_id=PhaseId(4, 1))), STALE,
            "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire("a block that is not finite", lambda job: job.offer("stage", push(1), not_finite(np.nan)), StatusCode.OK,
            "", r'non_finite: "leaf \S+, first index \[0\]"\nanswers: true\n'),
        Wire("parameters after a negative update", lambda job: job.ask("pull_at", push(base=-1), PARAMETERS_BYTES),
            STALE, "StalePhase",
            r"the parameters after update -1 are no longer kept for worker 0, only those after \[0\]; ask the chief "
            "again"),
        Wire("a state that was never taken", lambda job: job.ask("read", push(), STATE_BYTES, snapshot_id=77), STALE,
            "StalePhase", r"snapshot 77 is no longer kept here \(kept: none\); ask the chief again"),
        Wire("a state of another size", lambda job: job.ask("read", push(), 5, snapshot_id=job.captured), INVALID,
            "SchemaMismatch", f"the buffer has 5 bytes where 768 are expected; {ADVICE}", snapshot),
        Wire("a call that there is not", lambda job: job.ask("shutdown", push()), INVALID, "InvalidMessage",
            "this role does not answer 'shutdown' over shared memory"),
        Wire("a request over the limit", lambda job: job.ask("x" * 70_000, push()), INVALID,
            "InvalidMessage", "the request has more than 65536 bytes, and a buffer is not sent in it"),
        Wire("the token of another run", pull_and_show_the_right_one, DENIED, "Unauthenticated",
            r"this call is another user's, or does not show the token of the run that it reached; a role has it from "
            r"its supervisor: is this the address of another run\?", wrong_token),
    ],
}
"""Cases by what they send."""
