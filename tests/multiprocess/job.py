"""A training job in processes of its own, started as a user would, watched through what it leaves, and hurt by pid."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.telemetry.events import read_events

ROOT = Path(__file__).resolve().parents[2]
PLANTED = Path(__file__).with_name("planted.py")
POLL_SECS = 0.02
END_SECS = 240.0
METRICS_TAIL_BYTES = 1 << 14
STUCK_SECS = 90.0
"""How long the units applied may stay the same: a slot waits for its new process to import and compile."""
FIRST_SECS = 240.0
"""How long the first unit may take, at least: on a busy machine all processes import and compile at once."""


def users_environment() -> dict[str, str]:
    """Return this process's environment without what importing jax has put into it."""
    return {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}


class Stuck(AssertionError):
    """The job applies no unit any more."""


class Job:
    """A program that trains, with some flags; as a context manager it leaves no process behind.

    Args:
      workdir: of the run.
      config: path of a configuration file.
      flags: more flags.
      planted: name of a bug (see planted.py) that every process of the job has; empty for none.
      command: the program and what stands before the flags, where nothing is planted.
      under: program, with its arguments, that becomes the command line behind it.

    Attributes:
      process: the supervisor.
      output: what it and the chief printed, once the job has ended.
    """

    def __init__(
        self,
        workdir: Path,
        config: str,
        *flags: str,
        planted: str = "",
        command: Sequence[str] = (sys.executable, "-m", "launch.train"),
        under: tuple[str, ...] = (),
    ) -> None:
        self.workdir = workdir
        self.output = ""
        self._never = threading.Event()
        second = f"-{Path(under[0]).name}" if under else ""  # two jobs may have one workdir
        self._screen = workdir.with_name(f"{workdir.name}{second}.screen")
        launcher = [sys.executable, str(PLANTED), planted] if planted else command
        with open(self._screen, "wb") as screen:
            self.process = subprocess.Popen(
                [*under, *launcher, f"--config={config}", f"--workdir={workdir}", *flags],
                cwd=ROOT,
                env=users_environment(),
                stdout=screen,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_everything()

    # --- its end ---

    def wait(self, secs: float = END_SECS, stuck_secs: float = STUCK_SECS) -> int:
        """Return the exit code; what it printed is in `output`.

        Raises:
          Stuck: the units applied have not grown for `stuck_secs`, or there was none for `FIRST_SECS`.
          AssertionError: it did not end within `secs`.
        """
        deadline = SYSTEM_CLOCK.monotonic() + secs
        units, grown = 0, SYSTEM_CLOCK.monotonic()
        while self.process.poll() is None:
            now = SYSTEM_CLOCK.monotonic()
            if self.units() > units:
                units, grown = self.units(), now
            patience = stuck_secs if units else max(stuck_secs, FIRST_SECS)
            if now > min(deadline, grown + patience):
                self.kill_everything()
                kind = AssertionError if now > deadline else Stuck
                raise kind(f"the job stands at {units} units after {now - grown:.0f} s:\n{self.output}\n{self.logs()}")
            self.pause(POLL_SECS)
        self.output = self.screen()
        return self.process.returncode

    def kill_everything(self) -> None:
        """Kill the supervisor; its children die with it. Nothing happens when it has ended."""
        self.process.kill()
        self.process.wait(timeout=60)
        self.output = self.screen()

    # --- while it runs ---

    def until(self, condition: Callable[[], Any], what: str, secs: float = 120.0) -> Any:
        """Wait until `condition()` is true and return it; fails when the job ends first or the time is up."""
        deadline = SYSTEM_CLOCK.monotonic() + secs
        while not (found := condition()):
            ended = self.process.poll() is not None
            if ended or SYSTEM_CLOCK.monotonic() > deadline:
                reason = f"the job ended ({self.process.returncode})" if ended else f"{secs:g} s passed"
                raise AssertionError(f"{reason} before {what}:\n{self.screen()}\n{self.logs()}")
            self.pause(POLL_SECS)
        return found

    def until_units(self, units: int) -> None:
        """Wait until so many units are applied."""
        self.until(lambda: self.units() >= units, f"{units} units were applied")

    def until_phase(self, protocol: str) -> None:
        """Wait until this session of the run is in a phase of `protocol` and has applied a unit of it."""

        def inside() -> bool:
            entered = [event for event in self.session_events() if event["kind"] == "phase_entered"]
            last = entered[-1] if entered else None
            return last is not None and last["protocol"] == protocol and self.units() > last["units"]

        self.until(inside, f"a unit of {protocol} was applied")

    def hurry(self) -> None:
        """Let its units take no more time than they need; `units_take_their_time_until_told` is planted in it."""
        (self.workdir / "hurry").touch()

    def call(self) -> None:
        """Let the processes come that wait for it; `the_reborn_wait_to_be_called` is planted in them."""
        (self.workdir / "called").touch()

    def pause(self, secs: float) -> None:
        """Let the job run on for a while: the gap between two faults."""
        self._never.wait(secs)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self.process.send_signal(number)

    def send_to_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of the job, as a batch system or a service manager does."""
        send_to(processes_of(self.process.pid), number)

    def kill_worker(self, worker: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a worker that takes part; returns its pid."""
        pid = self.until(lambda: self.live_workers().get(worker), f"worker {worker} took part")
        os.kill(pid, number)
        return pid

    def until_lost(self, pid: int, secs: float = 120.0) -> dict[str, Any]:
        """Wait until the run notes that the process is lost; returns the event."""

        def lost() -> dict[str, Any] | None:
            return next((event for event in self.events("role_lost") if event["pid"] == pid), None)

        return self.until(lost, f"process {pid} was noted as lost", secs)

    # --- what it left so far ---

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the events so far, of all sessions of the run."""
        return read_events(self.workdir, kind)

    def session_events(self) -> list[dict[str, Any]]:
        """Return the events since this process started."""
        events = self.events()
        own = [
            index
            for index, event in enumerate(events)
            if event["kind"] == "role_started" and event["pid"] == self.process.pid
        ]
        return events[own[0] :] if own else []

    def screen(self) -> str:
        """Return what supervisor and chief have printed so far."""
        return self._screen.read_text()

    def printed_at(self) -> float:
        """Return when supervisor and chief have last printed something, by the wall clock, however late it is seen."""
        return self._screen.stat().st_mtime

    def units(self) -> int:
        """Return the units applied by the last line of metrics.jsonl.

        Waits ask again and again, so only the file's end is read: the job is to have the machine, not its observer.
        """
        try:
            with open(self.workdir / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - METRICS_TAIL_BYTES))
                ends = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return 0
        whole = [line for line in ends if line.startswith(b"{") and line.endswith(b"}\n")]
        return json.loads(whole[-1])["units"] if whole else 0

    def live_workers(self) -> dict[int, int]:
        """Return id -> pid of the workers that have joined and are not known to be lost."""
        alive: dict[int, int] = {}
        for event in self.session_events():
            if event["kind"] == "role_started" and event["role"] == "worker":
                alive[event["id"]] = event["pid"]
            if event["kind"] == "role_lost" and alive.get(event["id"]) == event["pid"] and event["role"] == "worker":
                del alive[event["id"]]
        return alive

    def summary(self) -> dict[str, Any]:
        """Return summary.json."""
        return json.loads((self.workdir / "summary.json").read_text())

    def log(self, role: str) -> str:
        """Return a role's whole log, for example of "worker-2"."""
        return (self.workdir / "logs" / f"{role}.log").read_text(errors="replace")

    def logs(self) -> str:
        """Return the end of every role's log."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted((self.workdir / "logs").glob("*.log"))
        )

    def tracebacks(self) -> list[str]:
        """Return where a traceback stands: names of logs, and "the terminal"."""
        texts = {path.name: path.read_text(errors="replace") for path in (self.workdir / "logs").glob("*.log")}
        return [name for name, text in {**texts, "the terminal": self.output}.items() if "Traceback" in text]


def processes_of(pid: int) -> list[int]:
    """Return the ids of a program that starts roles, and of its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def send_to(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process; one that ends meanwhile, since others have heard it, needs none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def assert_exactly_once(summary: dict[str, Any]) -> None:
    """Check a completed tally run: the ledger's identity, and every unit once, read from the parameters."""
    units = summary["units"]
    assert summary["exit"] == "completed" and summary["error"] is None
    assert units["applied"] == units["workload"]
    assert units["issued"] == units["applied"] + units["dropped"] + units["outstanding"]
    assert units["outstanding"] == 0
    final = {name: summary["final"][name] for name in ("min_count", "max_count", "stray")}
    assert final == {"min_count": 1, "max_count": 1, "stray": 0}, f"units were lost or applied twice: {final}"
