"""A multi-layer perceptron."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
from flax import nnx


class MLP(nnx.Module):
    """Dense layers with ReLU between them, over flattened examples.

    Args:
      sizes: features of the input, of every hidden layer and of the output, for instance (64, 128, 10).
      rngs: `params` for the kernels, `dropout` for the masks.
      dropout: share of the hidden features dropped in training.
    """

    def __init__(self, sizes: Sequence[int], *, rngs: nnx.Rngs, dropout: float = 0.0) -> None:
        init = nnx.initializers.he_normal()
        self.layers = nnx.List([nnx.Linear(a, b, kernel_init=init, rngs=rngs) for a, b in itertools.pairwise(sizes)])
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits, float32 (examples, sizes[-1]), of `x`, (examples, ...)."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = self.dropout(nnx.relu(layer(x)))
        return self.layers[-1](x)
