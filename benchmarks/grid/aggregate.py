"""What the runs of the grid of `benchmarks.protocols` come to: figures over seeds, and pairs of the same seed. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.grid.cells import LINKS, PROTOCOLS, STRAGGLERS, Outcome
from benchmarks.jobs import Row

LOSS = 0.3
"""Training loss to which times are measured.

Chosen once, on seed 100, which the grid has not: of .6, .4, .3, .25, .2 and .15 the lowest that every protocol reached
under uniform workers, on a free link and at a ratio of 4, and under transient stragglers at 1.
"""

BASELINES = ("bsp", "bsp_server")

CLAIMS = {
    "backup": "faster, and to better test accuracy, than sync and async; no factor in the abstract (arXiv 1604.00981)",
    "ssp": "faster convergence than fully sync and async schemes; no factor in the abstract (Ho et al., NIPS 2013)",
    "dssp": "uneven GPUs: higher accuracy much earlier than SSP and BSP, about as ASP (arXiv 1908.11848)",
    "gba": ">= 2.4x sync under strained hardware; up to +0.2 % AUC on derived async training (arXiv 2205.11048)",
    "hsp": "up to 67 % faster convergence on three classical models (doi 10.1145/3545008.3545024)",
    "psplus": "<= 54 % less time, 37 % fewer iterations, up to 2.86x (doi 10.1109/TPDS.2022.3200518)",
    "diloco": "as good as fully sync with 500 times less communication, 8 workers (arXiv 2311.08105)",
    "preduce": "all-reduce: 1.1x even, 2x uneven; PS: 5.1x even, 3x uneven (arXiv 1909.08029)",
}
"""What each paper's abstract claims, of its own models and clusters."""

Block = tuple[str, str]
"""Straggler and link: what the rows of one table share."""


@dataclass(frozen=True)
class Figures:
    """A protocol in one block, over its seeds.

    Args:
      protocol: with its default settings.
      seeds: of the runs, ascending.
      units_per_sec: mean throughput, units applied a virtual second; nan where no run completed.
      secs_to_loss: mean virtual seconds to the loss of the runs that reached it; nan where none did.
      reached: runs that reached it.
      accuracy, accuracy_sd: final, mean and standard deviation; 0 of one run.
      staleness_mean, staleness_max: over all runs, in updates.
      bound: the protocol's on staleness; None where it has none.
      dropped: units, mean.
    """

    protocol: str
    seeds: tuple[int, ...]
    units_per_sec: float
    secs_to_loss: float
    reached: int
    accuracy: float
    accuracy_sd: float
    staleness_mean: float
    staleness_max: float
    bound: int | None
    dropped: float


def figures(outcomes: Iterable[Outcome], loss: float = LOSS) -> dict[Block, dict[str, Figures]]:
    """Return the figures of every block that has runs, blocks and protocols in the grid's order."""
    rows: dict[tuple[str, str, str], list[Outcome]] = {}
    for run in outcomes:
        if not run.error:
            rows.setdefault((run.cell.straggler, run.cell.link, run.cell.protocol), []).append(run)
    blocks: dict[Block, dict[str, Figures]] = {}
    for straggler, link, protocol in itertools.product(STRAGGLERS, LINKS, PROTOCOLS):
        if runs := sorted(rows.get((straggler, link, protocol), []), key=lambda run: run.cell.seed):
            blocks.setdefault((straggler, link), {})[protocol] = _figures(protocol, runs, loss)
    return blocks


