"""How busy a job keeps the machine: processor time of the processes below this one, bytes over the loopback."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hybridsync.core.clock import SYSTEM_CLOCK

EVERY_SECS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")
_PROBE_SECS, _PROBE_BYTES = 1.0, 1 << 21


@dataclass(frozen=True)
class _Sample:
    wall: float
    processor_secs: dict[int, float]
    loopback_bytes: int


class Meter:
    """Samples the processes that this one has started, and theirs, and the loopback, while its `with` block runs.

    The samples are written by one thread and read when it has ended.
    """

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def cpu_share(self, start: float, stop: float) -> float:
        """Return the part of all cores that the processes took between two wall times, by the samples in between.

        Raises:
          RuntimeError: there are not two samples between them.
        """
        samples = self._between(start, stop)
        taken = 0.0
        for before, after in itertools.pairwise(samples):
            known = before.processor_secs
            taken += sum(secs - known[pid] for pid, secs in after.processor_secs.items() if pid in known)
        return taken / (samples[-1].wall - samples[0].wall) / (os.cpu_count() or 1)

    def loopback_bytes_per_sec(self, start: float, stop: float) -> float:
        """Return what went over the loopback between two wall times, of whatever process.

        Raises:
          RuntimeError: there are not two samples between them.
        """
        first, *_, last = self._between(start, stop)
        return (last.loopback_bytes - first.loopback_bytes) / (last.wall - first.wall)

    def _between(self, start: float, stop: float) -> Sequence[_Sample]:
        samples = [sample for sample in self._samples if start <= sample.wall <= stop]
        if len(samples) < 2:
            raise RuntimeError(f"{len(samples)} samples of the machine in {stop - start:.1f} s; make the run longer")
        return samples

    def _run(self) -> None:
        while not self._over.wait(EVERY_SECS):
            self._samples.append(_Sample(SYSTEM_CLOCK.wall(), processor_secs(os.getpid()), loopback_bytes()))


def loopback_bytes() -> int:
    """Return the bytes that the loopback has carried since the machine was started; what is sent there is received."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    raise RuntimeError("/proc/net/dev knows no loopback")


def loopback_capacity() -> float:
    """Return the bytes a second that one bare TCP stream over the loopback carries, by a second of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_stream, args=(listener.getsockname(),), name="stream", daemon=True)
        sender.start()
        stream, _ = listener.accept()
        with stream:
            buffer, received = bytearray(_PROBE_BYTES), 0
            began = SYSTEM_CLOCK.monotonic()
            while taken := stream.recv_into(buffer):
                received += taken
            secs = SYSTEM_CLOCK.monotonic() - began
        sender.join()
    return received / secs


def _stream(address: tuple[str, int]) -> None:
    sent = bytes(_PROBE_BYTES)
    with socket.create_connection(address, timeout=10 * _PROBE_SECS) as stream:
        until = SYSTEM_CLOCK.monotonic() + _PROBE_SECS
        while SYSTEM_CLOCK.monotonic() < until:
            stream.sendall(sent)


def processor_secs(root: int) -> dict[int, float]:
    """Return the seconds of processor time that each live process below `root` has had, by its id."""
    parents: dict[int, int] = {}
    secs: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            fields = text[text.rindex(")") + 2 :].split()  # a name may hold blanks and parentheses
            parents[int(folder.name)] = int(fields[1])
            secs[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    below: dict[int, bool] = {root: True, 0: False}

    def is_below(pid: int) -> bool:
        if pid not in below:
            below[pid] = is_below(parents.get(pid, 0))
        return below[pid]

    return {pid: taken for pid, taken in secs.items() if pid != root and is_below(pid)}
