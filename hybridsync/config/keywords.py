"""Arguments by name: an unknown one is refused with the nearest known one, a missing one by its name.

>>> did_you_mean("batch_size", ["workload", "unit_size"])
"did you mean 'unit_size'?"
>>> did_you_mean("num_workers", ["min_workers", "workers"])
"did you mean 'workers'?"
>>> did_you_mean("zzz", ["workload", "unit_size"])
'known: workload, unit_size'
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hybridsync.core.errors import ConfigError

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the known name that is nearest to `name`, or all of them if none is near; each is shown with `prefix`."""
    known = list(known)
    parts = [each for each in known if name.endswith(f"_{each}")]  # another word stands before it
    near = parts or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {prefix + near[0]!r}?"
    return f"known: {', '.join(prefix + each for each in known) or 'none'}"


def check_known(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Check that `owner` has arguments of these names.

    Raises:
        ConfigError: `owner` lacks one of the arguments.
    """
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{owner} has no argument {name!r}; {did_you_mean(name, known)}")


def checked(cls: type[T]) -> type[T]:
    """Make wrong arguments of a configuration's class a ConfigError, instead of a TypeError."""
    init: Callable[..., None] = cls.__init__
    signature = inspect.signature(init)
    _, *known = signature.parameters

    @functools.wraps(init)
    def checked_init(self: Any, *args: Any, **fields: Any) -> None:
        check_known(cls.__name__, fields, known)
        try:
            signature.bind(self, *args, **fields)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}; its arguments are {', '.join(known)}") from None
        init(self, *args, **fields)

    setattr(cls, "__init__", checked_init)  # noqa: B010 - a type checker refuses to assign another method than declared
    return cls
