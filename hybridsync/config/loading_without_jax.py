"""A configuration's values for a process that must not load JAX: a supervisor, which only counts and compares them.

The file is run here until it imports JAX. If it does, another process runs the whole file, applies the command line's
changes and returns the values; its output goes to stderr. The file's own dataclasses come back with their values and
without their methods: a supervisor calls none of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.abc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from hybridsync.config.loading import LoadedConfig, load_config
from hybridsync.config.resume_rules import restore_values, to_json
from hybridsync.config.run_config import RunConfig
from hybridsync.core import errors
from hybridsync.core.errors import ConfigError, HybridSyncError

HEAVY = ("jax", "jaxlib", "flax", "optax")
READ_SECS = 300.0
_PROGRAM = "from hybridsync.config.loading_without_jax import print_values; print_values()"
_GROUPS = ("model", "data")


def load_values(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return what the configuration file at `path` asks for, without loading JAX (see `load_config`).

    Raises:
        ConfigError: as `load_config`, or the file is not read within READ_SECS.
    """
    if any(name in sys.modules for name in HEAVY):
        return load_config(path, overrides)
    with contextlib.suppress(_LoadsJax), _without_jax():
        return load_config(path, overrides)
    return LoadedConfig(ModuleType(Path(path).stem), _elsewhere(path, overrides))


class _LoadsJax(BaseException):
    """The file imports JAX; no `except Exception` of its own may take this for a missing package."""


class _Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in HEAVY:
            raise _LoadsJax(fullname)


@contextmanager
def _without_jax() -> Iterator[None]:
    watch, folder = _Watch(), os.getcwd()
    sys.meta_path.insert(0, watch)
    try:
        yield
    finally:
        sys.meta_path.remove(watch)
        os.chdir(folder)  # the roles run the file, too, and begin where this process did


def _elsewhere(path: str | Path, overrides: Sequence[str]) -> RunConfig:
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    environment = {**os.environ, "PYTHONPATH": places, "JAX_PLATFORMS": "cpu"}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    command = [sys.executable, "-c", _PROGRAM, str(path), *overrides]
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=READ_SECS, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{path} was not read within {READ_SECS:g} s; a configuration file names what to train, move the work "
            "into task(config)"
        ) from None
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise ConfigError(f"the process that reads {path} ended with status {done.returncode}; see above") from None
    if "error" in told:
        kind = getattr(errors, told["kind"], ConfigError)
        raise kind(told["error"])
    values = told["config"]
    groups = {name: _group(kind, values[name]) for name, kind in told["kinds"].items()}
    # The default plan may not go with this workload.
    return restore_values(RunConfig(workload=values["workload"], plan=values["plan"], **groups), values)


def _group(name: str, values: dict[str, Any]) -> Any:
    """Return a frozen dataclass with these values, which stands for one of the file's own."""
    made = {
        key: _group(key, value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
    }
    return dataclasses.make_dataclass(name, list(made), frozen=True)(**made)


def print_values() -> NoReturn:
    """Be the process that reads a file: print its values as JSON, or what is wrong with it."""
    out = os.dup(1)
    os.dup2(2, 1)
    path, *overrides = sys.argv[1:]
    try:
        config = load_config(path, overrides).config
        kinds = {name: type(getattr(config, name)).__name__ for name in _GROUPS}  # they are part of a job's signature
        told: dict[str, Any] = {"config": to_json(config), "kinds": kinds}
    except HybridSyncError as error:
        told = {"error": str(error), "kind": type(error).__name__}
    sys.stdout.flush()
    with open(out, "wb") as line:
        line.write(json.dumps(told).encode())
    os._exit(0)  # whatever threads the file has started
