"""How busy a job keeps the machine: the processor time of every process below this one, second by second."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from types import TracebackType

from hybridsync.clock import SYSTEM_CLOCK

EVERY_SECS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """Samples the processes that this one has started, and theirs, while the block of its `with` runs.

    The samples are written by one thread and read when it has ended.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[float, dict[int, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu", daemon=True)

    def __enter__(self) -> CpuMeter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def share(self, start: float, stop: float) -> float:
        """Return the part of all cores that the processes took between two wall times, by the samples in between.

        Raises:
          RuntimeError: there are not two samples between them.
        """
        samples = [sample for sample in self._samples if start <= sample[0] <= stop]
        if len(samples) < 2:
            raise RuntimeError(f"{len(samples)} samples of the processors in {stop - start:.1f} s; make the run longer")
        taken = 0.0
        for (_, before), (_, after) in itertools.pairwise(samples):
            taken += sum(secs - before[pid] for pid, secs in after.items() if pid in before)
        return taken / (samples[-1][0] - samples[0][0]) / (os.cpu_count() or 1)

    def _run(self) -> None:
        while not self._over.wait(EVERY_SECS):
            self._samples.append((SYSTEM_CLOCK.wall(), processor_secs(os.getpid())))


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
