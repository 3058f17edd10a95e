"""The page's tables: a run's facts, its account, its phases, its stalls and what went otherwise."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from hybridsync.config.resume_rules import flattened
from hybridsync.core.counted import counted, duration
from hybridsync.lab.report.lanes import GLYPHS
from hybridsync.lab.report.model import RunModel, differing
from hybridsync.lab.report.scales import ids, millis, number

ACCOUNT = ("issued", "applied", "dropped", "outstanding", "rolled_back")


def table(head: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]], figures: Sequence[str] = ()) -> str:
    """Return a table in a frame that scrolls by itself.

    Args:
        head: names of the columns.
        rows: index of the run, then a cell of ready HTML for each column.
        figures: names of the columns that hold figures.
    """
    kinds = [' class="figure"' if name in figures else "" for name in head]
    top = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(head, kinds, strict=True))
    body = "".join(
        f'<tr data-run="{run}">'
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, kinds, strict=True))
        + "</tr>"
        for run, cells in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(runs: Sequence[RunModel]) -> str:
    """Return what each run was asked to do and how it ended; of several runs a row each, with what differs."""
    if len(runs) == 1:
        return _pairs(_facts(runs[0]) | _more_facts(runs[0]))
    told = [_facts(run) for run in runs]
    name_of = "exit"
    shown = {"plan", "workers", "servers", "unit_size", "workload", "seed"}  # facts of their own
    configs = [run.record.values for run in runs]
    flat = [flattened(config) for config in configs]
    for key in differing(configs):
        for one, values in zip(told, flat, strict=True):
            if key not in shown:
                one[key] = escape(str(values.get(key, "-")))
    for one, run in zip(told, runs, strict=True):
        one[name_of] = exit_badge(run)
    names = list(dict.fromkeys(name for one in told for name in one))
    differ = [name for name in names if name != name_of and len({one.get(name, "-") for one in told}) > 1]
    same = {name: told[0][name] for name in names if name != name_of and name not in differ}
    rows = [
        (
            at,
            [
                f'<i class="swatch k{run.color}"></i>{escape(run.name)}',
                *(one.get(name, "-") for name in (name_of, *differ)),
            ],
        )
        for at, (run, one) in enumerate(zip(runs, told, strict=True))
    ]
    together = f'<p class="note">The same in all {len(runs)} runs:</p>{_pairs(same)}' if same else ""
    return table(["run", "", *differ], rows) + together


def _pairs(told: Mapping[str, str]) -> str:
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{said}</dd></div>" for name, said in told.items())
    return f'<dl class="facts">{pairs}</dl>'


def groups(cells: Sequence[Sequence[str]], leads: Sequence[int]) -> str:
    """Return a row for each group of runs: mean and deviation of their figures.

    Args:
        cells: head of the table, then its rows, as texts.
        leads: index of each group's first run.
    """
    head, *rows = cells
    return table(head, [(run, [escape(cell) for cell in row]) for run, row in zip(leads, rows, strict=True)])


def exit_badge(run: RunModel) -> str:
    """Return how a run ended, coloured and in words, and whether it took place."""
    simulated = ", simulated" if run.record.simulation is not None else ""
    return f'<span class="badge {escape(run.exit)}">{escape(run.exit)}{simulated}</span>'


def _facts(run: RunModel) -> dict[str, str]:
    record = run.record
    config = record.values
    file = (record.config or {}).get("file")
    summary = record.summary if record.summary and run.exit != "unfinished" else {}
    last = record.metrics[-1] if record.metrics else {}
    found: dict[str, str] = {}
    units = (summary.get("units") or {}).get("applied", last.get("units", 0))
    workload = config.get("workload")
    found["units applied"] = f"{units:,}" + (f" of {workload:,}" if workload else "")
    found["examples"] = f"{summary.get('examples', last.get('examples', 0)):,}"
    secs = summary.get("seconds", run.secs)
    found["time"] = duration(secs) + ("" if summary else " so far")
    if run.start_up_secs is not None:
        found["start-up"] = duration(run.start_up_secs)
    figures = {key: value for key, value in (summary.get("final") or {}).items() if isinstance(value, int | float)}
    found |= {f"final {key}": number(value) for key, value in figures.items()}
    if summary.get("stop_reason"):
        found["stopped"] = escape(f"by a callback: {summary['stop_reason']}")
    taken = {name: secs for name, secs in (summary.get("callback_secs") or {}).items() if isinstance(secs, int | float)}
    if taken:
        each = ", ".join(f"{name} {duration(secs)}" for name, secs in taken.items())
        found["callbacks"] = escape(f"{each}, in a thread of their own")
    found["plan"] = escape(str(summary.get("plan") or config.get("plan", "-")))
    if config:
        found["roles"] = f"{counted(config['workers'], 'worker')}, {counted(config['servers'], 'server')}"
        found["unit"] = counted(config["unit_size"], "example")
        if optimizer := config.get("optimizer"):
            more = [f", {key} {optimizer[key]}" for key in ("momentum", "weight_decay", "clip") if optimizer.get(key)]
            rate = optimizer.get("learning_rate", "-")
            found["optimizer"] = escape(f"{optimizer.get('name', '-')}, rate {rate}{''.join(more)}")
        found["seed"] = escape(str(config.get("seed", "-")))
    found["configuration"] = escape(str(file)) if file else "-"
    if record.simulation is not None:
        computed = "time alone" if record.simulation.get("gradients") == "none" else "with real gradients"
        found["simulated"] = escape(f"{computed}; {record.simulation.get('scenario', '-')}")
    skipped = sum(event["places"] for event in record.events if event["kind"] == "evaluation_skipped")
    if run.evaluations or skipped:
        passed = f"; {counted(skipped, 'place')} passed without one" if skipped else ""
        found["evaluations"] = f"{len(run.evaluations)}{passed}"
    if share := _reading_share(record.metrics):
        found["waiting for data"] = f"{share} of the workers' time"
    if record.num_unreadable:
        found["left out"] = f"{counted(record.num_unreadable, 'line')} with something else than this run writes"
    versions = (record.config or {}).get("versions", {})
    shown = [f"{name} {versions[name]}" for name in ("hybridsync", "jax", "flax", "python") if versions.get(name)]
    if shown:
        found["versions"] = escape(", ".join(shown))
    return found


def _reading_share(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the share of the workers' time in which they waited for the data of a unit; "" where no line says it."""
    names = ("read_secs", "compute_secs", "wait_secs")
    read, *others = (sum(sum(line.get(name, {}).values()) for line in metrics) for name in names)
    known = any(line.get("read_secs") for line in metrics)
    return f"{read / (read + sum(others) or 1.0):.0%}" if known else ""


