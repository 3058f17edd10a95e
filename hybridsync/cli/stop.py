"""Stop a running run with a save: `hybridsync stop RUN [--why=TEXT] [--nowait]`, where RUN is its --workdir.

The run saves its state and exits with 75, as after SIGTERM; the command that started it resumes from there. This
command waits for that. Exit codes: 0 stopped, 1 the run is not running, 70 it gives no answer, does not stop or ended
without a save, 130 Ctrl-C ended the waiting.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from absl import flags

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.reason import checked_reason
from hybridsync.cli.standard_streams import outlast
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_INTERRUPTED, ConfigError, HybridSyncError, WaitTimeout
from hybridsync.core.paths import local_path
from hybridsync.interfaces.commands import ENDS, StopRequest
from hybridsync.runtime.control_file import await_end, command_port, explained, read_control
from hybridsync.runtime.user_output import say
from hybridsync.telemetry.summary import SUMMARY_FILE, read_summary

STOP_SECS = 180.0
"""How long the run may take to save and leave; its supervisor gives up the chief after 120 s."""

FLAGS = flags.FLAGS
flags.DEFINE_string("why", "", "why, for the event log")
flags.DEFINE_bool("wait", True, "wait until the run has saved and ended")


def stamp(workdir: Path) -> tuple[int, int]:
    """Return what tells one summary of a run from the next, which takes its place; (0, 0) where there is none.

    Raises:
      ConfigError: the file cannot be looked at.
    """
    try:
        found = os.stat(workdir / SUMMARY_FILE)
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise ConfigError(
            f"cannot read {workdir / SUMMARY_FILE}: {error.strerror}; give yourself access to it"
        ) from None
    return found.st_ino, found.st_mtime_ns


def told_of(workdir: Path, before: tuple[int, int]) -> str:
    """Return what the user is told of a run that has ended.

    Args:
      workdir: the run's workdir.
      before: stamp of the summary that an earlier session had left.

    Raises:
      HybridSyncError: this session did not save.
    """
    summary = read_summary(workdir) if stamp(workdir) != before else None
    look = f"look at {workdir / 'logs'}; the command that started it goes on from its newest checkpoint"
    if summary is None:
        raise HybridSyncError(
            f"the run in {workdir} ended, and nothing says that it saved (no new {SUMMARY_FILE}); {look}"
        )
    how, units = summary["exit"], summary["units"]["applied"]
    if how not in (*ENDS, "preempted", "restarting"):
        raise HybridSyncError(f"the run in {workdir} {how} at unit {units:,}: {summary.get('error')}; {look}")
    again = "" if how in ENDS else "; the command that started it goes on from there"
    return f"stopped: {how} at unit {units:,}{again}"


def stop(workdir: Path, reason: str, *, wait: bool) -> str:
    """Stop a run; returns what the user is told.

    Args:
      workdir: the run's workdir.
      reason: reason, in the user's words.
      wait: whether to wait until the run has ended.

    Raises:
      HybridSyncError: it is not running, gives no answer, or has not saved and ended in time.
    """
    control, before = read_control(workdir), stamp(workdir)
    with explained(workdir):
        reply = command_port(control).stop(StopRequest(reason))
    if not wait:
        return f"the run saves and stops; {reply.units:,} units are applied"
    if not await_end(control, STOP_SECS):
        raise WaitTimeout(
            f"the run in {workdir} has not ended {STOP_SECS:g} s after it was told to; its supervisor is process "
            f"{control.pid}: look at {workdir / 'logs'}"
        )
    return told_of(workdir, before)


@reports_errors
def main(argv: list[str]) -> int:
    """Stop the run that the command line names."""
    outlast()  # the stop counts, not its display
    try:
        if len(argv) != 2:
            raise ConfigError("name one run; write hybridsync stop RUN, where RUN is its --workdir")
        print(stop(local_path(argv[1]), checked_reason(FLAGS.why), wait=FLAGS.wait))
    except KeyboardInterrupt:
        say("interrupted: a run that was told to stop goes on saving; hybridsync status tells of it")
        return EXIT_INTERRUPTED
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
