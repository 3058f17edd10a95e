"""What JAX compiles while a test looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_listening: list[list[str]] = []


def _on_event(event: str, duration_secs: float, **tags: str | int) -> None:
    if event == _EVENT:
        for seen in list(_listening):
            seen.append(str(tags.get("fun_name", event)))


# JAX has no public way to take a listener off again: one stays, and speaks to those who listen.
jax.monitoring.register_event_duration_secs_listener(_on_event)


@contextmanager
def count_compilations() -> Iterator[list[str]]:
    """Collect the names of programs that any thread compiles meanwhile."""
    seen: list[str] = []
    _listening.append(seen)
    try:
        yield seen
    finally:
        _listening.remove(seen)
