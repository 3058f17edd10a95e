"""A small decoder-only transformer for language modelling.

Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (layer norm before
each part, learned positions, input and output embedding shared).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from hybridsync.core.errors import TaskError


class DecoderBlock(nnx.Module):
    """Causal self-attention and a feed-forward layer of four times the width, each beside a shortcut."""

    def __init__(self, dim: int, num_heads: int, *, rngs: nnx.Rngs, dropout: float) -> None:
        self.num_heads = num_heads
        self.norm1 = nnx.LayerNorm(dim, rngs=rngs)
        self.qkv = nnx.Linear(dim, 3 * dim, rngs=rngs)
        self.out = nnx.Linear(dim, dim, rngs=rngs)
        self.norm2 = nnx.LayerNorm(dim, rngs=rngs)
        self.expand = nnx.Linear(dim, 4 * dim, rngs=rngs)
        self.contract = nnx.Linear(4 * dim, dim, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        examples, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(examples, length, 3, self.num_heads, dim // self.num_heads)
        attended = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
        x = x + self.dropout(self.out(attended.reshape(examples, length, dim)))
        return x + self.dropout(self.contract(nnx.gelu(self.expand(self.norm2(x)))))


class DecoderLM(nnx.Module):
    """Predict the next token at every position of a window.

    Args:
      num_tokens: size of the vocabulary.
      dim: width of a token's representation.
      num_layers: number of decoder blocks.
      num_heads: attention heads; divides `dim`.
      max_length: the longest window.
      rngs: `params` for the kernels, `dropout` for the masks.
      dropout: share dropped, after the embedding and after each part of a block.

    Raises:
      TaskError: the heads do not divide the width.
    """

    def __init__(
        self,
        num_tokens: int,
        *,
        dim: int,
        num_layers: int,
        num_heads: int,
        max_length: int,
        rngs: nnx.Rngs,
        dropout: float = 0.0,
    ) -> None:
        if dim % num_heads:
            raise TaskError(f"{num_heads} heads do not divide the width {dim}: choose a divisor")
        init = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(num_tokens, dim, embedding_init=init, rngs=rngs)
        self.positions = nnx.Embed(max_length, dim, embedding_init=init, rngs=rngs)
        self.blocks = nnx.List([DecoderBlock(dim, num_heads, rngs=rngs, dropout=dropout) for _ in range(num_layers)])
        self.norm = nnx.LayerNorm(dim, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits, (examples, length, num_tokens), of `tokens`, int32 (examples, length).

        Raises:
          TaskError: the window is longer than `max_length`.
        """
        length = tokens.shape[1]
        if length > self.positions.num_embeddings:
            raise TaskError(
                f"a window of {length} tokens, the model has {self.positions.num_embeddings} positions: "
                "raise max_length or shorten the windows"
            )
        x = self.dropout(self.tokens(tokens) + self.positions(jnp.arange(length)))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))
