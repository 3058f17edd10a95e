"""A role that does nothing but what a test says, to exercise the supervisor.

argv[1] is a JSON object: role name ("worker 1", or "worker 1 life 0") -> what it does once it has its spec:
{"exit": code}, {"refuse": message}, {"error": message}, {"silent": true} (a chief that never serves). Else it
waits: SIGUSR1 ends it with 75, SIGUSR2 with 0.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

from hybridsync.errors import ConfigError, RoleLost
from hybridsync.runtime.child import Child


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    child = Child.attach()
    assert child is not None
    spec = child.spec()
    name = f"{spec.role} {spec.role_id}"
    record = {"pid": os.getpid(), "platforms": os.environ.get("JAX_PLATFORMS"), **dataclasses.asdict(spec)}
    with open(Path(spec.workdir) / "specs.jsonl", "a") as specs:
        specs.write(json.dumps(record) + "\n")
    actions = json.loads(sys.argv[1])
    action = actions.get(f"{name} life {spec.life}", actions.get(name, {}))
    sys.stderr.write(f"{name} was here\n")
    if "refuse" in action:
        return child.report_error(ConfigError(action["refuse"]))
    if "error" in action:
        return child.report_error(RoleLost(action["error"]))
    if spec.role == "chief" and "silent" not in action:
        child.report(address="127.0.0.1:4711")
    if "exit" in action:
        return action["exit"]
    return 75 if signal.sigwait({signal.SIGUSR1, signal.SIGUSR2}) == signal.SIGUSR1 else 0


if __name__ == "__main__":
    sys.exit(main())
