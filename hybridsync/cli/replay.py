"""Replay a run: `hybridsync replay RUN [--config=FILE]` computes its apply log again and compares the bits.

Exit codes: 0 every bit is as saved, 1 something differs or the run cannot be replayed, 70 our fault.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags, logging

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.config import load_config, restore_values
from hybridsync.config.recipes import located
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_REFUSED, ConfigError, HybridSyncError, WorkdirError
from hybridsync.core.paths import local_path
from hybridsync.runtime.agent.fork_server import ForkServer, ForkServerClient, connect
from hybridsync.runtime.role.role_pipe import Child
from hybridsync.storage.durable import WorkdirLock, make_directory
from hybridsync.telemetry.summary import read_config

if TYPE_CHECKING:
    from hybridsync.training.run import Run

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "the run's configuration file; by default where the run found it")


def build_run(workdir: Path) -> Run:
    """Return the run that was in `workdir`, with the configuration it resolved.

    Before its record is read: the configuration file may register the protocols that the record names.

    Raises:
      ConfigError: the configuration file is absent, or is not the run's.
      WorkdirError: there is no run.
    """
    from hybridsync.training.run import Run

    saved = read_config(workdir)
    if saved is None:
        raise WorkdirError(f"{workdir} holds no run; give the --workdir of one")
    named = FLAGS.config or saved.get("file")
    if named is None:
        raise ConfigError("the run was not started from a configuration file; name one that makes its task: --config")
    file = located(str(named))
    loaded = load_config(file)
    config = restore_values(loaded.config, saved["config"])
    return Run(config, *loaded.build(config), workdir, file)


def replay_here(workdir: Path) -> int:
    """Replay the run in `workdir`; returns the exit code."""
    if not os.path.isdir(workdir):  # False, where a Path raises, in a folder without permission to read
        raise WorkdirError(f"there is no workdir {workdir}; give the --workdir of a run")
    if read_config(workdir) is None:  # before the lock leaves its file in a folder that is not a run's
        raise WorkdirError(f"{workdir} holds no run; give the --workdir of one")
    import jax

    from hybridsync.lab.replay.logged_run import is_of_processes, read_record
    from hybridsync.lab.replay.verdict import replay

    with WorkdirLock(workdir):
        if is_of_processes(workdir):
            jax.config.update("jax_platforms", "cpu")
        run = build_run(workdir)
        record = read_record(workdir)
        if any(phase.runtime == "processes" for phase in record.phases):
            logs = workdir / "logs"
            make_directory(logs)
            command = [sys.executable, "-m", "hybridsync.cli.replay", *sys.argv[1:]]
            with contextlib.closing(ForkServerClient(command, logs / "replay-seed.log")) as fork_server_client:
                replayed = replay(record, run, fork_server_client)
        else:
            replayed = replay(record, run)
    print(replayed)
    return EXIT_COMPLETED if replayed.difference is None else EXIT_REFUSED


def be_member(child: Child, workdir: Path) -> int:
    """Be one of the processes that compute a phase again; returns the exit code."""
    from hybridsync.lab.replay.members import run_member

    return run_member(child, child.spec(), workdir, lambda: build_run(workdir))


@ends_with_its_reader
@reports_errors
def main(argv: list[str]) -> int:
    """Replay what the command line names, or be a member of a replay."""
    logging.set_verbosity(logging.WARNING)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when jaxlib is loaded
    line = connect()
    child = line if isinstance(line, Child) else None
    try:
        if len(argv) != 2:
            raise ConfigError(f"expected one workdir, got {argv[1:]}; write hybridsync replay RUN")
        workdir = local_path(argv[1])
        if isinstance(line, ForkServer):
            child = line.serve("hybridsync.training.run", "hybridsync.lab.replay.members")
        return replay_here(workdir) if child is None else be_member(child, workdir)
    except HybridSyncError as error:
        if child is None:
            raise
        return child.report_error(error)


if __name__ == "__main__":
    run(sys.modules[__name__])
