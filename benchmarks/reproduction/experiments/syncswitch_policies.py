"""Sync-Switch: the online policies under its two scenarios of stragglers, whole runs in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduction.clusters import Fitted
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.reporting import claimed, markdown, mean, spread, values
from benchmarks.reproduction.timing import Timing
from benchmarks.syncswitch_scenarios import in_the_runs
from benchmarks.syncswitch_stragglers import STEP_SECS
from hybridsync.lab.simulator.cluster import Slow

PLAN, SEEDS = "bsp:5%,asp", range(2)
"""400 lock-step steps: the published lock-step stage of 526 s without stragglers."""
EPISODE_STEPS, SLOW_STEP = 23, 2.75
FIRST_SECS, PERIOD_SECS = 60.0, 170.0
MILD, WITHIN = 1.06, 0.005


def episodes(workers: int, times: float, count: int) -> tuple[Slow, ...]:
    """Return workers that make a lock-step step `times` as long, for EPISODE_STEPS such steps, `count` times."""
    lasts = EPISODE_STEPS * times * STEP_SECS
    begins = [FIRST_SECS + number * PERIOD_SECS for number in range(count)]
    delay = (times - 1) * STEP_SECS
    return tuple(
        Slow(worker, delay_secs=delay, start_secs=begin, stop_secs=begin + lasts)
        for begin in begins
        for worker in range(workers)
    )


SCENARIOS = {"1": episodes(1, MILD, 1), "2": episodes(2, SLOW_STEP, 4)}
QUICK, TEN = ("policy.detector_window=3",), ("policy.detector_window_secs=0",)
POLICIES: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "greedy, windows of 10": ("policy.online=greedy", *TEN),
    "elastic, windows of 10": ("policy.online=elastic", *TEN),
    "greedy, no guard, windows of 10": ("policy.online=greedy", "policy.guard=off", *TEN),
    "elastic, no guard, windows of 10": ("policy.online=elastic", "policy.guard=off", *TEN),
    "elastic, windows of 3": ("policy.online=elastic", *QUICK),
    "elastic, no guard, windows of 3": ("policy.online=elastic", "policy.guard=off", *QUICK),
}
PUBLISHED = {("1", "greedy"): 0.98, ("1", "elastic"): 0.977, ("2", "elastic"): 0.898}


def ratio(rows: Sequence[Row], scenario: str, policy: str) -> float:
    """Return a policy's time over baseline's."""
    own, base = (mean(rows, "seconds", scenario=int(scenario), policy=name) for name in (policy, "baseline"))
    return own / base


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the totals of both scenarios."""

    def of(scenario: str, policy: str):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            kinds = [kind for kind in POLICIES if kind.startswith(policy)]
            found = {kind: ratio(rows, scenario, kind) for kind in kinds}
            told = [f"{kind.removeprefix(policy).strip(', ') or 'default'} {at:.3f}" for kind, at in found.items()]
            return "; ".join(told), min(found.values()) <= in_the_runs(int(scenario), policy) + WITHIN

        return told

    where = (
        f"64,000 units, `{PLAN}`, 8 simulated workers on the published times, {len(SEEDS)} seeds; met within "
        f"{WITHIN:g} of the runs"
    )
    return [
        claimed(
            rows,
            f"scenario {scenario}, `{policy}`: time over baseline's",
            f"{at:g}; {in_the_runs(int(scenario), policy):.3f} in the authors' runs",
            where,
            of(scenario, policy),
        )
        for (scenario, policy), at in PUBLISHED.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """Return every policy's time in both scenarios."""
    told = []
    for policy in POLICIES:
        line = [policy]
        for scenario in SCENARIOS:
            where = {"scenario": int(scenario), "policy": policy}
            published = PUBLISHED.get((scenario, policy.removesuffix(", windows of 10")))
            line += [
                spread(values(rows, "seconds", **where), "{:.0f}"),
                f"{ratio(rows, scenario, policy):.3f}" + (f" ({published:g})" if published else ""),
                f"{mean(rows, 'changes', **where):.0f}",
            ]
        told.append(tuple(line))
    head = ["policy"]
    for scenario in SCENARIOS:
        head += [f"scenario {scenario}, s", "over baseline (published)", "changes"]
    return markdown(head, told)


EXPERIMENT = Experiment(
    "syncswitch_policies",
    "Sync-Switch",
    "Rebuilt from the published stage times: scenario 2 lengthens the lock-step stage from 526 s to 721 to 753 s, with "
    "steps 2.75 times as long, which is four episodes of 23 such steps; scenario 1 is one episode of the 6 % that 10 "
    "ms at one machine cost. The delay is put on the workers' units. Switches cost next to nothing, as in the fit.",
    [
        Cell(
            {"scenario": int(scenario), "policy": policy, "seed": seed},
            Timing(PLAN, Fitted(slow=slow), seed, sets=sets),
        )
        for scenario, slow in SCENARIOS.items()
        for policy, sets in POLICIES.items()
        for seed in SEEDS
    ],
    claims,
    table,
)
