"""Finds out which host this is, how many there are and where the head is. Pure.

Flags come first, then `HYBRIDSYNC_HEAD`, `HYBRIDSYNC_INDEX` and `HYBRIDSYNC_HOSTS`, then the cluster manager's
environment: JobSet's or an indexed Job's, else Slurm's. If no source has a value, there is one host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hybridsync.cluster.hostlist import expand
from hybridsync.core.addresses import at_port
from hybridsync.core.errors import ConfigError

DEFAULT_PORT = 4711
"""Port of the head if none is named."""

_HEAD = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class Place:
    """Holds the place of one host in a run.

    Attributes:
      head: address of the head, host:port.
      index: index of this host, from 0; index 0 is the head.
      hosts: number of hosts.
    """

    head: str
    index: int
    hosts: int


class _Told(NamedTuple):
    """Holds a value and its source; the value is None if no source has it."""

    value: str | int | None
    origin: str


@dataclass(frozen=True)
class _Source:
    """Holds what one source says of a place."""

    head: _Told
    index: _Told
    hosts: _Told


def discover(
    environ: Mapping[str, str],
    *,
    head: str = "",
    index: int | None = None,
    hosts: int | str | None = None,
    port: int = DEFAULT_PORT,
) -> Place:
    """Find out this host's place in the run.

    Each of the three values comes from the first source that has it, so a flag may replace one value of Slurm's.

    Args:
      environ: the process's environment.
      head: value of --head: host:port or host; "" if absent.
      index: value of --index; None if absent.
      hosts: value of --hosts; None if absent.
      port: default port of the head.

    Raises:
      ConfigError: a value is not an address or not a number, only some of the values are given, the index is not below
        the number of hosts, or the values of a cluster manager contradict each other.

    >>> discover({})
    Place(head='127.0.0.1:4711', index=0, hosts=1)
    >>> slurm = {"SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_NUM_NODES": "3", "SLURMD_NODENAME": "node2"}
    >>> discover(slurm), discover(slurm, head="10.0.0.1:9000").head
    (Place(head='node1:4711', index=1, hosts=3), '10.0.0.1:9000')
    >>> discover({"HYBRIDSYNC_INDEX": "2"}, head="a", hosts=2)
    Traceback (most recent call last):
    hybridsync.core.errors.ConfigError: the index 2 (HYBRIDSYNC_INDEX) is not below the number of hosts 2 (--hosts); ...
    """
    sources = [
        _Source(_Told(head or None, "--head"), _Told(index, "--index"), _Told(hosts, "--hosts")),
        _own(environ),
        _manager(environ),
    ]
    where, which, many = (_first([getattr(source, name) for source in sources]) for name in ("head", "index", "hosts"))
    num_hosts = None if many.value is None else _number(many, at_least=1)
    if num_hosts == 1 and which.value is None:
        which = _Told(0, "the only host")
    if where.value is which.value is num_hosts is None:
        return Place(at_port("127.0.0.1", port), 0, 1)
    if num_hosts is None or which.value is None:
        raise ConfigError(_half(where, which, many))
    number = _number(which)
    if number >= num_hosts:
        raise ConfigError(
            f"the index {number} ({which.origin}) is not below the number of hosts {num_hosts} ({many.origin}); "
            "indexes count from 0"
        )
    if where.value is None and num_hosts > 1:
        raise ConfigError(_half(where, which, many))
    address = at_port("127.0.0.1", port) if where.value is None else _address(where, port)
    return Place(address, number, num_hosts)


def _first(told: list[_Told]) -> _Told:
    """Return what the first source says that says anything."""
    return next((each for each in told if each.value is not None), told[0])


def _half(where: _Told, which: _Told, many: _Told) -> str:
    """Say what is told and what is missing."""
    named = {"head": where, "index": which, "hosts": many}
    told = [f"{name} {each.value} ({each.origin})" for name, each in named.items() if each.value is not None]
    missing = [name for name, each in named.items() if each.value is None]
    flags = " and ".join(f"--{name} or HYBRIDSYNC_{name.upper()}" for name in missing)
    return f"the place of this host is half told: {', '.join(told)}, but no {' and no '.join(missing)}; set {flags}"


def _own(environ: Mapping[str, str]) -> _Source:
    """Return what HybridSync's own variables say."""
    return _Source(*(_variable(environ, f"HYBRIDSYNC_{name}") for name in ("HEAD", "INDEX", "HOSTS")))


