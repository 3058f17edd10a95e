"""One small annotated decoder, in nnx and in linen, with the same paths and the same names of its dimensions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax.sharding import PartitionSpec

from hybridsync.data import ArraySource
from hybridsync.devices.rules import ends
from hybridsync.losses import language_model
from hybridsync.training.task import Task

NUM_TOKENS, DIM, LENGTH, HEADS = 64, 32, 16, 4
RULES = (
    ("embed", ("fsdp", "context")),
    ("embed", "fsdp"),
    ("mlp", ("fsdp_transpose", "tensor")),
    ("heads", "tensor"),
    ("vocab", ("tensor", "sequence")),
    ("vocab", "tensor"),
)
"""As MaxText's: names repeat, and some axes are on no mesh of these tests."""
PATHS = (
    ("qkv/kernel", ("fsdp", "tensor")),
    ("out/kernel", ("tensor", "fsdp")),
    ("expand/kernel", ("fsdp", "tensor")),
    ("contract/kernel", ("tensor", "fsdp")),
    ("tokens/embedding", ("tensor", "fsdp")),
)
INIT = jax.nn.initializers.normal(0.1)


@functools.cache
def source() -> ArraySource:
    """Return windows of tokens, each of which follows from the one before it."""
    start = np.random.RandomState(0).randint(NUM_TOKENS, size=(256, 1))
    tokens = (start + 3 * np.arange(LENGTH + 1)) % NUM_TOKENS
    return ArraySource("windows", {"tokens": tokens.astype(np.int32)}, {"tokens": tokens[:32].astype(np.int32)})


def decoder(kind: str, *, annotated: bool = True, trainable: tuple[str, ...] = ()) -> Task:
    """Return the task of the decoder.

    Args:
      kind: "nnx" or "linen".
      annotated: whether its leaves have names for their dimensions.
      trainable: ends of the paths of what is trained; () trains all.
    """
    if kind == "linen":
        return Task.from_linen(LinenDecoder(annotated), source(), language_model, trainable=trainable or None)

    def chosen(path: tuple[Any, ...], leaf: Any) -> bool:
        return any(ends("/".join(map(str, path)), each) for each in trainable)

    filter_ = chosen if trainable else None
    return Task.from_nnx(lambda rngs: NnxDecoder(annotated, rngs=rngs), source(), language_model, trainable=filter_)


def _attended(qkv: jax.Array) -> jax.Array:
    examples, length, width = qkv.shape
    qkv = qkv.reshape(examples, length, 3, HEADS, width // (3 * HEADS))
    attended = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
    return attended.reshape(examples, length, width // 3)


class NnxDecoder(nnx.Module):
    """One block of attention and one of two layers."""

    def __init__(self, annotated: bool, *, rngs: nnx.Rngs) -> None:
        def named(*names: str) -> Any:
            return nnx.with_partitioning(INIT, names) if annotated else INIT

        def dense(inputs: int, outputs: int, *names: str) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, kernel_init=named(*names), rngs=rngs)

        self.tokens = nnx.Embed(NUM_TOKENS, DIM, embedding_init=named("vocab", "embed"), rngs=rngs)
        self.qkv = dense(DIM, 3 * DIM, "embed", "heads")
        self.out = dense(DIM, DIM, "heads", "embed")
        self.expand = dense(DIM, 4 * DIM, "embed", "mlp")
        self.contract = dense(4 * DIM, DIM, "mlp", "embed")
        self.norm = nnx.LayerNorm(DIM, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens)
        x = x + self.out(_attended(self.qkv(x)))
        x = x + self.contract(nnx.relu(self.expand(x)))
        return self.tokens.attend(self.norm(x))


class LinenDecoder(linen.Module):
    """The same in linen."""

    annotated: bool

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        def named(*names: str) -> Any:
            return linen.with_logical_partitioning(INIT, names) if self.annotated else INIT

        def dense(width: int, name: str, *names: str) -> linen.Dense:
            return linen.Dense(width, kernel_init=named(*names), name=name)

        embed = linen.Embed(NUM_TOKENS, DIM, embedding_init=named("vocab", "embed"), name="tokens")
        x = embed(tokens)
        x = x + dense(DIM, "out", "heads", "embed")(_attended(dense(3 * DIM, "qkv", "embed", "heads")(x)))
        wide = linen.relu(dense(4 * DIM, "expand", "embed", "mlp")(x))
        x = x + dense(DIM, "contract", "mlp", "embed")(wide)
        return embed.attend(jnp.asarray(linen.LayerNorm(name="norm")(x)))


class ConstrainedDecoder(NnxDecoder):
    """One whose activations are divided by an axis of the mesh, and by names that have rules."""

    def __call__(self, tokens: jax.Array) -> jax.Array:
        scores = jax.lax.with_sharding_constraint(super().__call__(tokens), PartitionSpec("fsdp"))
        return linen.with_logical_constraint(scores, ("batch", "length", "vocab"))
