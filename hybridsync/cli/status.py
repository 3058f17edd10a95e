"""Show the progress of a run: `hybridsync status RUN [--json]`, where RUN is its --workdir.

It shows phase and protocol, units, the rate of each worker, staleness, restarts, the last checkpoint, evaluations, and
the roles that are starting. For a run that has ended, or that no command reaches, the figures come from its files. Exit
codes: 0 shown, 1 there is no run to show, 70 the chief gives no answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from absl import flags

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.core.errors import EXIT_COMPLETED, ConfigError, NotRunning
from hybridsync.core.paths import local_path
from hybridsync.runtime.control_file import command_port, explained, read_control
from hybridsync.storage.lock_holder import holder_of
from hybridsync.telemetry.events import EVENTS_FILE
from hybridsync.telemetry.status import INTERRUPTED, RunStatus, answered, as_json, lines_of, written_status

FLAGS = flags.FLAGS
flags.DEFINE_bool("json", False, "one JSON object instead of lines")


def status_of(workdir: Path) -> RunStatus:
    """Return where the run in `workdir` stands.

    Raises:
      WorkdirError: there is no run in the workdir.
      NotRunning: it is starting for the first time, and nothing of it is written yet.
      RoleLost, WaitTimeout: its chief gives no answer.
    """
    try:
        control = read_control(workdir)
        with explained(workdir):
            return answered(command_port(control).status())
    except NotRunning as reason:
        holder = holder_of(workdir)
        if holder is not None and not (workdir / EVENTS_FILE).exists():
            raise
        found = written_status(workdir, holder.since if holder is not None else None)
        if found.status.exit in ("", INTERRUPTED):  # it continues, or may do so where no command reaches it
            print(f"note: {reason}", file=sys.stderr)
        return found


@ends_with_its_reader
@reports_errors
def main(argv: list[str]) -> int:
    """Show where the run stands that the command line names."""
    if len(argv) != 2:
        raise ConfigError("name one run; write hybridsync status RUN [--json], where RUN is its --workdir")
    found = status_of(local_path(argv[1]))
    print(json.dumps(as_json(found)) if FLAGS.json else "\n".join(lines_of(found)))
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
