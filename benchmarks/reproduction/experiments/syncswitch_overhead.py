"""Sync-Switch: what a switch costs, as a share of the run, on processes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.detecting import Stalls
from benchmarks.reproduction.reporting import claimed, markdown, mean, spread, values

WORKERS, NUMBERS = (4, 8, 16), range(3)
PUBLISHED = {8: 36.0, 16: 53.0}
"""Seconds of a published switch."""
PUBLISHED_RUN_SECS = 36.0 / 0.017
"""A published run in which such a switch is 1.7 %."""


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about a switch's cost."""

    def overhead(rows: Sequence[Row]) -> tuple[str, bool]:
        shares = {n: mean(rows, "stall_secs", workers=n) / mean(rows, "seconds", workers=n) for n in WORKERS}
        told = [f"{share:.1%} of {mean(rows, 'seconds', workers=n):.0f} s ({n})" for n, share in shares.items()]
        return ", ".join(told), shares[8] <= 0.017

    def stall(count: int):
        def told(rows: Sequence[Row]) -> tuple[str, bool]:
            found = values(rows, "stall_secs", workers=count)
            return f"{spread(found, '{:.2f}')} s", max(found) <= PUBLISHED[count]

        return told

    where = "processes on one busy host, digits (85,002 parameters), emulated 50 ms a unit, 240 units a worker; 3 runs"
    return [
        claimed(rows, "a switch's share of the run (8 workers)", "as low as 1.7 % (of about 2,100 s)", where, overhead),
        *(claimed(rows, f"a switch, {n} workers", f"{secs:g} s", where, stall(n)) for n, secs in PUBLISHED.items()),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return stalls and their share of the run, and of one as long as the published."""
    told = [
        (
            str(count),
            spread(values(rows, "stall_secs", workers=count), "{:.2f}"),
            spread(values(rows, "seconds", workers=count), "{:.1f}"),
            f"{mean(rows, 'stall_secs', workers=count) / mean(rows, 'seconds', workers=count):.2%}",
            f"{mean(rows, 'stall_secs', workers=count) / PUBLISHED_RUN_SECS:.3%}",
            f"{PUBLISHED[count]:g}" if count in PUBLISHED else "",
            spread(values(rows, "load", workers=count), "{:.1f}"),
        )
        for count in WORKERS
    ]
    head = ("workers", "switch, s", "run, s", "share", "share of 2,100 s", "published switch, s", "load average")
    return markdown(head, told)


EXPERIMENT = Experiment(
    "syncswitch_overhead",
    "Sync-Switch",
    "Worker processes, a server and a chief on one host with emulated accelerators, so that the processors have time "
    "for the switch. Sync-Switch restarts processes and reads a checkpoint at a switch; here processes live on.",
    [Cell({"workers": count, "number": number}, Stalls(count, number)) for count in WORKERS for number in NUMBERS],
    claims,
    table,
)