def _manager(environ: Mapping[str, str]) -> _Source:
    """Return what the cluster manager says whose environment this is."""
    if any(environ.get(name) for name in ("JOBSET_COORDINATOR", "JOBSET_JOB_GLOBAL_INDEX", "JOBSET_GLOBAL_REPLICAS")):
        return _jobset(environ)
    if environ.get("SLURM_JOB_NODELIST"):
        return _slurm(environ)
    return _Source(_Told(None, ""), _variable(environ, "JOB_COMPLETION_INDEX"), _Told(None, ""))


def _jobset(environ: Mapping[str, str]) -> _Source:
    """Return what a pod of a JobSet is told: its controller writes annotations, the manifest passes them on.

    A host is a Job of one pod, so that a host is restarted alone.

    Raises:
      ConfigError: the Job has several pods.
    """
    index, pod = _variable(environ, "JOBSET_JOB_GLOBAL_INDEX"), environ.get("JOB_COMPLETION_INDEX") or "0"
    if pod != "0":
        raise ConfigError(
            f"JOB_COMPLETION_INDEX is {pod} in the Job whose JOBSET_JOB_GLOBAL_INDEX is {index.value}: that Job has "
            "several pods; give each Job parallelism 1 and completions 1, and use replicas for hosts"
        )
    return _Source(_variable(environ, "JOBSET_COORDINATOR"), index, _variable(environ, "JOBSET_GLOBAL_REPLICAS"))


def _slurm(environ: Mapping[str, str]) -> _Source:
    """Return what a task of a Slurm job is told.

    The index is the node's place in the list of the job: SLURM_NODEID counts within the step, so it is 0 on every node
    where each node has a step of its own.

    Raises:
      ConfigError: the list and the number of nodes differ, the list lacks this node, the task is not the only one of
        its node, or the step is a part of the job's nodes and no variable names this node.
    """
    text = environ["SLURM_JOB_NODELIST"]
    names, many = expand(text), _variable(environ, "SLURM_JOB_NUM_NODES")
    if many.value is not None and _number(many) != len(names):
        raise ConfigError(
            f"SLURM_JOB_NUM_NODES is {many.value}, but SLURM_JOB_NODELIST={text} names {len(names)}; leave both as "
            "Slurm sets them"
        )
    if (task := environ.get("SLURM_LOCALID") or "0") != "0":
        raise ConfigError(
            f"SLURM_LOCALID is {task}: several tasks run on one node, and a host has one agent; use --ntasks-per-node=1"
        )
    index, name = _variable(environ, "SLURM_NODEID"), environ.get("SLURMD_NODENAME")
    if name:
        if name not in names:
            raise ConfigError(
                f"SLURMD_NODENAME is {name}, but SLURM_JOB_NODELIST={text} does not name it; leave both as Slurm sets "
                "them"
            )
        index = _Told(names.index(name), "SLURMD_NODENAME")
    elif (step := environ.get("SLURM_STEP_NUM_NODES")) and step != str(len(names)) and index.value is not None:
        raise ConfigError(
            f"SLURM_NODEID={index.value} counts the {step} nodes of the step (SLURM_STEP_NUM_NODES), but the job has "
            f"{len(names)}; keep SLURMD_NODENAME, or set --index"
        )
    return _Source(_Told(names[0], "SLURM_JOB_NODELIST"), index, _Told(len(names), "SLURM_JOB_NODELIST"))


def _variable(environ: Mapping[str, str], name: str) -> _Told:
    """Return what a variable says; one that is empty says nothing."""
    return _Told(environ.get(name) or None, name)


def _number(told: _Told, at_least: int = 0) -> int:
    """Return a value as a number.

    Raises:
      ConfigError: the value is not a number, or is below `at_least`.
    """
    text = str(told.value)
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < at_least:
        raise ConfigError(f"{told.origin} is {text!r}; it is a whole number, {at_least} or more")
    return int(text)


def _address(told: _Told, port: int) -> str:
    """Return the address of the head with its port.

    Raises:
      ConfigError: the value is not an address.
    """
    found = _HEAD.fullmatch(str(told.value))
    number = port if found is None or found["port"] is None else int(found["port"])
    if found is None or not 0 < number < 65_536:
        raise ConfigError(
            f"the head {told.value!r} ({told.origin}) is no address; write host:port with a port of 1 to 65535, "
            f"for example node1:{DEFAULT_PORT}"
        )
    return at_port(found["six"] or found["host"], number)
