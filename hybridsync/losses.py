"""Losses that a task can be given: functions of the model and a batch.

task = Task.from_nnx(model, source, language_model)
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from hybridsync.core.errors import TaskError
from hybridsync.data.source import DeviceBatch

Sums = dict[str, jax.Array]
"""Sums over a batch: `count` (what the mean divides by), `loss`, and `correct` or others."""


def cross_entropy(predict: Callable[..., jax.Array], batch: DeviceBatch) -> Sums:
    """Sum the cross-entropy of class scores; the default objective.

    Args:
      predict: `image` -> scores, (examples, classes).
      batch: `image` and `label`, int (examples,).

    Raises:
      TaskError: the batch lacks a field, or the scores do not have one row for every label.
    """
    return _classify(predict(_field(batch, "image")), _field(batch, "label"))


def language_model(predict: Callable[..., jax.Array], batch: DeviceBatch) -> Sums:
    """Sum the cross-entropy of each next token given those before it; `count` is in tokens.

    Args:
      predict: tokens, int (examples, length) -> scores, (examples, length, vocabulary).
      batch: `tokens`, int (examples, length + 1).

    Raises:
      TaskError: the batch lacks the field, or the scores do not have one row for every token.
    """
    tokens = _field(batch, "tokens")
    return _classify(predict(tokens[:, :-1]), tokens[:, 1:])


def _field(batch: DeviceBatch, name: str) -> jax.Array:
    if name not in batch:
        raise TaskError(
            f"the loss needs the field {name!r}, the source's batches have {sorted(batch)}: "
            "rename the field, or pass a loss that reads these (docs/own_model.md)."
        )
    return batch[name]


def _classify(scores: jax.Array, labels: jax.Array) -> Sums:
    if not hasattr(scores, "shape"):
        raise TaskError(
            f"the model returned {type(scores).__name__}, not an array of scores: pass a loss= that takes from it what "
            "it needs"
        )
    if scores.shape[:-1] != labels.shape:
        raise TaskError(
            f"the model's scores have the shape {scores.shape}, the labels {labels.shape}: "
            "scores need the labels' shape and one more axis, the classes."
        )
    scores = scores.astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    correct = scores.argmax(-1) == labels
    return {
        "count": jnp.float32(labels.size),
        "loss": losses.sum(),
        "correct": correct.sum(dtype=jnp.float32),
    }
