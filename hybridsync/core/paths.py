"""Paths as users name them: the home is filled in, and they mean the same folder from any working directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hybridsync.core.errors import ConfigError, WorkdirError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # pathlib makes one slash of two


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the whole path of a file or folder that a user has named.

    To be called before code of the user's runs, which may change the working directory.

    >>> local_path("runs/digits") == Path.cwd() / "runs" / "digits"
    True
    >>> local_path("~/runs") == Path.home() / "runs"
    True

    Raises:
      WorkdirError: the path names an object store.
      ConfigError: it begins with a home that is not there, or is not valid UTF-8.
    """
    text = os.path.expanduser(os.fspath(path))  # shells do not do it after an equals sign
    if scheme := _SCHEME.match(text):
        raise WorkdirError(
            f"the path {text} names an object store ({scheme[1]}): object stores are not supported yet; write to a "
            "local or shared path"
        )
    if text.startswith("~"):
        raise ConfigError(f"the path {text} begins with a home that is not there; write ./{text} for a folder here")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(text).decode(errors="backslashreplace")
        raise ConfigError(
            f"the path {shown} is not valid UTF-8 in place {error.start + 1}, and checkpoints can have no such path; "
            "rename the folder, or name another one"
        ) from None
    if "\0" in text:
        raise ConfigError(f"the path {text!r} holds a null character; leave it out")
    return Path(text).absolute()  # a link before ".." stays
