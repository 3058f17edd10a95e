"""Simulated runs for the benchmarks: a configuration and a scenario in, the summary of the run out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from configs import tally
from hybridsync.config import CheckpointConfig, RunConfig, TelemetryConfig
from hybridsync.core.clock import Clock
from hybridsync.lab.simulator.arithmetic import Arithmetic, Sizes, Weightless
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.telemetry.events import Events
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.run import Run

SIZES = Sizes(gradient=1, parameters=1, state=1)
"""Of a model whose transfers are in the cluster's other costs already."""
TICK_SECS = 1.0
"""How often the controller looks around; whatever matters wakes it up besides."""
SELDOM_SECS = 1e9
"""Saves and lines of metrics by time would only be in the way."""


def quiet(config: RunConfig) -> RunConfig:
    """Return the configuration without saves by time, metrics and a timeline."""
    return dataclasses.replace(
        config,
        checkpoint=CheckpointConfig(secs=SELDOM_SECS),
        telemetry=TelemetryConfig(log_secs=SELDOM_SECS, timeline=False),
    )


def simulated(
    run: Run,
    scenario: Scenario,
    arithmetic: Arithmetic,
    evaluator: Any = None,
    loop: Loop | None = None,
    events: Callable[[Clock], Events] | None = None,
    tick_secs: float = TICK_SECS,
) -> Summary:
    """Simulate a run to its end, from the configuration's seed.

    Args:
      run: configuration, plan and task.
      scenario: the cluster, and what happens to it.
      arithmetic: what is computed.
      evaluator: (state, snapshot) -> what the task measures; None measures nothing.
      loop: virtual time, fresh; None where nobody else looks at it.
      events: the clock -> who hears of events; None for nobody.
      tick_secs: how often the controller looks around; evaluations on the way are no finer than that.

    Raises:
      HybridSyncError: the run could not go on.
    """
    loop = loop or Loop()
    clock = VirtualClock(loop)
    recorder = Recorder.null(clock)
    if events is not None:
        recorder = dataclasses.replace(recorder, events=events(clock))
    options = {"seed": run.config.seed, "tick_secs": tick_secs, "evaluator": evaluator}
    return SimulatedCluster(run, scenario, arithmetic, recorder, loop, **options).run()


def seconds_of(config: RunConfig, scenario: Scenario, sizes: Sizes = SIZES) -> float:
    """Return the virtual seconds of a run in which nothing but time is computed.

    Raises:
      HybridSyncError: the run could not go on.
    """
    config = quiet(config)
    run = Run(config, tally.task(config), tally.optimizer(config), None)  # neither is looked at
    return simulated(run, scenario, Weightless(sizes)).seconds
