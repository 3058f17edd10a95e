"""What a job finds in its workdir, and the workdirs and certificates that no job can use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.cluster.job import commands_for_certificates
from hybridsync.core.errors import ConfigError, CredentialsError
from hybridsync.security.certificates import Authority
from hybridsync.security.credentials import Credentials
from hybridsync.submission.shared_workdir import check_certificates, check_shared, make_certificates

ROOT = Path(__file__).resolve().parents[2]


def test_a_workdir_in_memory_is_refused_and_one_on_a_disk_or_network_is_not(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    for kind in ("tmpfs", "nfs4", "ext4"):
        mounts.write_text(
            f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path.resolve()} rw shared:1 - {kind} x rw\n"
        )
        if kind == "tmpfs":
            with pytest.raises(ConfigError, match=r"/run is on a tmpfs, in the memory of this machine, which no other"):
                check_shared(tmp_path / "run", mounts)
        else:
            check_shared(tmp_path / "run", mounts)
    check_shared(tmp_path, tmp_path / "no table")


def test_certificates_are_made_for_each_host_once_and_for_new_hosts_later(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert make_certificates(folder, 2) == [0, 1]
    check_certificates(folder, 2)
    before = Credentials.read(folder / "1", "host")
    assert make_certificates(folder, 2) == []
    assert make_certificates(folder, 3) == [2]
    assert Credentials.read(folder / "1", "host") == before
    assert Credentials.read(folder / "2", "host").authority == Authority.load(folder / "0").certificate
    modes = {path.stat().st_mode & 0o077 for path in [folder, *folder.rglob("*")]}
    assert modes == {0}  # for this user alone


def test_hosts_without_the_head_s_authority_get_no_other_one(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", 2)
    (tmp_path / "certs" / "0" / "head.pem").unlink()
    with pytest.raises(CredentialsError, match=r"certificates of hosts, but none of the head, .*remove .*certs, and"):
        make_certificates(tmp_path / "certs", 2)


def test_missing_certificates_are_refused_with_the_commands_that_make_them(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    with pytest.raises(ConfigError, match=r"no certificate of the head, .*head\.pem; make all with: (.*)") as refused:
        check_certificates(folder, 2)
    (line,) = str(refused.value).split("make all with: ")[1:]
    assert line == commands_for_certificates(str(folder), 2)
    program = f'hybridsync() {{ "{sys.executable}" -m hybridsync "$@"; }}; {line}'
    subprocess.run(["bash", "-c", program], cwd=ROOT, check=True, timeout=240, stdout=subprocess.DEVNULL)
    check_certificates(folder, 2)
    wanted = rf"no certificate of host 2 of 3, .*/2/host\.pem; make it with: .* --host=2 --out={folder}/2"
    with pytest.raises(ConfigError, match=wanted):
        check_certificates(folder, 3)
