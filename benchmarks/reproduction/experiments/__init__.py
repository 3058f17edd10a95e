"""The experiments by their names, in the order of the page."""

from __future__ import annotations

from benchmarks.reproduction.definition import Experiment
from benchmarks.reproduction.experiments import (
    grid,
    hsp,
    hsp_bearing,
    psplus,
    readme,
    ripples,
    syncswitch_detector,
    syncswitch_diverging,
    syncswitch_frontier,
    syncswitch_momentum,
    syncswitch_order,
    syncswitch_overhead,
    syncswitch_policies,
    syncswitch_resnet,
    syncswitch_scenarios,
    syncswitch_search,
    syncswitch_times,
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        readme.EXPERIMENT,
        syncswitch_times.EXPERIMENT,
        syncswitch_frontier.DIGITS,
        syncswitch_frontier.EVEN,
        syncswitch_frontier.IMAGES,
        syncswitch_frontier.HALF_RATE,
        syncswitch_frontier.QUARTER_RATE,
        syncswitch_frontier.LONGER,
        syncswitch_frontier.LONG,
        syncswitch_frontier.SHORT,
        syncswitch_frontier.WHOLE,
        syncswitch_diverging.EXPERIMENT,
        syncswitch_momentum.EXPERIMENT,
        syncswitch_order.DIGITS,
        syncswitch_order.IMAGES,
        syncswitch_times.STRAGGLERS,
        syncswitch_scenarios.EXPERIMENT,
        syncswitch_policies.EXPERIMENT,
        syncswitch_detector.EXPERIMENT,
        syncswitch_overhead.EXPERIMENT,
        syncswitch_overhead.BY_SIZE,
        syncswitch_search.EXPERIMENT,
        syncswitch_resnet.SMOKE,
        syncswitch_resnet.EXPERIMENT,
        hsp.EXPERIMENT,
        hsp_bearing.PORT,
        hsp_bearing.RATES,
        hsp_bearing.EXPERIMENT,
        hsp_bearing.BY_RATIO,
        ripples.EXPERIMENT,
        ripples.NETWORK,
        psplus.EXPERIMENT,
        psplus.TWO_OF_FOUR,
        grid.EXPERIMENT,
    )
}
