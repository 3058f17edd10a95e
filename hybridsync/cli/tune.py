"""Search for a job's switch point: `hybridsync tune --config=configs/digits_async_hurts.py --runtime=simulator`.

Binary search over the share of BSP (the offline policy of Sync-Switch, ICDCS 2021). Every run is recorded; a search
that was killed continues when the same command is given again. `--plan=auto` of the other launchers takes the answer.
Exit codes: 0 found, 75 stopped and saved (run again), 1 refused input, 70 our fault.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags, logging
from rich.console import Console

from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import outlast
from hybridsync.config import LoadedConfig, RunConfig, load_config, load_values
from hybridsync.config.recipes import located
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_PREEMPTED, ConfigError
from hybridsync.core.paths import local_path
from hybridsync.lab.tuning.auto_plan import job_of
from hybridsync.lab.tuning.search import Runner
from hybridsync.lab.tuning.search_rules import Rules, Search, length_of, plan_of
from hybridsync.lab.tuning.search_table import next_line, table, verdict_lines
from hybridsync.lab.tuning.session import RUNTIMES, default_folder, search_in
from hybridsync.runtime.end_signals import handled
from hybridsync.workdir.auto_plan import is_auto

if TYPE_CHECKING:
    from hybridsync.training.run import Run

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "configuration file, or recipe:NAME, for example recipe:digits_mlp", required=True)
flags.DEFINE_enum("runtime", "simulator", RUNTIMES, "virtual time with real gradients, threads, or processes")
flags.DEFINE_integer("runs", 5, "runs of each setting; fewer are made where fewer make it clear")
flags.DEFINE_float("tolerance", 0.01, "how far below the target's accuracy a setting may be, absolute")
flags.DEFINE_integer("settings", 4, "shares tried at most")
flags.DEFINE_float("target", None, "accuracy to reach; by default the mean of as many runs of pure BSP")
flags.DEFINE_float("doubt", 0.01, "chance at which a setting ends early although all its runs would say otherwise")
flags.DEFINE_enum("accuracy", "end", ["end", "converged"], "accuracy that judges a run: at its end, or converged")
flags.DEFINE_integer("confirm", 0, "search in the simulator, and confirm its answer by so many runs of --runtime")
flags.DEFINE_string("scenario", None, "simulated cluster, as configs/scenarios/straggler.py; equal workers without")
flags.DEFINE_string("history", None, "file of the job history; $HYBRIDSYNC_HISTORY or a user-wide one by default")
flags.DEFINE_string("workdir", None, "folder for the search's runs; below runs/tune by default")
flags.DEFINE_integer("workers", None, "workers; the configuration's by default")
flags.DEFINE_integer("servers", None, "parameter servers; the configuration's by default")
flags.DEFINE_integer("seed", None, "seed of each setting's first run; the configuration's by default")
flags.DEFINE_multi_string("set", [], "path=value of any configuration value; may be repeated")


def overrides() -> list[str]:
    """Return what the flags change of the configuration; makes their paths whole.

    Raises:
      ConfigError: a flag is empty, or goes with another runtime.
    """
    for name in ("scenario", "history", "workdir"):
        path: str | None = FLAGS[name].value
        if path == "":
            raise ConfigError(f"--{name} is empty; give it a value, or leave the flag out")
        if path is not None and name != "scenario":
            FLAGS[name].value = str(local_path(path))
    if FLAGS.scenario and FLAGS.runtime != "simulator" and not FLAGS.confirm:
        raise ConfigError(f"--scenario is simulated, but --runtime={FLAGS.runtime}; leave one of them out")
    if FLAGS.confirm < 0 or (FLAGS.confirm and FLAGS.runtime == "simulator"):
        raise ConfigError(
            f"--confirm={FLAGS.confirm} with --runtime={FLAGS.runtime}: it counts runs that are not "
            "simulated; give 1 or more with --runtime=inprocess or processes, or leave it out"
        )
    names = ("workers", "servers", "seed")
    return FLAGS.set + [f"{name}={FLAGS[name].value}" for name in names if FLAGS[name].value is not None]


def runner_of(
    runtime: str,
    loaded: LoadedConfig,
    changes: tuple[str, ...],
    folder: Path,
    *,
    file: Path,
    scenario: Path | None,
) -> Runner:
    """Return what makes the runs; JAX is loaded when the first of them begins."""
    config = loaded.config

    def run_of(config: RunConfig) -> Run:
        from hybridsync.runtime.role.compilation_cache import open_cache, use_cache
        from hybridsync.training.run import Run

        use_cache(open_cache("", None, functools.partial(print, file=sys.stderr)))  # each run compiles the same
        return Run(config, *loaded.build(config), None, file)

    if runtime == "processes":
        from hybridsync.lab.tuning.process_runner import ProcessRuns

        return ProcessRuns(loaded, file, changes, folder)
    if runtime == "inprocess":
        from hybridsync.lab.tuning.inprocess_runner import InProcessRuns

        return InProcessRuns(run_of, config, folder)
    from hybridsync.lab.simulator.cluster import Scenario
    from hybridsync.lab.simulator.scenarios import load_scenario
    from hybridsync.lab.tuning.simulated_runner import SimulatedRuns

    cluster = load_scenario(scenario) if scenario else Scenario()
    cluster.check(config.workers, config.servers)
    return SimulatedRuns(run_of, config, cluster, FLAGS.scenario or "equal workers", folder)


def search_here(console: Console) -> None:
    """Search as the flags ask for, and print each step and the answer."""
    rules = Rules(FLAGS.target, FLAGS.tolerance, FLAGS.settings, FLAGS.runs, FLAGS.doubt, accuracy=FLAGS.accuracy)
    changes = tuple(overrides())
    supervises = FLAGS.runtime == "processes" and not FLAGS.confirm
    file, here = located(FLAGS.config), Path.cwd()  # before the file runs, which may change the working directory
    scenario = located(FLAGS.scenario, kind="scenario") if FLAGS.scenario else None
    loaded = (load_values if supervises else load_config)(file, changes)
    config = loaded.config
    loaded = dataclasses.replace(loaded, config=dataclasses.replace(config, plan="bsp") if is_auto(config) else config)
    job = job_of(loaded.config, file)
    base = Path(FLAGS.workdir) if FLAGS.workdir else here / default_folder(job)

    def watch(search: Search) -> None:
        if search.missing is not None:
            console.print(next_line(search))

    def search_by(runtime: str, rules: Rules) -> Search:
        folder = base / runtime
        runner = runner_of(runtime, loaded, changes, folder, file=file, scenario=scenario)
        search = search_in(folder, job, loaded.config, rules, runner, history=FLAGS.history, watch=watch)
        console.print(table(search))
        for line in verdict_lines(search):
            console.print(line)
        if runtime != "processes":  # there JAX and the data are the runs' alone
            source = loaded.build(loaded.config)[0].source
            console.print(length_of(search.share, loaded.config.workload, loaded.config.unit_size, source.num_examples))
        return search

    if not FLAGS.confirm:
        search_by(FLAGS.runtime, rules)
        return
    simulated = search_by("simulator", rules)
    console.print(f"confirming {plan_of(simulated.share)} by runs of {FLAGS.runtime}")
    confirming = dataclasses.replace(rules, target=simulated.target, hint=simulated.share, runs=FLAGS.confirm)
    search_by(FLAGS.runtime, confirming)


@reports_errors
def main(argv: list[str]) -> int:
    """Search for what the command line names."""
    outlast()  # the answer is in the history
    logging.set_verbosity(logging.WARNING)
    try:
        if len(argv) > 1:
            raise ConfigError(f"unexpected argument {argv[1]!r}; every option is written --name=value")
        width = None if sys.stdout.isatty() else 240  # a file is not folded
        with handled(signal.default_int_handler):
            search_here(Console(markup=False, highlight=False, soft_wrap=True, width=width))
    except KeyboardInterrupt:
        print("stopped: every finished run is recorded; give the command again to go on", file=sys.stderr)
        return EXIT_PREEMPTED
    return EXIT_COMPLETED


if __name__ == "__main__":
    run(sys.modules[__name__])
