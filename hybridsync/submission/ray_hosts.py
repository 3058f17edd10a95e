"""Trains on the nodes of a Ray cluster: Ray places and restarts the agents of HybridSync's hosts.

Each node that takes part has one actor, and the actor has the agent as its child. Ray makes an actor again that dies,
and repeats its call. Ray is the scheduler here: its own trainers are not used.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridsync.cluster.job import Job
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.counted import counted
from hybridsync.core.errors import (
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    EXIT_REFUSED,
    AddressError,
    ConfigError,
    HybridSyncError,
    WaitTimeout,
)
from hybridsync.runtime.user_output import say

FINAL = (EXIT_COMPLETED, EXIT_REFUSED, EXIT_PREEMPTED)
"""The run has ended with one of these, and not only this agent."""

PLACE_SECS = 600.0
"""How long nodes may be waited for."""

BEGIN_SECS = 60.0
"""A refusal within this time ends the job, since its cause stays. A later one does not."""

LEAVE_SECS = 60.0
"""How long the other agents may take to end after the head, from which they hear of the end."""

REFUSED_SECS = 5.0
"""The same, behind a head that was refused: it may never have served, and they look for it."""


class Host:
    """Runs the agent of one host, and starts it again when it dies. `save` comes while `run` waits: in two threads.

    The lock guards the agent and whether it is asked to save: no agent starts behind that word.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agent: subprocess.Popen[bytes] | None = None
        self._is_asked = False

    def address(self) -> str:
        """Return the address of this node."""
        return _ray().util.get_node_ip_address()

    def free_port(self) -> int:
        """Return a port that is free at this moment; the head keeps it for the whole run."""
        with socket.socket() as free:
            free.bind((self.address(), 0))
            return free.getsockname()[1]

    def run(self, arguments: list[str], folder: str) -> int:
        """Run the agent until the run has ended, and return the run's exit code.

        Args:
          arguments: arguments of `hybridsync host`, except the address.
          folder: folder in which it runs, as on the machine of the user's command.
        """
        if not Path(folder).is_dir():
            say(f"error: this node has no folder {folder}; start the job in one that all nodes share")
            return EXIT_REFUSED
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        while True:
            # An actor that is killed leaves no agent that would stand in the way of the next one.
            command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "hybridsync", "host"]
            command += [f"--address={self.address()}", *arguments]
            with self._lock:
                if self._is_asked:  # before there was a run to save, or behind the death of its agent, which could not
                    return EXIT_PREEMPTED if self._agent is None else EXIT_FAILED
                agent = self._agent = subprocess.Popen(command, env=environ, cwd=folder)
            code = agent.wait()
            if code in FINAL:
                return code
            with self._lock:
                if self._is_asked:  # SIGTERM ends an agent that has not begun; anything else has kept it from saving
                    return EXIT_PREEMPTED if code == -signal.SIGTERM else EXIT_FAILED
            say(f"the agent ended with {code} and is started again")

    def save(self) -> None:
        """Have the run save and stop; one that has not begun does not begin."""
        with self._lock:
            self._is_asked = True
            if self._agent is not None:
                self._agent.send_signal(signal.SIGTERM)


