"""HSP: units a second and time to a loss beside the barrier over the same fair-shared port, three models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.reproduction.clusters import Even
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import CONV, DECODER, HURT, RECIPE_RATE, Job
from benchmarks.reproduction.parameters import HSP
from benchmarks.reproduction.plot import Line, Panel, Point, draw
from benchmarks.reproduction.reporting import claimed, markdown, mean, mean_of_all, spread, values
from benchmarks.reproduction.training import Training

RATIOS, SEEDS = (0.25, 1, 4), range(400, 403)
JOBS: dict[str, Job] = {"MLP": RECIPE_RATE, "MLP, hurt": HURT, "conv net": CONV, "decoder": DECODER}
BARRIER, TURNS_ALONE, STALE = HSP  # in this order there


def sooner(rows: Sequence[Row], job: str, ratio: float, protocol: str) -> float:
    """Return how many times sooner a protocol was at the job's loss than the barrier; nan where a run never was."""
    where = {"job": job, "ratio": ratio}
    barrier, own = (
        mean_of_all(rows, "secs_to_loss", len(SEEDS), protocol=name, **where) for name in (BARRIER, protocol)
    )
    return barrier / own


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the abstract's claim for each model."""

    def of(job: str):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            alone = {ratio: sooner(rows, job, ratio, TURNS_ALONE) for ratio in RATIOS}
            stale = {ratio: sooner(rows, job, ratio, STALE) for ratio in RATIOS}
            said = f"{_listed(alone)}; with stale units {_listed(stale)}"
            return said, any(figure >= 1.67 for figure in (*alone.values(), *stale.values()))

        return told

    where = "time to a training loss over `bsp_server`'s, by transfer / compute; fair-shared port, 8 workers, 3 seeds"
    return [claimed(rows, "faster convergence", "up to 1.67x", where, of(name), job.name) for name, job in JOBS.items()]


def _times(figure: float) -> str:
    return f"{figure:.2f}x" if figure == figure else "never in a run"


def _listed(figures: Mapping[float, float]) -> str:
    return ", ".join(f"{_times(figure)} at {ratio:g}" for ratio, figure in figures.items())


def table(rows: Sequence[Row]) -> str:
    """Return speed, time to the loss and accuracy."""
    told = []
    for name, job in JOBS.items():
        for ratio in RATIOS:
            for protocol in HSP:
                where = {"job": name, "ratio": ratio, "protocol": protocol}
                base = mean(rows, "units_per_sec", job=name, ratio=ratio, protocol=BARRIER)
                told.append(
                    (
                        job.name,
                        f"{ratio:g}",
                        f"`{HSP[protocol]}`",
                        f"{mean(rows, 'units_per_sec', **where) / base:.2f}x",
                        spread(values(rows, "secs_to_loss", **where), "{:.1f}"),
                        _times(sooner(rows, name, ratio, protocol)),
                        spread(values(rows, "accuracy", **where), "{:.3f}"),
                        f"{mean(rows, 'staleness_max', **where):.0f}",
                    )
                )
    head = ("job", "transfer / compute", "plan", "units/s", "to the loss, s", "sooner", "accuracy", "staleness, max")
    return markdown(head, told)


def plot(rows: Sequence[Row]) -> str:
    """Return how many times sooner each job is at its loss, by the ratio; a panel a protocol."""
    panels = []
    for protocol in list(HSP)[1:]:
        lines = []
        for color, (name, job) in enumerate(JOBS.items()):
            found = ((ratio, sooner(rows, name, ratio, protocol)) for ratio in RATIOS)
            points = [Point(ratio, figure) for ratio, figure in found if figure == figure]  # nan: a run never was there
            lines += [Line(job.short, color, points, marks=True)] if points else []
        if lines:
            panels.append(
                Panel(
                    f"{HSP[protocol]}",
                    "transfer / compute, logarithmic",
                    "times sooner (1: as soon)",
                    lines,
                    lowest=0.0,
                    is_log=True,
                    ticks=RATIOS,
                )
            )
    note = f"mean of {len(SEEDS)} seeds; without a mark: never there in a run"
    return draw("HSP over the barrier, to a training loss", note, panels) if panels else ""


EXPERIMENT = Experiment(
    "hsp",
    "HSP",
    "Two jobs of one MLP, one at its recipe's rate and one near its limit, and two other models, at three "
    "ratios of what all gradients take through the servers' port to a unit's compute time.",
    [
        Cell(
            {"job": name, "ratio": ratio, "protocol": protocol, "seed": seed},
            Training(job, plan, Even(ratio=ratio), seed, evaluations=0),
        )
        for name, job in JOBS.items()
        for ratio in RATIOS
        for protocol, plan in HSP.items()
        for seed in SEEDS
    ],
    claims,
    table,
    plot,
)
