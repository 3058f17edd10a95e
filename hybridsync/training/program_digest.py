"""Digests of traced programs: equal for programs that compute the same from the same inputs, in any process.

A program is a graph. Each value's digest is made of the operation that gives it and the digests of what that reads, and
the program's of its results'. So names of variables, the order of independent operations, what nobody reads, and places
in source files do not count, nor does whether a part is compiled or computed again by itself (`jit`, `checkpoint`), or
where its values lie.

    >>> import jax, jax.numpy as jnp
    >>> def of(function):
    ...     return digest(jax.make_jaxpr(function)(2.0, 3.0))
    >>> of(lambda a, b: a * b + jnp.sin(b)) == of(lambda x, y: [jnp.sin(y), x * y][1] + jnp.sin(y))
    True
    >>> of(lambda a, b: a * b + 1.0) == of(lambda a, b: a * b + 2.0)
    False
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_NOT_COMPUTED = frozenset(
    {"name", "debug_info", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "ctx_mesh", "sharding"}
    | {"in_shardings", "out_shardings", "in_layouts", "out_layouts"}
)
"""Parameters that hold names, places of arrays, or rules for a derivative that has not been taken."""
_SAME_VALUES = frozenset({"sharding_constraint", "layout_constraint", "optimization_barrier"})
"""Operations whose results are their inputs."""
_CALLS = frozenset({"jit", "pjit", "checkpoint", "remat2"})
"""Operations that compute the program in their parameter `jaxpr`, as it would be computed outside."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def digest(program: ClosedJaxpr) -> str:
    """Return the digest of a traced program in hex; "" where it has a part that cannot be read.

    A digest serves a comparison: what it cannot read must refuse no run.
    """
    try:
        return _of_program(program.jaxpr, program.consts).hex()
    except Exception as error:  # noqa: BLE001 - operations of any library, with parameters of any type
        logging.info("a program has no digest: %s: %s", type(error).__name__, error)
        return ""


def _hash(*parts: bytes | memoryview | str) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode(errors="backslashreplace") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.digest()


def _of_program(program: Jaxpr, constants: Iterable[Any]) -> bytes:
    types = [str(variable.aval) for variable in program.invars]
    inputs = [_hash("input", str(at), each) for at, each in enumerate(types)]
    results, effects = _evaluated(program, constants, inputs)
    return _hash("program", *types, "results", *results, "effects", *effects)


def _evaluated(program: Jaxpr, constants: Iterable[Any], inputs: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the digests of a program's results, and of its operations that have effects, for those of its inputs."""
    known: dict[Any, bytes] = dict(zip(program.invars, inputs, strict=True))
    for variable, value in zip(program.constvars, constants, strict=True):
        known[variable] = _of_value(value)

    def read(atom: Any) -> bytes:
        return _hash(str(atom.aval), _of_value(atom.val)) if isinstance(atom, Literal) else known[atom]

    effects: list[bytes] = []
    for equation in program.eqns:
        name, given = equation.primitive.name, [*map(read, equation.invars)]
        if name in _SAME_VALUES:
            results = given
        elif name in _CALLS:
            called = equation.params["jaxpr"]
            closed = called if isinstance(called, ClosedJaxpr) else ClosedJaxpr(called, [])
            results, inner = _evaluated(closed.jaxpr, closed.consts, given)
            effects += inner
        else:
            parameters = {key: value for key, value in equation.params.items() if key not in _NOT_COMPUTED}
            made = _hash(name, _of_value(parameters), *given)
            results = [_hash(made, str(at)) for at in range(len(equation.outvars))]
            effects += [made] if equation.effects else []
        known.update(zip(equation.outvars, results, strict=True))
    return [*map(read, program.outvars)], effects


def _of_value(value: Any) -> bytes:
    """Return the digest of a constant, or of an operation's parameter; functions count by their names."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return _hash(kind, repr(value))
    if isinstance(value, ClosedJaxpr):
        return _of_program(value.jaxpr, value.consts)
    if isinstance(value, Jaxpr):
        return _of_program(value, [f"constant {at}" for at in range(len(value.constvars))])
    if isinstance(value, enum.Enum):
        return _hash(kind, value.name)
    if isinstance(value, type):
        return _hash("type", value.__qualname__)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _of_array(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # the type of an array: of a callback's result, say
        return _hash("type of an array", str(value.dtype), str(value.shape))
    if isinstance(value, Mapping):
        return _hash("mapping", *sorted(_hash(_of_value(key), _of_value(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return _hash("set", *sorted(map(_of_value, value)))
    if isinstance(value, tuple | list):
        return _hash("sequence", *map(_of_value, value))
    if dataclasses.is_dataclass(value):
        return _hash(kind, *(_of_value(getattr(value, field.name)) for field in dataclasses.fields(value)))
    if callable(value) and hasattr(value, "__qualname__"):
        return _hash("function", value.__qualname__)
    return _hash(kind, _ADDRESS.sub("", repr(value)))


def _of_array(value: Any) -> bytes:
    name = str(value.dtype)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(np.asarray(value))
    return _hash("array", name, str(np.shape(value)), array.reshape(-1).view(np.uint8).data)