def check_ray() -> None:
    """Refuse to begin without Ray.

    Raises:
      ConfigError: the package is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            f"--cluster=ray needs the package ray, which {sys.executable} has not; install the version of your Ray "
            "cluster with: pip install ray==VERSION"
        )


def train(job: Job, *, address: str, cpus: float, gpus: float) -> int:
    """Train on the nodes of a Ray cluster, and return the run's exit code; SIGTERM and Ctrl-C save and stop the run.

    Args:
      job: job to run.
      address: address of the Ray cluster; "auto" for the one that this machine belongs to.
      cpus: number of cpus that each host takes of its node.
      gpus: number of gpus that each host takes of its node; 0 for none.

    Raises:
      AddressError: there is no Ray cluster.
      WaitTimeout: it has not so many nodes that are free.
      HybridSyncError: the cluster could not run the hosts.
    """
    ray = _ray()
    try:
        ray.init(address=address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise AddressError(
            f"there is no Ray cluster at --ray_address={address}: {' '.join(str(error).split())}; name its head, "
            "HOST:PORT, or start the job on a node of it"
        ) from None
    try:
        return _train(ray, job, cpus, gpus)
    except ray.exceptions.RayError as error:
        raise HybridSyncError(
            f"Ray could not run the hosts: {' '.join(str(error).split())[-600:]}; the Python of every node has to have "
            "HybridSync"
        ) from None
    except KeyboardInterrupt:  # before the run could be asked to save
        say("interrupted: the run had not begun")
        return EXIT_INTERRUPTED


def _train(ray: ModuleType, job: Job, cpus: float, gpus: float) -> int:
    from ray.util.placement_group import (  # pyright: ignore[reportMissingImports]: an environment of its own has Ray
        placement_group,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
        PlacementGroupSchedulingStrategy,
    )

    bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    group = placement_group([bundle] * job.num_hosts, strategy="STRICT_SPREAD")
    if not group.wait(PLACE_SECS):
        alive = sum(node["Alive"] for node in ray.nodes())
        raise WaitTimeout(
            f"Ray found no {counted(job.num_hosts, 'node')} with {bundle} each within {PLACE_SECS:g} s, and has "
            f"{counted(alive, 'node')}; take fewer --hosts, or less with --cpus_per_host and --gpus_per_host"
        )
    hosts = [
        ray.remote(Host)
        .options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        .remote()
        for index in range(job.num_hosts)
    ]
    # A node may take minutes to make its actor. What counts from the start counts from then on.
    ray.wait([host.address.remote() for host in hosts], num_returns=len(hosts), timeout=PLACE_SECS)
    head = f"{ray.get(hosts[0].address.remote())}:{ray.get(hosts[0].free_port.remote())}"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: hosts[0].save.remote())
    places = [
        [f"--head={head}", f"--index={index}", f"--hosts={job.num_hosts}", f"--certs={job.certs}/{index}"]
        for index in range(job.num_hosts)
    ]
    folder = os.getcwd()
    ends = [host.run.remote([*place, *job.flags], folder) for host, place in zip(hosts, places, strict=True)]
    code = _end(ray, hosts[0], ends)
    ray.wait(ends, num_returns=len(ends), timeout=REFUSED_SECS if code == EXIT_REFUSED else LEAVE_SECS)
    remove_placement_group(group)
    return code


def _end(ray: ModuleType, head: Any, ends: list[Any]) -> int:
    """Wait for the head's end, and return the run's exit code.

    A host that is refused at the start, or cannot be made, ends the run: the head would wait for it in vain.

    Args:
      ray: the package.
      head: actor of the head.
      ends: what each host's `run` will return, the head's first.

    Raises:
      RayError: Ray could not run a host.
    """
    deadline, waiting = SYSTEM_CLOCK.monotonic() + BEGIN_SECS, ends
    while (left := deadline - SYSTEM_CLOCK.monotonic()) > 0:
        ended, waiting = ray.wait(waiting, timeout=left)
        if not ended or ends[0] in ended:
            break
        try:
            is_refused = ray.get(ended[0]) == EXIT_REFUSED
        except ray.exceptions.RayError:
            head.save.remote()
            ray.get(ends[0])
            raise
        if is_refused:
            head.save.remote()
            code = ray.get(ends[0])
            if code in (EXIT_COMPLETED, EXIT_REFUSED):  # hosts hear of a run that is refused before its head has ended
                return code
            say("error: a host was refused (see above), and so the job has ended; correct that, and start it again")
            return EXIT_REFUSED
    return ray.get(ends[0])


def _ray() -> ModuleType:
    """Import Ray where it is used: it is no dependency, and takes a while."""
    import ray  # pyright: ignore[reportMissingImports]: an environment of its own has Ray

    return ray
