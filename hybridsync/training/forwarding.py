"""Finds in a traced program which of its results are inputs that it only hands on.

Transformations such as `jit`, `remat` and `scan` return new tracers also for what they leave alone, so identity of
values does not show it. The program does: each result is followed through them, back to an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

Tree = Any

_SAME_BITS = {"name", "copy", "copy_p", "optimization_barrier", "sharding_constraint", "random_wrap", "random_unwrap"}
"""Operations of one operand whose result has its bits; a key is its words."""
_CALLS = {"jit", "pjit", "checkpoint", "remat", "remat2", "closed_call", "core_call", "custom_jvp_call"} | {
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}
"""Operations that run one program, on all their operands and for all their results."""


def changed(program: Jaxpr, before: Sequence[Tree], after: Sequence[Tree]) -> list[bool]:
    """Return which trees a program changes.

    Args:
      program: program whose first inputs are the leaves of `before` and whose first results are those of `after`.
      before: trees that it gets.
      after: the same trees as it returns them.
    """
    sources, first_input, first_result = _sources(program), 0, 0
    found = []
    for old, new in zip(before, after, strict=True):
        next_input, next_result = (first_input + len(jax.tree.leaves(old)), first_result + len(jax.tree.leaves(new)))
        handed_on = sources[first_result:next_result] == list(range(first_input, next_input))
        found.append(not handed_on or jax.tree.structure(old) != jax.tree.structure(new))
        first_input, first_result = next_input, next_result
    return found


def _sources(program: Jaxpr) -> list[int | None]:
    """Return for each result the position of the input that it is; None where it is computed."""
    found: dict[Any, int] = {variable: position for position, variable in enumerate(program.invars)}

    def source(atom: Any) -> int | None:
        return None if isinstance(atom, Literal) else found.get(atom)

    for equation in program.eqns:
        for result, operand in zip(equation.outvars, _operands(equation), strict=True):
            origin = None if operand is None else source(equation.invars[operand])
            if origin is not None:
                found[result] = origin
    return [source(atom) for atom in program.outvars]


def _operands(equation: JaxprEqn) -> list[int | None]:
    """Return for each result of an operation the position of the operand that it is; None where it is computed."""
    name, params = equation.primitive.name, equation.params
    if name in _SAME_BITS:
        return list(range(len(equation.outvars)))
    if name in _CALLS:
        return _sources(_open(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]))
    if name == "scan":
        # A carry must come back to its own place; slices that each round hands on stack up to the whole operand.
        consts, carries = params["num_consts"], params["num_carry"]
        sources = _sources(_open(params["jaxpr"]))
        return [
            source
            if source is not None and (source == consts + place if place < carries else source >= consts + carries)
            else None
            for place, source in enumerate(sources)
        ]
    if name == "while":
        skipped, consts = params["cond_nconsts"], params["body_nconsts"]
        sources = _sources(_open(params["body_jaxpr"]))
        return [skipped + consts + at if source == consts + at else None for at, source in enumerate(sources)]
    if name == "cond":
        branches = [_sources(_open(branch)) for branch in params["branches"]]
        return [None if each[0] is None or len(set(each)) > 1 else 1 + each[0] for each in zip(*branches, strict=True)]
    return [None] * len(equation.outvars)


def _open(program: Any) -> Jaxpr:
    return program if isinstance(program, Jaxpr) else program.jaxpr
