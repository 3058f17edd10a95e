"""Forks processes that call a primary over shared memory: one JSON command a line, and a JSON word for each step.

{"steps": names, "push": [phase, nonce, worker, unit], "contribution": in hexadecimal, "snapshot": [id, bytes]}: a
process goes through the steps, says when each is done, and waits to be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np

from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.transport.connected_links import ConnectedParameters
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.shared_memory.connection import Connection


def say(**words: Any) -> None:
    os.write(1, json.dumps({"pid": os.getpid(), **words}).encode() + b"\n")  # whole, though several processes write


def play(path: str, token: str, sizes: list[int], told: dict[str, Any]) -> None:
    contribution_bytes, parameters_bytes = sizes
    connection = Connection(path, token, "server 0", contribution_bytes=contribution_bytes)
    link = ConnectedParameters(connection, parameters_bytes)
    number, nonce, worker, unit = told["push"]
    snapshot_id, state_bytes = told["snapshot"]
    written = np.frombuffer(bytes.fromhex(told["contribution"]), np.uint8)
    half = contribution_bytes // 2
    caller = Push(PhaseId(number, nonce), worker, 1, (), 0)
    steps = {
        "contribution": lambda: link.contribution,
        "half": lambda: np.copyto(link.contribution[:half], written[:half]),
        "write": lambda: np.copyto(link.contribution, written),
        "pull": lambda: link.pull(caller),
        "push": lambda: link.push_pull(caller._replace(units=(unit,))),
        "read": lambda: connection.call(
            pb.LinkRequest(call="read", snapshot_id=snapshot_id, num_bytes=state_bytes), state_bytes
        ),
    }
    for step in told["steps"]:
        say(begins=step)
        try:
            steps[step]()
        except HybridSyncError as error:
            say(refused=type(error).__name__, text=str(error))
        else:
            say(done=step)
    while True:  # with all that it was lent
        signal.pause()


def main(path: str, token: str, *sizes: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            say()
            play(path, token, [*map(int, sizes)], json.loads(line))


if __name__ == "__main__":
    main(*sys.argv[1:])
