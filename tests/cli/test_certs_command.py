"""`hybridsync certs`: an authority, the head's certificate, and a folder for each host; nothing is overwritten."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from hybridsync.core.errors import CredentialsError
from hybridsync.security.certificates import Authority, made_at
from hybridsync.security.cluster_certificates import init
from hybridsync.security.credentials import Credentials
from hybridsync.security.identity import Identity
from hybridsync.security.revocations import read_revoked
from tests.command_lines import CommandLines, command_lines
from tests.multiprocess.job import ROOT


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    with command_lines(tmp_path_factory.mktemp("certs"), "certs", "hybridsync.security.certificates") as ready:
        yield ready


@pytest.fixture
def folder(certs: CommandLines, tmp_path: Path) -> Path:
    done = certs("init", f"--folder={tmp_path / 'head'}")
    assert done.returncode == 0, done.stderr
    return tmp_path / "head"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def named_by(credentials: Credentials) -> list[str]:
    found = x509.load_pem_x509_certificate(credentials.certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def test_the_head_has_an_authority_and_a_certificate(folder: Path) -> None:
    assert set(contents(folder)) == {"ca.pem", "ca.key", "head.pem", "head.key"}
    assert named_by(Credentials.read(folder, "head")) == [Identity(Authority.load(folder).run, "head", 0).uri]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_host_gets_what_it_needs_and_no_more(certs: CommandLines, folder: Path, tmp_path: Path) -> None:
    done = certs("issue", f"--folder={folder}", "--host=3", f"--out={tmp_path / 'host'}", "--days=2")
    assert done.returncode == 0 and "certificate of host 3" in done.stdout, done.stderr
    assert set(contents(tmp_path / "host")) == {"ca.pem", "host.pem", "host.key"}
    credentials = Credentials.read(tmp_path / "host", "host")
    assert named_by(credentials) == [Identity(Authority.load(folder).run, "host", 3).uri]
    found = x509.load_pem_x509_certificate(credentials.certificate.encode())
    assert (found.not_valid_after_utc - found.not_valid_before_utc).days == 2  # and the hour before


REFUSED = [
    ([], "say what to make"),
    (["issue", "more"], "say what to make"),
    (["inti", "--folder=x"], "there is no 'inti' of certificates; did you mean 'init'?"),
    (["init"], "name the folder of the certificate authority: --folder=DIR"),
    (["init", "--folder=x", "--host=1"], "--host, --out and --replace belong to hybridsync certs issue"),
    (["rotate", "--folder=x", "--replace"], "--host, --out and --replace belong to hybridsync certs issue"),
    (["rotate", "--folder=/absent"], "ca.pem cannot be read: No such file or directory"),
    (["revoke", "--folder=x"], "name the host whose certificates are revoked"),
    (["revoke", "--folder=/absent", "--host=1"], "ca.pem cannot be read: No such file or directory"),
    (["issue", "--folder=x", "--host=1"], "name the host and a folder for it"),
    (["issue", "--folder=x", "--out=y"], "name the host and a folder for it"),
    (["issue", "--folder=/absent", "--host=1", "--out=y"], "ca.pem cannot be read: No such file or directory"),
    (["issue", "--folder=gs://bucket/x", "--host=1", "--out=y"], "object store"),
    (["init", "--folder=/proc/absent/deeper"], "/proc/absent cannot be written: No such file or directory"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=lambda value: " ".join(value) if value else "nothing")
def test_a_line_that_cannot_be_carried_out_says_why(certs: CommandLines, arguments: list[str], reason: str) -> None:
    done = certs(*arguments)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and reason in done.stderr and "Traceback" not in done.stderr


def test_nothing_is_overwritten(certs: CommandLines, folder: Path, tmp_path: Path) -> None:
    certs("issue", f"--folder={folder}", "--host=3", f"--out={tmp_path / 'host'}")
    before = contents(folder), contents(tmp_path / "host")
    for line in (("init",), ("issue", "--host=4", f"--out={tmp_path / 'host'}")):
        done = certs(*line, f"--folder={folder}")
        assert done.returncode == 1 and "is there already, and is not overwritten" in done.stderr
    assert (contents(folder), contents(tmp_path / "host")) == before


def test_an_init_that_is_refused_has_made_nothing(certs: CommandLines, tmp_path: Path) -> None:
    (tmp_path / "head").mkdir(mode=0o700)
    (tmp_path / "head" / "head.key").write_text("")
    done = certs("init", f"--folder={tmp_path / 'head'}")
    assert done.returncode == 1 and "head.key is there already" in done.stderr
    assert set(contents(tmp_path / "head")) == {"head.key"}


def test_an_init_on_a_full_disk_has_made_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = list[int](), os.fsync

    def full_at_the_end(descriptor: int) -> None:
        made.append(descriptor)
        if len(made) == 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_end)
    with pytest.raises(CredentialsError, match=r"cannot be written: No space left"):
        init(tmp_path / "head", 30)
    assert len(made) == 4 and contents(tmp_path / "head") == {}


def test_a_host_and_the_head_get_other_certificates_of_the_same_authority(
    certs: CommandLines, folder: Path, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    certs("issue", f"--folder={folder}", "--host=3", f"--out={host}")
    before, head_before = contents(host), contents(folder)
    done = certs("issue", f"--folder={folder}", "--host=3", f"--out={host}", "--replace")
    assert done.returncode == 0, done.stderr
    assert {name for name, text in contents(host).items() if text != before[name]} == {"host.pem", "host.key"}
    assert named_by(Credentials.read(host, "host"))[0].endswith("/host/3")
    done = certs("rotate", f"--folder={folder}")
    assert done.returncode == 0 and "another certificate of the head" in done.stdout, done.stderr
    after = contents(folder)
    assert {name for name, text in after.items() if text != head_before[name]} == {"head.pem", "head.key"}
    assert named_by(Credentials.read(folder, "head"))[0].endswith("/head/0")


def test_what_is_issued_behind_a_revocation_is_good(certs: CommandLines, folder: Path, tmp_path: Path) -> None:
    done = certs("revoke", f"--folder={folder}", "--host=3")
    assert done.returncode == 0 and "revoked the certificates of host 3" in done.stdout, done.stderr
    certs("issue", f"--folder={folder}", "--host=3", f"--out={tmp_path / 'host'}")
    made = made_at(Credentials.read(tmp_path / "host", "host").certificate)
    assert made >= read_revoked(folder)[3]


def test_a_folder_that_others_can_enter_is_refused(certs: CommandLines, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    done = certs("init", f"--folder={tmp_path / 'open'}")
    assert done.returncode == 1 and "has to be its user's alone" in done.stderr
    assert contents(tmp_path / "open") == {}


PAGES = ["docs/clusters.md", "examples/kubernetes/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_the_documentation_make_a_folder_for_each_host(
    certs: CommandLines, tmp_path: Path, page: str
) -> None:
    lines = re.findall(r"^    hybridsync certs (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    for line in lines:
        done = certs(*line.replace("=certs/", f"={tmp_path}/certs/").split())
        assert done.returncode == 0, (line, done.stderr)
    assert {path.name for path in (tmp_path / "certs").iterdir()} == {str(index) for index in range(len(lines))}
    assert len(lines) >= 2
    Credentials.read(tmp_path / "certs" / "0", "head")
    for index in range(1, len(lines)):
        assert named_by(Credentials.read(tmp_path / "certs" / str(index), "host"))[0].endswith(f"/host/{index}")


def test_a_host_gets_neither_the_authoritys_folder_nor_another_hosts(
    certs: CommandLines, folder: Path, tmp_path: Path
) -> None:
    done = certs("issue", f"--folder={folder}", "--host=1", f"--out={folder}")
    assert done.returncode == 1 and "has the key of an authority, which stays on the head" in done.stderr
    assert certs("issue", f"--folder={folder}", "--host=1", f"--out={tmp_path / 'one'}").returncode == 0
    before = contents(tmp_path / "one")
    done = certs("issue", f"--folder={folder}", "--host=2", f"--out={tmp_path / 'one'}", "--replace")
    assert done.returncode == 1 and "has the certificate of host 1" in done.stderr
    assert contents(tmp_path / "one") == before
