"""Packages that only an extra of the installation adds: imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from hybridsync.core.errors import ConfigError


def imported(module: str, extra: str) -> Any:
    """Return a module of a package that `extra` installs.

    >>> imported("json.nothing", "json")
    Traceback (most recent call last):
    ...
    hybridsync.core.errors.ConfigError: json.nothing cannot be imported (No module named 'json.nothing'); pip install
    'hybridsync[json]'

    Raises:
      ConfigError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module} cannot be imported ({error}); pip install 'hybridsync[{extra}]'") from error
