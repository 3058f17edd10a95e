"""A member of a process group that a test drives: one JSON command a line on stdin, one JSON answer a line on stdout.

Commands run one after the other on the main thread, except "break", which the reading thread carries out.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

BREAK_SECS = 8.0
"""For a call to return once its sockets are shut: on a busy machine its thread runs late."""


def aligned(values: Any) -> Any:
    import numpy as np

    values = np.asarray(values, np.float32)
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    buffer = raw[start : start + values.nbytes].view(np.float32)
    buffer[:] = values
    return buffer


def main(address: str, index: int, num_workers: int, reborn: bool) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # gloo writes to stdout

    import jax
    import numpy as np

    from hybridsync.collectives.mesh.process_group import ProcessGroup
    from hybridsync.core.errors import HybridSyncError

    process_group = ProcessGroup.join(address, index, num_workers, reborn=reborn, timeout_secs=60)
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
    )
    jax.jit(lambda x: x * 3)(np.float32(1))
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    newest = []

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    def read() -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "break":
                answer(broken=process_group.break_collective(newest[-1], "the test says so", timeout_secs=BREAK_SECS))
            else:
                commands.put(command)
        commands.put({"do": "leave"})

    threading.Thread(target=read, daemon=True).start()
    answer(device=process_group.compute_device.id, cache_hits=len(hits))
    while (command := commands.get())["do"] != "leave":
        try:
            mean = process_group.mesh(command["members"], command["device_choice"])
            newest.append(mean)
            if command["do"] == "mesh":
                answer(entered=True)
                continue
            if command["do"] == "die":  # when all have met, before it has told anybody where to connect to
                mean._prove = lambda num_floats, num_ints: os._exit(0)
            if command["do"] in ("warm", "die"):
                mean.warm(command["num_floats"], command["num_ints"], timeout_secs=command["timeout_secs"])
                answer(warm=True)
                continue
            floats = aligned(np.full(command["num_floats"], index + 1.0))
            ints = np.full(command["num_ints"], index, np.int32)
            total, highest = mean(floats, ints)
            for _ in range(command["times"] - 1):
                total, highest = mean(floats, ints)
            floats.view(np.uint8)[:] = 0xFF
            ints[:] = -1
            kept = [float(value) for value in np.unique(total)]
            answer(total=kept, highest=[int(value) for value in np.unique(highest)] if ints.size else [])
        except HybridSyncError as error:
            answer(error=type(error).__name__, message=str(error))
    process_group.leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "reborn")
