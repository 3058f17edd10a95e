"""Makes the runs of a search as processes, supervised by this one, which loads no JAX: what `hybridsync train` does."""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import dataclass
from pathlib import Path

from hybridsync.config import LoadedConfig
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_PREEMPTED, ConfigError, HybridSyncError, Preempted
from hybridsync.lab.tuning.job_history import Where
from hybridsync.lab.tuning.run_ending import cluster_of, ended, run_folder
from hybridsync.lab.tuning.search import Made
from hybridsync.runtime.processes import Launch, supervise


@dataclass(frozen=True)
class ProcessRuns:
    """Runs of one process a role, supervised by this one, each in a workdir of its own.

    Args:
      loaded: the configuration file, with all overrides applied.
      file: path of the configuration file, as given.
      overrides: `path=value` texts that make those values of the file's own.
      folder: folder of the search.
    """

    loaded: LoadedConfig
    file: Path
    overrides: tuple[str, ...]
    folder: Path

    @property
    def where(self) -> Where:
        """A process a role, with what is emulated."""
        return Where("processes", cluster_of(self.loaded.config.emulation))

    @property
    def place(self) -> str:
        """The host."""
        return socket.gethostname()

    def carry_out(self, plan: str, seed: int) -> Made:
        workdir = self.folder / run_folder(plan, seed)
        config = dataclasses.replace(self.loaded.config, plan=plan, seed=seed)
        if (made := ended(workdir, config)) is not None:
            return made
        flags = [f"--config={self.file}", f"--workdir={workdir}", *(f"--set={text}" for text in self.overrides)]
        flags += [f"--plan={plan}", f"--seed={seed}"]
        loaded = dataclasses.replace(self.loaded, config=config)
        code = supervise(Launch(loaded, self.file, workdir, argv=tuple(flags)))
        if code == EXIT_PREEMPTED:
            raise Preempted(f"the run in {workdir} is saved; give the same command again")
        if (made := ended(workdir, config)) is not None:
            return made
        if code == EXIT_COMPLETED:
            raise HybridSyncError(f"the run in {workdir} has ended without a summary; remove it and search again")
        failed = ConfigError if code == ConfigError.exit_code else HybridSyncError
        logs = workdir / "logs"
        raise failed(f"the run of {plan} with seed {seed} ended with exit code {code}; its logs are in {logs}")
