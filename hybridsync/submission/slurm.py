"""Trains as a job of Slurm: submits the job script `train.sbatch`, and shows what it prints until it ends.

The job does not depend on the follower. The same command finds its job in the queue, by the job's comment, and
continues to show it.
"""

from __future__ import annotations

import getpass
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridsync.cluster import slurm_job
from hybridsync.cluster.job import Job
from hybridsync.cluster.slurm_job import JobState
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.counted import counted
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_INTERRUPTED, EXIT_PREEMPTED, ConfigError, WaitTimeout
from hybridsync.storage.followed_file import FollowedFile
from hybridsync.submission.programs import TEMPLATES, check_program, environment

SCRIPT = TEMPLATES / "train.sbatch"

LOOK_SECS = 0.5
"""Between two looks at the job's output."""

FIRST_ASK_SECS, ASK_SECS = 0.5, 5.0
"""Between two questions to Slurm: soon at first, since many mistakes show at once; then its controller, which all users
share, is asked twice as late each time, up to the second number."""

ANSWER_SECS = 60.0
"""How long one of its commands may take."""

UNREACHED_SECS = 600.0
"""How long Slurm may give no answer, as while its controller is started again, before the follower gives up."""

LAST_LINES = 20
"""Lines of the output that are shown of a job that has been submitted before."""

Say = Callable[[str], None]


def check_slurm() -> None:
    """Refuse to begin without Slurm's commands.

    Raises:
      ConfigError: a command is not on the PATH.
    """
    for program in ("sbatch", "squeue", "scontrol"):
        check_program(program, "--cluster=slurm")


def train(job: Job, options: str, prepare: Callable[[], None], say: Say, show: Say) -> int:
    """Submit a job and follow it to its end, or follow it where it was submitted before; returns the run's exit code.

    Ctrl-C and SIGTERM end the following alone.

    Args:
      job: job to submit.
      options: further options of sbatch.
      prepare: makes the workdir, with a folder `logs`, before a job is submitted.
      say: tells the user a line about the job.
      show: shows a line of its output.

    Raises:
      ConfigError: Slurm refuses the job, or another job trains in its workdir.
      HybridSyncError: by `prepare`.
      WaitTimeout: Slurm gives no answer any more.
    """
    number = slurm_job.running_job(job, options, _queue())
    is_new = number is None
    if number is None:
        prepare()
        number = _submitted(job, options)
    log = Path(job.workdir, "logs", slurm_job.OUTPUT.format(number))
    output = FollowedFile(log)
    if is_new:
        say(f"submitted job {number} of {counted(job.num_hosts, 'host')}; its output is {log}")
    else:
        say(f"job {number} trains in {job.workdir} already, with the same flags; its output is {log}")
        if log.exists():
            for line in output.tail(LAST_LINES, whole=True):
                show(line)
    try:
        with _interrupted_by_sigterm():
            state = _follow(number, output, say, show)
    except KeyboardInterrupt:
        say(
            f"job {number} goes on; the same command shows it again; have it save and end with: "
            f"{slurm_job.stop_command(number)}"
        )
        return EXIT_INTERRUPTED
    if state.exit_code not in (EXIT_COMPLETED, EXIT_PREEMPTED):
        say(_failed(number, state, log))
    return state.exit_code


def _follow(number: str, output: FollowedFile, say: Say, show: Say) -> JobState:
    """Show a job's output until the job ends; returns how it has ended."""
    told: tuple[str, str] | None = None
    answered, wait = SYSTEM_CLOCK.monotonic(), FIRST_ASK_SECS
    while True:
        state = _state(number)
        now = SYSTEM_CLOCK.monotonic()
        if state is not None:
            answered = now
            waits = state.name == "PENDING"
            if waits and (state.name, state.reason) != told:
                say(f"job {number} waits in the queue" + ("" if state.reason == "None" else f" ({state.reason})"))
            told = (state.name, state.reason)
        elif now - answered > UNREACHED_SECS:
            raise WaitTimeout(
                f"Slurm has said nothing of job {number} for {UNREACHED_SECS:g} s; the job may go on: give the same "
                "command again when Slurm answers"
            )
        over = state is not None and state.is_over
        _show_news(output, show, ended=over)
        if state is not None and over:
            return state
        until, wait = now + wait, min(2 * wait, ASK_SECS)
        while SYSTEM_CLOCK.monotonic() < until:
            pause(LOOK_SECS)
            _show_news(output, show)


def _show_news(output: FollowedFile, show: Say, *, ended: bool = False) -> None:
    try:
        for line in output.news(ended=ended):
            show(line)
    except FileNotFoundError:
        pass  # the job has not begun


def _failed(number: str, state: JobState, log: Path) -> str:
    """Say of a job that has not trained to an end of its own where its reason is found."""
    how = f"error: job {number} ended as {state.name} (exit code {state.code}, {state.reason})"
    try:
        with open(log, "rb") as file:
            last = deque(file, maxlen=1)
    except OSError:
        return f"{how} and left no output at {log}; name a --workdir that the nodes and this machine share"
    if not last:
        return f"{how} before it printed anything; its output is {log}"
    return f"{how}; its output is {log}, with this at the end: {last[0].decode(errors='replace').strip()}"


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _submitted(job: Job, options: str) -> str:
    done = _call(slurm_job.submission(job, str(SCRIPT), options))
    number = slurm_job.number_of(done.stdout)
    if done.returncode or number is None:
        raise ConfigError(
            f"sbatch refused the job: {_said(done)}; --sbatch='--partition=NAME ...' passes options on to it"
        )
    return number


def _queue() -> str:
    done = _call(["squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%i %T %k"])
    if done.returncode:
        raise ConfigError(f"squeue says nothing of your jobs: {_said(done)}; see whether Slurm works on this machine")
    return done.stdout


def _state(number: str) -> JobState | None:
    """Return where a job is; None where Slurm gives no answer.

    Raises:
      WaitTimeout: Slurm has forgotten the job.
    """
    done = _call(["scontrol", "show", "job", number, "--oneliner"])
    if done.returncode and "Invalid job id" in done.stdout + done.stderr:
        raise WaitTimeout(
            f"Slurm does not know job {number} any more; hybridsync status says how its run has ended, from its workdir"
        )
    return slurm_job.state_of(done.stdout) if not done.returncode else None


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's; one that hangs has failed."""
    try:
        return subprocess.run(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {ANSWER_SECS:g} s")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
