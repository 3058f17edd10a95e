"""The jobs of the experiments, each with the reason for its size and its rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

from benchmarks.jobs import ROOT
from benchmarks.reproduction.definition import Given
from benchmarks.virtual import quiet
from hybridsync.config import RunConfig, apply_overrides, load_config
from hybridsync.config.loading import LoadedConfig
from hybridsync.lab.simulator.gradients import evaluator
from hybridsync.training.run import Run

PUBLISHED_SCHEDULE = (
    "optimizer.schedule.kind=piecewise",
    "optimizer.schedule.boundaries=0.5,0.75",
    "optimizer.schedule.factors=0.1,0.01",
)
"""The rate falls at 32,000 and 48,000 of 64,000 steps in the published runs."""


@dataclass(frozen=True)
class Job:
    """A job.

    Args:
      name: on the page.
      recipe: its configuration file.
      sets: values of the configuration, path=value.
      loss: training loss to which times are measured; None measures none.
      guessing: accuracy of a run that diverged.
      images: whether it needs CIFAR-10.
      short: name in a legend.
    """

    name: str
    recipe: str
    sets: tuple[str, ...] = ()
    loss: float | None = None
    guessing: float = 0.1
    images: bool = False
    short: str = ""

    def config(self, workers: int = 8, sets: tuple[str, ...] = ()) -> RunConfig:
        """Return the configuration with so many workers and other values."""
        loaded = _loaded(self.recipe)
        return apply_overrides(replace(loaded.config, workers=workers), [*self.sets, *sets])

    def run(self, config: RunConfig, given: Given) -> Run:
        """Return what to simulate."""
        loaded = _loaded(self.recipe)
        if self.images:
            config = replace(config, data=replace(config.data, folder=str(given.cifar)))
        return Run(quiet(config), loaded.module.task(config), loaded.module.optimizer(config), None)


@cache
def _loaded(recipe: str) -> LoadedConfig:
    return load_config(ROOT / recipe)


@lru_cache(maxsize=2)
def evaluator_of(job: Job, workers: int, given: Given):
    """Return what measures a state of the job."""
    return evaluator(job.run(job.config(workers), given))


HURT = Job("digits, hurt by asynchrony", "configs/digits_async_hurts.py", loss=0.3, short="MLP, near its limit")
"""MLP on digits, momentum .9, a rate near the limit; chosen on other seeds, see the file."""

HURT_FOUR = replace(HURT, name="digits, hurt by asynchrony, 4 workers' rate", sets=("optimizer.learning_rate=0.29",))
"""The same for 4 workers: a unit's rate is the file's rate of a whole update over 4; the units are those of 8."""

RECIPE_RATE = Job("digits, its recipe's rate", "configs/digits_mlp.py", ("workload=1600",), loss=0.3, short="MLP")
"""The same network at the rate of its file, where four workers' asynchrony learns; a unit's rate, so lock-step of eight
workers has eight times that, and one version more of age costs units there (see `hsp_bearing`)."""

CONV = Job(
    "conv net on CIFAR-10", "benchmarks/reproduction/recipes/cifar_conv.py", loss=1.7, images=True, short="conv net"
)
"""Real images, far from saturated; its rate is the best of lock-step's on seed 90 (see the recipe)."""

DECODER = Job(
    "decoder on bytes",
    "configs/text_lm.py",
    ("unit_size=8", "workload=1600", "model.dropout=0.0"),
    loss=2.0,
    short="decoder",
)
"""A two-layer decoder with AdamW, a quarter of its recipe's unit: 16 ms of a core."""

DIVERGING = Job(
    "digits, 16 workers, no clipping",
    "configs/digits_mlp.py",
    ("workload=3200", *PUBLISHED_SCHEDULE, "optimizer.learning_rate=0.025"),
)
"""The published rate is .1 a unit. Of .1, .05, .025 and .0125 the largest with which lock-step of 16 workers learned on
seeds 90 and 91 (.08, .08 to .36, .97, .97) is taken; asynchrony was not tried before."""

RESNET = Job(
    "ResNet-8 on CIFAR-10",
    "configs/cifar_resnet8.py",
    (*PUBLISHED_SCHEDULE, "optimizer.learning_rate=0.1", "optimizer.weight_decay=0.0001"),
    images=True,
)
"""The published recipe at ResNet-8: rate .1 a unit, momentum .9, weight decay 1e-4, rate falls at .5 and .75."""

NORMED = Job(
    "MLP with BatchNorm on CIFAR-10 at 16x16, 20 passes",
    "benchmarks/reproduction/recipes/cifar_mlp.py",
    PUBLISHED_SCHEDULE,
    images=True,
)
"""Twenty passes, of the published 164. The rate was found on seeds that no experiment runs (see the recipe)."""
NORMED_SHORT = replace(
    NORMED, name="MLP with BatchNorm on CIFAR-10 at 16x16, 2 passes", sets=(*NORMED.sets, "workload=1600")
)
"""The same at a tenth of the length, for what length alone does."""
NORMED_WHOLE = replace(
    NORMED, name="MLP with BatchNorm on CIFAR-10 at 16x16, 82 passes", sets=(*NORMED.sets, "workload=64000")
)
"""The same with as many units as the published runs have."""
