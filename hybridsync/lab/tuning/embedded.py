"""A search in one's own program: `hybridsync.tune(task, optimizer, workload=..., workers=...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hybridsync.config import RunConfig
from hybridsync.core.paths import local_path
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.tuning.auto_plan import job_of
from hybridsync.lab.tuning.inprocess_runner import InProcessRuns
from hybridsync.lab.tuning.search_rules import Rules, Search
from hybridsync.lab.tuning.session import default_folder, search_in
from hybridsync.lab.tuning.simulated_runner import SimulatedRuns
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.run import Run
from hybridsync.training.task import Task


def tune(
    task: Task,
    optimizer: Optimizer,
    config: RunConfig | None = None,
    *,
    rules: Rules | None = None,
    runtime: Literal["simulator", "inprocess"] = "simulator",
    scenario: Scenario | None = None,
    history: str | Path | None = None,
    workdir: str | Path | None = None,
    watch: Callable[[Search], None] = lambda search: None,
    **fields: Any,
) -> Search:
    """Search for the switch point of a job, so that `Trainer(..., plan="auto")` finds it.

    A search that was killed continues when it is called again.

    Args:
      task: as for `Trainer`.
      optimizer: as for `Trainer`.
      config: all values at once; or give some of its fields as keywords. Its plan is not looked at.
      rules: rules of the search; None for four settings of five runs and a tolerance of a point.
      runtime: "simulator" for virtual time with real gradients, "inprocess" for threads.
      scenario: the simulated cluster; None for equal workers.
      history: file of the job history; None takes the user's.
      workdir: folder for the search's runs; None takes one below runs/tune.
      watch: called with the search before each run, and at the end.
      **fields: fields of RunConfig.

    Returns:
      The finished search; `plan_of(search.share)` is its answer.

    Raises:
      ConfigError: a value is impossible, or the task measures no accuracy.
      NoTarget: a run of pure BSP diverged, and no target was given.
      HistoryError, WorkdirError: a file cannot be used, or another process searches in the folder.
      HybridSyncError: a run could not go on.
    """
    config = RunConfig(**fields) if config is None else dataclasses.replace(config, **fields)
    run = Run(dataclasses.replace(config, plan="bsp"), task, optimizer, None)
    run.check()
    job = job_of(run.config, run)
    folder = local_path(workdir) if workdir is not None else default_folder(job) / runtime

    def run_of(config: RunConfig) -> Run:
        return dataclasses.replace(run, config=config)

    if runtime == "inprocess":
        runner = InProcessRuns(run_of, run.config, folder)
    else:
        scenario = scenario or Scenario()
        scenario.check(config.workers, config.servers)
        runner = SimulatedRuns(run_of, run.config, scenario, "a scenario", folder)
    return search_in(
        folder, job, run.config, rules or Rules(), runner, history=local_path(history) if history else None, watch=watch
    )
