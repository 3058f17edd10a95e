"""Says where a run stands, in lines for a terminal or as JSON; of one that is not asked, by what it has written.

A running chief answers with a `StatusReply` itself. For any other run the same value is made of its files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridsync.core.counted import counted, duration
from hybridsync.core.errors import WorkdirError
from hybridsync.interfaces.commands import Evaluation, Figure, HostUnits, MemberStatus, StatusReply
from hybridsync.telemetry.events import EVENTS_FILE, read_events
from hybridsync.telemetry.metrics import read_metrics
from hybridsync.telemetry.run_figures import Newest, RunFigures, follow
from hybridsync.telemetry.summary import CONFIG_FILE, read_config, read_summary

INTERRUPTED = "interrupted"
"""How a run ended that had no time to say so."""

STARTING, ENDING, UNREACHED = "starting", "ending", "running, not reachable"
"""States of a run that has its workdir locked, and that no command reaches."""


@dataclass(frozen=True)
class RunStatus:
    """Describes the current state of a run, and names it in a word or two."""

    state: str
    status: StatusReply


def answered(status: StatusReply) -> RunStatus:
    """Return where a run stands whose chief has answered."""
    return RunStatus("saving and stopping" if status.is_stopping else "running", status)


def written_status(workdir: Path, since: float | None = None) -> RunStatus:
    """Return where the run stands that `workdir` holds and no command reaches.

    Args:
      workdir: the run's workdir.
      since: time at which the holder of the workdir's lock took it, unix seconds; None if the workdir is not locked:
        the run has ended.

    Raises:
      WorkdirError: it holds no run, or a file of it is damaged.
    """
    try:
        config, summary = read_config(workdir), read_summary(workdir)
        events, lines = read_events(workdir), read_metrics(workdir)
    except OSError as error:
        raise WorkdirError(f"cannot read {error.filename}: {error.strerror}; give yourself access to it") from None
    if config is None or not events:
        raise WorkdirError(
            f"{workdir} holds no run: {CONFIG_FILE} or {EVENTS_FILE} is missing; name the --workdir of a run"
        )
    figures = RunFigures()
    try:
        follow(events, lines, figures)
        state, exited = _stands(events, since)
        summary = summary if exited else None
        status = _status(config["config"], summary, state, exited, figures.read())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WorkdirError(f"a file in {workdir} is damaged ({error!r:.120}); restore the damaged file") from error
    return RunStatus(state, status)


def _stands(events: list[dict[str, Any]], since: float | None) -> tuple[str, str]:
    """Return the state of a run, and how its last session ended; "" where it goes on, or had no time to say so."""
    last = [event for event in events if event["kind"] in ("run_started", "run_finished")][-1:]
    exited = last[0]["exit"] if last and last[0]["kind"] == "run_finished" else ""
    if since is None:
        return exited or INTERRUPTED, exited
    if not last or last[0]["wall"] < since:  # of an earlier session
        return STARTING, ""
    return (ENDING, exited) if exited else (UNREACHED, "")


def _status(
    config: dict[str, Any],
    summary: dict[str, Any] | None,
    state: str,
    exited: str,
    newest: Newest,
) -> StatusReply:
    applied = newest.units if newest.units >= 0 else max(0, newest.checkpoint_units)
    units = dict.fromkeys(("issued", "applied"), applied) | dict.fromkeys(("dropped", "outstanding", "rolled_back"), 0)
    units = {"workload": config["workload"], **units} if summary is None else summary["units"]
    places = [*(("server", i) for i in range(config["servers"])), *(("worker", i) for i in range(config["workers"]))]
    members = {STARTING: "starting", UNREACHED: "unknown"}.get(state, "gone")
    figures = dict(newest.figures)
    if summary is not None:
        figures |= {f"staleness_{name}": float(value) for name, value in summary["staleness"].items()}
    return StatusReply(
        exit=exited or (INTERRUPTED if state == INTERRUPTED else ""),
        phase=newest.phase,
        protocol=newest.protocol,
        reason=newest.reason,
        end_units=units["workload"],
        ordered="",
        is_stopping=False,
        **units,
        seconds=newest.t if summary is None else summary["seconds"],
        num_switches=newest.num_switches,
        stall_secs=newest.stall_secs,
        restarts=sum(newest.restarts.values()),
        checkpoint_units=newest.checkpoint_units,
        checkpoint_age_secs=max(0.0, newest.t - newest.checkpoint_t) if newest.checkpoint_units >= 0 else 0.0,
        checkpoint_bytes=newest.checkpoint_bytes,
        figures=tuple(Figure(*each) for each in figures.items()),
        evaluations=newest.evaluations,
        members=tuple(
            MemberStatus(
                role,
                role_id,
                "quarantined" if role == "worker" and role_id in newest.quarantined else members,
                newest.units_per_sec.get(role_id, 0.0) if role == "worker" else 0.0,
                newest.restarts.get((role, role_id), 0),
                host=newest.host_of(role, role_id),
            )
            for role, role_id in places
        ),
        hosts=tuple(HostUnits(*pair, count) for pair, count in newest.units_of(units["applied"]).items()),
    )


def as_json(found: RunStatus) -> dict[str, Any]:
    """Return a status as JSON holds it: figures by their names, and an empty list where nothing was measured."""
    status = found.status
    return {
        "state": found.state,
        **dataclasses.asdict(status),
        "figures": _by_name(status.figures),
        "evaluations": [{"units": each.units, **_by_name(each.figures)} for each in status.evaluations],
        "hosts": _by_host(status),
    }


def lines_of(found: RunStatus) -> list[str]:
    """Return the lines that a terminal shows of a status."""
    status = found.status
    rows = [
        ("run", f"{found.state}, {duration(status.seconds)}"),
        ("phase", _phase(status)),
        ("units", _units(status)),
        ("rate", _rate(status)),
        ("loss", _number(status.figure("loss"))),
        ("staleness", _staleness(status)),
        ("switches", f"{counted(status.num_switches, 'switch', 'switches')}, stalls of {duration(status.stall_secs)}"),
        ("restarts", f"{status.restarts}"),
        ("checkpoint", _checkpoint(status)),
        *(("evaluation", _evaluation(each)) for each in status.evaluations[-3:]),
        *(("host", _host(each, told)) for each, told in _by_host(status).items()),
        *((f"{member.role} {member.id}", _member(member)) for member in status.members),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {text}" for name, text in rows if text]


def _phase(status: StatusReply) -> str:
    if not status.phase:
        return "none yet"
    ordered = f"; {status.ordered} is ordered" if status.ordered else ""
    until = f" to unit {status.end_units:,}" if not status.exit else ""
    return f"{status.phase}: {status.protocol}{until} ({status.reason}){ordered}"


def _units(status: StatusReply) -> str:
    parts = [f"{status.applied:,} of {status.workload:,} applied", f"{status.issued:,} issued"]
    others = (("dropped", status.dropped), ("outstanding", status.outstanding), ("rolled back", status.rolled_back))
    return ", ".join([*parts, *(f"{number:,} {name}" for name, number in others)])


def _rate(status: StatusReply) -> str:
    rate = status.figure("units_per_sec")
    return "" if rate is None else f"{rate:.4g} units/s"


def _staleness(status: StatusReply) -> str:
    found = [(name, status.figure(f"staleness_{name}")) for name in ("mean", "p95", "max")]
    return ", ".join(f"{name} {value:.3g}" for name, value in found if value is not None)


def _checkpoint(status: StatusReply) -> str:
    if status.checkpoint_units < 0:
        return "none yet"
    ago = "" if status.exit else f", {duration(status.checkpoint_age_secs)} ago"
    return f"unit {status.checkpoint_units:,}{ago}"


def _evaluation(evaluation: Evaluation) -> str:
    figures = ", ".join(f"{each.name} {each.value:.4g}" for each in evaluation.figures)
    return f"unit {evaluation.units:,}: {figures}" if evaluation.units >= 0 else figures


def _by_host(status: StatusReply) -> dict[str, dict[str, Any]]:
    """Return what each host contributed, by its name; empty for a run on one host.

    `units_per_sec` is of the workers that are there now, `workers` has the units of all that have been there.
    """
    now = [member for member in status.members if member.host]
    found: dict[str, dict[str, Any]] = {
        host: {
            "units": sum(each.units for each in status.hosts if each.host == host),
            "units_per_sec": sum(member.units_per_sec for member in now if member.host == host),
            "workers": dict.fromkeys((member.id for member in now if member.host == host), 0),
        }
        for host in sorted({*(each.host for each in status.hosts), *(member.host for member in now)})
    }
    for each in status.hosts:
        found[each.host]["workers"][each.worker] = each.units
    return found


def _host(name: str, told: Mapping[str, Any]) -> str:
    rate = f", {told['units_per_sec']:.3g} units/s" if told["units_per_sec"] else ""
    workers = ", ".join(f"{worker}: {units:,}" for worker, units in sorted(told["workers"].items()))
    return f"{name}: {told['units']:,} units{rate} (worker {workers})"


def _member(member: MemberStatus) -> str:
    parts = [member.state]
    if member.host:
        parts.append(f"on {member.host}")
    if member.units_per_sec:
        parts.append(f"{member.units_per_sec:.3g} units/s")
    if member.is_slow:
        parts.append("slow")
    if member.restarts:
        parts.append(counted(member.restarts, "restart"))
    if member.pid:
        parts.append(f"pid {member.pid}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _by_name(figures: Iterable[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures}