def _more_facts(run: RunModel) -> dict[str, str]:
    """Return what differs between any two runs, and says nothing beside other runs."""
    record = run.record
    found: dict[str, str] = {}
    if record.simulation is None and record.events:
        started = datetime.fromtimestamp(record.events[0]["wall"], UTC)
        found["started"] = f"{started:%Y-%m-%d %H:%M:%S} UTC"
    saved = [event for event in record.events if event["kind"] == "checkpoint"]
    if saved:
        found["checkpoints"] = f"{len(saved)}, the newest at unit {saved[-1]['units']:,}"
    return found


def account(runs: Sequence[RunModel]) -> str:
    """Return the ledger's account of each run, and whether it adds up."""
    rows = []
    for at, run in enumerate(runs):
        units = (run.record.summary or {}).get("units") if run.exit != "unfinished" else None
        if units is None:
            applied = run.record.metrics[-1]["units"] if run.record.metrics else 0
            rows.append((at, [escape(run.name), "-", f"{applied:,}", "-", "-", "-", "known at the run's end"]))
            continue
        adds_up = units["issued"] == units["applied"] + units["dropped"] + units["outstanding"]
        said = "adds up" if adds_up else '<span class="error">does not add up</span>'
        rows.append((at, [escape(run.name), *(f"{units[name]:,}" for name in ACCOUNT), said]))
    head = ["run", "issued", "= applied", "+ dropped", "+ outstanding", "rolled back", ""]
    return table(head, rows, head[1:])


