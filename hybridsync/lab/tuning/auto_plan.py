"""The plan `auto`: the switch point that a search has found for this job, or the command that searches for one."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridsync.config import RunConfig, load_values, to_json
from hybridsync.config.resume_rules import leaf_differences
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import NoAnswer
from hybridsync.lab.tuning.job_history import AnswerRecord, History, Where, default_place
from hybridsync.lab.tuning.recurring_job import Job, of_config, of_task
from hybridsync.lab.tuning.search_rules import percent, plan_of
from hybridsync.telemetry.summary import read_config
from hybridsync.workdir.auto_plan import AUTO

if TYPE_CHECKING:
    from hybridsync.training.run import Run

EMBEDDED = "hybridsync.tune(task, optimizer, ...) with this Trainer's arguments"
"""How a switch point is searched for in a program that has no configuration file."""
REAL = ("processes", "inprocess", "simulator")
SIMULATED = ("simulator", "processes", "inprocess")
"""Runtimes whose answers are preferred, the best first."""

_SIGNED = ("workers", "unit_size", "workload", "model", "data", "optimizer", "policy", "emulation")


def written_out(
    config: RunConfig,
    source: Path | Run,
    say: Callable[[str], object],
    *,
    history: str | Path | None = None,
    workdir: Path | None = None,
    prefer: tuple[str, ...] = REAL,
) -> RunConfig:
    """Return a configuration whose plan is `auto` with the plan that a search for its job has found.

    A run that has begun keeps the plan it began with, whatever has been found since.

    Args:
      config: configuration with the plan `auto`.
      source: configuration file that it was resolved from, or the run that it belongs to.
      say: called with a line about the source of the plan.
      history: file to look in; None or an empty one takes the default place.
      workdir: workdir of the run; None or an unused one begins a new run.
      prefer: runtimes whose answers to take, the best first; of one runtime the newest.

    Raises:
      NoAnswer: no search has been run for this job's switch point; the message contains the command for one.
      HistoryError: the history cannot be read.
      WorkdirError: the workdir's record cannot be read.
      ConfigError: a value of the run is impossible.
    """
    job = job_of(config, source)
    begun = read_config(workdir) if workdir is not None else None
    if begun is not None and begun["config"].get("plan", AUTO) != AUTO:
        plan = begun["config"]["plan"]
        say(f"plan {plan}, as this run began")
        return dataclasses.replace(config, plan=plan)
    place = Path(history) if history else default_place()
    opened = History.existing(place, SYSTEM_CLOCK)
    answers = []
    if opened is not None:
        with opened:
            answers = opened.answers(job)
    if not answers:
        file = source if isinstance(source, Path) else source.file
        raise NoAnswer(
            f"plan 'auto': no search has found a switch point for this job ({job.name}, {config.workers} workers, "
            f"{config.workload:,} units of {config.unit_size}) in {place}; run {_command(config, file, history)}"
        )
    where, answer = min(answers, key=lambda found: prefer.index(found[0].runtime))
    plan = plan_of(answer.share)
    say(_about(plan, where, answer))
    return dataclasses.replace(config, plan=plan)


def job_of(config: RunConfig, source: Path | Run) -> Job:
    """Return the job of a run: by its configuration file where it has one, else by what its task and optimizer say.

    Args:
      config: configuration of the run, whatever its plan.
      source: its configuration file, or the run.

    Raises:
      ConfigError: a value of the run is impossible.
    """
    if isinstance(source, Path):
        return of_config(config, source.stem)
    run = dataclasses.replace(source, config=dataclasses.replace(config, plan="bsp"))
    run.check()  # before its task is looked at
    if run.file is not None:
        return of_config(config, run.file.stem)
    import jax

    state, optimizer = run.abstract_state(), run.optimizer
    leaves = {jax.tree_util.keystr(path): str(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    known = {
        "hyperparameters": optimizer.stated_values(),
        "clip": optimizer.clip,
        "rates": optimizer.sampled_rates(config.unit_size, config.workload),
    }
    model = {"state": leaves, "values": to_json(config)["model"]}
    return of_task(config, model, run.describe_source(), known)


def _about(plan: str, where: Where, answer: AnswerRecord) -> str:
    sure = "" if answer.confidence is None else f", confidence {answer.confidence:.0%}"
    runs = {"simulator": "simulated runs", "inprocess": "runs in one process", "processes": "runs of processes"}
    return f"plan {plan}: {percent(answer.share)} found in {answer.runs} {runs[where.runtime]}{sure}"


def _command(config: RunConfig, file: Path | None, history: str | Path | None) -> str:
    """Return what to run for an answer: the command line that makes this configuration of its file."""
    if file is None:
        return EMBEDDED
    before, now = to_json(load_values(file).config), to_json(config)
    changes = [
        f"--set={path}={_text(value)}"
        for name in _SIGNED
        for path, _, value in leaf_differences(name, before[name], now[name])
    ]
    place = [f"--history={history}"] if history else []
    return shlex.join(["hybridsync", "tune", f"--config={file}", *changes, *place])


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)
