"""Authorities and certificates, also of the kinds that `Authority.issue` makes for nobody."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.security.certificates import Authority
from hybridsync.security.credentials import Credentials

HOUR = datetime.timedelta(hours=1)


def now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(SYSTEM_CLOCK.wall(), datetime.UTC)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority") / "certificates")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of another cluster."""
    return Authority.create(tmp_path_factory.mktemp("stranger") / "certificates")


def certified(
    issuer: Credentials | Path,
    trusted: str,
    uris: Sequence[str],
    names: Sequence[str] = (),
    uses: Sequence[x509.ObjectIdentifier] = (
        x509.ExtendedKeyUsageOID.CLIENT_AUTH,
        x509.ExtendedKeyUsageOID.SERVER_AUTH,
    ),
) -> Credentials:
    """Return credentials that an authority of a folder, or the holder of a leaf, has signed without looking.

    Args:
      issuer: the folder of the authority, or whose key signs.
      trusted: the authority that the holder trusts itself.
      uris: that the certificate names.
      names: that it names.
      uses: that it is for.
    """
    if isinstance(issuer, Path):
        issuer = Credentials("", (issuer / "ca.pem").read_text(), (issuer / "ca.key").read_text())
    signer: Any = serialization.load_pem_private_key(issuer.key.encode(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.UniformResourceIdentifier(each) for each in uris] + [x509.DNSName(each) for each in names]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "forged")]))
        .issuer_name(x509.load_pem_x509_certificate(issuer.certificate.encode()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - HOUR)
        .not_valid_after(now() + HOUR)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    return Credentials(trusted, chain, private.decode())


Issuing = Callable[[], Credentials]
