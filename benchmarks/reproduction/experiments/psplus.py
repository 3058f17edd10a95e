"""PS+: time of a unit beside its blocking twin, and units and seconds to a loss by the modulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.peers.figures import Spread
from benchmarks.peers.plot import Bar
from benchmarks.peers.plot import Panel as BarPanel
from benchmarks.peers.plot import draw as draw_bars
from benchmarks.reproduction.clusters import Even
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import HURT, HURT_FOUR
from benchmarks.reproduction.parameters import (
    ASP_RATES,
    MODULATED_TWINS,
    PSPLUS_GATED,
    PSPLUS_GATES,
    PSPLUS_MODULATIONS,
    PSPLUS_RATES,
)
from benchmarks.reproduction.reporting import claimed, markdown, mean, mean_of_all, spread, values
from benchmarks.reproduction.training import Training
from hybridsync.lab.simulator.cluster import Slow

SEEDS = range(400, 405)
CLUSTERS = {
    "even, half": Even(link_ratio=0.5),
    "even, one": Even(link_ratio=1.0),
    "one 5x slow, half": Even(link_ratio=0.5, slow=(Slow(7, factor=5.0),)),
}
"""What a transfer takes of a unit's compute time is in the name."""
EVEN, SLOW = list(CLUSTERS)[:2], "one 5x slow, half"
PLANS = {
    **PSPLUS_RATES,
    **PSPLUS_GATED,
    **{f"modulation {kind}": plan for kind, plan in PSPLUS_MODULATIONS.items()},
}
TWIN = "its blocking twin"
MODULATED = ("none", "progress")

TWO_SLOW = {
    f"two {factor:g}x slow": Even(link_ratio=0.5, slow=tuple(Slow(worker, factor=factor) for worker in (2, 3)))
    for factor in (2.0, 5.0)
}
FAMILIES = {"psplus": PSPLUS_MODULATIONS, "its twin": MODULATED_TWINS, "asp": ASP_RATES}
"""Protocol -> modulation -> plan; the first modulation of each leaves the rate alone."""


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the abstract's three figures, against the blocking twin: ungated as PS+ itself is, and gated."""

    def less(cluster: str):
        def saved(rows: Sequence[Row], own: str, other: str) -> float:
            fast, slow = (mean(rows, "units_per_sec", cluster=cluster, plan=name) for name in (own, other))
            return 1 - slow / fast

        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            twin = saved(rows, "psplus", TWIN)
            gated = (
                f"s = {lead}: {saved(rows, f'psplus, s = {lead}', f'{TWIN}, s = {lead}'):.0%}" for lead in PSPLUS_GATES
            )
            others = (f"against `{name}` {saved(rows, 'psplus', name):.0%}" for name in ("asp", "ssp"))
            return f"{twin:.0%}; both behind a gate of {', '.join(gated)}; {', '.join(others)}", twin >= 0.54

        return told

    def fewer(rows: Sequence[Row]) -> tuple[str, bool]:
        none, own = (
            mean_of_all(rows, "units_to_loss", len(SEEDS), cluster=SLOW, plan=f"modulation {kind}")
            for kind in MODULATED
        )
        return f"{1 - own / none:.0%}", 1 - own / none >= 0.37

    def over_twin(rows: Sequence[Row], column: str, twin: str) -> dict[str, float]:
        means = {
            cluster: [mean_of_all(rows, column, len(SEEDS), cluster=cluster, plan=name) for name in ("psplus", twin)]
            for cluster in CLUSTERS
        }
        return {cluster: other / own for cluster, (own, other) in means.items()}

    def altogether(twin: str):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            less = {cluster: 1 - 1 / ratio for cluster, ratio in over_twin(rows, "units_to_loss", twin).items()}
            return _listed(less, "{:.0%}"), all(saved >= 0.37 for saved in less.values())

        return told

    def whole(twin: str):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            ratios = over_twin(rows, "secs_to_loss", twin)
            return _listed(ratios, "{:.2f}x"), any(ratio >= 2.86 for ratio in ratios.values())

        return told

    twins = {"without a gate": TWIN, **{f"behind a gate of s = {lead}": f"{TWIN}, s = {lead}" for lead in PSPLUS_GATES}}
    where = f"{HURT.name}, a transfer takes half or all of a unit's compute time, 8 workers, {len(SEEDS)} seeds"
    return [
        *(
            claimed(rows, "less time an iteration, against the blocking twin", "54 %", where, less(cluster), cluster)
            for cluster in EVEN
        ),
        claimed(rows, "fewer iterations to a loss", "37 %", where, fewer, "by the modulation, one worker 5x slow"),
        *(
            claimed(rows, "fewer iterations to a loss", "37 %", where, altogether(twin), f"against the twin {gate}")
            for gate, twin in twins.items()
        ),
        *(
            claimed(rows, "faster to a loss", "up to 2.86x", where, whole(twin), f"against the twin {gate}")
            for gate, twin in twins.items()
        ),
    ]


