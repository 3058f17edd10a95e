"""Residual networks for 32x32 images.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from hybridsync.core.errors import TaskError

_kaiming = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
_Conv = partial(nnx.Conv, use_bias=False, padding="SAME", kernel_init=_kaiming)
_Norm = partial(nnx.BatchNorm, momentum=0.9, epsilon=1e-5)


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions beside a shortcut without parameters (the paper's option A).

    Where the block changes shape, the shortcut takes every second pixel and pads the new channels with zeros.
    """

    def __init__(self, inputs: int, width: int, stride: int, *, rngs: nnx.Rngs) -> None:
        self.conv1 = _Conv(inputs, width, (3, 3), strides=stride, rngs=rngs)
        self.norm1 = _Norm(width, rngs=rngs)
        self.conv2 = _Conv(width, width, (3, 3), rngs=rngs)
        self.norm2 = _Norm(width, rngs=rngs)
        self.stride = stride
        self.padding = (width - inputs) // 2, width - inputs - (width - inputs) // 2

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        shortcut = jnp.pad(x[:, :: self.stride, :: self.stride], ((0, 0), (0, 0), (0, 0), self.padding))
        return nnx.relu(y + shortcut)


class BottleneckBlock(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, projected where shapes differ; 4 times `width` out."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, *, rngs: nnx.Rngs) -> None:
        outputs = width * self.expansion
        self.conv1 = _Conv(inputs, width, (1, 1), rngs=rngs)
        self.norm1 = _Norm(width, rngs=rngs)
        self.conv2 = _Conv(width, width, (3, 3), strides=stride, rngs=rngs)
        self.norm2 = _Norm(width, rngs=rngs)
        self.conv3 = _Conv(width, outputs, (1, 1), rngs=rngs)
        self.norm3 = _Norm(outputs, rngs=rngs)
        shortcut = []
        if stride != 1 or inputs != outputs:
            shortcut = [_Conv(inputs, outputs, (1, 1), strides=stride, rngs=rngs), _Norm(outputs, rngs=rngs)]
        self.shortcut = nnx.List(shortcut)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = nnx.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        for layer in self.shortcut:
            x = layer(x)
        return nnx.relu(y + x)


class CifarResNet(nnx.Module):
    """The paper's CIFAR network (section 4.2): 6m+2 layers, three stages of m basic blocks, 16/32/64 wide.

    Parameters for 10 classes: ResNet-8 0.08 M, ResNet-20 0.27 M, ResNet-32 0.46 M (the paper's table 6).

    Args:
      depth: 6m+2 for a whole m >= 1, for instance 8, 20, 32.
      num_classes: number of logits.
      rngs: `params` for the kernels.
      channels: number of channels of the images.

    Raises:
      TaskError: the depth is not 6m+2.
    """

    def __init__(self, depth: int, num_classes: int, *, rngs: nnx.Rngs, channels: int = 3) -> None:
        num_blocks, rest = divmod(depth - 2, 6)
        if rest or num_blocks < 1:
            raise TaskError(f"a CIFAR ResNet has 6m+2 layers of basic blocks, not {depth}: choose 8, 20, 32, ... or 50")
        self.stem = _Conv(channels, 16, (3, 3), rngs=rngs)
        self.norm = _Norm(16, rngs=rngs)
        blocks, inputs = [], 16
        for width in (16, 32, 64):
            for index in range(num_blocks):
                stride = 2 if index == 0 and width > 16 else 1
                blocks.append(BasicBlock(inputs, width, stride, rngs=rngs))
                inputs = width
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(inputs, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits, (examples, num_classes), of `x`, (examples, height, width, channels)."""
        return _forward(self, x)


class BottleneckResNet(nnx.Module):
    """The paper's ImageNet bottleneck network with a stem for small images.

    ResNet-50's four stages of 3, 4, 6 and 3 bottleneck blocks, 64 to 512 wide (256 to 2,048 out), but the 7x7
    convolution of stride 2 and the pooling after it are one 3x3 convolution of stride 1, so a 32x32 image reaches the
    last stage as 4x4. 23.5 M parameters for 10 classes. (It is not a 9m+2 network of CIFAR widths: 50 is not such a
    number.)

    Args:
      num_classes: number of logits.
      rngs: `params` for the kernels.
      stages: blocks in each stage; (3, 4, 6, 3) is ResNet-50.
      channels: number of channels of the images.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rngs: nnx.Rngs,
        stages: Sequence[int] = (3, 4, 6, 3),
        channels: int = 3,
    ) -> None:
        self.stem = _Conv(channels, 64, (3, 3), rngs=rngs)
        self.norm = _Norm(64, rngs=rngs)
        blocks, inputs = [], 64
        for stage, num_blocks in enumerate(stages):
            width = 64 * 2**stage
            for index in range(num_blocks):
                stride = 2 if index == 0 and stage > 0 else 1
                blocks.append(BottleneckBlock(inputs, width, stride, rngs=rngs))
                inputs = width * BottleneckBlock.expansion
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(inputs, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits, (examples, num_classes), of `x`, (examples, height, width, channels)."""
        return _forward(self, x)


def resnet(depth: int, num_classes: int, *, rngs: nnx.Rngs) -> CifarResNet | BottleneckResNet:
    """Return the ResNet of `depth` layers for 32x32 images: 6m+2 of basic blocks, or 50 of bottlenecks.

    6*8+2 is 50 too; the depth 50 means the bottleneck network, as everywhere in the field.

    Raises:
      TaskError: the depth is neither.
    """
    if depth == 50:
        return BottleneckResNet(num_classes, rngs=rngs)
    return CifarResNet(depth, num_classes, rngs=rngs)


def _forward(net: CifarResNet | BottleneckResNet, x: jax.Array) -> jax.Array:
    x = nnx.relu(net.norm(net.stem(x)))
    for block in net.blocks:
        x = block(x)
    return net.head(x.mean(axis=(1, 2)))
