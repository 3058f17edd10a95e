"""Sync-Switch: the online policies while machines are late, by the model that was fitted to published slowdowns."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.reporting import claimed, markdown
from benchmarks.reproduction.scenarios import Late
from benchmarks.syncswitch_scenarios import PLAN, PUBLISHED, SCENARIOS, Guard, Online, in_the_runs

POLICIES: dict[str, tuple[Online, Guard, bool]] = {
    "baseline": ("baseline", "on", True),
    "greedy": ("greedy", "on", True),
    "greedy, no guard": ("greedy", "off", True),
    "elastic": ("elastic", "on", True),
    "elastic, no guard": ("elastic", "off", True),
    "nobody is late": ("baseline", "on", False),
}
BOUND, WITHIN = "nobody is late", 0.005


def seconds(rows: Sequence[Row], scenario: int, policy: str) -> float:
    """Return how long a run took."""
    (row,) = [row for row in rows if (row["scenario"], row["policy"]) == (scenario, policy)]
    return float(row["seconds"] or 0.0)


def ratio(rows: Sequence[Row], scenario: int, policy: str) -> float:
    """Return a policy's time over baseline's."""
    return seconds(rows, scenario, policy) / seconds(rows, scenario, "baseline")


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the totals of both scenarios, beside what no policy can surpass."""

    def of(scenario: int, policy: str):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            found = {kind: ratio(rows, scenario, kind) for kind in POLICIES if kind.startswith(policy)}
            said = [f"{kind.removeprefix(policy).strip(', ') or 'default'} {held:.3f}" for kind, held in found.items()]
            best = f"{ratio(rows, scenario, BOUND):.3f} if nobody were late"
            return f"{'; '.join(said)}; {best}", min(found.values()) <= in_the_runs(scenario, policy) + WITHIN

        return told

    where = (
        f"64,000 units, `{PLAN}`, 8 machines that are worker and server, fitted; the detector judges single steps; met "
        f"within {WITHIN:g} of the runs"
    )
    return [
        claimed(
            rows,
            f"scenario {scenario}, `{policy}`: time over baseline's",
            f"{at:g}; {in_the_runs(scenario, policy):.3f} in the authors' runs",
            where,
            of(scenario, policy),
            "machines late",
        )
        for scenario, totals in PUBLISHED.items()
        for policy, at in totals.items()
        if policy != "baseline"
    ]


def table(rows: Sequence[Row]) -> str:
    """Return every policy's time in both scenarios."""
    lines = []
    for policy, (online, _, is_late) in POLICIES.items():
        line = [policy]
        for scenario, totals in PUBLISHED.items():
            (row,) = [row for row in rows if (row["scenario"], row["policy"]) == (scenario, policy)]
            published = f" ({totals[online]:g})" if online in totals and is_late and online != "baseline" else ""
            line += [
                f"{seconds(rows, scenario, policy):.0f}",
                f"{ratio(rows, scenario, policy):.3f}{published}",
                f"{row['lock_step_secs']:g}",
                str(row["flagged_after"] or "-").replace(" ", ", "),
            ]
        lines.append(line)
    head = ["policy"]
    for scenario in SCENARIOS:
        head += [f"scenario {scenario}, s", "over baseline (published)", "lock-step until, s", "flagged after, steps"]
    return markdown(head, lines)


EXPERIMENT = Experiment(
    "syncswitch_scenarios",
    "Sync-Switch",
    "The machines of the table of stragglers above, late as in the published scenarios: 30 ms at two of them, four "
    "times, and 10 ms at one, once. A member's time in the exchange is its own for the detector, which judges single "
    "steps. The last line is what no policy can surpass.",
    [
        Cell({"scenario": scenario, "policy": policy}, Late(scenario, *how))
        for scenario in SCENARIOS
        for policy, how in POLICIES.items()
    ],
    claims,
    table,
)