def phases(runs: Sequence[RunModel]) -> str:
    """Return a row a phase."""
    head = [
        "run",
        "phase",
        "protocol",
        "reason",
        "workers",
        "from unit",
        "units",
        "time",
        "units/s",
        "rate",
        "units/update",
    ]
    rows = [
        (
            at,
            [
                escape(run.name),
                str(bar.phase),
                escape(bar.protocol),
                escape(bar.reason),
                ids(bar.members),
                f"{bar.units:,}",
                f"{bar.end_units - bar.units:,}",
                duration(bar.end - bar.begin),
                number((bar.end_units - bar.units) / (bar.end - bar.begin)) if bar.end > bar.begin else "-",
                number(bar.learning_rate),
                str(bar.units_per_update),
            ],
        )
        for at, run in enumerate(runs)
        for bar in run.phases
    ]
    return _one_run(runs, head, rows, [*head[5:], "phase"])


def hosts(runs: Sequence[RunModel]) -> str:
    """Return a row a host of the runs that ran on several; empty where none did."""
    head = ["run", "host", "workers", "units", "time there", "units/s there"]
    rows = [
        (
            at,
            [
                escape(run.name),
                escape(row.host),
                ids(row.workers),
                f"{row.units:,}",
                duration(row.secs),
                number(row.units / row.secs) if row.secs else "-",
            ],
        )
        for at, run in enumerate(runs)
        for row in run.hosts
    ]
    return _one_run(runs, head, rows, head[3:]) if rows else ""


def stalls(runs: Sequence[RunModel]) -> str:
    """Return a row a stall; those that no `switch` event tells of have the timeline's figure alone."""
    stages = ("drain", "capture", "reserve", "enter", "rest")
    head = ["run", "phase", "switch", "reason", "unit", *stages, "stall", "compile", "commit", "by the timeline"]
    rows = [
        (
            at,
            [
                escape(run.name),
                str(stall.phase),
                escape(f"{stall.before} to {stall.after}"),
                escape(stall.reason),
                f"{stall.units:,}",
                *(millis(stall.stages[stage]) if stall.stages else "-" for stage in stages),
                *(
                    "-" if secs is None else millis(secs)
                    for secs in (stall.secs, stall.compile_secs, stall.commit_secs, stall.timeline_secs)
                ),
            ],
        )
        for at, run in enumerate(runs)
        for stall in run.stalls
    ]
    return _one_run(runs, head, rows, [*head[4:], "phase"]) if rows else ""


def incidents(runs: Sequence[RunModel]) -> str:
    """Return a row for each incident; empty when nothing went otherwise than planned."""
    rows = [
        (
            at,
            [
                escape(run.name),
                duration(incident.t),
                str(incident.phase),
                f'<i class="mark {incident.sort}">{GLYPHS[incident.sort][0]}</i>'
                + escape(incident.kind.replace("_", " ")),
                escape(incident.text),
            ],
        )
        for at, run in enumerate(runs)
        for incident in run.incidents
    ]
    return _one_run(runs, ["run", "time", "phase", "event", "what happened"], rows, ["time", "phase"]) if rows else ""


def _one_run(
    runs: Sequence[RunModel], head: list[str], rows: list[tuple[int, list[str]]], figures: Sequence[str]
) -> str:
    """Return the table, without the column of names when there is one run."""
    if len(runs) > 1:
        return table(head, rows, figures)
    return table(head[1:], [(at, cells[1:]) for at, cells in rows], figures)
