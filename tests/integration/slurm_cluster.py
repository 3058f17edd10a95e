"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, all of this user's, below one folder."""

from __future__ import annotations

import getpass
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.debian import environment
from tests.integration.hosts_run import wait_for
from tests.ports import free_ports

PACKAGES = (
    "munge",
    "libmunge2",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "libhwloc15",
    "liblua5.1-0",
)
START_SECS = 60

CONFIG = """
ClusterName=hybridsync
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state/controller
SlurmdSpoolDir={folder}/state/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=60
KillWait=5
InactiveLimit=0
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    """Holds where the commands of a running Slurm are found."""

    folder: Path
    environ: dict[str, str]

    def call(self, *command: object, timeout: float = 60) -> str:
        """Return what a command of Slurm's prints; it has to succeed."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted((self.folder / "log").iterdir())
        )


@contextmanager
def started(root: Path, folder: Path, nodes: dict[str, str]) -> Iterator[SlurmCluster]:
    """Run Slurm.

    Args:
      root: of the unpacked packages.
      folder: for configuration, state and logs.
      nodes: name -> address of each node.
    """
    environ = environment(root) | {"SLURM_CONF": str(folder / "slurm.conf")}
    for name in ("run", "log", "state/controller"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    (folder / "run").chmod(0o755)
    ports = free_ports(len(nodes) + 1)
    lines = [
        f"NodeName={name} NodeHostname={hostname()} NodeAddr={address} Port={port} CPUs=4 RealMemory=2000"
        for (name, address), port in zip(nodes.items(), ports[1:], strict=True)
    ]
    (plugins,) = (root / "usr/lib").glob("*-linux-gnu/slurm-wlm")
    (folder / "slurm.conf").write_text(
        CONFIG.format(
            host=hostname(),
            controller_port=ports[0],
            folder=folder,
            user=getpass.getuser(),
            plugins=plugins,
            nodes="\n".join(lines),
            names=",".join(nodes),
        )
    )
    run, log, programs = folder / "run", folder / "log", root / "usr/sbin"
    munge = [f"--{name}={path}" for name, path in (("socket", run / "munge.socket"), ("pid-file", run / "munged.pid"))]
    munge += [f"--key-file={key}", f"--log-file={log / 'munged.log'}", f"--seed-file={folder / 'seed'}"]
    daemons = [
        [programs / "munged", "--foreground", "--force", *munge],
        [programs / "slurmctld-wlm", "-D", "-c"],
        *([programs / "slurmd-wlm", "-D", "-N", name, "-d", programs / "slurmstepd-wlm"] for name in nodes),
    ]
    with ExitStack() as stack:
        for daemon in daemons:
            stack.enter_context(daemon_of(daemon, environ, log))
            if not (run / "munge.socket").exists():
                wait_for((run / "munge.socket").exists, "munged's socket", (log / "munged.out").read_text, START_SECS)
        cluster = SlurmCluster(folder, environ)
        wait_for(lambda: is_idle(cluster, len(nodes)), "idle nodes", cluster.logs, START_SECS)
        try:
            yield cluster
        finally:  # a step outlives its slurmd
            cluster.call("scancel", "--user", getpass.getuser())
            wait_for(lambda: not cluster.call("squeue", "--noheader"), "end of all jobs", cluster.logs, START_SECS)


@contextmanager
def daemon_of(command: list[object], environ: dict[str, str], log: Path) -> Iterator[None]:
    """Run a daemon in the foreground; it is ended by its process id."""
    name = f"{Path(str(command[0])).name}.{command[3] if '-N' in command else 'out'}"
    with (
        (log / name).open("wb") as out,
        subprocess.Popen([str(word) for word in command], env=environ, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def is_idle(cluster: SlurmCluster, num_nodes: int) -> bool:
    """Whether every node waits for work."""
    told = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%t"],
        env=cluster.environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return told.stdout.split() == ["idle"] * num_nodes


def hostname() -> str:
    """Return this machine's name as Slurm takes it."""
    return os.uname().nodename.split(".")[0]
