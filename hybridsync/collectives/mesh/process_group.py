"""One `jax.distributed` process group for the whole run (CPU, gloo), which outlives the death of its members.

The coordination service runs in the supervisor. Workers join once (`ProcessGroup.join`) and stay until they end. The
members of a phase form a mesh over some of the process group's devices, in an order (`ProcessGroup.mesh`): each worker
computes on its first local device, and a mesh takes one device of each member, by its device choice. A mesh that lost a
member is dead for good; the same members continue on another device choice.

jax offers none of this in public (see `hybridsync.core.jax_internals`).

Importing this file loads neither jax nor jaxlib.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hybridsync.collectives.device_choice import NUM_DEVICES, devices_of
from hybridsync.collectives.mesh import gloo
from hybridsync.collectives.mesh.coordination_service import HEARTBEAT_SECS
from hybridsync.collectives.mesh.sockets import Endpoint, listening, shut_down_connected
from hybridsync.core.addresses import socket_path
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, HybridSyncError, WaitTimeout, described
from hybridsync.core.jax_internals import (
    construct,
    cpu_backend,
    distributed_state,
    has_backends,
    make_client,
    make_gloo_collectives,
    unsuited,
)

if TYPE_CHECKING:
    from hybridsync.collectives.mesh.flat_sum import MeshSum

_CONNECT_EXTRA_SECS = 5  # connect() takes this much longer than its init_timeout
_POLL_SECS = 0.1
_NO_PROXY = "no_grpc_proxy"
_TOPOLOGY_KEY = "cpu:global_topology/cpu"
_GLOO_KEY = "cpu:gloo"


class CollectiveBroken(HybridSyncError):
    """A collective cannot complete: a member died or the phase was revoked. Its mesh is dead for good."""


class ProcessGroup:
    """A worker's place in the run's process group: its devices, its meshes, and the way to break a hung collective.

    The lock guards `_meshes` and `_peers`: the main thread enters meshes, the control thread breaks them.
    Made by `ProcessGroup.join`.

    Attributes:
      process_index: this worker's slot.
      slots: numbers of the workers that have a place in the process group, ascending.
      num_devices: local devices of each worker: another choice among them is a fresh communicator of the same members.
      compute_device: where all of this worker's computation lives, so that another device choice recompiles nothing
        but the collective.
    """

    def __init__(
        self, client: Any, process_index: int, slots: tuple[int, ...], num_devices: int, listener: Endpoint
    ) -> None:
        import jax

        self.process_index = process_index
        self.slots = slots
        self.num_devices = num_devices
        self.compute_device = jax.local_devices()[0]
        self._client = client
        self._listener = listener
        self._devices: dict[int, list[Any]] = {slot: [] for slot in slots}
        for device in sorted(jax.devices(), key=lambda device: device.id):
            self._devices[slots[device.process_index]].append(device)
        self._lock = threading.Lock()
        self._meshes: dict[tuple[tuple[int, ...], int], MeshSum] = {}
        self._peers: set[Endpoint] = set()

    @classmethod
    def join(
        cls,
        address: str,
        process_index: int,
        num_workers: int,
        *,
        num_devices: int = NUM_DEVICES,
        timeout_secs: float = 60.0,
        reborn: bool = False,
        host: str = "127.0.0.1",
        slots: tuple[int, ...] = (),
    ) -> ProcessGroup:
        """Enter the process group before any other JAX call of this process; returns when all slots have joined once.

        Args:
          address: address of the service.
          process_index: this worker's slot.
          num_workers: slots of the process group.
          num_devices: number of local devices of each worker.
          timeout_secs: longest wait for the service and for the other workers, in seconds.
          reborn: an earlier process had this slot.
          host: address that carries the collectives, in plain text: loopback or a private interface.
          slots: numbers of the workers that have a place in the process group, ascending; () for all from 0
            to `num_workers` - 1.

        Raises:
          WaitTimeout: the service does not answer, or not all workers came.
          CollectiveBroken: the service ended meanwhile.
          HybridSyncError: JAX was used before, is not on CPU, or the installed version is unsuited.
        """
        import jax

        deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
        slots = slots or tuple(range(num_workers))
        place = slots.index(process_index)
        state, (register, make_cpu) = distributed_state(), cpu_backend()
        make_collectives = make_gloo_collectives()
        _have_devices(process_index, num_devices)
        jax.config.update("jax_enable_recoverability", True)
        client = _connect(address, process_index, place, slots, timeout_secs)
        state.coordinator_address, state.client = address, client
        state.process_id, state.num_processes = place, len(slots)
        try:
            if reborn and place == 0:  # the first slot publishes the topology; a second session finds the key taken
                client.key_value_delete(_TOPOLOGY_KEY)
            _publish(client, f"hybridsync/joined/{process_index}", host)
            who = f"worker {process_index}, joining the process group,"
            _collect(client, "hybridsync/joined", slots, deadline, who)
            before = listening()
            made = construct("the gloo collectives", make_collectives, distributed_client=client, hostname=host)
            opened = listening() - before
            if len(opened) != 1:
                raise unsuited("the gloo collectives", f"they opened {sorted(opened)}, not one port")
            # The same factory with our collectives: jax's own would listen where the machine's name points to.
            register("cpu", functools.partial(make_cpu, made), priority=0, fail_quietly=False)
            _check_platform(process_index)
            # Read from here on only to let process 0 alone write the persistent compilation cache. Each worker
            # compiles for its own device, under its own key: without this all but one compile anew in each session.
            state.process_id = 0
            return cls(client, process_index, slots, num_devices, opened.pop())
        except jax.errors.JaxRuntimeError as error:
            raise CollectiveBroken(
                f"worker {process_index} could not join the process group at {address} ({described(error)}): has the "
                "supervisor ended, or another process taken its place?"
            ) from error

    def mesh(self, members: Sequence[int], device_choice: int) -> MeshSum:
        """Return the collective over `members`, in this order, on `device_choice`; the same object each time.

        Only the members may ask for it. The order decides the rounding, so it belongs to a phase. A single member has
        no connections, so a broken mesh of its own leaves nothing to avoid: it gets a new one.
        """
        from hybridsync.collectives.mesh.flat_sum import MeshSum

        key = members, device_choice = tuple(members), device_choice
        assert len(set(members)) == len(members) and self.process_index in members, f"members {members}"
        assert set(members) <= set(self.slots), f"members {members} of {self.slots}"
        chosen = devices_of(device_choice, len(members), self.num_devices)
        with self._lock:
            if key not in self._meshes or (len(members) == 1 and self._meshes[key].dead):
                if any(mesh.dead for mesh in self._meshes.values()):  # the chief names none of them again
                    for mesh in self._meshes.values():
                        mesh.release()
                devices = [self._devices[member][device] for member, device in zip(members, chosen, strict=True)]
                arrive = functools.partial(self._arrive, members, device_choice)
                self._meshes[key] = MeshSum(members, device_choice, devices, self.process_index, arrive)
            return self._meshes[key]

    def break_collective(self, mesh: MeshSum, reason: str, timeout_secs: float = 2.0) -> bool:
        """Make the call on `mesh` that this process may be blocked in raise; the mesh is dead then.

        Called by the control thread when a phase is revoked: a stopped peer, or one that died elsewhere in the ring,
        would block the main thread for ever. This process's connected gloo sockets are shut down, but only while the
        call is in progress: no other mesh is entered meanwhile, and the next one connects anew. Its listener lives on.
        Where the call is about to connect to a member that died in that very moment, it is made to find that out.

        Args:
          mesh: mesh of the revoked phase.
          reason: text for the error that the blocked call raises.
          timeout_secs: how long to keep trying while the call does not return, in seconds: its sockets may be about to
            connect.

        Returns:
          Whether no call on the mesh is in progress any more.
        """
        mesh.kill(reason)
        deadline, first = SYSTEM_CLOCK.monotonic() + timeout_secs, True
        while not mesh.wait_idle(0.0):
            with self._lock:
                peers = self._peers - {self._listener}
            shut_down_connected(self._listener, peers)
            if not first:  # a caller in a connected call is out of it by now
                self._give_up_connecting(mesh)
            first = False
            remaining = max(0.0, deadline - SYSTEM_CLOCK.monotonic())
            if mesh.wait_idle(min(_POLL_SECS, remaining)):
                return True
            if not remaining:
                return False
        return True

    def _give_up_connecting(self, mesh: MeshSum) -> None:
        """End the wait of a mesh that connects: for a member's address, and for a member that was to connect to us."""
        import jax

        devices = devices_of(mesh.device_choice, len(mesh.members), self.num_devices)
        ids = [self._devices[member][device].id for member, device in zip(mesh.members, devices, strict=True)]
        places = range(len(ids))
        key = f"{_GLOO_KEY}/{','.join(map(str, ids))}"
        try:
            own = f"{key}/{mesh.members.index(self.process_index)}"
            record: bytes = self._client.blocking_key_value_get_bytes(own, 1)
        except jax.errors.JaxRuntimeError:  # not that far, or all connections are made already in this version
            return
        absent = gloo.nowhere(record, len(ids))
        if absent is None:
            return
        for place in places:
            try:
                self._client.key_value_set_bytes(f"{key}/{place}", absent)
            except jax.errors.JaxRuntimeError:  # it is there
                continue
        for number in gloo.expected(record, len(ids)) or ():
            try:
                with socket.create_connection(self._listener, timeout=_POLL_SECS) as stranger:
                    stranger.sendall(number)
            except OSError:
                return

    def leave(self) -> None:
        """Take leave of the service; no other worker is waited for. A normal exit does the same."""
        state = distributed_state()
        state.shutdown()

    def _arrive(
        self, members: tuple[int, ...], device_choice: int, timeout_secs: float, check: Callable[[], None]
    ) -> None:
        """Wait until all members have come to this mesh, and learn where their gloo listens.

        A mesh is entered for the first time once in a process group, so its key is never a leftover.
        """
        name = f"hybridsync/mesh/{device_choice}/{'-'.join(map(str, members))}"
        _publish(self._client, f"{name}/{self.process_index}", f"{self._listener[0]} {self._listener[1]}")
        deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
        who = f"worker {self.process_index}, entering device choice {device_choice} of {list(members)},"
        for text in _collect(self._client, name, members, deadline, who, check=check).values():
            host, port = text.split()
            with self._lock:
                self._peers.add((host, int(port)))


