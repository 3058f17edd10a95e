"""What protocols promise, on drawn clusters in virtual time: staleness, equality with the plain loop and with BSP."""

from __future__ import annotations

import itertools
from random import Random

import jax
import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.config import RunConfig
from hybridsync.lab.simulator.arithmetic import Weightless
from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.gradients import RealArithmetic
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.testing.checks import SIZES
from hybridsync.protocols.modes import SERVER
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.run import Run
from tests.lab.simulator.runs import tally_run
from tests.sweeps import swept
from tests.tasks import UNIT_SIZE, adamw, mlp_task, momentum_sgd, plain_sgd

SERVED = sorted(name for name, cls in protocols.REGISTRY.items() if cls.mode is SERVER)
PUSHING = [name for name in SERVED if not protocols.REGISTRY[name].local_updates]
"""Whose workers push gradients; of the others `tests/protocols/test_local.py` asks the same."""
BOUNDED = [
    *(name for name in SERVED if protocols.parse(name).staleness_bound(4) is not None),
    *("ssp(staleness=0)", "ssp(staleness=1)", "dssp(lower=0,range=3)", "gba(batch=3,tolerance=1)", "backup(m=1)"),
    *(
        *("psplus(staleness=0)", "psplus(staleness=3)"),
        "psplus(staleness=1,overlap=false)",
        "hsp(rho=0.0,stale=3)",
        "asp(staleness_rule=cut)",
        "gba(staleness_rule=cut,max_delay=2)",
    ),
]
DROPPING = ("backup", "gba", "cut")


def drawn(seed: int, workers: int) -> Scenario:
    """Return a cluster without faults: unequal workers, some of which jitter, behind a slow or a fast link."""
    random = Random(seed)
    devices = tuple(Device(random.uniform(0.01, 0.3), random.choice((0.0, 0.3, 1.0))) for _ in range(workers))
    link = Link(random.choice((1e-4, 0.02)), random.choice((1.25e9, 5e5)))
    return Scenario(cluster=Cluster(devices, worker_link=link, server_link=link))


def simulated_by(run: Run, scenario: Scenario, arithmetic, seed: int = 0) -> SimulatedCluster:
    loop = Loop()
    simulated = SimulatedCluster(
        run, scenario, arithmetic, Recorder.null(VirtualClock(loop)), loop, seed=seed, logs_updates=True
    )
    simulated.run()
    return simulated


@pytest.mark.parametrize("seeds", swept([range(5), range(5, 15)]))
@pytest.mark.parametrize("spec", BOUNDED)
def test_no_update_is_staler_than_its_protocol_promises_and_who_is_waited_for_is_never_dropped(spec, seeds):
    staleness, bound = set[int](), None
    for seed in seeds:
        workers = 2 + seed % 5
        run, scenario = tally_run(spec, workload=90, workers=workers), drawn(seed, workers)
        simulated = simulated_by(run, scenario, Weightless(SIZES), seed)
        found = {entry.sequence - 1 - base for entry in simulated.log for base in entry.versions}
        bound = protocols.parse(spec).staleness_bound(workers)
        assert bound is not None and max(found) <= bound
        staleness |= found
        if not any(word in spec for word in DROPPING):
            assert not simulated.chief.state.ledger.counts().dropped, "the bound holds by waiting, not by dropping"
    assert len(staleness) > 1 or bound == 0, "nothing was ever stale"


def arithmetic_of(optimizer, spec: str = "asp", workers: int = 1) -> tuple[Run, RealArithmetic]:
    config = RunConfig(workload=24, unit_size=UNIT_SIZE, workers=workers, plan=spec)
    run = Run(config, mlp_task(), optimizer, None)
    return run, RealArithmetic(run)


def trained(spec: str, *, workers: int, optimizer) -> SimulatedCluster:
    run, arithmetic = arithmetic_of(optimizer, spec, workers)
    return simulated_by(run, Scenario(), arithmetic)


def computed(optimizer, steps: list[list[int]]):
    """What one would write without us: the gradients of a step, their mean at its rate, the next step."""
    _, arithmetic = arithmetic_of(optimizer)
    state = arithmetic.start()
    for units in steps:
        gradients = [arithmetic.gradient(arithmetic.parameters(state), unit) for unit in units]
        state = arithmetic.update(state, gradients, units=len(units), factor=float(len(units)), blend=1.0)
    return state


RULES = ("rate", "cut", "dc", "dc_adaptive")
RULED = [f"{name}(staleness_rule={rule})" for name in PUSHING for rule in RULES]
ONE_OF_EACH = [f"asp(staleness_rule={rule})" for rule in RULES]


@pytest.mark.parametrize("optimizer", [momentum_sgd, adamw])
@pytest.mark.parametrize(
    "specs",
    swept([(*PUSHING, *ONE_OF_EACH, "localsgd(steps=1)", "psplus"), RULED]),
    ids=["each", "each with each rule"],
)
def test_with_one_worker_every_protocol_that_pushes_gradients_is_the_plain_loop_bit_for_bit(optimizer, specs):
    expected = fingerprint(computed(optimizer(), [[unit] for unit in range(24)]))
    for spec in specs:
        assert fingerprint(trained(spec, workers=1, optimizer=optimizer()).final) == expected, spec


def rounds(log: list[Entry]) -> list[list[int]]:
    """Return the units of each round: what was computed on one version."""
    return [
        [unit for entry in entries for unit in entry.units]
        for _, entries in itertools.groupby(log, key=lambda entry: entry.base)
    ]


def distance(left, right) -> float:
    """Return the largest difference of two states' parameters, relative to the leaf's largest number."""
    pairs = zip(jax.tree.leaves(left.params), jax.tree.leaves(right.params), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize("spec", ["bsp_server", "backup(m=4)", "ssp(staleness=0)", "hsp"])
def test_with_equal_workers_and_plain_sgd_who_waits_for_all_does_what_lock_step_does(spec):
    simulated = trained(spec, workers=4, optimizer=plain_sgd(0.05))
    steps = rounds(simulated.log)
    assert [len(units) for units in steps[:4]] == [4] * 4
    assert distance(simulated.final, computed(plain_sgd(0.05), steps)) < 1e-6
    assert distance(simulated.final, computed(plain_sgd(0.05), steps[::-1])) > 1e-4, "nothing is told apart"


@pytest.mark.parametrize("spec", ["bsp_server", "backup(m=4)", "hsp"])
def test_updates_of_the_whole_batch_have_lock_steps_momentum_too(spec):
    simulated = trained(spec, workers=4, optimizer=momentum_sgd())
    assert distance(simulated.final, computed(momentum_sgd(), rounds(simulated.log))) < 1e-6
