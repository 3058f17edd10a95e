"""Show a run's logs: `hybridsync logs RUN [ROLE] [--lines=N] [--follow]`, where RUN is its --workdir.

ROLE is chief, server, worker, fork-server, or one of several: worker-3. Without it the end of every log is shown.
--follow prints new lines until the run ends. Exit codes: 0 shown, 1 there is no such log, 70 our fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

from absl import flags

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.config.keywords import did_you_mean
from hybridsync.core.clock import pause
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError, WorkdirError
from hybridsync.core.paths import local_path
from hybridsync.runtime.control_file import await_end, running
from hybridsync.storage.followed_file import FollowedFile
from hybridsync.storage.lock_holder import holder_of

LOOK_SECS = 0.3
"""Between two looks at logs that are followed."""

FLAGS = flags.FLAGS
flags.DEFINE_integer("lines", 20, "of the end of each log; 0 for all", lower_bound=0)
flags.DEFINE_bool("follow", False, "show what comes, until the run ends")


def logs_of(workdir: Path, role: str) -> dict[str, Path]:
    """Return the logs of a run by their names.

    Args:
      workdir: the run's workdir.
      role: name of a role; "worker" or "server" for all of that kind; "" for all logs.

    Raises:
      WorkdirError: the run has no such log.
    """
    found = {path.stem: path for path in sorted((workdir / "logs").glob("*.log"))}
    if not found:
        raise WorkdirError(f"{workdir / 'logs'} holds no logs; name the --workdir of a run of processes")
    chosen = {name: path for name, path in found.items() if not role or name == role or name.rpartition("-")[0] == role}
    if not chosen:
        raise WorkdirError(f"the run in {workdir} has no log of {role!r}; {did_you_mean(role, found)}")
    return chosen


def follow(workdir: Path, role: str, logs: dict[str, FollowedFile]) -> None:
    """Show what comes, each line behind the name of its log, until the run ends; one that starts has not ended."""
    ended = False
    while not ended:
        ended = _ended(workdir, LOOK_SECS)
        for name, path in logs_of(workdir, role).items():
            for line in logs.setdefault(name, FollowedFile(path)).news(ended=ended):
                print(f"{name}: {line}", flush=True)


def _ended(workdir: Path, secs: float) -> bool:
    """Return whether a run has ended; where it has not, after `secs` seconds or at its end."""
    control = running(workdir)
    if control is not None:
        return await_end(control, secs)
    if holder_of(workdir) is None:
        return True
    pause(secs)  # no process can be waited for: it starts, or its control file is damaged
    return False


@ends_with_its_reader
@reports_errors
def main(argv: list[str]) -> int:
    """Show the logs that the command line names."""
    try:
        if len(argv) not in (2, 3):
            raise ConfigError("name one run; write hybridsync logs RUN [ROLE] [--follow], where RUN is its --workdir")
        workdir, role = local_path(argv[1]), argv[2] if len(argv) == 3 else ""
        logs = {name: FollowedFile(path) for name, path in logs_of(workdir, role).items()}
        for name, log in logs.items():
            if lines := log.tail(min(FLAGS.lines, sys.maxsize), whole=FLAGS.follow):
                print(f"== {name}", *lines, sep="\n", flush=True)
        if FLAGS.follow:
            follow(workdir, role, logs)
    except KeyboardInterrupt:  # how a user ends --follow
        return EXIT_COMPLETED
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