def _connect(address: str, process_index: int, place: int, slots: Sequence[int], timeout_secs: float) -> Any:
    """Connect to the service; returns when every slot has connected once."""
    make = make_client()
    try:
        _reach(address, timeout_secs)
    except OSError as error:
        raise WaitTimeout(
            f"worker {process_index} finds no coordination service at {address} within {timeout_secs:g} s "
            f"({error}): is the supervisor alive?"
        ) from error
    with _without_proxy(address):
        client = construct(
            "the coordination client",
            make,
            address,
            place,
            init_timeout=max(1, math.ceil(timeout_secs) - _CONNECT_EXTRA_SECS),
            use_compression=True,
            heartbeat_timeout=HEARTBEAT_SECS,
            missed_heartbeat_callback=lambda status: None,  # without one, a failed connect() ends the process
        )
    try:
        client.connect()
    except RuntimeError as error:
        raise WaitTimeout(
            f"worker {process_index} waited {timeout_secs:g} s at {address} for workers "
            f"{list(slots)}, and not all of them connected ({error}); see their logs"
        ) from error
    return client


@contextmanager
def _without_proxy(address: str) -> Iterator[None]:
    """Have a channel that jaxlib makes meanwhile go to `address` directly, whatever proxy the environment names.

    jaxlib takes no options for its channel. gRPC reads the environment when a channel is made; `no_grpc_proxy` is for
    gRPC alone and goes before `no_proxy`, so that user code finds its proxy as before.
    """
    former = os.environ.get(_NO_PROXY)
    others = former or os.environ.get("no_proxy", "")
    os.environ[_NO_PROXY] = ",".join(filter(None, (others, address.rpartition(":")[0].strip("[]"))))
    try:
        yield
    finally:
        if former is None:
            del os.environ[_NO_PROXY]
        else:
            os.environ[_NO_PROXY] = former


