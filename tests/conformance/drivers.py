"""How the conformance suite runs a configuration: one driver for each runtime, all with one interface.

A runtime joins the suite by its line in `DRIVERS`; whatever it cannot do is a failure of the suite, not an option.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hybridsync.config import apply_overrides, load_config
from hybridsync.lab.simulator.simulation import simulate
from hybridsync.trainer import Trainer
from hybridsync.training.run import Run
from tests.multiprocess.job import Job

PLAIN_OUTER = "outer_rate=1,outer_momentum=0,scale=0"


def counting(name: str, steps: int = 50) -> str:
    """Return a protocol as it counts units: an outer optimizer as plain descent of rate 1, every step at the full rate.

    Args:
      name: of a protocol.
      steps: of a worker by itself, where the protocol has such.
    """
    return {
        "diloco": f"diloco(steps={steps},{PLAIN_OUTER})",
        "localsgd": f"localsgd(steps={steps})",
        "psplus": "psplus(modulation=schedule)",
    }.get(name, name)


Summary = dict[str, Any]
Driver = Callable[[str, Sequence[str], Path], Summary]
"""(configuration file, `key=value` overrides, fresh workdir) -> what summary.json says at the end."""


def run_in_process(config_path: str, overrides: Sequence[str], workdir: Path) -> Summary:
    """Run as `Trainer.fit()` does: threads of this process."""
    Trainer.from_config(config_path, overrides, workdir=workdir, progress=False).fit()
    return json.loads((workdir / "summary.json").read_text())


def run_in_processes(config_path: str, overrides: Sequence[str], workdir: Path, *flags: str) -> Summary:
    """Run as `python -m launch.train` does with `flags`: a process for each role."""
    with Job(workdir, config_path, *(f"--set={value}" for value in overrides), *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
        return job.summary()


def run_simulated(config_path: str, overrides: Sequence[str], workdir: Path) -> Summary:
    """Run as `python -m launch.simulate --gradients=real` does: in virtual time."""
    loaded = load_config(config_path)
    config = apply_overrides(loaded.config, overrides)
    task, optimizer = loaded.module.task(config), loaded.module.optimizer(config)
    simulate(Run(config, task, optimizer, workdir, Path(config_path)), gradients="real")
    return json.loads((workdir / "summary.json").read_text())


DRIVERS: dict[str, Driver] = {
    "inprocess": run_in_process,
    "processes": run_in_processes,
    "simulator": run_simulated,
}
