"""Writes the line that submits a job to Slurm, and reads what Slurm says of the job. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from hybridsync.cluster.job import Job
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_FAILED, EXIT_PREEMPTED, EXIT_REFUSED, ConfigError

OUTPUT = "slurm-{}.log"
"""The file of a job's output among a run's logs, by the job's number."""

_MARK = "hybridsync"
_STATE = re.compile(r"\bJobState=(\S+) Reason=(\S+)")
_EXIT = re.compile(r"\bExitCode=(\d+):(\d+)")
_OVER = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    }
)


@dataclass(frozen=True)
class JobState:
    """Says where a job is.

    Args:
      name: Slurm's word, such as RUNNING.
      reason: Slurm's reason for that state, "None" for none.
      code: exit code of its script.
      signal: number of the signal that ended its script; 0 if none.
    """

    name: str
    reason: str
    code: int
    signal: int

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended, and does not wait to be started again."""
        return self.name in _OVER

    @property
    def exit_code(self) -> int:
        """Return the run's exit code, which its script has ended with; what Slurm has ended is a fault."""
        runs_own = self.name in ("COMPLETED", "FAILED") and not self.signal
        known = self.code in (EXIT_COMPLETED, EXIT_REFUSED, EXIT_PREEMPTED)
        return self.code if runs_own and known else EXIT_FAILED


def state_of(text: str) -> JobState | None:
    """Return the state of the job that `scontrol show job` describes; None where it describes none.

    >>> state_of("JobId=7 JobName=a JobState=FAILED Reason=NonZeroExitCode Requeue=1 ExitCode=75:0").exit_code
    75
    >>> state_of("JobId=7 JobName=a JobState=CANCELLED Reason=None Requeue=1 ExitCode=0:15").exit_code
    70
    """
    state, ended = _STATE.search(text), _EXIT.search(text)
    if state is None or ended is None:
        return None
    return JobState(state[1], state[2], int(ended[1]), int(ended[2]))


def submission(job: Job, script: str, options: str) -> list[str]:
    """Return the command that submits a job.

    Args:
      job: job to submit.
      script: path of the job script.
      options: further options of sbatch, as a shell takes them.

    Raises:
      ConfigError: `options` cannot be split into words of a shell.

    >>> submission(Job(2, "/runs/a", "/runs/a/certs", ("--config=a.py",)), "train.sbatch", "--partition=gpu")[:4]
    ['sbatch', '--parsable', '--nodes=2', '--output=/runs/a/logs/slurm-%j.log']
    """
    try:
        further = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"--sbatch={options} cannot be read: {error}; write it as on a command line") from None
    for word in further:
        if re.match(r"--(nodes|output|comment|parsable|wait)(=|$)|-[NoW]", word):
            raise ConfigError(
                f"--sbatch={options} has {word}, which hybridsync train says itself; leave it out (--hosts is the "
                "number of nodes)"
            )
    output = f"{job.workdir.replace('%', '%%')}/logs/{OUTPUT.format('%j')}"
    own = ["sbatch", "--parsable", f"--nodes={job.num_hosts}", f"--output={output}"]
    return [*own, f"--comment={_comment(job, options)}", *further, script, job.certs, *job.flags]


def number_of(text: str) -> str | None:
    r"""Return the job's number that `sbatch --parsable` prints; None where it prints none.

    >>> number_of("17;cluster\n"), number_of("sbatch: error")
    ('17', None)
    """
    found = re.fullmatch(r"(\d+)(?:;\S+)?", text.strip())
    return found[1] if found else None


def running_job(job: Job, options: str, queue: str) -> str | None:
    """Return the number of the same job if it runs or waits; None if there is none.

    Args:
      job: job to look for.
      options: further options of sbatch.
      queue: output of `squeue --format="%i %T %k"`: number, state and comment of each job.

    Raises:
      ConfigError: another job trains in that workdir.
    """
    for number, comment in _under_way(queue):
        if comment == _comment(job, options):
            return number
        if comment.startswith(f"{_MARK} ") and comment.split(" ", 2)[2:] == [job.workdir]:
            raise ConfigError(
                f"job {number} trains in {job.workdir} already, with other flags; wait for its end, or have it save "
                f"and end with: {stop_command(number)}"
            )
    return None


def stop_command(number: str) -> str:
    """Return the command that has a job save its run and end."""
    return f"scancel --signal=INT --batch {number}"


def _under_way(queue: str) -> Iterator[tuple[str, str]]:
    for line in queue.splitlines():
        number, state, comment = (*line.split(" ", 2), "", "")[:3]
        if state not in _OVER and state != "COMPLETING":
            yield number, comment.rstrip()


def _comment(job: Job, options: str) -> str:
    """Return the comment by which a job is found again: a digest of what it was told, and its workdir."""
    told = "\0".join((str(job.num_hosts), job.certs, options, *job.flags))
    return f"{_MARK} {xxhash.xxh3_64_hexdigest(told.encode())} {job.workdir}"
