"""Ripples: the five ratios of its abstract, its parts one by one, group sizes, and the slowdown filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.peers.figures import Spread
from benchmarks.peers.plot import Bar
from benchmarks.peers.plot import Panel as BarPanel
from benchmarks.peers.plot import draw as draw_bars
from benchmarks.reproduction.clusters import Even
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import HURT
from benchmarks.reproduction.parameters import RIPPLES_ABLATION, RIPPLES_FILTERS, RIPPLES_RATIOS, RIPPLES_SIZES
from benchmarks.reproduction.reporting import claimed, markdown, mean, spread, values
from benchmarks.reproduction.timing import Timing
from benchmarks.reproduction.training import Training
from hybridsync.lab.simulator.cluster import Slow

COLUMNS = ("units_per_sec", "accuracy")
PORTS, LINKS, NETWORK_UNITS = (0.25, 1, 4), (0.0625, 0.25, 1), 3_200
"""Networks, as `Even` has them; the one in the middle is the experiment's."""
ONE_THREAD = "AD-PSGD, one thread"
NETWORK_PLANS = {**RIPPLES_RATIOS, ONE_THREAD: "adpsgd(overlap=false)"}
OURS = "P-Reduce"
SEEDS, NODE = range(400, 405), 4
CLUSTERS = {
    "even": Even(ratio=1, link_ratio=0.25, node_size=NODE),
    "uneven": Even(ratio=1, link_ratio=0.25, node_size=NODE, slow=(Slow(7, factor=5.0),)),
}
PLANS: dict[str, dict[str, str]] = {
    "ratios": RIPPLES_RATIOS,
    "parts": RIPPLES_ABLATION,
    "size": {str(size): plan for size, plan in RIPPLES_SIZES.items()},
    "filter": {str(bound): plan for bound, plan in RIPPLES_FILTERS.items()},
}
PUBLISHED = {
    ("even", "all-reduce"): 1.1,
    ("even", "parameter server"): 5.1,
    ("even", "AD-PSGD"): 4.3,
    ("uneven", "all-reduce"): 2.0,
    ("uneven", "parameter server"): 3.0,
}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the five ratios."""

    def of(cluster: str, other: str, figure: float):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            own, base = (
                {name: mean(rows, name, cluster=cluster, part="ratios", plan=plan) for name in COLUMNS}
                for plan in (OURS, other)
            )
            ratio = own["units_per_sec"] / base["units_per_sec"]
            return f"{ratio:.2f}x, {100 * (own['accuracy'] - base['accuracy']):+.1f} points", ratio >= figure

        return told

    where = f"{HURT.name}, 8 workers in 2 nodes, one network model for servers and rings, {len(SEEDS)} paired seeds"
    said = {"even": "alike workers", "uneven": "one of 8 five times slower"}
    return [
        claimed(rows, f"throughput over {other}, {said[cluster]}", f"{figure:g}x", where, of(cluster, other, figure))
        for (cluster, other), figure in PUBLISHED.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """Return speed and accuracy of every plan on both clusters."""
    told = []
    for part, plans in PLANS.items():
        for name, plan in plans.items():
            line = [part, name, f"`{plan}`"]
            for cluster in CLUSTERS:
                where = {"cluster": cluster, "part": part, "plan": name if part in ("ratios", "parts") else int(name)}
                line.append(spread(values(rows, "units_per_sec", **where), "{:.0f}"))
                line.append(spread(values(rows, "accuracy", **where), "{:.3f}"))
            told.append(line)
    head = ("part", "", "plan", *(f"{what}, {cluster}" for cluster in CLUSTERS for what in ("units/s", "accuracy")))
    return markdown(head, told)


def plot(rows: Sequence[Row]) -> str:
    """Return units a second of the protocols of the abstract, a panel a cluster."""
    panels = []
    for cluster in CLUSTERS:
        bars = [
            Bar(name, Spread.of(found), name == OURS)
            for name in RIPPLES_RATIOS
            if (found := values(rows, "units_per_sec", cluster=cluster, part="ratios", plan=name))
        ]
        panels.append(BarPanel("Alike workers" if cluster == "even" else "One of 8 five times slower", bars))
    note = f"units a second, more is better; median and range of {len(SEEDS)} seeds"
    return draw_bars("Throughput, 8 workers in 2 nodes", note, [panels])


EXPERIMENT = Experiment(
    "ripples",
    "Ripples",
    "Two machines of four workers. All gradients take a unit's compute time through the servers' port; a model passes "
    "a worker's own link in a quarter of it. Servers, rings and groups pass the same links.",
    [
        Cell(
            {"cluster": cluster, "part": part, "plan": name, "seed": seed},
            Training(HURT, plan, conditions, seed, evaluations=0),
        )
        for cluster, conditions in CLUSTERS.items()
        for part, plans in PLANS.items()
        for name, plan in plans.items()
        for seed in SEEDS
    ],
    claims,
    table,
    plot,
)


def network_ratio(rows: Sequence[Row], cluster: str, other: str, port: float, link: float) -> float:
    """Return the throughput over another plan's on a network."""
    own, base = (mean(rows, "seconds", cluster=cluster, plan=plan, port=port, link=link) for plan in (OURS, other))
    return base / own


def network_table(rows: Sequence[Row]) -> str:
    """Return the five ratios on every network, and AD-PSGD with one thread."""
    asked = [*PUBLISHED, ("even", ONE_THREAD)]
    lines = [["paper", "", *(f"{figure:g}x" for figure in PUBLISHED.values()), ""]]
    for port in PORTS:
        for link in LINKS:
            figures = (f"{network_ratio(rows, cluster, other, port, link):.2f}x" for cluster, other in asked)
            lines.append([f"{port:g}", f"{link:g}", *figures])
    return markdown(("port", "link", *(f"{other}, {cluster}" for cluster, other in asked)), lines)


NETWORK = Experiment(
    "ripples_network",
    "Ripples",
    "The throughput of `preduce` over the other plans, by the network. Port: all gradients take so many times a unit's "
    "compute time through the servers' port. Link: a model passes a worker's own link in so much of it. The network of "
    "the experiment above is port 1 and link 0.25. Nothing is computed.",
    [
        Cell(
            {"cluster": name, "port": port, "link": link, "plan": plan},
            Timing(spec, replace(cluster, ratio=port, link_ratio=link), seed=0, workload=NETWORK_UNITS),
        )
        for name, cluster in CLUSTERS.items()
        for port in PORTS
        for link in LINKS
        for plan, spec in NETWORK_PLANS.items()
    ],
    lambda rows: [],
    network_table,
)
