"""A small decoder with LoRA beside the attention's projections, in nnx and in linen, whose base is frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from hybridsync.losses import language_model
from hybridsync.models.transformer import DecoderLM
from hybridsync.training.task import Task
from tests.devices.decoders import LENGTH, NUM_TOKENS, source

RANK = 4


def lora_decoder(rngs: nnx.Rngs) -> DecoderLM:
    """Return the package's decoder with LoRA on the projections of its attention."""
    model = DecoderLM(NUM_TOKENS, dim=32, num_layers=2, num_heads=4, max_length=LENGTH, rngs=rngs)
    for block in model.blocks:
        for name in ("qkv", "out"):
            base = getattr(block, name)
            size = base.in_features, RANK, base.out_features
            setattr(block, name, nnx.LoRA(*size, base_module=base, rngs=rngs))
    return model


def lora_task(embedding: str = "") -> Task:
    """Return the task of training its LoRA leaves alone.

    Args:
      embedding: file of NumPy with the embedding of the base; "" makes it of the run's seed, as the rest.
    """

    def model(rngs: nnx.Rngs) -> DecoderLM:
        made = lora_decoder(rngs)
        if embedding:
            made.tokens.embedding[...] = jnp.asarray(np.load(embedding))
        return made

    return Task.from_nnx(model, source(), language_model, trainable=nnx.LoRAParam)


def write_embedding(path: Path, value: float) -> str:
    """Write an embedding that is `value` everywhere; returns its path."""
    np.save(path, np.full((NUM_TOKENS, 32), value, np.float32))
    return str(path)


class LinenLoRA(linen.Module):
    """An embedding, a layer with LoRA beside it, and class scores for each token."""

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = linen.Embed(NUM_TOKENS, 32, name="tokens")(tokens)
        low = linen.Dense(RANK, use_bias=False, name="lora_a")(x)
        x = linen.Dense(32, name="base")(x) + linen.Dense(32, use_bias=False, name="lora_b")(low)
        return linen.Dense(NUM_TOKENS, name="scores")(jnp.tanh(x))


def linen_task(trainable: Any) -> Task:
    """Return the task of training what `trainable` names of `LinenLoRA`."""
    return Task.from_linen(LinenLoRA(), source(), language_model, trainable=trainable)
