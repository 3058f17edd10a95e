"""The plan `auto`: the switch point that a search has found for this job, or the command that searches for one."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridsync.config import RunConfig, load_values, to_json
from hybridsync.config.resume_rules import leaf_differences
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import NoAnswer
from hybridsync.policies.recurring_job import Job, of_config, of_task
from hybridsync.policies.search_rules import percent, plan_of
from hybridsync.storage.job_history import AnswerRecord, History, Where, default_place
from hybridsync.telemetry.summary import read_config

if TYPE_CHECKING:
    from hybridsync.training.run import Run

AUTO = "auto"
EMBEDDED = "hybridsync.tune(task, optimizer, ...) with this Trainer's arguments"
"""How a switch point is searched for in a program that has no configuration file."""
REAL = ("processes", "inprocess", "simulator")
SIMULATED = ("simulator", "processes", "inprocess")
"""Runtimes whose answers are preferred, the best first."""

_SIGNED = ("workers", "unit_size", "workload", "model", "data", "optimizer", "policy", "emulation")


@dataclass(frozen=True)
class Recalled:
    """A configuration whose plan is written out, and where that comes from."""

    config: RunConfig
    about: str


def is_auto(config: RunConfig) -> bool:
    """Tell whether the plan is to be looked up."""
    return config.plan.strip() == AUTO


def recall(
    config: RunConfig,
    job: Job,
    *,
    history: str | Path | None = None,
    workdir: Path | None = None,
    prefer: tuple[str, ...] = REAL,
    file: Path | None = None,
) -> Recalled:
    """Return the configuration with the plan that a search for its job has found.

    A run that has begun keeps the plan it began with, whatever has been found since.

    Args:
      config: configuration with the plan `auto`.
      job: job of that configuration.
      history: file to look in; None or an empty one takes the default place.
      workdir: workdir of the run; None or an unused one begins a new run.
      prefer: runtimes whose answers to take, the best first; of one runtime the newest.
      file: the configuration file, for the command that searches; None for an embedded run.

    Raises:
      NoAnswer: no search has been run for this job's switch point; the message contains the command for one.
      HistoryError: the history cannot be read.
      WorkdirError: the workdir's record cannot be read.
    """
    begun = read_config(workdir) if workdir is not None else None
    if begun is not None and begun["config"].get("plan", AUTO) != AUTO:
        plan = begun["config"]["plan"]
        return Recalled(dataclasses.replace(config, plan=plan), f"plan {plan}, as this run began")
    place = Path(history) if history else default_place()
    opened = History.existing(place, SYSTEM_CLOCK)
    answers = []
    if opened is not None:
        with opened:
            answers = opened.answers(job)
    if not answers:
        raise NoAnswer(
            f"plan 'auto': no search has found a switch point for this job ({job.name}, {config.workers} workers, "
            f"{config.workload:,} units of {config.unit_size}) in {place}; run {_command(config, file, history)}"
        )
    where, answer = min(answers, key=lambda found: prefer.index(found[0].runtime))
    plan = plan_of(answer.share)
    return Recalled(dataclasses.replace(config, plan=plan), _about(plan, where, answer))


def written_out(config: RunConfig, file: Path, say: Callable[[str], object], **options: Any) -> RunConfig:
    """Return the configuration of a file with its plan written out: as it is, unless the plan is `auto`.

    Args:
      config: resolved from the file.
      file: the configuration file.
      say: called with a line about the source of the plan.
      **options: `history`, `workdir` and `prefer`, as of `recall`.

    Raises:
      HybridSyncError: as `recall`.
    """
    if not is_auto(config):
        return config
    recalled = recall(config, job_of(config, file), file=file, **options)
    say(recalled.about)
    return recalled.config


def job_of(config: RunConfig, file: Path) -> Job:
    """Return the job of a configuration file's run."""
    return of_config(config, file.stem)


def job_of_run(run: Run) -> Job:
    """Return the job of a run: by its configuration file where it has one, else by what its task and optimizer say."""
    if run.file is not None:
        return job_of(run.config, run.file)
    import jax

    state, optimizer = run.abstract_state(), run.optimizer
    leaves = {jax.tree_util.keystr(path): str(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    known = {
        "hyperparameters": optimizer.stated_values(),
        "clip": optimizer.clip,
        "rates": optimizer.sampled_rates(run.config.unit_size, run.config.workload),
    }
    model = {"state": leaves, "values": to_json(run.config)["model"]}
    return of_task(run.config, model, run.describe_source(), known)


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
