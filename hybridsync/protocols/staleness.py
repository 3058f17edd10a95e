"""Wrappers that change a rule's actions by how stale a push is; they fit every rule of the SERVER mode.

tau is the staleness of a push when it is applied: updates since the parameters it was computed on.

    bounded         tau above a protocol's own bound is dropped
    cut             tau >= R is dropped
    rate            eta / max(1, tau); in an update of several pushes each gradient's weight is 1 / max(1, tau)
    dc              the server applies g + lambda * g * g * (w_now - w_base), lambda = .04
    dc_adaptive     the same with lambda / sqrt(v), v <- m * v + (1 - m) * g * g per entry, lambda = 2, m = .95

The last two are not wrappers: a protocol states its `Compensation`, and the server, which holds w_now and w_base,
computes it. v begins at 0 with each phase. `rate` and `cut` change a rule's actions here.

A drop is final: a fresh unit takes the place of the one dropped, and the worker continues from the newest parameters.

Sources: rate: Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD", IJCAI 2016 (arXiv 1511.05950); cut: Maranjyan,
Tyurin, Richtarik, "Ringmaster ASGD", 2025 (arXiv 2501.16168), R = n by default; dc: Zheng, Meng, Wang et al.,
"Asynchronous SGD with delay compensation", ICML 2017 (arXiv 1609.08326). Weights for updates of several pushes are
ours.
"""

from __future__ import annotations

from dataclasses import replace

from hybridsync.protocols.base import Action, Apply, Arrival, Drop, Release, ServerRule
from hybridsync.protocols.scaling import scaled

TOO_STALE = "stale"
"""Prefix of the drop reason of a push that was computed on parameters that are too old."""


class Wrapped(ServerRule):
    """A rule whose actions pass through `judge`.

    Args:
      rule: the wrapped rule.
    """

    def __init__(self, rule: ServerRule) -> None:
        self._rule = rule

    def judge(self, actions: list[Action]) -> list[Action]:
        """Return what is to be carried out in the place of `actions`."""
        return actions

    def on_push(self, arrival: Arrival) -> list[Action]:
        return self.judge(self._rule.on_push(arrival))

    def on_ready(self, worker: int, at: float) -> list[Action]:
        return self.judge(self._rule.on_ready(worker, at))

    def on_received(self, worker: int, at: float) -> list[Action]:
        return self.judge(self._rule.on_received(worker, at))

    def on_join(self, worker: int) -> list[Action]:
        return self.judge(self._rule.on_join(worker))

    def on_leave(self, worker: int) -> list[Action]:
        return self.judge(self._rule.on_leave(worker))

    def on_idle(self, worker: int) -> list[Action]:
        return self.judge(self._rule.on_idle(worker))

    def on_last(self) -> list[Action]:
        return self.judge(self._rule.on_last())


class Bounded(Wrapped):
    """Drops pushes beyond a bound; their workers take part as if they had just joined.

    A rule that waits keeps its bound among the workers that it waits for. A worker that came back from idleness, or was
    taken for gone, was not waited for.

    Args:
      rule: the wrapped rule, which is asked about all other pushes.
      bound: maximum number of updates between a gradient's parameters and its arrival.
    """

    def __init__(self, rule: ServerRule, bound: int) -> None:
        super().__init__(rule)
        self._bound = bound

    def on_push(self, arrival: Arrival) -> list[Action]:
        if arrival.staleness <= self._bound:
            return super().on_push(arrival)
        reason = f"{TOO_STALE}: {arrival.staleness} updates old, at most {self._bound} are allowed"
        return [Drop(arrival.push_id, reason), Release(arrival.push_id), *self.on_join(arrival.worker)]


class Scaled(Wrapped):
    """Lets the rate grow otherwise with the units of an update than linearly, as rules do.

    Args:
      rule: the wrapped rule.
      scaling: scaling of the rate with the units of an update.
    """

    def __init__(self, rule: ServerRule, scaling: str) -> None:
        super().__init__(rule)
        self._scaling = scaling
        self.at_once = None if rule.at_once is None else scaled(rule.at_once, scaling)

    def judge(self, actions: list[Action]) -> list[Action]:
        return [
            replace(action, lr_factor=scaled(action.lr_factor, self._scaling)) if isinstance(action, Apply) else action
            for action in actions
        ]


class Damped(Wrapped):
    """Lets a push count less the staler it is.

    Args:
      rule: the wrapped rule.
    """

    def __init__(self, rule: ServerRule) -> None:
        super().__init__(rule)
        self._num_updates = 0
        self._bases: dict[int, int] = {}

    def on_push(self, arrival: Arrival) -> list[Action]:
        self._bases[arrival.push_id] = self._num_updates - arrival.staleness
        return super().on_push(arrival)

    def judge(self, actions: list[Action]) -> list[Action]:
        return [self._damped(action) if isinstance(action, Apply) else self._seen(action) for action in actions]

    def _damped(self, apply: Apply) -> Apply:
        factors = tuple(1.0 / max(1, self._num_updates - self._bases.pop(push)) for push in apply.pushes)
        self._num_updates += 1
        if all(factor == 1.0 for factor in factors):
            return apply
        if len(factors) == 1:
            return replace(apply, lr_factor=apply.lr_factor * factors[0])
        weights = apply.weights or (1.0,) * len(factors)
        return replace(apply, weights=tuple(w * factor for w, factor in zip(weights, factors, strict=True)))

    def _seen(self, action: Action) -> Action:
        if isinstance(action, Drop):
            self._bases.pop(action.push, None)
        return action
