"""Who comes in over TLS: a certificate of this authority, in date, of the role that is dialled, and the run's token.

Each case asserts what the project's own client says, and that nothing of a call has reached the role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.x509 import ExtendedKeyUsageOID

from hybridsync.core.errors import HandshakeRefused, HybridSyncError, StalePhase, Unauthenticated
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.security.certificates import BACK, VALIDITY, Authority
from hybridsync.security.credentials import Credentials
from hybridsync.security.identity import Identity
from hybridsync.security.keyring import Keyring
from hybridsync.transport.grpc import dialling, snapshot_source
from hybridsync.transport.grpc.chief import ChiefClient
from hybridsync.transport.grpc.interceptors import TOKEN_KEY
from hybridsync.transport.grpc.parameter_server import ParameterClient
from hybridsync.transport.grpc.snapshot_source import SnapshotClient
from tests.security.conftest import HOUR, certified, now
from tests.security.roles import NUM_BYTES, REACHED, TOKEN, Role, call, dialled, messages, outcome, served

SECS = 20.0
"""For a call that is answered or refused, also on a busy machine."""


@pytest.fixture(autouse=True)
def soon_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client call a role that closes each connection for a second only, and one that it does not reach longer."""
    monkeypatch.setattr(dialling, "CLOSED_SECS", 1.0)
    monkeypatch.setattr(snapshot_source, "UNREACHABLE_SECS", SECS)


@dataclass(frozen=True)
class Clusters:
    """This cluster's authority, its folder, and the authority of another cluster."""

    own: Authority
    folder: Path
    other: Authority

    def forged(self, *uris: str, names: tuple[str, ...] = (), **changes: Any) -> Credentials:
        return certified(self.folder, self.own.certificate, uris, names, **changes)

    def uri(self, role: str, id: int = 2) -> str:
        return Identity(self.own.run, role, id).uri


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Clusters:
    folder = tmp_path_factory.mktemp("clusters")
    return Clusters(Authority.create(folder / "own"), folder / "own", Authority.create(folder / "other"))


@pytest.fixture(scope="module")
def role() -> Role:
    return Role()


@pytest.fixture(scope="module")
def address(clusters: Clusters, role: Role) -> Iterator[str]:
    # It may be dialled as anything, so that a refusal has no other reason than the caller's certificate.
    names = tuple(f"{each}.hybridsync.internal" for each in ("chief", "server", "member"))
    with served(role, clusters.forged(clusters.uri("chief"), names=names)) as found:
        yield found


def refused(address: str, credentials: Credentials | None, token: str = TOKEN) -> dict[str, HybridSyncError]:
    """Return how each kind of call ends: a small one, a stream of the role's, and a stream of the caller's."""
    into, push = np.zeros(NUM_BYTES, np.uint8), Push(PhaseId(1, 1), 2, 1, (0,), 0)
    found: dict[str, HybridSyncError] = {}
    clients: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "unary": (ChiefClient(address, SECS, Keyring(token, credentials)), lambda client: client.status()),
        "read": (
            SnapshotClient(address, SECS, keys=Keyring(token, credentials)),
            lambda client: client.read(1, into),
        ),
        "push": (
            ParameterClient(address, SECS, keys=Keyring(token, credentials)),
            lambda client: client.push_pull(push, into, into),
        ),
    }
    for name, (client, ask) in clients.items():
        try:
            ask(client)
        except HybridSyncError as error:
            found[name] = error
        finally:
            client.close()
    assert set(found) == set(clients), "a call was answered"
    return found


