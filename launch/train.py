"""Train a configuration: `python -m launch.train --config=configs/digits_mlp.py --workdir=runs/digits`.

The same program is every role: started by a person it supervises; started by a supervisor it finds its role in the
environment. Exit codes: 0 complete, 75 saved (run again), 1 refused input, 70 our fault.
"""

from __future__ import annotations

import dataclasses
import importlib
import ipaddress
import signal
import sys
from pathlib import Path

from absl import app, flags, logging

from hybridsync import protocols
from hybridsync.config import LoadedConfig, apply_overrides, load_config
from hybridsync.errors import EXIT_COMPLETED, EXIT_PREEMPTED, AddressError, ConfigError, HybridSyncError
from hybridsync.plan import Plan
from hybridsync.runtime.child import Child, RoleSpec

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "configuration file, for example configs/digits_mlp.py", required=True)
flags.DEFINE_string("workdir", None, "where checkpoints, events and the summary go", required=True)
flags.DEFINE_integer("workers", None, "workers; the configuration's by default")
flags.DEFINE_integer("servers", None, "parameter servers; the configuration's by default")
flags.DEFINE_string("plan", None, "name[(key=value,...)][:share%],...; the configuration's by default")
flags.DEFINE_integer("seed", None, "seed; the configuration's by default")
flags.DEFINE_multi_string("set", [], "path=value of any configuration value; may be repeated")
flags.DEFINE_enum("resume", "auto", ["auto", "must", "never"], "what to do with a used workdir")
flags.DEFINE_string("init_from", None, "workdir of a run whose parameters and optimizer state to start from")
flags.DEFINE_bool("convert_units", False, "allow a resume with another unit size")
flags.DEFINE_enum("runtime", "processes", ["processes", "inprocess"], "a process for each role, or threads of one")
flags.DEFINE_float("checkpoint_secs", None, "seconds between saves; the configuration's by default")
flags.DEFINE_bool("apply_log", None, "record every update, for launch.replay")
flags.DEFINE_float("compute_secs", None, "emulate an accelerator that is busy this long for each unit")
flags.DEFINE_string("stragglers", None, "worker=3,delay_ms=30,from=10%,to=30%[;...]: injected slowness")
flags.DEFINE_string("bind", "127.0.0.1", "address to serve on; loopback only until TLS and a token exist")
flags.DEFINE_integer("port", 0, "port of the chief; 0 takes a free one")

_SHORT = {
    "workers": "workers",
    "servers": "servers",
    "plan": "plan",
    "seed": "seed",
    "checkpoint_secs": "checkpoint.secs",
    "apply_log": "telemetry.apply_log",
    "compute_secs": "emulation.compute_secs",
    "stragglers": "emulation.stragglers",
}


def loaded_config() -> LoadedConfig:
    """Return the configuration file with all overrides applied and checked.

    Raises:
      ConfigError: the file, a value, the plan or the address cannot be used.
    """
    loaded = load_config(FLAGS.config)
    short = [f"{path}={FLAGS[flag].value}" for flag, path in _SHORT.items() if FLAGS[flag].value is not None]
    config = apply_overrides(loaded.config, FLAGS.set + short)
    for stage in Plan.parse(config.plan).stages:
        protocols.resolve(stage)
    try:
        local = FLAGS.bind == "localhost" or ipaddress.ip_address(FLAGS.bind).is_loopback
    except ValueError:
        local = False
    if not local:
        raise AddressError(
            f"--bind={FLAGS.bind} is refused: it is not a loopback address, and TLS and a token do not exist yet; "
            "use --bind=127.0.0.1"
        )
    if not 0 <= FLAGS.port <= 65535:
        raise ConfigError(f"--port={FLAGS.port} is not a port; use 1 to 65535, or 0 for a free one")
    return dataclasses.replace(loaded, config=config)


def build_run(loaded: LoadedConfig):
    """Return the run of a configuration; the first place that imports JAX."""
    from hybridsync.run import Run

    config = loaded.config
    module = loaded.module
    run = Run(config, module.task(config), module.optimizer(config), Path(FLAGS.workdir), Path(FLAGS.config))
    run.check()
    return run


def run_role(child: Child, spec: RoleSpec, loaded: LoadedConfig) -> int:
    """Be one role of a running job; returns the exit code."""
    match spec.role:
        case "chief":
            from hybridsync.runtime.chief_process import run_chief

            return run_chief(
                build_run(loaded),
                resume=FLAGS.resume,
                init_from=Path(FLAGS.init_from) if FLAGS.init_from else None,
                convert_units=FLAGS.convert_units,
                address=f"{spec.host}:{FLAGS.port}",
                coordinator=spec.coordinator,
                report=lambda fields: child.report(**fields),
                screen=sys.stdout,
            )
        case "server":
            from hybridsync.runtime.server_process import run_server

            return run_server(spec, build_run(loaded))
        case _:
            from hybridsync.runtime.worker_process import run_worker

            return run_worker(spec, lambda: build_run(loaded))


def supervise(loaded: LoadedConfig) -> int:
    """Start every role and watch them; returns the exit code."""
    from hybridsync.resuming import check_workdir
    from hybridsync.rpc.chief import ChiefClient
    from hybridsync.runtime.supervisor import Supervisor, SupervisorSpec

    config, workdir = loaded.config, Path(FLAGS.workdir)
    check_workdir(workdir, config, resume=FLAGS.resume, convert_units=FLAGS.convert_units)
    spec = SupervisorSpec(tuple(sys.argv[1:]), workdir, config.workers, config.servers, FLAGS.bind)
    return Supervisor(spec, lambda address: ChiefClient(address, deadline_secs=5.0)).run()


def train_here(loaded: LoadedConfig) -> int:
    """Train in this process; SIGTERM and SIGINT save and stop. Returns the exit code."""
    from hybridsync.trainer import Trainer

    run = build_run(loaded)
    trainer = Trainer(
        run.task,
        run.optimizer,
        run.config,
        workdir=run.workdir,
        resume=FLAGS.resume,
        init_from=FLAGS.init_from,
        convert_units=FLAGS.convert_units,
        file=run.file,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: trainer.preempt())
    return EXIT_COMPLETED if trainer.fit().completed else EXIT_PREEMPTED


def main(argv: list[str]) -> int:
    """Run what the flags and the environment ask for."""
    logging.set_verbosity(logging.WARNING)
    child = Child.attach()
    try:
        if len(argv) > 1:
            raise ConfigError(f"unexpected argument {argv[1]!r}; every option is written --name=value")
        loaded = loaded_config()
        if child is not None:
            import_role(child.role)
            return run_role(child, child.spec(), loaded)
        return supervise(loaded) if FLAGS.runtime == "processes" else train_here(loaded)
    except HybridSyncError as error:
        if child is not None:
            return child.report_error(error)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def import_role(role: str) -> None:
    """Load what `role` needs while the chief is still starting."""
    importlib.import_module(f"hybridsync.runtime.{role}_process")


if __name__ == "__main__":
    app.run(main)
