"""Makes the runs of a search in virtual time, with real gradients: what `hybridsync simulate` does."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

from hybridsync.config import RunConfig
from hybridsync.core.errors import Diverged
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.lab.tuning.job_history import Where
from hybridsync.lab.tuning.run_ending import accuracy_of, cluster_of, converged_in, end_of
from hybridsync.lab.tuning.search import Made, RunOf

SCRATCH = "simulating"


@dataclass(frozen=True)
class SimulatedRuns:
    """Runs in virtual time, with every gradient computed.

    Args:
      run_of: a configuration -> its run.
      config: configuration of every run, except plan and seed.
      scenario: the cluster, and the incidents of the run.
      place: name of the scenario.
      folder: folder of the search; a run in progress has a folder in it.
    """

    run_of: RunOf
    config: RunConfig
    scenario: Scenario
    place: str
    folder: Path

    @property
    def where(self) -> Where:
        """The simulator with this cluster: its values, and what the run's configuration says of devices and servers."""
        config = self.config
        return Where("simulator", cluster_of(self.scenario, config.servers, config.emulation, config.drain_secs))

    def carry_out(self, plan: str, seed: int) -> Made:
        scratch = self.folder / SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed: in virtual time nothing is resumed
        telemetry = dataclasses.replace(self.config.telemetry, timeline=False, apply_log=False)
        config = dataclasses.replace(self.config, plan=plan, seed=seed, telemetry=telemetry)
        try:
            result = simulate(self.run_of(config), self.scenario, gradients="real", workdir=scratch)
            return Made(accuracy_of(result.summary.final), result.seconds, converged_in(scratch))
        except Diverged:
            return end_of(scratch, config)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
