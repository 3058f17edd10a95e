"""Looks up every private name of jax and jaxlib that HybridSync uses, because they offer none of this in public.

Each is looked up when it is needed. Every function raises HybridSyncError where the installed version lacks a name, and
the error says which. Importing this file loads neither of the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hybridsync.core.errors import HybridSyncError


def make_service() -> Callable[..., Any]:
    """Return what makes a coordination service: (address, number of slots, options).

    Raises:
      HybridSyncError: the installed version lacks it.
    """
    (make,) = private("jaxlib._jax", "get_distributed_runtime_service")
    return make


def read_xla_flags() -> None:
    """Have jaxlib read XLA_FLAGS; it ends the process if it meets a flag that it does not know.

    Raises:
      HybridSyncError: the installed version lacks what reads them.
    """
    (options,) = private("jaxlib._jax", "CompileOptions")
    options()


def make_client() -> Callable[..., Any]:
    """Return what makes a client of a coordination service: (address, slot, options).

    Raises:
      HybridSyncError: the installed version lacks it.
    """
    (make,) = private("jaxlib._jax", "get_distributed_runtime_client")
    return make


def make_gloo_collectives() -> Callable[..., Any]:
    """Return what makes gloo's collectives: (client, host name or address to listen on).

    Raises:
      HybridSyncError: the installed version lacks it.
    """
    (make,) = private("jaxlib._jax", "make_gloo_tcp_collectives")
    return make


def cpu_backend() -> tuple[Callable[..., None], Callable[..., Any]]:
    """Return what registers a backend's factory, and jax's own factory of the CPU backend.

    Raises:
      HybridSyncError: the installed version lacks it.
    """
    register, make_cpu = private("jax._src.xla_bridge", "register_backend_factory", "make_cpu_client")
    return register, make_cpu


def distributed_state() -> Any:
    """Return the process's place among others, as jax sees it.

    Raises:
      HybridSyncError: the installed version lacks it.
    """
    (state,) = private("jax._src.distributed", "global_state")
    return state


def has_backends() -> bool:
    """Return whether jax has its devices already.

    Raises:
      HybridSyncError: the installed version lacks it.
    """
    (are_initialized,) = private("jax._src.xla_bridge", "backends_are_initialized")
    return bool(are_initialized())


def wrap_file_cache(wrap: Callable[[Any, str], Any]) -> None:
    """Have jax use `wrap(its cache, folder)` wherever it opens a folder of compiled programs from now on.

    Raises:
      HybridSyncError: the installed version lacks what opens it.
    """
    (make,) = private("jax._src.compilation_cache", "get_file_cache")
    make = getattr(make, "of_jax", make)

    def wrapped(path: str) -> Any:
        made = make(path)
        return made and (wrap(made[0], made[1]), made[1])

    wrapped.of_jax = make  # pyright: ignore[reportFunctionMemberAccess]
    importlib.import_module("jax._src.compilation_cache").get_file_cache = wrapped  # pyright: ignore[reportAttributeAccessIssue]


def private(module: str, *names: str) -> tuple[Any, ...]:
    """Return what private names of jax or jaxlib stand for.

    Args:
      module: name of the module that has them.
      names: the names.

    Raises:
      HybridSyncError: the installed version lacks one of them.
    """
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise unsuited(module, str(error)) from error
    missing = [name for name in names if not hasattr(found, name)]
    if missing:
        raise unsuited(module, f"it has no {', '.join(missing)}")
    return tuple(getattr(found, name) for name in names)


def construct(what: str, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a private constructor makes; a changed signature is told like a missing name.

    Args:
      what: what is made, for the error.
      make: the constructor.
      *args: arguments of the constructor.
      **options: options of the constructor.

    Raises:
      HybridSyncError: it does not take these arguments.
    """
    try:
        return make(*args, **options)
    except TypeError as error:
        raise unsuited(what, str(error).splitlines()[0]) from error


def unsuited(what: str, reason: str) -> HybridSyncError:
    """Return the error that an installed version does not have what is needed.

    Args:
      what: what is needed.
      reason: how it is told that it is not there.
    """
    version = importlib.import_module("jaxlib.version").__version__
    return HybridSyncError(
        f"jaxlib {version} does not offer {what} as the process runtime needs it ({reason}); HybridSync is "
        "tested with jax 0.10.2 and 0.12.0: install one of these, or run with --runtime=inprocess"
    )