def _reach(address: str, timeout_secs: float) -> None:
    path = socket_path(address)
    if path is not None:
        with socket.socket(socket.AF_UNIX) as found:
            found.settimeout(timeout_secs)
            found.connect(str(path))
        return
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_secs).close()


def _publish(client: Any, key: str, value: str) -> None:
    client.key_value_set(key, value, allow_overwrite=True)


def _collect(
    client: Any,
    prefix: str,
    slots: Sequence[int],
    deadline: float,
    who: str,
    check: Callable[[], None] = lambda: None,
) -> dict[int, str]:
    """Read `prefix/slot` of every slot, waiting for those not there yet; `check` may raise meanwhile.

    Raises:
      WaitTimeout: naming the slots that did not come.
    """
    import jax

    started = SYSTEM_CLOCK.monotonic()
    found: dict[int, str] = {}
    while missing := [slot for slot in slots if slot not in found]:
        check()
        try:
            key = f"{prefix}/{missing[0]}"
            found[missing[0]] = client.blocking_key_value_get(key, round(_POLL_SECS * 1000))
        except jax.errors.JaxRuntimeError as error:
            if SYSTEM_CLOCK.monotonic() < deadline:
                continue
            there = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(prefix)}
            waited = SYSTEM_CLOCK.monotonic() - started
            raise WaitTimeout(
                f"{who} waited {waited:.1f} s for workers {sorted(set(missing) - there)}; see their logs"
            ) from error
    return found


def stay_apart(process_index: int, num_devices: int) -> None:
    """Take the devices that a member of a process group has, and join none: the same programs give the same bits.

    Raises:
      HybridSyncError: JAX was used before, or is not on CPU.
    """
    _have_devices(process_index, num_devices)
    _check_platform(process_index)


def _have_devices(process_index: int, num_devices: int) -> None:
    import jax

    if has_backends():
        raise HybridSyncError(
            f"worker {process_index} must join its process group before any other JAX call, but JAX has its "
            "devices already; move array work out of module level"
        )
    jax.config.update("jax_num_cpu_devices", num_devices)


def _check_platform(process_index: int) -> None:
    import jax

    if (platform := jax.default_backend()) != "cpu":
        raise ConfigError(
            f"the process runtime joins workers over CPU devices, but worker {process_index} runs on "
            f"{platform}; set JAX_PLATFORMS=cpu, or run with --runtime=inprocess"
        )
