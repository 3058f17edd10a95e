"""Names the holder of a certificate: which authority vouches for it, what it is, and its number among its kind."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from hybridsync.core.errors import Unauthenticated

HEAD, HOST, CHIEF, SERVER, WORKER, USER = "head", "host", "chief", "server", "worker", "user"
ROLES = (HEAD, HOST, CHIEF, SERVER, WORKER, USER)
"""The holders of certificates: the head's supervisor, the agent of a host, the roles of a run, and a run's user."""

MEMBER = "member"
"""The name that a caller dials to read a state, whichever role holds it: a chief, a server or a worker."""

HOLDERS = (CHIEF, SERVER, WORKER)
"""The roles that may hold a state."""

MOST_ID = 1_000_000
"""Above every number of a role, or of a host."""

_SCHEME, _DOMAIN = "spiffe", "hybridsync"
_ZONE = "hybridsync.internal"
_RUN_CHARS, _MOST_RUN_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-"), 64


@dataclass(frozen=True)
class Identity:
    """Names who holds a certificate.

    Args:
      run: name of the run, or of the cluster, that the authority's certificates are good for.
      role: one of `ROLES`.
      id: index of the role within its kind; of a host, the host's index.
    """

    run: str
    role: str
    id: int

    @property
    def name(self) -> str:
        """The role with its number, as "worker 3"."""
        return f"{self.role} {self.id}"

    @property
    def uri(self) -> str:
        """The SPIFFE URI in the certificate.

        >>> Identity("0c4f", "worker", 3).uri
        'spiffe://hybridsync/0c4f/worker/3'
        """
        return f"{_SCHEME}://{_DOMAIN}/{self.run}/{self.role}/{self.id}"


def checked(identity: Identity) -> Identity:
    """Return an identity that a certificate may name.

    Raises:
      Unauthenticated: it names no run, an unknown role, or a number that no role has.
    """
    run, role = identity.run, identity.role
    if not (0 < len(run) <= _MOST_RUN_CHARS and _RUN_CHARS.issuperset(run)):
        raise Unauthenticated(
            f"{run[:_MOST_RUN_CHARS]!r} names no run: take 1 to {_MOST_RUN_CHARS} of the characters a-z, 0-9 and -"
        )
    if role not in ROLES:
        raise Unauthenticated(f"{role[:_MOST_RUN_CHARS]!r} is no role of a certificate; there are {', '.join(ROLES)}")
    if not 0 <= identity.id <= MOST_ID:
        raise Unauthenticated(f"{identity.id} is no number of a {role}; it is from 0 to {MOST_ID}")
    return identity


def identity_of(uri: str) -> Identity:
    """Return whom a certificate's URI names.

    >>> identity_of("spiffe://hybridsync/0c4f/worker/3")
    Identity(run='0c4f', role='worker', id=3)

    Raises:
      Unauthenticated: the URI does not have exactly this form.
    """
    shown = uri[:200]
    try:
        scheme, domain, path = urlsplit(uri)[:3]
        _, run, role, number = path.split("/")
        found = Identity(run, role, int(number))
    except ValueError:
        raise _not_ours(shown) from None
    # A name has one way to be written: a second one would be a second name of one holder.
    if (scheme, domain) != (_SCHEME, _DOMAIN) or found.uri != uri:
        raise _not_ours(shown)
    return checked(found)


def _not_ours(uri: str) -> Unauthenticated:
    return Unauthenticated(
        f"the certificate names {uri!r}, and one of a run names {_SCHEME}://{_DOMAIN}/RUN/ROLE/NUMBER; use those that "
        "hybridsync certs has issued"
    )


def server_name(role: str) -> str:
    """Return the name by which a caller knows the role that it dials.

    >>> server_name("chief"), server_name(MEMBER)
    ('chief.hybridsync.internal', 'member.hybridsync.internal')
    """
    return f"{role}.{_ZONE}"


def server_names(role: str) -> tuple[str, ...]:
    """Return the names that the certificate of a role may be dialled by.

    >>> server_names("worker"), server_names("user")
    (('worker.hybridsync.internal', 'member.hybridsync.internal'), ('user.hybridsync.internal',))
    """
    return tuple(server_name(each) for each in ((role, MEMBER) if role in HOLDERS else (role,)))
