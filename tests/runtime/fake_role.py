"""A role that does nothing but what a test says, to exercise the supervisor.

argv[1] is a JSON object: role name ("worker 1", or "worker 1 restart 0") -> what it does once the chief serves (with
{"early": true} as soon as it has its spec; with {"held": true} at a SIGHUP): {"exit": code}, {"refuse": message},
{"error": message}, {"silent": true} (a chief that never serves), {"kill": events} (a chief that has given roles up; a
pid is that of the newest such role, unless the event names one). Else it waits: SIGUSR1 ends it with 75, SIGUSR2 with
0, and a chief says so before; at each SIGHUP a chief names whom it has given up, one with {"kill_in_turn": events}
the next of them, one with {"renew": true} wants a new process group, one with {"stop": true} says that its user has
it stopped, one with {"over": roles} tells those roles to leave, one with {"late": true} serves from then on, and one
with {"children": n} begins with so many processes that wait. A worker with {"apart": true} has not joined its process
group. {"stands": true} stands still once the chief serves, {"holds": true} at a SIGHUP, {"lingers": true} at its end.
{"hangs": true}: SIGUSR1 and SIGUSR2 end it as its watchdog would. "fork server" -> what the fork server of the
roles does before it forks them: {"threads": true} starts one, {"numpy": true} imports NumPy's random numbers,
{"exit": message} ends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from hybridsync.core.errors import EXIT_FAILED, ConfigError, RoleLost
from hybridsync.runtime.agent.fork_server import ForkServer, connect
from hybridsync.runtime.role.role_pipe import RoleKeys, RoleSpec


def main() -> int:
    awaited = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    line = connect()
    actions = json.loads(sys.argv[1])
    before_forks = actions.get("fork server", {})
    if "threads" in before_forks:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if "numpy" in before_forks:
        importlib.import_module("numpy.random")  # a fifth of a second, for the one test of it
    if "exit" in before_forks:
        sys.exit(before_forks["exit"])
    child = line.serve() if isinstance(line, ForkServer) else line
    assert child is not None
    spec = child.spec()
    name = f"{spec.role} {spec.role_id}"

    def take_keys(keys: RoleKeys) -> None:
        with open(Path(spec.workdir) / "keys", "a") as file:
            file.write(f"{keys.token}\n")

    child.hear_keys(take_keys)
    if spec.role == "chief":
        child.show_life()
    sys.stderr.write(f"{name} was here\n")
    is_program = not isinstance(line, ForkServer)
    told = {"pid": os.getpid(), "is_program": is_program, "platforms": os.environ.get("JAX_PLATFORMS")}
    told["gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    told["drawn"] = [random.random()]
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        told["drawn"].append(float(numpy_random.random()))
    action = actions.get(f"{name} restart {spec.restart_count}", actions.get(name, {}))
    if spec.role == "chief":
        told["chief"] = spec.listen if spec.restart_count else ""
    else:
        told["chief"] = "" if "early" in action else child.chief_address()
    record = {**told, **dataclasses.asdict(spec)}
    if spec.role == "worker" and "apart" not in action:
        child.report(joined=spec.coordinator)  # before a test can know that it is there, and end it
    with open(Path(spec.workdir) / "specs.jsonl", "a") as specs:
        specs.write(json.dumps(record) + "\n")
    if "held" in action:
        signal.sigwait({signal.SIGHUP})
    if "children" in action:
        for _ in range(action["children"]):
            subprocess.Popen(["sleep", "600"], start_new_session=action.get("sessions", False))
    if "refuse" in action:
        return child.report_error(ConfigError(action["refuse"]))
    if "unit" in action:
        child.at_unit(action["unit"])
    if "error" in action:
        return child.report_error(RoleLost(action["error"]))
    serves = spec.role == "chief" and "silent" not in action
    if serves and "late" not in action:
        child.report(address=spec.listen if spec.restart_count else "127.0.0.1:4711")
    if "exit" in action:
        return action["exit"]
    if "stands" in action:
        stand_still()
    turns = iter(action.get("kill_in_turn", ()))
    while (number := signal.sigwait(awaited)) == signal.SIGHUP:
        if "late" in action:
            child.report(address=spec.listen)
        if "holds" in action:
            stand_still()
        if "stop" in action:
            child.report(stop=True)
        if "over" in action:
            child.report(over=True)
            for role in action["over"]:
                os.kill(newest(spec, role)["pid"], signal.SIGUSR2)
        if "renew" in action:
            child.report(renew=True)
        for event in (*action.get("kill", ()), *itertools.islice(turns, 1)):
            child.report(kill={**newest(spec, event), **event})
    if "hangs" in action:
        os._exit(EXIT_FAILED)
    code = 75 if number == signal.SIGUSR1 else 0
    if spec.role == "chief":
        child.report(exit_code=code)
    if "lingers" in action:
        stand_still()
    return action.get("atexit", code)


def stand_still() -> None:
    """Keep the interpreter's lock, as code in C may."""
    ctypes.PyDLL(None).sleep(600)


def newest(chief: RoleSpec, event: dict[str, Any]) -> dict[str, int]:
    """Return pid and restart count of the process that was last started as the role of `event`."""
    lines = (Path(chief.workdir) / "specs.jsonl").read_text().split("\n")[:-1]  # others write there
    specs = [spec for spec in map(json.loads, lines) if (spec["role"], spec["role_id"]) == (event["role"], event["id"])]
    return {name: spec[name] for spec in specs[-1:] for name in ("pid", "restart_count")}


if __name__ == "__main__":
    sys.exit(main())
