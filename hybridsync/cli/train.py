"""Train a configuration: `hybridsync train --config=configs/digits_mlp.py --workdir=runs/digits`.

With --cluster the same line trains on several hosts: --cluster=slurm --hosts=2 submits a job and shows what it prints,
--cluster=ray --hosts=2 places the hosts on a Ray cluster, and --cluster=ssh --hosts=FILE starts them by ssh.

The same program is every role: started by a person it supervises; started by a supervisor it finds its role in the
environment. Exit codes: 0 complete, 75 saved (run again), 1 refused input, 70 our fault.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
import threading

from absl import flags, logging

from hybridsync.cli import cluster_flags
from hybridsync.cli.command import reports_errors, run
from hybridsync.cli.standard_streams import outlast
from hybridsync.cluster.job import LOCAL, check_flags
from hybridsync.config import load_config, load_values
from hybridsync.config.recipes import located
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_PREEMPTED, ConfigError, HybridSyncError
from hybridsync.core.paths import local_path
from hybridsync.runtime.agent.fork_server import ForkServer, connect
from hybridsync.runtime.agent.host_resources import check_xla_flags
from hybridsync.runtime.cluster_spec import ClusterSpec
from hybridsync.runtime.end_signals import WARNINGS, Parent, handled
from hybridsync.runtime.processes import ROLE_MODULES, Launch, play, supervise
from hybridsync.runtime.role.compilation_cache import OFF, open_cache, use_cache
from hybridsync.runtime.role.role_pipe import Child
from hybridsync.runtime.user_output import say
from hybridsync.runtime.wiring import AUTO, COLLECTIVES, LINKS
from hybridsync.workdir.auto_plan import planned

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "configuration file, or recipe:NAME, for example recipe:digits_mlp", required=True)
flags.DEFINE_string("workdir", None, "where checkpoints, events and the summary go", required=True)
flags.DEFINE_string(
    "workers", None, "workers, or FEWEST..MOST for a run on several hosts; the configuration's by default"
)
flags.DEFINE_integer("servers", None, "parameter servers; the configuration's by default")
flags.DEFINE_string(
    "plan",
    None,
    "name[(key=value,...)][:12.5%|:3200u|:10passes],..., or auto: what hybridsync tune found",
)
flags.DEFINE_string("history", None, "hybridsync tune's file, for auto; the user's or $HYBRIDSYNC_HISTORY by default")
flags.DEFINE_integer("seed", None, "seed; the configuration's by default")
flags.DEFINE_multi_string("set", [], "path=value of any configuration value; may be repeated")
flags.DEFINE_enum("resume", "auto", ["auto", "must", "never"], "what to do with a used workdir")
flags.DEFINE_string("init_from", None, "workdir of a run whose parameters and optimizer state to start from")
flags.DEFINE_bool("convert_units", False, "allow a resume with another unit size")
flags.DEFINE_bool("accept_changes", False, "allow a resume with another model, loss or optimizer")
flags.DEFINE_enum("runtime", "processes", ["processes", "inprocess"], "a process for each role, or threads of one")
flags.DEFINE_float("checkpoint_secs", None, "seconds between saves; the configuration's by default")
flags.DEFINE_bool("apply_log", None, "record every update, for hybridsync replay")
flags.DEFINE_float("compute_secs", None, "emulate an accelerator that is busy this long for each unit")
flags.DEFINE_float("link_bytes_per_sec", None, "emulate a link of this speed at each worker: to servers, in rings")
flags.DEFINE_float("port_bytes_per_sec", None, "emulate a port of this speed at each server, shared by all workers")
flags.DEFINE_string(
    "stragglers",
    None,
    "worker=3,delay_ms=30,from=10%,to=30%[;...]: injected slowness; also factor, rpc_ms, bytes_per_sec, every and for, "
    "or a scenario: syncswitch-1, syncswitch-2",
)
flags.DEFINE_string(
    "momentum", None, "at a switch to asynchrony: keep, zero, scaled, ramp_linear, ramp_steps or ramp_stages"
)
flags.DEFINE_string("policy", None, "while there are stragglers in lock-step: baseline, greedy, elastic or rebalance")
flags.DEFINE_enum("platform", None, ["auto", "cpu", "cuda", "tpu"], "devices that the workers compute on")
flags.DEFINE_string("rate", None, "how the rate grows with the units of an update: linear or sqrt")
flags.DEFINE_string(
    "bind",
    "",
    "loopback address at whose ports the roles serve; left out, they serve on sockets that no other user can reach",
)
flags.DEFINE_enum(
    "collective",
    AUTO,
    COLLECTIVES,
    "how worker processes sum: host (gloo, TCP), shm (shared memory), or the faster one",
)
flags.DEFINE_enum(
    "link",
    AUTO,
    LINKS,
    "how buffers go between processes: grpc, shm (shared memory), tcp (between hosts), or the faster of the first two",
)
flags.DEFINE_integer("threads_per_role", 0, "threads of XLA in each role's process; 0: the host's cores / workers")
flags.DEFINE_string(
    "compilation_cache",
    "",
    "folder of compiled programs, yours alone, or off; $HYBRIDSYNC_COMPILATION_CACHE or your cache folder by default",
)
flags.DEFINE_enum(
    "switch",
    "live",
    ["live", "restart"],
    "at a planned switch: continue in the same processes, or save and start all again",
)
flags.DEFINE_integer("metrics_port", 0, "port at which Prometheus finds the run's figures; 0 for none")
flags.DEFINE_string("metrics_bind", "127.0.0.1", "address of that port; other users of the machine can read it")
flags.DEFINE_integer("port", 0, "port of the chief, at --bind or 127.0.0.1; 0 takes a free one")
flags.adopt_module_key_flags(cluster_flags)

LOOK_SECS = 1.0
"""Between two looks at whether the parent of a run of threads has ended."""
_SHORT = {
    "servers": "servers",
    "plan": "plan",
    "seed": "seed",
    "checkpoint_secs": "checkpoint.secs",
    "apply_log": "telemetry.apply_log",
    "compute_secs": "emulation.compute_secs",
    "link_bytes_per_sec": "emulation.link_bytes_per_sec",
    "port_bytes_per_sec": "emulation.port_bytes_per_sec",
    "stragglers": "emulation.stragglers",
    "momentum": "policy.momentum",
    "policy": "policy.online",
    "rate": "policy.rate",
    "platform": "devices.platform",
}


def launch_of_flags(
    supervises: bool = False, program: str = "hybridsync.cli.train", cluster: ClusterSpec | None = None
) -> Launch:
    """Return what the flags ask for, checked.

    Args:
      supervises: whether this process is to start roles, and so must not load JAX: the file's values are read alone.
      program: module that plays the roles.
      cluster: this host's place among several; None for a run on one host.

    Raises:
      ConfigError: the file, a value, the plan or the address cannot be used.
      WorkdirError: a workdir is in an object store.
    """
    for name in ("workdir", "init_from", "history"):
        if FLAGS[name].value == "":
            what = "file" if name == "history" else "directory"
            raise ConfigError(f"--{name} is empty; name a {what}, or leave the flag out")
    short = [f"{path}={FLAGS[flag].value}" for flag, path in _SHORT.items() if FLAGS[flag].value is not None]
    if FLAGS.workers is not None:
        fewest, dots, most = FLAGS.workers.rpartition("..")
        short += [f"workers={most}", *([f"min_workers={fewest}"] if dots else [])]
    overrides = FLAGS.set + short
    # Before the file runs: it may change the working directory, in every role's process.
    file, workdir = located(FLAGS.config), local_path(FLAGS.workdir)
    init_from = local_path(FLAGS.init_from) if FLAGS.init_from else None
    history = str(local_path(FLAGS.history)) if FLAGS.history else None
    cache = FLAGS.compilation_cache
    cache = cache if cache in ("", OFF) else str(local_path(cache))
    loaded = (load_values if supervises else load_config)(file, overrides)
    config = planned(loaded.config, file, say, history=history, workdir=workdir)
    named = [f"--config={file}", f"--workdir={workdir}", *([f"--init_from={init_from}"] if init_from else [])]
    return Launch(
        dataclasses.replace(loaded, config=config),
        file=file,
        workdir=workdir,
        resume=FLAGS.resume,
        init_from=init_from,
        convert_units=FLAGS.convert_units,
        accept_changes=FLAGS.accept_changes,
        bind=FLAGS.bind,
        port=FLAGS.port,
        collective=FLAGS.collective,
        link=FLAGS.link,
        threads_per_role=FLAGS.threads_per_role,
        compilation_cache=cache,
        restarts=FLAGS.switch == "restart",
        metrics_port=FLAGS.metrics_port,
        metrics_bind=FLAGS.metrics_bind,
        argv=(*sys.argv[1:], *named, f"--plan={config.plan}"),  # the plan is looked up once for all roles
        program=program,
        cluster=cluster,
    )


def train_here(launch: Launch) -> int:
    """Train in this process; a signal that asks for the end and that of the parent save. Returns the exit code."""
    trainer: Trainer | None = None
    asked, parent = threading.Event(), Parent()

    def save_and_stop() -> None:
        asked.set()
        if trainer is not None:
            trainer.preempt()

    def on_signal(number: int, _: object) -> None:
        if number not in WARNINGS:
            signal.signal(number, signal.SIG_DFL)  # a second one does not wait
        save_and_stop()

    def follow_parent() -> None:
        while not (asked.wait(LOOK_SECS) or parent.has_ended()):
            continue
        save_and_stop()

    with handled(on_signal):
        threading.Thread(target=follow_parent, name="parent", daemon=True).start()
        from hybridsync.trainer import Trainer

        use_cache(open_cache(launch.compilation_cache, None, say))
        run = launch.run(with_callbacks=True)
        trainer = Trainer(
            run.task,
            run.optimizer,
            run.config,
            workdir=run.workdir,
            resume=launch.resume,
            init_from=launch.init_from,
            **launch.allowed,
            file=run.file,
            callbacks=run.callbacks,
        )
        if asked.is_set():  # nothing has begun that could be saved
            return EXIT_PREEMPTED
        try:
            return EXIT_COMPLETED if trainer.fit().summary.is_over else EXIT_PREEMPTED
        except SystemExit as error:  # of the user's code: its exit code says nothing of the run
            raise HybridSyncError(f"the run was broken off by user code: SystemExit: {error}") from error


def main(argv: list[str]) -> int:
    """Run what the flags and the environment ask for."""
    outlast()
    logging.set_verbosity(logging.WARNING)
    line = connect()
    return start(argv) if line is None else be_role(line)


@reports_errors
def start(argv: list[str]) -> int:
    """Start the run that the command line asks for."""
    if len(argv) > 1:
        raise ConfigError(f"unexpected argument {argv[1]!r}; every option is written --name=value")
    check_xla_flags()
    for name in ("collective", "link", "switch", "threads_per_role", "metrics_port"):
        if FLAGS.runtime == "inprocess" and FLAGS[name].value != FLAGS[name].default:
            raise ConfigError(
                f"--{name}={FLAGS[name].value} is for processes, and --runtime=inprocess has threads; leave one of "
                "both out"
            )
    check_flags(FLAGS.cluster, [name for name in FLAGS if FLAGS[name].present])
    if FLAGS.cluster != LOCAL:
        return cluster_flags.submit(lambda cluster: launch_of_flags(supervises=True, cluster=cluster))
    try:
        with handled(_leave):  # until the run has begun, which handles them itself
            if FLAGS.runtime == "processes":
                return supervise(launch_of_flags(supervises=True))
            return train_here(launch_of_flags())
    except KeyboardInterrupt as asked:
        say(f"{asked}: the command ends, and no run is under way")
        return EXIT_PREEMPTED


def _leave(number: int, _: object) -> None:
    # Not SystemExit: a configuration file that raises it has made a mistake.
    raise KeyboardInterrupt(signal.Signals(number).name)


def be_role(line: ForkServer | Child) -> int:
    """Be the role that a supervisor has started, or its fork server, which becomes many."""
    load = functools.cache(launch_of_flags)
    child = line if isinstance(line, Child) else None
    try:
        if isinstance(line, ForkServer):
            load()  # what it imports is there for every role
            child = line.serve(*ROLE_MODULES)
        assert child is not None
        return play(child, load)
    except HybridSyncError as error:
        if child is not None:
            return child.report_error(error)
        say(f"error: {error}")
        return error.exit_code


if __name__ == "__main__":
    run(sys.modules[__name__])
