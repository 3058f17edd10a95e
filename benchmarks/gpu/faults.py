"""What a killed process costs on GPUs, and what a switch hands over."""

from __future__ import annotations

import os
import signal
from typing import Any

from benchmarks.gpu.running import has_cuda, is_alive, memory_of_processes, running
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events

SOME_UNITS = 40
"""Units before a fault, and beyond those under way after it."""


def check(platform: str, workers: int) -> dict[str, Any]:
    """Return which processes have loaded CUDA, their memory, and how soon that of a killed worker is free."""
    flags = (f"--platform={platform}", f"--workers={workers}", "--plan=asp", "--set=model.name=digits")
    with running(*flags) as run:
        run.progress_after(SOME_UNITS)
        pids = run.pids()
        of_workers = {name: pid for name, pid in pids.items() if name.startswith("worker")}
        found: dict[str, Any] = {
            "fork server has loaded CUDA": has_cuda(run.fork_server()),
            "chief has loaded CUDA": has_cuda(pids["chief 0"]),
            "server has loaded CUDA": has_cuda(pids["server 0"]),
            "workers that have loaded CUDA": sum(map(has_cuda, of_workers.values())),
        }
        used = memory_of_processes()
        if used is not None:
            found["MiB of each worker"] = [used.get(pid) for pid in of_workers.values()]
        victim = of_workers["worker 0"]
        os.kill(victim, signal.SIGKILL)
        killed = SYSTEM_CLOCK.monotonic()
        run.until(lambda: not is_alive(victim), "the end of the killed worker")
        found["seconds until a killed worker is gone"] = round(SYSTEM_CLOCK.monotonic() - killed, 3)
        if used is not None:
            run.until(lambda: victim not in (memory_of_processes() or {}), "the memory of the killed worker")
            found["seconds until its memory is free"] = round(SYSTEM_CLOCK.monotonic() - killed, 3)
        run.until(lambda: run.pids()["worker 0"] != victim, "the killed worker's successor")
    return found


def kill(platform: str, protocol: str, role: str, workers: int) -> dict[str, Any]:
    """Return how long it takes until the run goes on after a role's process was killed."""
    flags = (f"--platform={platform}", f"--workers={workers}", f"--plan={protocol}", "--set=model.name=digits")
    with running(*flags) as run:
        run.progress_after(SOME_UNITS)
        os.kill(run.pids()[role], signal.SIGKILL)
        secs = run.progress_after(run.units() + 2 * workers)
        return {
            "seconds until the run goes on": round(secs, 2),
            "units rolled back": sum(event["rolled_back"] for event in read_events(run.workdir, "rollback")),
        }


def switch(platform: str, workers: int) -> dict[str, Any]:
    """Return whether the state was the same on both sides of each switch, and how long the switches stalled the run."""
    plan = ",".join(("bsp:25%", "asp:25%", "bsp:25%", "asp"))
    flags = (f"--platform={platform}", f"--workers={workers}", f"--plan={plan}", "--set=model.name=digits")
    with running(*flags, "--set=workload=400") as run:
        run.until(lambda: run.process.poll() is not None or len(_switches(run)) == 3, "three switches")
        switches, entered = _switches(run), read_events(run.workdir, "phase_entered")
        handed = {event["fingerprint"] for event in entered if "fingerprint" in event}
        return {
            "switches": len(switches),
            "states that were handed over unchanged": sum(event["fingerprint"] in handed for event in switches),
            "seconds of stall": [round(event["stall_secs"], 2) for event in switches],
        }


def _switches(run: Any) -> list[dict[str, Any]]:
    return [*read_events(run.workdir, "switch")] if run.workdir.exists() else []
