"""Compares package versions: those of one minor series may take part in one run.

Within a series the messages, the layouts and the mathematics of a step stay as they are; between two, one of them may
have changed without either role noticing.

>>> series("0.3.1.dev0"), series("0.3"), series("garbage")
('0.3', '0.3', '')
"""

from __future__ import annotations

import re

from hybridsync import __version__
from hybridsync.core.errors import VersionMismatch

_SERIES = re.compile(r"(\d{1,9}\.\d{1,9})(?![0-9])")


def series(version: str) -> str:
    """Return the minor series of a version, empty where it is none."""
    match = _SERIES.match(version)
    return match.group(1) if match else ""


def check_version(who: str, theirs: str, ours: str = __version__, whose: str = "the chief") -> None:
    """Refuse a role of another minor series.

    Args:
      who: name of the role, for the message.
      theirs: version of its package.
      ours: version of this package.
      whose: name of the version's owner, for the message.

    Raises:
      VersionMismatch: the two are not of one series.
    """
    if series(theirs) != series(ours):
        raise VersionMismatch(
            f"{who} runs hybridsync {theirs or '(none named)'}, {whose} {ours}; install one version for every role "
            f"of a run, {series(ours)}.*"
        )
