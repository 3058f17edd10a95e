"""Identifies a recurring job: makes the key under which a switch point is looked up.

    >>> from hybridsync.config import PolicyConfig, RunConfig
    >>> job = of_config(RunConfig(workload=4000, plan="bsp", seed=3), "digits")
    >>> job.digest == of_config(RunConfig(workload=4000, plan="asp", seed=4), "digits").digest
    True
    >>> job.digest == of_config(RunConfig(workload=4000, policy=PolicyConfig(momentum="zero")), "digits").digest
    False
    >>> job.digest == of_config(RunConfig(workload=4001), "digits").digest
    False

The seed and the plan are what runs of one job differ in; servers, checkpoints and telemetry change nothing that is
learned from a unit. Emulated slowness changes how stale gradients are: it is part of where a run is made
(`hybridsync.lab.tuning.job_history.Where`), as a simulated cluster is.

Source: Sync-Switch (ICDCS 2021): a job recurs with the same model, data, number of workers, batch, optimizer and work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridsync.config.resume_rules import to_json
from hybridsync.config.run_config import RunConfig

_DIGITS = 16


@dataclass(frozen=True)
class Job:
    """A recurring job.

    Args:
      name: name for people: the stem of its configuration file.
      text: signature of the job as JSON: model, data, workers, unit_size, optimizer, workload, momentum and rate.
    """

    name: str
    text: str

    @property
    def digest(self) -> str:
        """The signature in 16 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGITS]


def of_config(config: RunConfig, name: str) -> Job:
    """Return the job of a configuration file; needs no JAX.

    The file stands for what its functions build, so another file is another job, whatever its values.

    Args:
      config: resolved configuration of the run.
      name: stem of the file.
    """
    values = to_json(config)
    model = {"file": name, type(config.model).__name__: values["model"]}
    return _job(name, config, model, {type(config.data).__name__: values["data"]}, values["optimizer"])


def of_task(config: RunConfig, model: Mapping[str, Any], data: Mapping[str, Any], optimizer: Mapping[str, Any]) -> Job:
    """Return the job of a task that no configuration file describes.

    Args:
      config: resolved configuration of the run.
      model: known properties of its parameters.
      data: description of the data by its source.
      optimizer: known properties of the optimizer.
    """
    return _job("embedded", config, model, data, optimizer)


def _job(name: str, config: RunConfig, model: Any, data: Any, optimizer: Any) -> Job:
    policy = {name: getattr(config.policy, name) for name in ("momentum", "ramp", "rate")}
    if not config.policy.momentum.startswith("ramp"):  # it is not read, and older signatures have this default
        policy["ramp"] = 0.05
    if config.policy.shares:  # another batch; left out where it is not, so that older signatures stay
        policy["shares"] = config.policy.shares
    if config.policy.online != "baseline":
        policy |= {"online": config.policy.online, "most_units": config.policy.most_units}
    if config.policy.guard != "on":
        policy["guard"] = config.policy.guard
    signature = {
        "model": model,
        "data": data,
        "workers": config.workers,
        "unit_size": config.unit_size,
        "optimizer": optimizer,
        "workload": config.workload,
        "policy": policy,
    }
    return Job(name, json.dumps(signature, sort_keys=True))
