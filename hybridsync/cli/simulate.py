"""Simulate a configuration in virtual time: `hybridsync simulate --config=configs/digits_mlp.py --workers=64`.

The very protocols, accounting and switches of a real run, with the time of a cluster that is described, not there.
`docs/simulate.md` describes what the model covers. Exit codes: 0 simulated, 1 refused input, 70 our fault, 130
interrupted.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
from pathlib import Path

from absl import flags, logging
from rich.console import Console

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import ends_with_its_reader
from hybridsync.config import RunConfig, apply_overrides, load_config, restore_values
from hybridsync.config.recipes import located
from hybridsync.core.counted import counted
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_INTERRUPTED, ConfigError
from hybridsync.core.paths import local_path
from hybridsync.lab.simulator.calibration import fit, read_measured
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.simulator.scenarios import load_scenario, write_scenario
from hybridsync.lab.simulator.study import Study
from hybridsync.lab.simulator.table import fitted_table, table
from hybridsync.lab.tuning.auto_plan import SIMULATED, written_out
from hybridsync.workdir.auto_plan import AUTO

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "configuration file, or recipe:NAME; that of the calibrating run by default")
flags.DEFINE_string("scenario", None, "scenario file, as configs/scenarios/straggler.py; equal workers without")
flags.DEFINE_string("calibrate", None, "workdir of a finished real run to fit the cluster to")
flags.DEFINE_string(
    "plan",
    None,
    "name[(key=value,...)][:12.5%|:3200u|:10passes],..., or auto: what hybridsync tune found",
)
flags.DEFINE_string("history", None, "hybridsync tune's file, for auto; the user's or $HYBRIDSYNC_HISTORY by default")
flags.DEFINE_string("compare", None, "plans to put side by side, separated by semicolons")
flags.DEFINE_integer("workers", None, "workers; the configuration's by default")
flags.DEFINE_integer("servers", None, "parameter servers; the configuration's by default")
flags.DEFINE_integer("seeds", 1, "how many seeds of each plan, from --seed on")
flags.DEFINE_integer("seed", None, "first seed of the run and of every draw; the configuration's by default")
flags.DEFINE_enum(
    "gradients",
    "none",
    ["none", "real", "compiled"],
    "time alone; every gradient on the version it would see; or the same in compiled blocks behind the schedule",
)
flags.DEFINE_string("workdir", None, "fresh directory for what a real run leaves; without one, the table only")
flags.DEFINE_string("events", None, "file that gets every decision as a line of JSON")
flags.DEFINE_string("write_scenario", None, "with --calibrate: file for the fitted cluster")
flags.DEFINE_string("stragglers", None, "injected slowness, as for hybridsync train; the configuration's by default")
flags.DEFINE_multi_string("set", [], "path=value of any configuration value; may be repeated")


def overrides() -> list[str]:
    """Return what the flags change of the configuration."""
    names = {name: name for name in ("plan", "workers", "servers", "seed")} | {"stragglers": "emulation.stragglers"}
    return FLAGS.set + [f"{path}={FLAGS[flag].value}" for flag, path in names.items() if FLAGS[flag].value is not None]


def check() -> None:
    """Refuse flags that do not go together, and make their paths whole.

    Raises:
      ConfigError: two flags do not go together.
    """
    for name in ("scenario", "calibrate", "workdir", "events", "write_scenario", "compare", "history"):
        if FLAGS[name].value == "":
            raise ConfigError(f"--{name} is empty; give it a value, or leave the flag out")
    for name in ("calibrate", "workdir", "events", "write_scenario", "history"):
        path: str | None = FLAGS[name].value
        if path is not None:  # before the file runs, which may change the working directory
            FLAGS[name].value = str(local_path(path))
    if not FLAGS.config and not FLAGS.calibrate:
        raise ConfigError("nothing was named to simulate; give --config=FILE or --calibrate=RUN")
    if FLAGS.write_scenario and not FLAGS.calibrate:
        raise ConfigError("--write_scenario writes what --calibrate=RUN fits; name a run, or leave it out")
    if FLAGS.plan and FLAGS.compare:
        raise ConfigError(f"--plan={FLAGS.plan} and --compare={FLAGS.compare} both name plans; give one of them")


def simulate_here(console: Console) -> None:
    """Simulate what the flags ask for and print the table; JAX is loaded when everything has been checked."""
    file = located(FLAGS.config) if FLAGS.config else None
    scenario = load_scenario(located(FLAGS.scenario, kind="scenario")) if FLAGS.scenario else Scenario()
    about = FLAGS.scenario or "equal workers"
    measured = read_measured(Path(FLAGS.calibrate)) if FLAGS.calibrate else None
    file = file or Path(measured.file if measured else "")
    loaded = load_config(file, () if measured else overrides())
    base = restore_values(loaded.config, measured.config) if measured else loaded.config
    config = apply_overrides(base, overrides())
    plans = tuple(plan.strip() for plan in (FLAGS.compare or config.plan).split(";") if plan.strip())
    if AUTO in plans:
        asked = dataclasses.replace(config, plan=AUTO)
        found = written_out(asked, file, console.print, history=FLAGS.history, prefer=SIMULATED).plan
        plans = tuple(found if plan == AUTO else plan for plan in plans)
    config = dataclasses.replace(config, plan=plans[0]) if plans else config
    if config.emulation.stragglers:
        about += f", stragglers {config.emulation.stragglers}"
    study = Study(config, plans, FLAGS.seeds, scenario=scenario, about=about, gradients=FLAGS.gradients)

    from hybridsync.lab.simulator.campaign import carry_out
    from hybridsync.lab.simulator.simulation import sizes_of
    from hybridsync.training.run import Run

    def run_of(config: RunConfig) -> Run:
        return Run(config, *loaded.build(config), None, file)

    if measured:
        fitted = fit(measured, sizes_of(run_of(base)))
        about = f"{about}, fitted to {FLAGS.calibrate}"
        study = dataclasses.replace(study, scenario=fitted.onto(scenario), about=about)
        console.print(f"fitted to {FLAGS.calibrate}, which took {measured.summary['seconds']:.1f} s:")
        console.print(fitted_table(fitted))
        if FLAGS.write_scenario:
            write_scenario(FLAGS.write_scenario, fitted.onto(Scenario()), f"The cluster of the run {FLAGS.calibrate}.")
    workdir, events = (Path(path) if path else None for path in (FLAGS.workdir, FLAGS.events))
    columns = carry_out(study, run_of, workdir=workdir, events=events, terminal=sys.stderr)
    roles = f"{counted(config.workers, 'worker')}, {counted(config.servers, 'server')}"
    console.print(f"{roles}, {config.workload:,} units; {about}")
    console.print(table(columns))
    if workdir:
        console.print(f"everything is in {workdir}")


@ends_with_its_reader
@reports_errors
def main(argv: list[str]) -> int:
    """Simulate what the command line asks for."""
    logging.set_verbosity(logging.WARNING)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a script's shell has it ignored
    try:
        if len(argv) > 1:
            raise ConfigError(f"unexpected argument {argv[1]!r}; every option is written --name=value")
        check()
        width = None if sys.stdout.isatty() else 240  # a file is not folded
        simulate_here(Console(markup=False, highlight=False, soft_wrap=True, width=width))
    except KeyboardInterrupt:
        print("interrupted: nothing was simulated to its end", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
