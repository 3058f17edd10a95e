"""Whether an optimizer may be divided among servers: two updates on the whole tree and on its parts, compared.

Whatever treats each leaf by itself (SGD, Adam, Lion, LAMB's trust ratio, Adafactor's factors, Muon's iteration)
passes, because a server holds whole leaves. What looks at several leaves at once, a global norm for example, does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.errors import OptimizerError
from hybridsync.layout import Layout
from hybridsync.optimizer import Optimizer
from hybridsync.ps.partition import initial_part, prune, shares

TOLERANCE = 1e-5
"""Largest difference, relative to the largest number of the leaf."""

SCALES = (1.0, 1e4)
"""Of the random gradients: the second makes itself felt where a norm is limited."""


RATE = 0.1


def check_divisible(optimizer: Optimizer, params: Any, num_servers: int) -> None:
    """Refuse an optimizer that updates some leaf otherwise on a part of the tree than on the whole.

    Args:
      optimizer: what the run trains with.
      params: shapes of the parameters.
      num_servers: among which they are divided.

    Raises:
      OptimizerError: names the leaf and both values, and says what to use instead.
    """
    layout = Layout.of(params)
    start, *gradients = (_random(layout, seed, scale) for seed, scale in enumerate((1.0, *SCALES)))
    whole = _updated(optimizer, start, gradients)
    for kept in shares(layout, num_servers):
        parts = [prune(tree, kept) for tree in (start, *gradients)]
        try:
            found = _updated(optimizer, parts[0], parts[1:])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, OptimizerError):
                raise
            raise OptimizerError(
                f"the optimizer cannot be divided among {num_servers} servers: on a part of the parameters it raises "
                f"{type(error).__name__}: {error}; use one server"
            ) from None
        for path, value in found.items():
            _compare(path, value, whole.get(path), num_servers)


def _random(layout: Layout, seed: int, scale: float) -> Any:
    generator = np.random.default_rng(seed)
    drawn = [generator.standard_normal(leaf.shape) * scale for leaf in layout.leaves]
    return layout.treedef.unflatten(
        [jnp.asarray(array, leaf.dtype) for array, leaf in zip(drawn, layout.leaves, strict=True)]
    )


def _updated(optimizer: Optimizer, params: Any, gradients: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return parameters and optax state after one update for each gradient, by the paths of their leaves."""
    state = initial_part(optimizer, params)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params, jnp.float32(RATE))
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
    after = {"params": params, "opt_state": state}
    pairs = zip(Layout.of(after).leaves, jax.tree.leaves(after), strict=True)
    return {spec.path: np.asarray(leaf) for spec, leaf in pairs}


def _compare(path: str, part: np.ndarray, whole: np.ndarray | None, num_servers: int) -> None:
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
            f"the optimizer cannot be divided among {num_servers} servers: after two updates {path} is "
            f"{theirs[worst]:.9g} on the whole tree and {ours[worst]:.9g} on a part of it (entry "
            f"{[int(i) for i in worst]}), because it looks at several leaves at once; use one server, or, where it "
            "limits a global norm, the optimizer's clip= instead"
        )
