"""Flags about the hosts of a run, which `hybridsync train` and `hybridsync host` share, and the job that they make."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from hybridsync.cluster.job import (
    BELONGS,
    CLUSTERS,
    LOCAL,
    RAY,
    SLURM,
    SSH,
    Job,
    check_workdir_path,
    commands_for_certificates,
    number_of_hosts,
)
from hybridsync.core.errors import ConfigError
from hybridsync.core.paths import local_path
from hybridsync.runtime.cluster_spec import PRIVATE, ClusterSpec
from hybridsync.runtime.user_output import say
from hybridsync.workdir.resuming import check_workdir

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridsync.runtime.processes import Launch

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "cluster",
    LOCAL,
    CLUSTERS,
    "where the run's hosts are: local, this machine alone; or what provides them",
)
flags.DEFINE_string(
    "hosts", None, "number of hosts; with --cluster=ssh a file with an address a line, the head's first"
)
flags.DEFINE_string(
    "certs",
    None,
    "folder of certificates (see hybridsync certs): this host's; with --cluster one that has a folder for each host, "
    "0, 1, ..., which slurm and ray make in the workdir where it is left out",
)
flags.DEFINE_integer("slots", 0, "workers that a host may have; 0 for its share of them", lower_bound=0)
flags.DEFINE_enum(
    "collectives_network",
    "",
    ["", PRIVATE],
    "private: the network between the hosts has no other users, so gloo may carry sums there in plain text",
)
flags.DEFINE_string("sbatch", "", "further options of sbatch, such as '--partition=gpu --time=4:00:00'")
flags.DEFINE_string("ray_address", "auto", "of the Ray cluster, HOST:PORT; auto for the one that this machine is in")
flags.DEFINE_float("cpus_per_host", 1, "CPUs that Ray gives each host", lower_bound=0)
flags.DEFINE_float("gpus_per_host", 0, "GPUs that Ray gives each host", lower_bound=0)

OF_THE_JOB = ("cluster", "hosts", "certs", "sbatch", "ray_address", "cpus_per_host", "gpus_per_host")
"""Flags that are not passed to the hosts: the job script passes their values in another way, or they are the
scheduler's."""

ANY_ADDRESS = "the address of each host"
"""Stands for an address that other machines can reach, while a cluster manager has not yet named the hosts."""


def check_one_host() -> None:
    """Refuse flags of a whole job to the command of one of its hosts.

    Raises:
      ConfigError: such a flag is given.
    """
    for name in ("cluster", *(name for name in OF_THE_JOB if len(BELONGS.get(name, CLUSTERS)) == 1)):
        if FLAGS[name].present:
            raise ConfigError(f"--{name} is for hybridsync train, which starts every host of a job; leave it out")


def submit(launch_of: Callable[[ClusterSpec], Launch]) -> int:
    """Have a cluster train what the flags ask for; returns the run's exit code.

    What can be refused is refused here, before a job waits for its turn.

    Args:
      launch_of: returns what is launched on a host.

    Raises:
      HybridSyncError: refused, or the cluster has not carried the job out.
    """
    cluster = FLAGS.cluster
    if FLAGS.runtime != "processes":
        raise ConfigError(
            f"--runtime={FLAGS.runtime} is for one machine, and this is --cluster={cluster}; leave it out"
        )
    check_workdir_path(FLAGS.workdir)
    return {SLURM: _slurm, RAY: _ray, SSH: _ssh}[cluster](launch_of)


def _slurm(launch_of: Callable[[ClusterSpec], Launch]) -> int:
    from hybridsync.submission import slurm

    slurm.check_slurm()
    job, launch = _shared_job(launch_of)
    show = functools.partial(print, flush=True)
    return slurm.train(job, FLAGS.sbatch, functools.partial(_prepare, job, launch), say, show)


def _ray(launch_of: Callable[[ClusterSpec], Launch]) -> int:
    from hybridsync.submission import ray_hosts

    ray_hosts.check_ray()
    job, launch = _shared_job(launch_of)
    _prepare(job, launch)
    return ray_hosts.train(job, address=FLAGS.ray_address, cpus=FLAGS.cpus_per_host, gpus=FLAGS.gpus_per_host)


def _ssh(launch_of: Callable[[ClusterSpec], Launch]) -> int:
    """Become the script; this machine need not share the hosts' file system, so it looks at no workdir there."""
    from hybridsync.submission import ssh

    hosts = local_path(FLAGS.hosts)
    addresses = ssh.read_addresses(hosts)
    if not FLAGS.certs:
        made = commands_for_certificates("certs", len(addresses))
        raise ConfigError(
            f"--certs is missing; make certificates with: {made}; give each host its own folder at the same path, and "
            'write --certs="$PWD/certs"'
        )
    launch = launch_of(_cluster_spec(len(addresses), addresses[0], FLAGS.certs))
    ssh.train(hosts, Job(len(addresses), FLAGS.workdir, FLAGS.certs, (*_passed_on(launch),)))


def _shared_job(launch_of: Callable[[ClusterSpec], Launch]) -> tuple[Job, Launch]:
    """Return the job of a cluster whose file system this machine shares, and what its hosts launch."""
    num_hosts = number_of_hosts(FLAGS.cluster, FLAGS.hosts)
    certs = FLAGS.certs or f"{local_path(FLAGS.workdir)}/certs"
    launch = launch_of(_cluster_spec(num_hosts, ANY_ADDRESS, certs))
    return Job(num_hosts, str(launch.workdir), os.path.abspath(certs), (*_passed_on(launch, "resume"),)), launch


def _prepare(job: Job, launch: Launch) -> None:
    """Make what a job finds in its workdir.

    The resume is checked here, once: an agent that is started again, or a job that comes from the queue again,
    continues.

    Raises:
      HybridSyncError: the workdir or the certificates cannot be used.
    """
    from hybridsync.submission import shared_workdir

    certs = Path(job.certs)
    shared_workdir.check_shared(launch.workdir)
    check_workdir(launch.workdir, launch.config, resume=launch.resume, **launch.allowed)
    if FLAGS.certs:
        shared_workdir.check_certificates(certs, job.num_hosts)
    shared_workdir.make_logs(launch.workdir)
    if not FLAGS.certs and shared_workdir.make_certificates(certs, job.num_hosts):
        say(f"made certificates of the run's hosts in {certs}, for you alone")


def _cluster_spec(num_hosts: int, address: str, certs: str) -> ClusterSpec:
    """Return the place of the head, as far as it is known before the job begins."""
    return ClusterSpec(
        f"{address}:0",
        0,
        num_hosts,
        address=address,
        certificates=local_path(certs),
        slots=FLAGS.slots,
        collectives_network=FLAGS.collectives_network,
    )


def _passed_on(launch: Launch, *but: str) -> Iterator[str]:
    """Yield the flags of this command line that each host is passed; the plan is looked up once for all hosts."""
    for name in sorted(FLAGS):
        flag = FLAGS[name]
        if flag.present and name not in (*OF_THE_JOB, *but, "plan", "history", "flagfile"):
            values = flag.value or () if isinstance(flag, flags.MultiFlag) else [flag.value]
            yield from (f"--{name}={value}" for value in values)
    yield f"--plan={launch.config.plan}"
