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

WIDE = {"20 M": (4440, 8, range(2)), "100 M": (9960, 4, range(1))}
"""Parameters -> features of a hidden layer, workers, and numbers of the runs; momentum .9 is the state of as many."""


def claims_wide(rows: Sequence[Row]) -> list[Claim]:
    """Return what a switch of a larger model costs; the published figure is held against that of as many workers."""

    def stall(rows: Sequence[Row]) -> tuple[str, bool]:
        told = []
        for size, (_, count, numbers) in WIDE.items():
            found = values(rows, "stall_secs", parameters=size)
            share = mean(rows, "stall_secs", parameters=size) / PUBLISHED_RUN_SECS
            load = mean(rows, "load", parameters=size)
            runs = f"{len(numbers)} run{'s' if len(numbers) > 1 else ''}"
            where = f"{size} parameters, {count} workers, {runs} at a load of {load:.0f}"
            told.append(f"{spread(found, '{:.1f}')} s, {share:.2%} of 2,100 s ({where})")
        return "; ".join(told), max(values(rows, "stall_secs", workers=8)) <= PUBLISHED[8]

    where = "processes on one host of two cores, wider MLPs on digits, momentum .9; met by that of 8 workers"
    return [claimed(rows, "a switch, 8 workers", f"{PUBLISHED[8]:g} s", where, stall, "larger models")]


def table_wide(rows: Sequence[Row]) -> str:
    """Return the stalls by the number of parameters."""
    columns = "stall_secs", "seconds", "load"
    told = [
        (size, str(count), *(spread(values(rows, name, parameters=size), "{:.1f}") for name in columns))
        for size, (_, count, _) in WIDE.items()
    ]
    return markdown(("parameters", "workers", "switch, s", "run, s", "load average"), told)


BY_SIZE = Experiment(
    "syncswitch_overhead_sizes",
    "Sync-Switch",
    "The same on wider layers, 16 units of 4 examples a worker. 300 M parameters were not tried: four workers, a "
    "server and a chief hold some 15 GB at 100 M, of the 24 GB that were there.",
    [
        Cell(
            {"parameters": size, "workers": count, "number": number},
            Stalls(count, number, units=16, share=25, hidden=hidden),
        )
        for size, (hidden, count, numbers) in WIDE.items()
        for number in numbers
    ],
    claims_wide,
    table_wide,
)
