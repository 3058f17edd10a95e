"""What a worker can ask wrongly over TCP, of the job of `job.py` (see `wire_cases.py`, `shared_memory_cases.py`).

Who proves nothing, and what is damaged on the way, is tested in `tests/transport/test_tcp_callers.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from grpc import StatusCode

from hybridsync.core.plan import PhaseId
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc.bulk_link import BulkLinkClient
from tests.bad_input.job import Job
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

PARAMETERS_BYTES = 512


def place_with(job: Job, token: str, num_sockets: int) -> Any:
    """Ask for a place for a connection."""
    places = BulkLinkClient(job.to_server_tcp._address, "the server", Keyring(token))
    try:
        return places.open(num_sockets)
    finally:
        places.close()


def public(job: Job) -> Any:
    """Call a role that gives itself a public address."""
    connection = job.to_server_tcp
    kept, connection._address = connection._address, "192.0.2.1:4711"
    try:
        return job.ask_over_tcp("idle", push())
    finally:
        connection._address = kept


def of_size(job: Job, call: str, num_bytes: int) -> Any:
    """Offer a contribution of another size."""
    return job.offer_over_tcp(call, push(1), np.zeros(num_bytes, np.uint8))


# fmt: off
TCP = {
    "a push over TCP": [
        Wire("of a phase that is over", lambda job: job.offer_over_tcp("push_pull", push(1, phase_id=PhaseId(4, 1))),
            STALE, "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire("of a phase that has ended", lambda job: job.offer_over_tcp("push_pull", push(1)), STALE, "StalePhase",
            "phase 5 has ended; ask the chief for the next phase", end_phase),
        Wire("of a worker that was replaced", lambda job: job.offer_over_tcp("push_pull", push(1)), STALE,
            "StaleIncarnation", "worker 0 speaks as incarnation 1, but 2 or later is expected; this process ends",
            replace_worker),
        Wire("of too many units", lambda job: job.offer_over_tcp("push_pull", push(*range(10_001))), INVALID,
            "InvalidMessage", "units of Push has 10001 entries, above the 10000 of a message; send several messages"),
        Wire("of a smaller size", lambda job: of_size(job, "push_pull", 639), INVALID, "SchemaMismatch",
            f"the buffer has 639 bytes where 640 are expected; {ADVICE}"),
        Wire("of a larger size", lambda job: of_size(job, "push_pull", 3_000_000), INVALID, "SchemaMismatch",
            f"the buffer has 3000000 bytes where 640 are expected; {ADVICE}"),
        Wire("that was applied", lambda job: job.offer_over_tcp("push_pull", push(0), job.contribution(0)),
            StatusCode.OK, "",
            r"reply \{\n  sequence: 1\n  duplicate: true\n  settled: 0\n\}\nanswers: true\nnum_bytes: 512\n"),
    ],
    "another call over TCP": [
        Wire("a pull of another size", lambda job: job.ask_over_tcp("pull", push(), 5), INVALID, "SchemaMismatch",
            f"the buffer has 5 bytes where 512 are expected; {ADVICE}"),
        Wire("a pull in an old phase", lambda job: job.ask_over_tcp("pull", push(phase_id=PhaseId(4, 1)),
            PARAMETERS_BYTES), STALE, "StalePhase",
            "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire("a block in an old phase", lambda job: job.offer_over_tcp("stage", push(1, phase_id=PhaseId(4, 1))), STALE,
            "StalePhase", "phase 4 was named, but the server is in phase 5; ask the chief again"),
        Wire("a block of another size", lambda job: of_size(job, "stage", 5), INVALID, "SchemaMismatch",
            f"the buffer has 5 bytes where 640 are expected; {ADVICE}"),
        Wire("a block that is not finite", lambda job: job.offer_over_tcp("stage", push(1), not_finite(np.nan)),
            StatusCode.OK, "", r'non_finite: "leaf \S+, first index \[0\]"\nanswers: true\n'),
        Wire("a state of another size", lambda job: job.ask_over_tcp("read", push(), 5, snapshot_id=job.captured),
            INVALID, "SchemaMismatch", f"the buffer has 5 bytes where 768 are expected; {ADVICE}", snapshot),
        Wire("a call that there is not", lambda job: job.ask_over_tcp("shutdown", push()), INVALID, "InvalidMessage",
            "this role does not answer 'shutdown' over TCP"),
        Wire("a request over the limit", lambda job: job.ask_over_tcp("x" * 70_000, push()), INVALID, "InvalidMessage",
            r"the request or its reply has 70\d\d\d bytes, more than 65536 bytes, and a buffer is not sent in it"),
    ],
    "a place for a connection over TCP": [
        Wire("with the token of another run", lambda job: place_with(job, "of another run", 2), DENIED,
            "Unauthenticated", "this call does not show the token of the run that it reached; a role has it from its "
            r"supervisor: is this the address of another run\?"),
        Wire("of too many sockets", lambda job: place_with(job, "of the run", 9), INVALID, "InvalidMessage",
            "a connection of 9 sockets was asked for; ask for 1 to 8"),
        Wire("at a public address", public, INVALID, "AddressError",
            r"no buffers go to '192\.0\.2\.1': 192\.0\.2\.1 is no private address, and they are not encrypted; give "
            r"the roles addresses of the loopback interface or of a private network \(10\.0\.0\.0/8, 172\.16\.0\.0/12, "
            r"192\.168\.0\.0/16, fc00::/7\)"),
    ],
}
"""Cases by what they send."""
