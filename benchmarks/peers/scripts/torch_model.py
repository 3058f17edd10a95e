"""The digits' network in PyTorch, as a function of its parameters: for servers whose workers hold no model."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.peers.scripts.peer_job import Data

Tensors = list[torch.Tensor]


class Units:
    """Gradients of randomly drawn units.

    Args:
      data: the digits.
      unit_size: examples a unit.
      seed: of the draw.
    """

    def __init__(self, data: Data, unit_size: int, seed: int) -> None:
        torch.set_num_threads(1)
        self._images, self._labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
        self._drawn, self._unit_size = np.random.default_rng(seed), unit_size

    def gradient(self, params: Sequence[torch.Tensor]) -> Tensors:
        """Return the gradient of the next unit at these parameters, in their order."""
        batch = torch.from_numpy(self._drawn.integers(0, len(self._images), self._unit_size))
        own = [each.detach().requires_grad_() for each in params]
        hidden = self._images[batch]
        for index in range(0, len(own), 2):
            hidden = torch.addmm(own[index + 1], hidden, own[index])
            if index + 2 < len(own):
                hidden = torch.relu(hidden)
        return list(torch.autograd.grad(torch.nn.functional.cross_entropy(hidden, self._labels[batch]), own))
