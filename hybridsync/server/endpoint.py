"""The servers' ends of their links to workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.ports import Answer
from hybridsync.server.partition import Contributions
from hybridsync.server.primary import Primary
from hybridsync.server.secondary import Secondary
from hybridsync.training.buffer_layout import Layout


class Endpoint:
    """A `ParameterPort` over a primary; its publisher lends what the link carries.

    Args:
      primary: decides and updates.
      contributions: reads the buffers that workers push; None where they are threads, which push trees.
    """

    def __init__(self, primary: Primary, contributions: Contributions | Layout | None) -> None:
        self._primary, self._contributions = primary, contributions

    def pull(self, push: Push) -> Answer:
        """See `Primary.pull`."""
        return Answer(*self._primary.pull(push))

    def idle(self, push: Push) -> None:
        """See `Primary.idle`."""
        self._primary.idle(push)

    def ready(self, push: Push) -> None:
        """See `Primary.ready`."""
        self._primary.ready(push)

    def begin_push(self, push: Push) -> Callable[[Any], Answer]:
        """See `Primary.push_pull`; the update reads a buffer where it lies, until the call returns.

        Views go straight into the jitted update: on CPU it aliases them, where a `device_put` of each leaf would cost
        more than a small update does.
        """

        def offer(contribution: Any) -> Answer:
            if self._contributions is None:
                return Answer(*self._primary.push_pull(push, contribution))
            tree, is_finite = self._contributions.unpack(contribution), self._contributions.is_finite(contribution)
            return Answer(*self._primary.push_pull(push, tree, is_finite=is_finite))

        return offer


class OptimizerEndpoint:
    """An `OptimizerPort` over any parameter server.

    Args:
      backend: the server that keeps the optimizer state.
      layout: layout of the server's part of the optimizer state.
    """

    def __init__(self, backend: Primary | Secondary, layout: Layout) -> None:
        self._backend, self._layout = backend, layout

    def download_opt_state(self, push: Push) -> np.ndarray:
        """See `Primary.download_opt_state`."""
        return self._layout.pack(self._backend.download_opt_state(push))

    def upload_opt_state(self, push: Push, opt_state: np.ndarray) -> None:
        """See `Primary.upload_opt_state`; the buffer is the server's from now on."""
        self._backend.upload_opt_state(push, self._layout.unpack(opt_state))