STRANGERS: dict[str, Callable[[Clusters], Credentials | None]] = {
    "no TLS": lambda of: None,
    "another authority": lambda of: of.other.issue("user"),
    "a certificate of another authority, though it trusts this one": lambda of: replace(
        of.other.issue("user"), authority=of.own.certificate
    ),
    "expired": lambda of: of.own.issue("user", now=now() - VALIDITY - HOUR),
    "expired a minute ago": lambda of: of.own.issue("user", validity=HOUR, now=now() - HOUR - HOUR / 60),
    "not yet valid": lambda of: of.own.issue("user", now=now() + BACK + HOUR),
    "signed by a worker": lambda of: certified(
        of.own.issue("worker", 2), of.own.certificate, [Identity(of.own.run, "head", 0).uri]
    ),
    "for servers alone": lambda of: of.forged(of.uri("user"), uses=[ExtendedKeyUsageOID.SERVER_AUTH]),
    "for signing programs": lambda of: of.forged(of.uri("user"), uses=[ExtendedKeyUsageOID.CODE_SIGNING]),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_gets_no_connection(clusters: Clusters, role: Role, address: str, name: str) -> None:
    role.seen.clear()
    for how, error in refused(address, STRANGERS[name](clusters)).items():
        assert type(error) is HandshakeRefused, (how, error)
        assert "is TLS on at both ends" in str(error), how
    assert role.seen == []


def test_a_client_without_a_certificate_gets_no_connection(clusters: Clusters, role: Role, address: str) -> None:
    role.seen.clear()
    anonymous = grpc.ssl_channel_credentials(clusters.own.certificate.encode())
    name = [("grpc.ssl_target_name_override", "chief.hybridsync.internal")]
    with grpc.secure_channel(address, anonymous, options=name) as channel:
        for method in ("Chief/Status", "SnapshotSource/Read", "ParameterServer/PushPull"):
            assert outcome(channel, method, messages(method))[0] == "UNAVAILABLE"
    assert role.seen == []


UNNAMED: dict[str, Callable[[Clusters], Credentials]] = {
    "no URI": lambda of: of.forged(names=("chief.hybridsync.internal",)),
    "two URIs": lambda of: of.forged(of.uri("user"), of.uri("head")),
    "a URI twice": lambda of: of.forged(of.uri("user"), of.uri("user")),
    "another domain": lambda of: of.forged("spiffe://elsewhere/0c4f/user/0"),
    "no SPIFFE": lambda of: of.forged("https://hybridsync/0c4f/user/0"),
    "an unknown role": lambda of: of.forged(of.uri("user").replace("user", "root")),
    "a number written otherwise": lambda of: of.forged(of.uri("user", 0).replace("/0", "/00")),
    "more behind it": lambda of: of.forged(of.uri("user") + "/head"),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_certificate_that_names_nobody_makes_no_call(clusters: Clusters, role: Role, address: str, name: str) -> None:
    role.seen.clear()
    credentials = UNNAMED[name](clusters)
    with dialled(address, credentials, "chief") as channel:
        for method in ("Chief/Status", "SnapshotSource/Read", "ParameterServer/PushPull", "Chief/Lease"):
            status, text = outcome(channel, method, messages(method))
            assert status == "UNAUTHENTICATED" and ("names" in text or "is no role" in text), (method, text)
    assert role.seen == []


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        ((TOKEN_KEY, "0" * 64),),
        ((TOKEN_KEY, TOKEN[:-1]),),
        ((TOKEN_KEY, TOKEN), (TOKEN_KEY, TOKEN)),
        ((TOKEN_KEY, ""),),
        ((TOKEN_KEY, TOKEN.upper()),),
    ],
    ids=["none", "another run's", "a part", "twice", "empty", "in capitals"],
)
def test_a_certificate_does_not_replace_the_token(
    clusters: Clusters, role: Role, address: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    role.seen.clear()
    with dialled(address, clusters.own.issue("user"), "chief") as channel:
        for path in ("Chief/Status", "SnapshotSource/Read", "ParameterServer/PushPull"):
            stream = channel.stream_stream(f"/hybridsync.{path}")
            with pytest.raises(grpc.RpcError) as error:
                list(stream(iter(messages(path)), timeout=SECS, metadata=metadata))
            assert isinstance(error.value, grpc.Call)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert role.seen == []


def test_the_projects_clients_say_what_is_wrong_with_a_token(clusters: Clusters, role: Role, address: str) -> None:
    role.seen.clear()
    client = ChiefClient(address, SECS, Keyring("0" * 64, clusters.own.issue("user")))
    with pytest.raises(Unauthenticated, match=r"does not show the token of the run"):
        client.status()
    client.close()
    assert role.seen == []


SERVERS: dict[str, Callable[[Clusters], Credentials | None]] = {
    "no TLS": lambda of: None,
    "another authority": lambda of: of.other.issue("chief"),
    "expired": lambda of: of.own.issue("chief", now=now() - VALIDITY - HOUR),
    "not yet valid": lambda of: of.own.issue("chief", now=now() + BACK + HOUR),
    "a worker's": lambda of: of.own.issue("worker", 2),
    "a server's": lambda of: of.own.issue("server", 0),
    "a user's": lambda of: of.own.issue("user"),
    "a host's": lambda of: of.own.issue("host", 1),
    "for clients alone": lambda of: of.forged(
        of.uri("chief"), names=("chief.hybridsync.internal",), uses=[ExtendedKeyUsageOID.CLIENT_AUTH]
    ),
    "without the role's name": lambda of: of.forged(of.uri("chief")),
    "of a name that begins so": lambda of: of.forged(of.uri("chief"), names=("chief.hybridsync.internal.example",)),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_false_chief_hears_neither_token_nor_report(clusters: Clusters, name: str) -> None:
    false = Role()
    with served(false, SERVERS[name](clusters), token="") as address:
        client = ChiefClient(address, SECS, Keyring(TOKEN, clusters.own.issue("user")))
        with pytest.raises(HandshakeRefused, match=r"is TLS on at both ends"):
            client.status()
        client.close()
    assert false.seen == []


@pytest.mark.parametrize(
    ("role", "is_member"),
    [("chief", True), ("server", True), ("worker", True), ("user", False), ("host", False), ("head", False)],
)
def test_a_state_is_read_from_a_role_that_may_hold_one(clusters: Clusters, role: str, is_member: bool) -> None:
    holder, into = Role(), np.zeros(NUM_BYTES, np.uint8)
    with served(holder, clusters.own.issue(role, 2)) as address:
        client = SnapshotClient(address, SECS, keys=Keyring(TOKEN, clusters.own.issue("worker", 3)))
        with pytest.raises(StalePhase if is_member else HandshakeRefused, match=REACHED if is_member else r"TLS"):
            client.read(1, into)
        client.close()
    assert holder.seen == (["lend"] if is_member else [])


def test_a_worker_that_poses_as_a_server_gets_no_push(clusters: Clusters) -> None:
    false, into = Role(), np.zeros(NUM_BYTES, np.uint8)
    with served(false, clusters.own.issue("worker", 3), token="") as address:
        client = ParameterClient(address, SECS, keys=Keyring(TOKEN, clusters.own.issue("worker", 2)))
        with pytest.raises(HandshakeRefused, match=r"Hostname Verification Check failed"):
            client.push_pull(Push(PhaseId(1, 1), 2, 1, (0,), 0), into, into)
        client.close()
    assert false.seen == []


def test_a_refused_call_ends_long_before_its_deadline(clusters: Clusters) -> None:
    with served(Role(), clusters.own.issue("worker", 2)) as address:
        client = ChiefClient(address, 60.0, Keyring(TOKEN, clusters.own.issue("user")))
        with pytest.raises(HandshakeRefused, match=r"the chief at .* do not agree on TLS for Status"):
            client.status()  # within the test's own limit, and after three attempts
        client.close()


def test_who_is_who_it_says_comes_in(clusters: Clusters, role: Role, address: str) -> None:
    role.seen.clear()
    client = ChiefClient(address, SECS, Keyring(TOKEN, clusters.own.issue("user")))
    with pytest.raises(StalePhase, match=REACHED):
        client.status()
    client.close()
    with (
        dialled(address, clusters.own.issue("worker", 2), "member") as channel,
        pytest.raises(grpc.RpcError, match=REACHED),
    ):
        call(channel, "Chief/Lease", messages("Chief/Lease"))
    assert role.seen == ["status", "lease"]