def _figures(protocol: str, runs: Sequence[Outcome], loss: float) -> Figures:
    times = [secs for run in runs if (secs := run.secs_to(loss)) is not None]
    accuracies = [run.accuracy for run in runs]
    return Figures(
        protocol,
        tuple(run.cell.seed for run in runs),
        _mean([run.units_per_sec for run in runs if run.units_per_sec is not None]),
        _mean(times),
        len(times),
        statistics.fmean(accuracies),
        statistics.stdev(accuracies) if len(runs) > 1 else 0.0,
        statistics.fmean(run.staleness_mean for run in runs),
        max(run.staleness_max for run in runs),
        runs[0].bound,
        statistics.fmean(run.dropped for run in runs),
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def speed(block: Mapping[str, Figures], protocol: str, base: str) -> float:
    """Return a protocol's throughput over that of `base`; nan where one of them is not known."""
    return block[protocol].units_per_sec / block[base].units_per_sec if base in block else math.nan


def sooner(block: Mapping[str, Figures], protocol: str, base: str) -> float:
    """Return how many times sooner a protocol was at the loss than `base`; nan where a run of either never was."""
    known = [block[name] for name in (protocol, base) if name in block]
    if len(known) < 2 or any(one.reached < len(one.seeds) for one in known):
        return math.nan
    return block[base].secs_to_loss / block[protocol].secs_to_loss


def pairs(outcomes: Iterable[Outcome], block: Block, protocol: str, base: str) -> list[tuple[int, float, float]]:
    """Return seed, throughput ratio and accuracy difference of a protocol and `base`, for each seed both have."""
    runs = {
        (run.cell.protocol, run.cell.seed): run
        for run in outcomes
        if (run.cell.straggler, run.cell.link) == block and run.units_per_sec is not None
    }
    found = []
    for (name, seed), run in sorted(runs.items()):
        other = runs.get((base, seed))
        if name == protocol and other is not None and run.units_per_sec and other.units_per_sec:
            found.append((seed, run.units_per_sec / other.units_per_sec, run.accuracy - other.accuracy))
    return found


def claims(outcomes: Sequence[Outcome], loss: float = LOSS) -> list[Row]:
    """Return the figures that papers claim, beside what is to be reached here, as far as their runs are there."""
    rows = []
    slow = pairs(outcomes, ("one5x", "free"), "preduce", "bsp")
    if slow:
        ratio, difference = (statistics.fmean(each[place] for each in slow) for place in (1, 2))
        rows.append(Row(f"preduce / bsp, one of 8 5x slow, {len(slow)} paired seeds", ratio, "x", ">=", 2.0))
        rows.append(Row("  its accuracy less bsp's, mean", 100 * difference, "points", ">=", -1.0))
    even = pairs(outcomes, ("uniform", "free"), "preduce", "bsp")
    if even:
        rows.append(Row("preduce / bsp, uniform", statistics.fmean(each[1] for each in even), "x", ">=", 0.9))
    blocks = figures(outcomes, loss)
    for link, bound in (("free", 0.95), ("1", 1.3)):
        block = blocks.get(("uniform", link), {})
        if "hsp" in block and not math.isnan(ratio := sooner(block, "hsp", "bsp_server")):
            rows.append(Row(f"hsp / bsp_server to the loss, uniform, link {link}", ratio, "x", ">=", bound))
    return rows


def to_json(outcomes: Sequence[Outcome], loss: float = LOSS) -> dict[str, Any]:
    """Return what the file of the grid holds: figures of every block, the pairs, and every run without its curve."""
    blocks = [
        {
            "straggler": straggler,
            "link": link,
            "rows": [
                {
                    **asdict(row),
                    **{f"speed_over_{base}": speed(block, name, base) for base in BASELINES},
                    **{f"sooner_than_{base}": sooner(block, name, base) for base in BASELINES},
                    "claim": CLAIMS.get(name, ""),
                }
                for name, row in block.items()
            ],
        }
        for (straggler, link), block in figures(outcomes, loss).items()
    ]
    runs = []
    for outcome in outcomes:
        run = outcome.to_json()
        del run["curve"]
        runs.append({**run, "secs_to_loss": outcome.secs_to(loss)})
    paired = {
        straggler: [
            {"seed": seed, "speed": ratio, "accuracy_difference": difference}
            for seed, ratio, difference in pairs(outcomes, (straggler, "free"), "preduce", "bsp")
        ]
        for straggler in ("uniform", "one5x")
    }
    named = [{**asdict(row), "met": row.met} for row in claims(outcomes, loss)]
    return {"loss": loss, "claims": named, "blocks": blocks, "preduce_beside_bsp": paired, "runs": runs}
