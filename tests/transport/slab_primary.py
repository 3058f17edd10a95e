"""A primary served over shared memory, and whoever calls it: links of this process, other processes, and strangers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.interfaces.messages import Push
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import partition
from hybridsync.server.publisher import ParameterPool
from hybridsync.transport.connected_links import ConnectedParameters, ConnectedReader
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.link import Services
from hybridsync.transport.packed_link import PackedLink
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory
from tests.roles import Start, counts, gradient_of, phase_of, push_of, tally_programs

ROOT = Path(__file__).parents[2]
CALLER = Path(__file__).with_name("slab_caller.py")
SECS = 10.0
TOKEN = "the run's token"
UNITS = 8


class SlabPrimary:
    """A primary in a phase of the tally, served at a socket.

    Args:
      folder: of the socket.
      spec: protocol of the phase.
      most: connections at a time.
    """

    def __init__(self, folder: Path, spec: str = "asp", most: int = 8) -> None:
        self.path = str(folder / "server-0.slabs")
        programs, start = tally_programs(), Start()
        self.memory = SlabMemory()
        self.pool = ParameterPool(programs.parameters_layout, self.memory.allocate)
        self.primary = start.primary(publisher=self.pool, allocate=self.memory.allocate)
        self.phase = phase_of(1, spec, snapshot=start.snapshot, members=(0, 1, 2, 3))
        self.primary.enter(self.phase)
        self.contribution_bytes = programs.contribution_layout.nbytes
        self.parameters_bytes = programs.parameters_layout.nbytes
        self.services = Services(
            holder=self.primary,
            parameters=Endpoint(self.primary, programs.contribution_layout),
            contribution_bytes=self.contribution_bytes,
            num_buffers=6,
        )
        self._most, self._closing = most, list[Callable[[], None]]()
        self.service = self.serve()

    def serve(self) -> SlabService:
        self.service = SlabService(self.services, self.memory, self.path, TOKEN, self._most)
        self._closing.append(lambda: self.service.stop(SECS))
        return self.service

    def connection(self, deadline_secs: float = SECS, token: str = TOKEN) -> Connection:
        made = Connection(self.path, token, "server 0", deadline_secs, self.contribution_bytes)
        self._closing.append(made.close)
        return made

    def parameters(self, deadline_secs: float = SECS) -> ConnectedParameters:
        """Return a worker's link that carries buffers."""
        return ConnectedParameters(self.connection(deadline_secs), self.parameters_bytes)

    def link(self) -> PackedLink:
        """Return a worker's link that carries trees."""
        return PackedLink(partition(tally_programs(), 1), self.parameters())

    @contextmanager
    def link_for_one_call(self) -> Iterator[PackedLink]:
        link, before = self.link(), self.num_links()
        yield link
        link.close()
        until(lambda: self.num_links() == before, "a closed link is kept")

    def reader(self) -> ConnectedReader:
        return ConnectedReader(self.connection())

    def push(self, *units: int, worker: int = 0) -> Push:
        return push_of(self.phase, *units, worker=worker)

    def raw(self) -> socket.socket:
        """Return the end of a connection whose caller says what it likes."""
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(SECS)
        caller.connect(self.path)
        self._closing.append(caller.close)
        return caller

    def applied(self) -> list[int]:
        """Return how often each unit was applied."""
        snapshot = self.primary.take_snapshot(self.phase.id, final=False)
        buffer = tally_programs().state_layout.empty()
        self.primary.read(snapshot.snapshot_id, buffer)
        return counts(tally_programs().state_layout.unpack(buffer))[:UNITS]

    def num_links(self) -> int:
        return len(self.service._sessions)

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


def packed(unit: int) -> np.ndarray:
    """Return a unit's contribution as it is written into a slab."""
    return tally_programs().contribution_layout.pack(gradient_of(unit))


def tallied(parameters: np.ndarray) -> list[int]:
    """Return how often each unit was applied to packed parameters; they are copied first."""
    tree = tally_programs().parameters_layout.unpack(np.array(parameters))
    return [round(-float(value)) for value in np.asarray(tree.params["tally"])[:UNITS]]


def only(*units: int) -> list[int]:
    return [int(unit in units) for unit in range(UNITS)]


def ask(caller: socket.socket, data: bytes) -> pb.LinkReply:
    """Send bytes and return the reply; one without `answers` where the connection was ended."""
    caller.send(data)
    reply, files, _, _ = socket.recv_fds(caller, 1 << 17, 1)
    for file in files:
        os.close(file)
    return pb.LinkReply.FromString(reply)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something that nobody tells of is so."""
    deadline, moment = SYSTEM_CLOCK.monotonic() + SECS, threading.Event()
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < deadline, what
        moment.wait(0.005)


class Callers:
    """Processes that call a primary, each forked by one that has imported what they need.

    Args:
      served: whom they call.
    """

    def __init__(self, served: SlabPrimary) -> None:
        command = [sys.executable, str(CALLER), served.path, TOKEN]
        command += [str(served.contribution_bytes), str(served.parameters_bytes)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self._served, self._living = served, set[int]()
        self._words: list[dict[str, Any]] = []

    def start(self, *steps: str, worker: int = 0, unit: int = 0, snapshot_id: int = 0, num_bytes: int = 0) -> int:
        """Start a process that goes through these steps and then waits; returns its id as soon as it lives."""
        assert self._process.stdin is not None
        phase_id = self._served.phase.id
        told = {
            "steps": steps,
            "push": [phase_id.number, phase_id.nonce, worker, unit],
            "contribution": packed(unit).tobytes().hex(),
            "snapshot": [snapshot_id, num_bytes],
        }
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        while (word := self._read()).keys() != {"pid"}:
            self._words.append(word)
        self._living.add(word["pid"])
        return word["pid"]

    def next_of(self, pid: int) -> dict[str, Any]:
        """Return the next word of a process."""
        while not (found := [word for word in self._words if word["pid"] == pid]):
            self._words.append(self._read())
        self._words.remove(found[0])
        return found[0]

    def until_done(self, pid: int, step: str) -> None:
        """Wait until a process has done a step; none before it was refused."""
        while (word := self.next_of(pid)).get("done") != step:
            assert "refused" not in word, word

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the callers have ended"
        return json.loads(line)

    def kill(self, pid: int) -> None:
        self._living.discard(pid)
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for pid in [*self._living]:
            self.kill(pid)
        self._process.kill()
        self._process.wait(timeout=SECS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
