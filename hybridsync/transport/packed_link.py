"""A worker's link to the parameter servers in other processes: trees above, packed buffers below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import OptimizerPort
from hybridsync.server.partition import Part, join
from hybridsync.training.buffer_layout import BufferTrees
from hybridsync.training.compiled_programs import Parameters
from hybridsync.transport.link import BlockLink, ParameterLink

T = TypeVar("T")


class PackedLink:
    """A `ServerLink` over any transport that carries buffers.

    With several servers a push first stages each other server's block there, then asks the primary with its own; the
    reply names a sequence, and every other server is asked for exactly its parameters. The calls to the other servers
    run side by side.

    The gradient reads parameters where they lie: on CPU a jitted program aliases aligned views, where a `device_put` of
    each leaf would cost more than a small gradient does. They are lent until the next push or pull.

    Args:
      parts: part of the trees at each server, the primary's first.
      primary: link to server 0.
      others: links to the other servers, in order.
      optimizers: every server as one that keeps optimizer states, the primary first; for workers with
        local updates.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        primary: ParameterLink,
        others: Sequence[BlockLink] = (),
        optimizers: Sequence[OptimizerPort] = (),
    ) -> None:
        self._optimizers = tuple(optimizers)
        self._optimizer_cuts = [part.opt_state for part in parts]
        self._primary, self._others = primary, tuple(others)
        self._parameters: list[np.ndarray] = []
        self._contribution_cuts = [part.contribution for part in parts]
        self._parameter_cuts = [part.parameters for part in parts]
        # One each: behind a lost connection the buffer is another one, and the last one's memory goes back.
        self._contribution_trees = [BufferTrees(cut.layout, most=1) for cut in self._contribution_cuts]
        self._parameter_trees = [BufferTrees(cut.layout) for cut in self._parameter_cuts]
        self._is_whole = len(parts) == 1  # whose trees are neither divided nor joined
        self._prepared: tuple[Any, list[list[np.ndarray]]] = None, []
        self._side_by_side = ThreadPoolExecutor(len(self._others), "servers") if len(self._others) > 1 else None

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        """See `ServerLink.pull`."""
        return self._completed(push, *self._primary.pull(push))

    def prepare(self, contribution: Any) -> None:
        """See `ServerLink.prepare`: nothing is left to do at the push but to copy the numbers."""
        cuts = self._contribution_cuts
        self._prepared = contribution, [cut.layout.arrays_of(cut.part_of(contribution)) for cut in cuts]

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        """See `ServerLink.push_pull`."""
        return self._completed(push, *self._primary.push_pull(self._staged(push, contribution)))

    def push(self, push: Push, contribution: Any) -> PushReply:
        """See `ServerLink.push`."""
        return self._primary.push_pull(self._staged(push, contribution))[0]

    def _staged(self, push: Push, contribution: Any) -> Push:
        """Pack a contribution, and stage it at the other servers; returns the push that the primary is offered."""
        if self._prepared[0] is not contribution:
            self.prepare(contribution)
        arrays = self._prepared[1]
        self._prepared = None, []
        if self._is_whole:
            self._contribution_trees[0].of(self._primary.contribution).copy(arrays[0])
            return push
        links = (self._primary, *self._others)
        for trees, link, of_part in zip(self._contribution_trees, links, arrays, strict=True):
            trees.of(link.contribution).copy(of_part)
        found = self._of_each(lambda server: server.stage(push))
        return push._replace(non_finite=next(filter(None, found), ""))

    def idle(self, push: Push) -> None:
        """See `ServerLink.idle`."""
        self._primary.idle(push)

    def ready(self, push: Push) -> None:
        """See `ServerLink.ready`."""
        self._primary.ready(push)

    def download_opt_state(self, push: Push) -> Any:
        """See `ServerLink.download_opt_state`."""
        pairs = zip(self._optimizer_cuts, self._optimizers, strict=True)
        found = [cut.layout.unpack(server.download_opt_state(push)) for cut, server in pairs]
        return join(self._optimizer_cuts, found)

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        """See `ServerLink.upload_opt_state`; the primary's comes last: when it has its part, all have theirs."""
        for cut, server in [*zip(self._optimizer_cuts, self._optimizers, strict=True)][::-1]:
            server.upload_opt_state(push, cut.layout.pack(cut.part_of(opt_state)))

    def close(self) -> None:
        """See `ServerLink.close`."""
        for client in (self._primary, *self._others):
            client.close()
        for trees in (*self._contribution_trees, *self._parameter_trees):
            trees.clear()
        if self._side_by_side is not None:
            self._side_by_side.shutdown(wait=False)

    def _completed(self, push: Push, reply: PushReply, parameters: np.ndarray) -> tuple[PushReply, Parameters]:
        """Fetch what belongs to the primary's reply from the others, and join it."""
        if self._is_whole:
            return reply, self._parameter_trees[0].of(parameters).tree
        others = self._parameters[1:]
        if not push.units or reply.brings_parameters(push) or not self._parameters:
            wanted = push._replace(units=(), base=reply.sequence)
            others = self._of_each(lambda server: server.pull_at(wanted))
        self._parameters = [parameters, *others]
        pairs = zip(self._parameter_trees, self._parameters, strict=True)
        return reply, join(self._parameter_cuts, [trees.of(buffer).tree for trees, buffer in pairs])

    def _of_each(self, ask: Callable[[BlockLink], T]) -> list[T]:
        """Ask every other server at once; returns their answers in order."""
        if self._side_by_side is None:
            return [ask(server) for server in self._others]
        return list(self._side_by_side.map(ask, self._others))
