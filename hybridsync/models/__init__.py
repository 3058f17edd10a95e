"""Flax nnx models: an MLP, CIFAR's residual networks, a small decoder language model."""

from hybridsync.models.mlp import MLP
from hybridsync.models.resnet import BottleneckResNet, CifarResNet, resnet
from hybridsync.models.transformer import DecoderLM

__all__ = ["MLP", "BottleneckResNet", "CifarResNet", "DecoderLM", "resnet"]
