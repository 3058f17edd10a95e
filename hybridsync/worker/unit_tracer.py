"""Has JAX's profiler trace chosen units, once in each process that computes some of them."""

from __future__ import annotations

import threading
from pathlib import Path

import jax
from absl import logging

WRITE_SECS = 60.0
"""How long the end of a process waits for a trace that is being written."""


class UnitTracer:
    """Traces a process from where one of its workers begins the first of some units until one begins a later unit.

    Made for one process; its workers' threads share it.

    Args:
      units: units to trace.
      folder: folder of the trace, where TensorBoard and XProf look for it.
    """

    def __init__(self, units: range, folder: Path) -> None:
        self._units, self._folder = units, folder
        self._lock = threading.Lock()
        self._is_running = self._is_over = False
        self._writer: threading.Thread | None = None
        self._of_thread = threading.local()

    def begin(self, unit: int) -> None:
        """Note that the calling thread begins a unit's gradient."""
        if self._is_over:
            return
        with self._lock:
            if self._is_running and unit >= self._units.stop:
                self._stop()
            elif not self._is_running and not self._is_over and unit in self._units:
                self._start()
            if not self._is_running:
                return
        self._of_thread.mark = jax.profiler.StepTraceAnnotation("unit", step_num=unit)
        self._of_thread.mark.__enter__()

    def end(self) -> None:
        """Note that the gradient is there: its mark ends before the trace may."""
        if (mark := getattr(self._of_thread, "mark", None)) is not None:
            self._of_thread.mark = None
            mark.__exit__(None, None, None)

    def close(self) -> None:
        """End a trace that runs still, and wait until it is written."""
        with self._lock:
            if self._is_running:
                self._stop()
            self._is_over = True
        if self._writer is not None:
            self._writer.join(WRITE_SECS)

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of Python would be slowed down, and written
        try:
            jax.profiler.start_trace(self._folder, profiler_options=options)
            self._is_running = True
        except Exception as error:  # noqa: BLE001 the user's own trace, a profiler without its library: no reason to end
            logging.warning("Units %s are not traced: %s.", _name(self._units), error)
            self._is_over = True

    def _stop(self) -> None:
        self._is_running, self._is_over = False, True
        # To write it takes seconds, for which no unit waits.
        self._writer = threading.Thread(target=self._write, name="trace", daemon=True)
        self._writer.start()

    def _write(self) -> None:
        try:
            jax.profiler.stop_trace()
            logging.info("The trace of units %s is in %s.", _name(self._units), self._folder)
        except Exception as error:  # noqa: BLE001 a disk that is full ends no run
            logging.warning("The trace of units %s is lost: %s.", _name(self._units), error)


def _name(units: range) -> str:
    return f"{units.start}:{units.stop}"
