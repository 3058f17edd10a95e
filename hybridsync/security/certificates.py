"""Makes a cluster's certificate authority and has it issue certificates.

Importing this needs the package `cryptography` (the `security` extra), and takes a while: code that may not need it
imports it where it is used.

Raises:
  ConfigError: the package is not installed.
"""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, CredentialsError, Unauthenticated
from hybridsync.security.credentials import (
    AUTHORITY_FILE,
    Credentials,
    check_free,
    make_private,
    read_private,
    write_private,
)
from hybridsync.security.identity import Identity, checked, identity_of, server_names

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ConfigError(
        f"certificates need the package cryptography ({error}); install it with: pip install 'hybridsync[security]'"
    ) from error

KEY_FILE = "ca.key"

BACK = datetime.timedelta(hours=1)
"""A certificate is good from so long before its making: the clocks of other hosts may be behind."""

VALIDITY = datetime.timedelta(days=365)
"""Of a certificate. It is looked at when a connection is made."""

AUTHORITY_VALIDITY = datetime.timedelta(days=3650)

_COMMON_NAME = "hybridsync "


@dataclass(frozen=True)
class Authority:
    """Vouches for the roles of the runs of one cluster. Anyone with its key can act as any of them.

    Args:
      run: name of the run, which stands in each certificate.
      certificate: the authority's own certificate, as PEM, followed by others that are trusted while authorities are
        exchanged.
    """

    run: str
    certificate: str
    _parsed: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @staticmethod
    def made() -> Authority:
        """Make an authority, and write nothing."""
        run = secrets.token_hex(8)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{_COMMON_NAME}{run}")])
        builder = _builder(name, name, key.public_key(), AUTHORITY_VALIDITY, _now())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        parsed = builder.sign(key, hashes.SHA256())
        return Authority(run, _pem(parsed), parsed, key)

    @staticmethod
    def create(folder: Path) -> Authority:
        """Make an authority and write `ca.pem` and `ca.key` into a folder, which is made if it is not there.

        Raises:
          CredentialsError: there is one already, the folder is not this user's alone, or the disk refuses.
        """
        authority = Authority.made()
        try:
            make_private(folder)
            check_free(folder, KEY_FILE, AUTHORITY_FILE)
            write_private(folder, {KEY_FILE: authority.key_pem(), AUTHORITY_FILE: authority.certificate})
        except OSError as error:
            raise CredentialsError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
        return authority

    def key_pem(self) -> str:
        """Return its key as PEM."""
        return _key_pem(self._key)

    def remove(self, folder: Path) -> None:
        """Remove what `create` has written: nothing else can be made there."""
        for name in (KEY_FILE, AUTHORITY_FILE):
            (folder / name).unlink(missing_ok=True)

    @staticmethod
    def load(folder: Path) -> Authority:
        """Return the authority of a folder.

        Raises:
          CredentialsError: there is none; or a file of it is damaged, another user's, or open to others.
        """
        try:
            certificate, private = (read_private(folder / each) for each in (AUTHORITY_FILE, KEY_FILE))
        except OSError as error:
            raise CredentialsError(
                f"{error.filename or folder} cannot be read: {error.strerror}; hybridsync certs init makes an authority"
            ) from None
        try:
            parsed = x509.load_pem_x509_certificate(certificate.encode())
            key = serialization.load_pem_private_key(private.encode(), password=None)
            (common,) = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except (ValueError, TypeError) as error:
            raise CredentialsError(f"the authority in {folder} is damaged: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != parsed.public_key():
            raise CredentialsError(f"{folder / KEY_FILE} is not the key of {folder / AUTHORITY_FILE}; restore both")
        run = str(common.value).removeprefix(_COMMON_NAME)
        return Authority(run, certificate, parsed, key)

    def issue(
        self, role: str, id: int = 0, validity: datetime.timedelta = VALIDITY, now: datetime.datetime | None = None
    ) -> Credentials:
        """Return new credentials of a role.

        Args:
          role: one of `identity.ROLES`.
          id: index of the role within its kind; of a host, the host's index.
          validity: time for which they are good, from now.
          now: time of the issue, in UTC; None for now.

        Raises:
          Unauthenticated: there is no such role or number.
        """
        identity = checked(Identity(self.run, role, id))
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])
        names = [x509.DNSName(each) for each in server_names(role)]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), *names]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        builder = _builder(name, self._parsed.subject, key.public_key(), validity, now or _now())
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Credentials(self.certificate, _pem(certificate), _key_pem(key))


@lru_cache(maxsize=256)
def made_at(certificate: str) -> float:
    """Return when a certificate was made, in unix seconds.

    Args:
      certificate: as PEM, of one that `Authority.issue` has made.
    """
    return (x509.load_pem_x509_certificate(certificate.encode()).not_valid_before_utc + BACK).timestamp()


@lru_cache(maxsize=256)
def ends_at(certificate: str) -> float:
    """Return until when a certificate is good, in unix seconds.

    Args:
      certificate: certificate as PEM.
    """
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()


def check_dates(what: str, certificate: str) -> None:
    """Refuse a certificate that is not good now.

    Args:
      what: names it, for the error.
      certificate: the certificate, as PEM.

    Raises:
      CredentialsError: the certificate has ended, or has not begun.
    """
    found = x509.load_pem_x509_certificate(certificate.encode())
    begins, ends, now = found.not_valid_before_utc, found.not_valid_after_utc, _now()
    if not begins <= now <= ends:
        from_, until, today = (f"{each:%Y-%m-%d %H:%M}" for each in (begins, ends, now))
        raise CredentialsError(
            f"{what} is good from {from_} to {until} UTC, and it is {today}; make another one: hybridsync certs rotate "
            "for the head, hybridsync certs issue --replace for a host"
        )


def holder_of(certificate: str) -> Identity | None:
    """Return whom a certificate names; None if it cannot be read, or names no role of a run.

    Args:
      certificate: the certificate, as PEM.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate.encode()).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        return identity_of(uri)
    except (ValueError, x509.ExtensionNotFound, Unauthenticated):
        return None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    validity: datetime.timedelta,
    now: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACK)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(SYSTEM_CLOCK.wall(), datetime.UTC)
