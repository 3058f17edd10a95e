"""Writes what `docs/performance.md` says in figures, and its plots, from a results file.

The page is written by hand, but for the blocks between `<!-- made: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import other_machines
from benchmarks.peers.figures import Results, Spread, short
from benchmarks.peers.plot import Bar, Panel, draw
from benchmarks.peers.systems import OUR_GLOO, OURS, SYSTEMS
from benchmarks.peers.work import (
    ALL,
    ALL_REDUCES,
    ASYNC,
    DIGITS,
    LOCKSTEP,
    OPERATIONS,
    TRANSFERS,
    AllReduce,
    Digits,
    case_of,
)
from benchmarks.protocol_page import BLOCK, DOCS

PAGE, FOLDER = DOCS / "performance.md", DOCS / "performance"
KINDS = {LOCKSTEP: "lock-step", ASYNC: "asynchronous"}
OUR_PLANS = {LOCKSTEP: "`bsp`", ASYNC: "`asp`"}
MADE_BY_OURS = (OURS, OUR_GLOO)
FORMS: dict[other_machines.What, Callable[[float], str]] = {
    "ratio": "{:.1f}".format,
    "ideal": "{:.1%}".format,
    "figure": short,
}


@dataclass(frozen=True)
class Unit:
    """What a table's figures are in.

    Args:
      name: of the unit.
      lower_is_better: whether it is a time.
    """

    name: str
    lower_is_better: bool = False


RATE, BANDWIDTH, TIME = Unit("examples/s"), Unit("GB/s"), Unit("ms", lower_is_better=True)


def write(results: Results, page: Path = PAGE, folder: Path = FOLDER) -> None:
    """Write the plots, and the made blocks of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in plots(results).items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    page.write_text(refreshed(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def refreshed(text: str, results: Results) -> str:
    """Return the page's text with its made blocks as the results are.

    Raises:
      KeyError: the page has a block that is none of `blocks`.
    """
    made = blocks(results)
    return BLOCK.sub(lambda block: f"{block[1]}{made[block[2]]}\n{block[3]}", text)


def blocks(results: Results) -> dict[str, str]:
    """Return the made blocks by their names; a part that was not measured says so."""
    return {
        "machine": _machine(results),
        "machines": _machines(results),
        "digits": _digits(results),
        "transfer": _transfers(results),
        "allreduce": _sums(results),
        "failures": _failures(results),
    }


def plots(results: Results) -> dict[str, str]:
    """Return the SVGs by their names; none of a part that was not measured."""
    digits = [
        [
            panel
            for kind, said in KINDS.items()
            if (panel := _panel(results, case_of(work, kind), f"{said}, {work.title}", work.ideal(kind)))
        ]
        for work in DIGITS
    ]
    transfers = [
        [panel for work in TRANSFERS if (panel := _panel(results, case_of(work, operation), f"{work.title}, {said}"))]
        for operation, said in OPERATIONS.items()
    ]
    sums = [[panel for work in ALL_REDUCES if (panel := _panel(results, case_of(work), work.title))]]
    found = {
        "digits": ("Digits, 4 workers", "examples a second, more is better", digits),
        "transfer": ("Parameters, one worker and one server", "GB a second, more is better", transfers),
        "allreduce": ("Sum over 4 processes", "milliseconds, less is better", sums),
    }
    return {
        name: draw(title, f"{note}; line: lowest to highest of the rounds", measured)
        for name, (title, note, rows) in found.items()
        if (measured := [row for row in rows if row])
    }


def _panel(results: Results, case: str, title: str, ideal: float | None = None) -> Panel | None:
    bars = [
        Bar(SYSTEMS[name].title, Spread.of(each.figure for each in found.values()), name in MADE_BY_OURS)
        for name in SYSTEMS
        if (found := results.figures(case, name))
    ]
    return Panel(title[:1].upper() + title[1:], bars, ideal) if bars else None


def _machine(results: Results) -> str:
    about = dict(results.machine)
    if results.measurements:
        counts = Counter((each.case, each.system) for each in results.measurements).values()
        fewer = f"; some have {min(counts)}" if min(counts) < max(counts) else ""
        about["rounds of each figure"] = f"{max(counts)}{fewer}"
        loads = Spread.of(each.load for each in results.measurements)
        about["load average when a measurement ended"] = _written(loads, digits=1)
    about["packages"] = "; ".join(f"{name}: {', '.join(pins)}" for name, pins in results.pins.items())
    return _table(tuple(about), [tuple(about.values())])


def _machines(results: Results) -> str:
    """Return what the further machines are, and tables of their ratios and shares next to those of the results."""
    here, tables = results.machine.get("processor", "this machine"), []
    for machine in other_machines.read():
        rows = [
            (
                _said(figure),
                "not measured" if ours is None else ours.written(FORMS[figure.what]),
                figure.range.written(FORMS[figure.what]),
                both.written(FORMS[figure.what]),
            )
            for figure, ours, both in other_machines.beside(results, machine)
            if figure.what != "figure"
        ]
        about = _table(tuple(machine.machine), [tuple(machine.machine.values())])
        tables.append(f"{about}\n\n{_table(('figure', here, machine.name, 'over both'), rows)}")
    return "\n\n".join(tables)


def _said(figure: other_machines.Figure) -> str:
    """Return what a ratio or share of a further machine is of."""
    name, _, part = figure.case.partition("/")
    work = next(work for work in ALL if work.name == name)
    system, ours = SYSTEMS[figure.system].title, OUR_PLANS.get(part, "sums" if isinstance(work, AllReduce) else "")
    if figure.what == "ratio":
        subject = f"{ours or 'transfers'} over {system}"
    else:
        subject = f"{ours}, of the ideal"
    return ", ".join(each for each in (subject, work.title, OPERATIONS.get(part, "")) if each)


def _digits(results: Results) -> str:
    """Return a line for each kind of training of a system: rate, share of the ideal, how many times as fast ours is."""
    rows = []
    for kind, said in KINDS.items():
        for name in SYSTEMS:
            cells = [_trained(results, work, kind, name) for work in DIGITS]
            if any(cells):
                rows.append((_title(name) + (f" {OUR_PLANS[kind]}" if name == OURS else ""), said, *cells))
    head = (f"system, {RATE.name}", "how", *(f"{work.title} ({work.units:,} units)" for work in DIGITS))
    return _table(head, rows) if rows else "not measured"


def _trained(results: Results, work: Digits, kind: str, name: str) -> str:
    if not results.figures(case := case_of(work, kind), name):
        return ""
    spread, ideal = _spread(results, case, name), work.ideal(kind)
    share = f"{spread.median / ideal:.0%} of the ideal" if ideal else ""
    return "; ".join(filter(None, (_written(spread), share, _ratio(results, case, name, RATE))))


def _transfers(results: Results) -> str:
    """Return a line for each system: GB/s of each operation, and how many times as fast ours is."""
    cases = {
        f"{work.title}, {said}": case_of(work, operation)
        for work in TRANSFERS
        for operation, said in OPERATIONS.items()
    }
    return _by_system(results, cases, BANDWIDTH)


def _sums(results: Results) -> str:
    return _by_system(results, {work.title: case_of(work) for work in ALL_REDUCES}, TIME)


def _by_system(results: Results, cases: Mapping[str, str], unit: Unit) -> str:
    """Return a line for each system that was measured in one of the cases, by their titles."""
    names = [name for name in SYSTEMS if any(results.figures(case, name) for case in cases.values())]
    rows = [(_title(name), *(_compared(results, case, name, unit) for case in cases.values())) for name in names]
    return _table((f"system, {unit.name}", *cases), rows) if rows else "not measured"


def _compared(results: Results, case: str, name: str, unit: Unit) -> str:
    if not results.figures(case, name):
        return ""
    return "; ".join(filter(None, (_written(_spread(results, case, name)), _ratio(results, case, name, unit))))


def _failures(results: Results) -> str:
    told = {each.system for each in (*results.measurements, *results.failures)}
    rows = [
        (each.work, _title(each.system), str(each.round), " ".join(each.reason.split())[:200].replace("|", "/"))
        for each in results.failures
    ]
    rows += [("all", _title(name), "", "not asked for in this run") for name in SYSTEMS if name not in told]
    if not rows:
        return "Every measurement gave a figure."
    return _table(("work", "system", "round", "why there is no figure"), rows)


def _spread(results: Results, case: str, name: str) -> Spread:
    return Spread.of(each.figure for each in results.figures(case, name).values())


def _title(name: str) -> str:
    title = SYSTEMS[name].title
    return f"**{title}**" if name in MADE_BY_OURS else title


def _ratio(results: Results, case: str, name: str, unit: Unit) -> str:
    """Return how many times as fast as a peer ours is, over the rounds; "" for ours."""
    ratios = [] if name == OURS else results.ratios(case, OURS, name, lower_is_better=unit.lower_is_better)
    return f"{_written(Spread.of(ratios), digits=2)} x as fast" if ratios else ""


def _written(spread: Spread, digits: int | None = None) -> str:
    """Return a median and its spread.

    >>> _written(Spread(12345.6, 9.0, 20000.0, 3)), _written(Spread(1.234, 1.0, 2.0, 3), 2)
    ('12,346 (9 to 20,000)', '1.23 (1.00 to 2.00)')
    """
    median, low, high = (
        short(value) if digits is None else f"{value:.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return median if spread.count == 1 else f"{median} ({low} to {high})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