def _listed(found: Mapping[str, float], how: str) -> str:
    return "; ".join(f"{cluster}: {how.format(value)}" for cluster, value in found.items())


def table(rows: Sequence[Row]) -> str:
    """Return time of a unit, units and seconds to the loss."""
    return _table(rows, CLUSTERS, PLANS)


def _table(rows: Sequence[Row], clusters: Iterable[str], plans: Mapping[str, str]) -> str:
    told = []
    for cluster in clusters:
        for name, plan in plans.items():
            where = {"cluster": cluster, "plan": name}
            told.append(
                (
                    cluster,
                    f"`{plan}`",
                    spread(values(rows, "units_per_sec", **where), "{:.0f}"),
                    spread(values(rows, "units_to_loss", **where), "{:.0f}"),
                    spread(values(rows, "secs_to_loss", **where), "{:.1f}"),
                    f"{len(values(rows, 'secs_to_loss', **where))} of {len(SEEDS)}",
                    spread(values(rows, "accuracy", **where), "{:.3f}"),
                )
            )
    head = ("cluster", "plan", "units/s", "units to the loss", "seconds to it", "came there", "accuracy")
    return markdown(head, told)


def plot(rows: Sequence[Row]) -> str:
    """Return the seconds to the loss of every plan, a panel a cluster."""
    panels = []
    for cluster in CLUSTERS:
        bars = [
            Bar(_label(name), Spread.of(found), name == "psplus")
            for name in PLANS
            if (found := values(rows, "secs_to_loss", cluster=cluster, plan=name))
        ]
        panels.append(BarPanel(cluster.capitalize(), bars))
    note = f"seconds (virtual), less is better; median and range of those of {len(SEEDS)} seeds that came there"
    return draw_bars("PS+ to a training loss, 8 workers", note, [panels])


def _label(name: str) -> str:
    """Return a plan's name as short as a bar's label is."""
    return name.removeprefix("its blocking ").replace("modulation ", "psplus, ")


EXPERIMENT = Experiment(
    "psplus",
    "PS+",
    "The blocking twin makes the same steps and updates and waits for each transfer, so that only the overlap differs. "
    "A push, or a pull, takes half of a unit's compute time on each worker's own link, or all of it.",
    [
        Cell(
            {"cluster": cluster, "plan": name, "seed": seed},
            Training(HURT, plan, conditions, seed, evaluations=0),
        )
        for cluster, conditions in CLUSTERS.items()
        for name, plan in PLANS.items()
        for seed in SEEDS
    ],
    claims,
    table,
    plot,
)


def claims_two_slow(rows: Sequence[Row]) -> list[Claim]:
    """Return the units to a loss that each modulation saves, against none: PS+'s, its twin's, and asynchrony's own."""

    def fewer(cluster: str):
        def saved(rows: Sequence[Row], kinds: Mapping[str, str]) -> dict[str, float]:
            units = {
                kind: mean_of_all(rows, "units_to_loss", len(SEEDS), cluster=cluster, plan=plan)
                for kind, plan in kinds.items()
            }
            none, *others = kinds
            return {kind: 1 - units[kind] / units[none] for kind in others}

        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            found = {family: saved(rows, kinds) for family, kinds in FAMILIES.items()}
            shown = (
                f"`{family}` " + ", ".join(f"{kind} {_share(share)}" for kind, share in kinds.items())
                for family, kinds in found.items()
            )
            return "; ".join(shown), found["psplus"][MODULATED[1]] >= 0.37

        return told

    where = f"{HURT_FOUR.name}, a transfer takes half of a unit's compute time, 4 workers, {len(SEEDS)} seeds"
    return [
        claimed(rows, "fewer iterations to a loss", "37 %", where, fewer(cluster), f"by the modulation, {cluster}")
        for cluster in TWO_SLOW
    ]


def _share(share: float) -> str:
    return "never in a run" if math.isnan(share) else f"{share:.0%}"


_TWO_SLOW_PLANS = [plan for kinds in FAMILIES.values() for plan in kinds.values()]
TWO_OF_FOUR = Experiment(
    "psplus_two_slow",
    "PS+",
    "The slow half of four workers makes a third or a sixth of PS+'s units, so that a factor on its rate has something "
    "to act on. `asp` has no factor of its workers' progress: the twin has, and is asynchrony otherwise.",
    [
        Cell(
            {"cluster": cluster, "plan": plan, "seed": seed},
            Training(HURT_FOUR, plan, conditions, seed, workers=4, evaluations=0),
        )
        for cluster, conditions in TWO_SLOW.items()
        for plan in _TWO_SLOW_PLANS
        for seed in SEEDS
    ],
    claims_two_slow,
    lambda rows: _table(rows, TWO_SLOW, {plan: plan for plan in _TWO_SLOW_PLANS}),
)
