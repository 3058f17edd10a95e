"""Tests whether an optimizer may be divided among servers: compares updates on the whole tree and on its parts.

An optimizer that treats each leaf by itself passes (SGD, Adam, Lion, LAMB's trust ratio, Adafactor's factors, Muon's
iteration), because a server holds whole leaves. One that looks at several leaves at once, a global norm for example,
does not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.core.errors import OptimizerError, described
from hybridsync.server.partition import initial_part, prune, shares
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.optimizer import Optimizer

TOLERANCE = 1e-5
"""Largest difference, relative to the largest number of the leaf."""

SCALES = (1e-6, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e6, 1e12)
"""Of the random gradients, one update each: whoever limits a norm does so above, or below, some size."""

RATE = 0.1


class _Trained:
    """Trains some leaves."""

    def __init__(self, optimizer: Optimizer, params: Any) -> None:
        self._update = jax.jit(optimizer.update)
        self._params, self._state = params, initial_part(optimizer, params)

    def after(self, gradient: Any) -> dict[str, np.ndarray]:
        """Return the update, and parameters and optax state behind it, by the paths of their leaves."""
        updates, self._state = self._update(gradient, self._state, self._params, jnp.float32(RATE))
        self._params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), self._params, updates)
        after = {"params": self._params, "opt_state": self._state, "updates": updates}
        pairs = zip(Layout.of(after).leaves, jax.tree.leaves(after), strict=True)
        return {spec.path: np.asarray(leaf) for spec, leaf in pairs}


def check_divisible(optimizer: Optimizer, params: Any, num_servers: int) -> None:
    """Refuse an optimizer that updates some leaf otherwise on a part of the tree than on the whole.

    Args:
      optimizer: optimizer of the run.
      params: shapes of the parameters.
      num_servers: number of servers that the parameters are divided among.

    Raises:
      OptimizerError: names the leaf and both values, and an alternative.
    """
    layout = Layout.of(params)
    start, *drawn = (_random(layout, seed) for seed in range(3))
    owned = shares(layout, num_servers)
    whole = _Trained(optimizer, start)
    parts = [_Trained(optimizer, prune(start, kept)) for kept in owned]
    for number, scale in enumerate(SCALES, start=1):
        gradient = jax.tree.map(lambda leaf, scale=scale: _scaled(leaf, scale), drawn[number % len(drawn)])
        expected = whole.after(gradient)
        for kept, part in zip(owned, parts, strict=True):
            try:
                found = part.after(prune(gradient, kept))
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise OptimizerError(
                    f"the optimizer cannot be divided among {num_servers} servers: on a part of the parameters it "
                    f"raises {described(error)}; use one server"
                ) from None
            for path, value in found.items():
                _compare(path, value, expected.get(path), num_servers, number)


def _random(layout: Layout, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    drawn = [generator.standard_normal(leaf.shape) for leaf in layout.leaves]
    return layout.treedef.unflatten(
        [jnp.asarray(array, leaf.dtype) for array, leaf in zip(drawn, layout.leaves, strict=True)]
    )


def _scaled(leaf: jax.Array, scale: float) -> jax.Array:
    """Return a gradient of that size, or of the largest whose square is a number of its type."""
    return (leaf * min(scale, float(jnp.finfo(leaf.dtype).max) ** 0.5 / 16)).astype(leaf.dtype)


def _compare(path: str, part: np.ndarray, whole: np.ndarray | None, num_servers: int, number: int) -> None:
    if whole is None or whole.shape != part.shape:
        there = "absent" if whole is None else f"of shape {whole.shape}"
        raise OptimizerError(
            f"the optimizer cannot be divided among {num_servers} servers: its leaf {path} has the shape {part.shape} "
            f"on a part of the parameters and is {there} on the whole; use one server"
        )
    if not part.size:
        return
    ours, theirs = part.astype(np.float64), whole.astype(np.float64)
    difference = np.abs(ours - theirs)
    worst = np.unravel_index(np.argmax(difference), part.shape)
    if not difference[worst] <= TOLERANCE * np.abs(theirs).max():
        raise OptimizerError(
            f"the optimizer cannot be divided among {num_servers} servers: after update {number} {path} is "
            f"{theirs[worst]:.9g} on the whole tree and {ours[worst]:.9g} on a part of it (entry "
            f"{[int(i) for i in worst]}), because it looks at several leaves at once; use one server, or, where it "
            "limits a global norm, the optimizer's clip= instead"
        )
