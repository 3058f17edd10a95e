"""Draws the token and the certificates by which the roles of a run know each other, and renews them from time to time.

The head's supervisor holds it. A run on several hosts gets a new token, and each of its roles a new certificate, every
eight hours, and whenever a file in the head's folder changes. Certificates of roles are good for a day.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.runtime.agent.host_messages import GiveKeys, Key
from hybridsync.runtime.role.role_pipe import RoleKeys
from hybridsync.security.credentials import AUTHORITY_FILE, Credentials
from hybridsync.security.expiry import Expiries
from hybridsync.security.identity import CHIEF, HEAD, HOST, USER, Identity
from hybridsync.security.key_files import KeyFiles
from hybridsync.security.keyring import Keyring
from hybridsync.security.revocations import REVOKED_FILE, Revocations, read_revoked

if TYPE_CHECKING:
    from hybridsync.runtime.supervisor.placement import Placement, RunningRole
    from hybridsync.runtime.supervisor.run_hosts import RunHosts

TOKEN_BYTES = 32
ROLE_VALIDITY = datetime.timedelta(days=1)
"""Of a role's certificate."""
RENEW_SECS = ROLE_VALIDITY.total_seconds() / 3
"""Two rotations may fail before a certificate is out of date."""
LEAST_SECS = 10.0
"""Between two rotations: each token is good beside the next one for a minute, and a call shows all that are good."""


@dataclass(frozen=True)
class HeadKeys:
    """Holds what the head's folder says.

    Args:
      credentials: credentials of the head.
      issue: role and number -> new credentials of that role, as `Credentials.as_dict` writes them.
      made_at: certificate as PEM -> unix seconds of its making.
      ends_at: certificate as PEM -> unix seconds of its end.
      revoked: see `read_revoked`.
    """

    credentials: Credentials
    issue: Callable[[str, int], dict[str, str]]
    made_at: Callable[[str], float]
    ends_at: Callable[[str], float]
    revoked: dict[int, int]


class HeadFolder(KeyFiles[HeadKeys]):
    """Reads the head's folder, and reads it again when it changes.

    Args:
      folder: folder with the authority's key, the head's certificate, and the list of revoked certificates.
      say: shows a line to the user.

    Raises:
      CredentialsError: a file is missing, damaged, another user's, or open to others.
      ConfigError: the package `cryptography` is not installed.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        from hybridsync.security.certificates import (  # which one host does without
            KEY_FILE,
            Authority,
            ends_at,
            made_at,
        )

        def read() -> HeadKeys:
            credentials, authority = Credentials.read(folder, HEAD), Authority.load(folder)

            def issue(role: str, role_id: int) -> dict[str, str]:
                return authority.issue(role, role_id, ROLE_VALIDITY).as_dict()

            return HeadKeys(credentials, issue, made_at, ends_at, read_revoked(folder))

        names = (AUTHORITY_FILE, KEY_FILE, f"{HEAD}.pem", f"{HEAD}.key", REVOKED_FILE)
        super().__init__(folder, names, read, say)


class RunKeys:
    """Draws a run's token and has its roles' certificates issued.

    Args:
      folder: the head's folder; None for a run on one host, which has a token alone and never gets another one.
      clock: clock for when new ones are due; its wall clock, because a machine that slept has certificates out of date.

    Attributes:
      own: keys with which the supervisor itself calls the roles.
      to_agents: keys that the head shows to agents: its certificate, and no token.
    """

    def __init__(self, folder: HeadFolder | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder, self._clock = folder, clock
        credentials = None if folder is None else folder.found.credentials
        self.own = Keyring(secrets.token_hex(TOKEN_BYTES), credentials)
        self.to_agents = Keyring("", credentials)
        self._revocations = None if folder is None else Revocations(folder.found.made_at, folder.found.revoked)
        self._expiries = None if folder is None else Expiries(folder.found.ends_at)
        self._note_own()
        self._drawn_at, self._is_asked = clock.wall(), False

    def _note_own(self) -> None:
        if self._expiries is not None and self._folder is not None:
            self._expiries.note("the head", self._folder.found.credentials.certificate)

    def of(self, role: str, role_id: int) -> RoleKeys:
        """Return what a role proves itself with from now on."""
        if self._folder is None:
            return RoleKeys(self.own.token)
        issue = self._folder.found.issue
        return RoleKeys(self.own.token, issue(role, role_id), issue(USER, 0) if role == CHIEF else None)

    def admit(self, caller: Identity, certificate: str) -> None:
        """Let an agent in by its certificate.

        Raises:
          PermissionDenied: the certificate was revoked.
        """
        if self._revocations is not None:
            self._revocations.admit(caller, certificate)
        if self._expiries is not None and caller.role == HOST:
            self._expiries.note(caller.name, certificate)

    def expiring(self) -> list[str]:
        """Return a line for each certificate of the head or a host that ends within a day: once for each."""
        return [] if self._expiries is None else self._expiries.due(self._clock.wall())

    def look(self) -> tuple[bool, list[int]]:
        """Look whether the folder has changed, and draw a new token where one is due.

        Returns:
          whether every role is to get new keys, and the hosts whose sessions are to end.
        """
        if self._folder is None or self._revocations is None:
            return False, []
        revoked = []
        if self._folder.look():
            self._is_asked = True
            self._note_own()
            self.to_agents.exchange("", self._folder.found.credentials)
            revoked = self._revocations.replace(self._folder.found.revoked)
        age = abs(self._clock.wall() - self._drawn_at)  # a clock that was put back does not show what is due
        is_due = age >= RENEW_SECS or (self._is_asked and age >= LEAST_SECS)
        if is_due:
            self._drawn_at, self._is_asked = self._clock.wall(), False
            self.own.exchange(secrets.token_hex(TOKEN_BYTES), self._folder.found.credentials)
        return is_due, revoked


def rotate_if_due(
    keys: RunKeys,
    hosts: RunHosts,
    running: Mapping[Key, RunningRole],
    placement: Placement,
    say: Callable[[str], None],
) -> None:
    """Look whether new keys are due, and give them to every role, and to those that are being started with older ones.

    A revoked host's session ends first, so that nothing new reaches it. The user is told of certificates that end soon.
    """
    for line in keys.expiring():
        say(line)
    is_due, revoked = keys.look()
    for host in revoked:
        hosts.refuse(host, f"the certificate of host {host} was revoked")
    if is_due:
        places = {key: role.host for key, role in running.items()} | placement.starting_at()
        for key, host in places.items():
            hosts.give_keys(host, GiveKeys(*key, keys.of(*key)))
        say(f"{len(places)} roles were given a new token and new certificates")
