"""Configuration files: Python files with `config()`, `task(config)`, `optimizer(config)`, maybe `callbacks(config)`."""

import difflib
import importlib.machinery
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hybridsync.config.overrides import apply_overrides
from hybridsync.config.run_config import RunConfig
from hybridsync.core.errors import ConfigError, HybridSyncError, described
from hybridsync.core.user_code import ends_forks, users_line

FUNCTIONS = ("config", "task", "optimizer")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration file that has been run.

    Args:
        module: the file, for its `task(config)` and `optimizer(config)`; empty where only the values were read.
        config: result of the file's `config()`.
    """

    module: ModuleType
    config: RunConfig

    @ends_forks
    def build(self, config: RunConfig, optimizer_config: RunConfig | None = None) -> tuple[Any, Any]:
        """Return the file's task and optimizer for these values.

        Args:
            config: configuration for the task.
            optimizer_config: configuration for the optimizer; None takes `config`.

        Raises:
            HybridSyncError: one of the two refuses its input.
            ConfigError: one of the two raises something else.
        """
        with _explaining(Path(self.module.__file__ or "")):
            return self.module.task(config), self.module.optimizer(optimizer_config or config)

    @ends_forks
    def callbacks(self, config: RunConfig) -> Any:
        """Return what the file's `callbacks(config)` returns, () where it has none; only the chief may ask.

        Raises:
            HybridSyncError: it refuses its input.
            ConfigError: it raises something else.
        """
        with _explaining(Path(self.module.__file__ or "")):
            return self.module.callbacks(config) if hasattr(self.module, "callbacks") else ()


@ends_forks
def load_config(path: str | Path, overrides: Iterable[str] = ()) -> LoadedConfig:
    """Run the configuration file at `path` and return what it asks for; the file may import JAX.

    The file's folder comes first on `sys.path`, as that of a program does, so that it finds the modules in the same
    folder.

    Args:
        path: path of the file.
        overrides: changes from the command line (see `apply_overrides`).

    Raises:
        ConfigError: the file is absent, raises, lacks one of its functions, or returns something else, or an override
            does not fit.
    """
    file = Path(path)
    check_present(file, "configuration", "--config")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = run_file(file, "--config")
    for name in FUNCTIONS:
        if not callable(getattr(module, name, None)):
            arguments = "" if name == "config" else "config"
            raise ConfigError(
                f"{path} has no function {name}({arguments}); a configuration file defines "
                "config(), task(config) and optimizer(config)"
            )
    try:
        config = module.config()
    except (Exception, SystemExit) as error:  # the file is its author's: whatever it raises becomes one clear message
        raise explained(file, error) from error
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{path}: config() returned {type(config).__name__}, not RunConfig; return a RunConfig")
    with _explaining(file):  # the groups of its own may check their values
        return LoadedConfig(module, apply_overrides(config, overrides))


@contextmanager
def _explaining(file: Path) -> Iterator[None]:
    """Turn what a configuration file's own code raises into one clear line; our refusals are one already."""
    try:
        yield
    except HybridSyncError:
        raise
    except (Exception, SystemExit) as error:  # the file is its author's: whatever it raises becomes one clear message
        raise explained(file, error) from error


def check_present(file: Path, kind: str, flag: str) -> None:
    """Check that there is a `kind` of file that `flag` named.

    Raises:
        ConfigError: the file is absent, and the message names the nearest one; or there is no permission to read the
            folder.
    """
    try:
        if file.is_file():
            return
    except OSError as error:
        raise ConfigError(
            f"cannot read the {kind} file {str(file)!r}: {error.strerror}; give yourself access to it"
        ) from None
    siblings = [str(other) for other in sorted(file.parent.glob("*.py")) if other.name != "__init__.py"]
    near = difflib.get_close_matches(str(file), siblings, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"give the path of one with {flag}"
    raise ConfigError(f"there is no {kind} file {str(file)!r}; {advice}")


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a file each time it is loaded.

    Python takes bytecode for a file's own by the second of its last change and its size. A configuration that is edited
    twice in a second, say by a sweep that changes one digit, would be run as it was before.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


@ends_forks
def run_file(file: Path, flag: str) -> ModuleType:
    """Run a Python file of a user's and return it as a module of its own.

    Args:
        file: path of a file that exists.
        flag: name of the flag that gave the path, for errors.

    Raises:
        ConfigError: the file is not a Python file, or raises.
    """
    # Two files of one name must not become one module; and a dataclass finds its annotations' names through
    # sys.modules, so the module has to be there before it runs.
    name = f"_config_{file.stem}_{zlib.crc32(str(file.resolve()).encode()):08x}"
    loader = _SourceLoader(name, str(file)) if file.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if loader is None or spec is None:
        raise ConfigError(f"{file} is not a Python file; give the path of a .py file with {flag}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # as above
        del sys.modules[name]
        raise explained(file, error) from error
    return module


def explained(file: Path, error: Exception | SystemExit) -> ConfigError:
    """Return an error that says in one line what a configuration file raised, and where.

    Args:
        file: the configuration file.
        error: error that one of the file's functions raised.
    """
    if isinstance(error, SyntaxError):
        return ConfigError(f"{error.filename or file}, line {error.lineno}: {error.msg}; correct the file")
    if isinstance(error, RuntimeError | AssertionError) and (why := _without_devices(error)):
        return ConfigError(
            f"JAX has no devices: {why}. Name a platform that is there with JAX_PLATFORMS. Where a GPU is not "
            "HybridSync's alone, set XLA_CLIENT_MEM_FRACTION to the share of its memory that it may take."
        )
    where = users_line(error) or str(file)
    if isinstance(error, ConfigError):
        return type(error)(f"{where}: {error}")
    return ConfigError(f"{where}: {described(error)}; correct the file")


def _without_devices(error: Exception | SystemExit) -> str:
    """Return why JAX has no devices, if the file has imported it; "" where it has some.

    Of several platforms that JAX is told of, the first may be there and the next one not: then `error` says so.

    The file's first array starts JAX's backend, and would be blamed for one that is not there.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return ""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as found:  # the second, without a text, where no GPU is to be seen
        error = found
    else:
        if not str(error).startswith("Unable to initialize backend"):
            return ""
    advice = " (set JAX_PLATFORMS"  # to leave the choice to JAX
    return str(error).partition(advice)[0].rstrip(".") or f"{os.environ.get('JAX_PLATFORMS')} is not there"
