"""Real sshds on loopback addresses, with keys of their own, as if each address were a host."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.integration.debian import environment
from tests.integration.hosts_run import wait_for
from tests.ports import free_ports

PACKAGES = ("openssh-server", "openssh-client", "libwrap0")

CONFIG = """
ListenAddress {address}:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""

# Root's sshd asks for a user and a folder that only an installed package has made: it sees them, and nobody else does.
AS_ROOT = "mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "


@contextmanager
def started(root: Path, folder: Path, addresses: Sequence[str]) -> Iterator[str]:
    """Run an sshd at each address; yields the ssh command that reaches them.

    Args:
      root: of the unpacked packages.
      folder: for keys, configurations and logs; this user's alone.
      addresses: of the hosts.
    """
    environ = environment(root)
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(keygen, env=environ, check=True, timeout=60)
    users = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(f"{users}sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
    (port,) = free_ports(1)
    ssh = f"ssh -F none -i {folder / 'user'} -p {port} -o BatchMode=yes -o LogLevel=ERROR"
    ssh += " -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    with ExitStack() as stack:
        for address in addresses:
            config, log = folder / f"sshd_config.{address}", folder / f"log.{address}"
            config.write_text(CONFIG.format(address=address, port=port, folder=folder))
            sshd = f"{root / 'usr/sbin/sshd'} -D -e -f {config}"
            command = sshd.split()
            if getpass.getuser() == "root":
                command = ["unshare", "--mount", "sh", "-c", AS_ROOT.format(folder=folder) + sshd]
            out = stack.enter_context(log.open("wb"))
            server = stack.enter_context(subprocess.Popen(command, env=environ, stdout=out, stderr=out))
            stack.callback(server.kill)
            wait_for(partial(answers, ssh, address), f"sshd at {address}", log.read_text, secs=30)
        yield ssh


def answers(ssh: str, address: str) -> bool:
    """Whether a command runs there."""
    call = [*ssh.split(), address, "true"]
    return subprocess.run(call, env=os.environ, capture_output=True, timeout=60, check=False).returncode == 0
