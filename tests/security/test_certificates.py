"""What an authority issues, and what it costs those who need none."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hybridsync.core.errors import CredentialsError, Unauthenticated
from hybridsync.security.certificates import BACK, VALIDITY, Authority
from hybridsync.security.identity import ROLES, Identity, server_names
from tests.security.conftest import HOUR, now

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_says_who_holds_it_and_nothing_more(authority: Authority, role: str) -> None:
    credentials = authority.issue(role, 3)
    found = x509.load_pem_x509_certificate(credentials.certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [Identity(authority.run, role, 3).uri]
    assert tuple(names.get_values_for_type(x509.DNSName)) == server_names(role)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not found.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    uses = set(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == {x509.ExtendedKeyUsageOID.CLIENT_AUTH, x509.ExtendedKeyUsageOID.SERVER_AUTH}
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.encode()))


def test_its_key_is_its_own_on_a_p256_curve(authority: Authority) -> None:
    credentials, again = authority.issue("worker", 3), authority.issue("worker", 3)
    key = serialization.load_pem_private_key(credentials.key.encode(), None)
    found = x509.load_pem_x509_certificate(credentials.certificate.encode())
    assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
    assert key.public_key() == found.public_key()
    assert credentials.key != again.key and credentials.authority == authority.certificate
    assert found.serial_number != x509.load_pem_x509_certificate(again.certificate.encode()).serial_number


def test_it_is_good_from_an_hour_before_for_as_long_as_is_asked(authority: Authority) -> None:
    before = now().replace(microsecond=0)
    default = x509.load_pem_x509_certificate(authority.issue("user").certificate.encode())
    assert before - BACK <= default.not_valid_before_utc <= now() - BACK
    assert datetime.timedelta(0) <= default.not_valid_after_utc - before - VALIDITY < HOUR
    short = x509.load_pem_x509_certificate(authority.issue("user", validity=HOUR, now=before).certificate.encode())
    assert short.not_valid_after_utc == before + HOUR


def test_nobody_is_certified_whom_no_certificate_may_name(authority: Authority) -> None:
    with pytest.raises(Unauthenticated, match=r"'root' is no role of a certificate; there are head, host"):
        authority.issue("root")
    with pytest.raises(Unauthenticated, match=r"-1 is no number of a worker"):
        authority.issue("worker", -1)


def test_an_authority_is_read_again_and_never_overwritten(tmp_path: Path) -> None:
    made = Authority.create(tmp_path / "new")
    read = Authority.load(tmp_path / "new")
    assert (read.run, read.certificate) == (made.run, made.certificate)
    read.issue("user")
    files = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert set(files) == {"ca.pem", "ca.key"}
    with pytest.raises(CredentialsError, match=r"ca\.key is there already, and is not overwritten"):
        Authority.create(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == files


def test_each_authority_has_a_name_of_its_own(authority: Authority, stranger: Authority) -> None:
    assert authority.run != stranger.run


def test_a_folder_without_an_authority_or_with_halves_of_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"ca\.pem cannot be read: .*; hybridsync certs init makes"):
        Authority.load(tmp_path)
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        Authority.create(folder)
    (one / "ca.key").write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(CredentialsError, match=r"ca\.key is not the key of .*ca\.pem"):
        Authority.load(one)
    (one / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
    with pytest.raises(CredentialsError, match=r"the authority in .* is damaged"):
        Authority.load(one)


def test_a_key_that_others_can_read_certifies_nobody(tmp_path: Path) -> None:
    Authority.create(tmp_path / "new")
    (tmp_path / "new" / "ca.key").chmod(0o644)
    with pytest.raises(CredentialsError, match=r"ca\.key is of user .* mode 0644"):
        Authority.load(tmp_path / "new")


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_who_makes_no_certificates_loads_nothing_for_it() -> None:
    modules = (
        "runtime.supervisor.supervisor",
        "runtime.processes",
        "transport.grpc.transport",
        "cli.status",
        "security.credentials",
    )
    imports = "\n".join(f"import hybridsync.{name}" for name in modules)
    assert run_python(f"{imports}\nimport sys\nprint('cryptography' in sys.modules)") == "False\n"


def test_without_the_package_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["cryptography"] = None
from hybridsync.core.errors import ConfigError
try:
    import hybridsync.security.certificates
except ConfigError as error:
    print(error)
"""
    assert "install it with: pip install 'hybridsync[security]'" in run_python(program)
