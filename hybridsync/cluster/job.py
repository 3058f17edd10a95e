"""Says which flags a job for a cluster takes, and what it is made of. Pure.

The clusters differ in what they ask for: Slurm and Ray need the number of hosts, ssh a file that names them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hybridsync.core.errors import ConfigError

LOCAL, SLURM, RAY, SSH = "local", "slurm", "ray", "ssh"
CLUSTERS = (LOCAL, SLURM, RAY, SSH)
"""Values of --cluster; with `LOCAL` the command trains by itself."""

BELONGS = {
    "hosts": (SLURM, RAY, SSH),
    "certs": (SLURM, RAY, SSH),
    "slots": (SLURM, RAY, SSH),
    "collectives_network": (SLURM, RAY, SSH),
    "sbatch": (SLURM,),
    "ray_address": (RAY,),
    "cpus_per_host": (RAY,),
    "gpus_per_host": (RAY,),
}
"""Flag -> the clusters that it is for."""


@dataclass(frozen=True)
class Job:
    """Holds what each host of a job is started with.

    Args:
      num_hosts: number of hosts of the run.
      workdir: the run's workdir, the same path on all hosts.
      certs: folder that holds a folder of certificates for each host, named by its index.
      flags: flags of `hybridsync host`, except those that give the host's index.
    """

    num_hosts: int
    workdir: str
    certs: str
    flags: tuple[str, ...]


def check_flags(cluster: str, given: Collection[str]) -> None:
    """Refuse flags that belong to another cluster, and a cluster without its hosts.

    Args:
      cluster: one of `CLUSTERS`.
      given: names of the flags on the command line.

    Raises:
      ConfigError: one is of another cluster, or `hosts` is missing.

    >>> check_flags("slurm", ["workers", "hosts", "sbatch"])
    >>> check_flags("ray", ["hosts", "sbatch"])
    Traceback (most recent call last):
    hybridsync.core.errors.ConfigError: --sbatch is for --cluster=slurm, and this is --cluster=ray; leave it out
    """
    for name, clusters in BELONGS.items():
        if name in given and cluster not in clusters:
            change = "leave it out" if cluster != LOCAL else "name the cluster, or leave it out"
            suited = " or ".join(filter(None, (", ".join(clusters[:-1]), clusters[-1])))
            raise ConfigError(f"--{name} is for --cluster={suited}, and this is --cluster={cluster}; {change}")
    if cluster != LOCAL and "hosts" not in given:
        wanted = "--hosts=FILE, a file with an address a line" if cluster == SSH else "--hosts=N, the number of hosts"
        raise ConfigError(f"--cluster={cluster} is told of no hosts; add {wanted}")


def number_of_hosts(cluster: str, hosts: str) -> int:
    """Return the number of hosts that `--hosts` asks for.

    Raises:
      ConfigError: the text is not a number above 0.

    >>> number_of_hosts("slurm", "2")
    2
    """
    if not (hosts.isascii() and hosts.isdigit()) or int(hosts) < 1:
        raise ConfigError(
            f"--hosts={hosts} is no number of hosts; --cluster={cluster} takes how many, 1 or more, and "
            f"--cluster={SSH} takes a file"
        )
    return int(hosts)


def check_workdir_path(workdir: str) -> None:
    """Refuse a workdir that means another folder on another host.

    Raises:
      ConfigError: the path is relative.
    """
    if not workdir.startswith("/"):
        raise ConfigError(
            f"--workdir={workdir} is relative, and every host has to find the same folder; write its whole path, "
            f'on a file system that all hosts share, such as --workdir="$PWD/{workdir.removeprefix("~/")}"'
        )


def commands_for_certificates(folder: str, num_hosts: int) -> str:
    r"""Return the shell line that makes the certificates of a run's hosts.

    >>> commands_for_certificates("certs", 1)
    'hybridsync certs init --folder=certs/0'
    >>> print(commands_for_certificates("certs", 3).replace("; ", ";\n"))
    hybridsync certs init --folder=certs/0;
    for host in {1..2};
    do hybridsync certs issue --folder=certs/0 --host=$host --out=certs/$host;
    done
    """
    init = f"hybridsync certs init --folder={folder}/0"
    if num_hosts == 1:
        return init
    issue = f"hybridsync certs issue --folder={folder}/0 --host=$host --out={folder}/$host"
    return f"{init}; for host in {{1..{num_hosts - 1}}}; do {issue}; done"
