"""Rounds gradients and parameters for their way between workers and servers.

With `bfloat16` a worker computes on rounded parameters, and its gradient is rounded: half the bytes travel. The
computed values are the same everywhere, whether the numbers have travelled as two bytes or stayed in memory as four.
Model statistics, losses and weights stay as they are, and so does the state at the servers.

Source: TensorFlow (Abadi et al., arXiv:1603.04467, section 5.5), which cuts the lower half off; here it is rounded to
the nearest even.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hybridsync.protocols.base import BFLOAT16, FLOAT32
from hybridsync.training.buffer_layout import ALIGNMENT

_NARROW = jnp.dtype(jnp.bfloat16)
_EXPONENT_BITS, _MANTISSA_BITS = 8, 7  # of bfloat16
_FEW = ALIGNMENT // 4
"""Numbers of a leaf that take the same place in a buffer as either type; they travel as they are. So two layouts of the
same size are the same, and the size of a buffer tells its type."""


def rounded(tree: Any) -> Any:
    """Return a tree with the float32 leaves rounded to bfloat16's numbers; they stay float32. Traced.

    XLA may leave out a conversion to fewer bits and back; this it does not.
    """
    return jax.tree.map(
        lambda a: jax.lax.reduce_precision(a, _EXPONENT_BITS, _MANTISSA_BITS) if a.dtype == jnp.float32 else a, tree
    )


def widened(tree: Any, like: Any) -> Any:
    """Return a tree with the leaves of `like`'s types, of which some have travelled as bfloat16."""
    return jax.tree.map(lambda a, shape: a if a.dtype == shape.dtype else a.astype(shape.dtype), tree, like)


def narrowed_contribution(contribution: Any, wire: str) -> Any:
    """Return the shapes and dtypes of a contribution as it travels."""
    floats = contribution["floats"]
    return {**contribution, "floats": {**floats, "grads": _narrowed(floats["grads"], wire)}}


def narrowed_parameters(parameters: Any, wire: str) -> Any:
    """Return the shapes and dtypes of parameters as they travel."""
    return parameters._replace(params=_narrowed(parameters.params, wire))


def _narrowed(tree: Any, wire: str) -> Any:
    if wire == FLOAT32:
        return tree
    assert wire == BFLOAT16, f"{wire} is no type that travels"
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, _NARROW) if a.dtype == jnp.float32 and a.size > _FEW else a, tree
    )
