"""The pods of the JobSet manifest train, each in namespaces of its own, with the volumes and users that they ask for.

This plays the kubelet's part: volumes at their places, the pod's user and group, the container's command with what its
environment names, and the head's name. JobSet's controller is played by tests/cluster/test_jobset.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_jobset import MANIFEST, PODS, REPLICATED, annotations_of, environment
from tests.integration.hosts.hosts import make_certificates
from tests.integration.hosts.network import Network, missing

REASON = missing()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(REASON), reason=f"no hosts of their own here: {REASON}"),
]

RUN_SECS = 300
POD = """
set -e
root=$1 user=$2 group=$3 volumes=$4
shift 4
mount -t tmpfs tmpfs "$root"
for place in /*; do
  if [ -L "$place" ]; then cp -d "$place" "$root$place"
  elif [ -d "$place" ]; then mkdir "$root$place" && mount --rbind "$place" "$root$place"
  fi
done
mount --bind "$volumes/hosts" "$root/etc/hosts"
for name in secret certs runs; do
  mkdir -p "$root/$name" && mount --bind "$volumes/$name" "$root/$name"
done
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid="$user" --regid="$group" --groups="$group" \
  --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search \
  env -i "$@"
"""
"""A pod's root, of this machine's folders, and its user. It may read what this machine keeps from others, such as the
interpreter of root's: in an image everybody can read that."""


class Pod:
    """A pod of the manifest on a host of a network.

    Args:
      network: of the hosts.
      host: the pod's.
      name: of its replicated Job.
      job_index: its Job's number in that.
      folder: for its volumes.
      runs: the claim that all pods mount.
    """

    def __init__(self, network: Network, host: int, name: str, job_index: int, folder: Path, runs: Path) -> None:
        self._spec, self._told = PODS[name], annotations_of(name, job_index)
        security = self._spec["securityContext"]
        self._user, self._group = security["runAsUser"], security["runAsGroup"]
        self._network, self._host, self._folder = network, host, folder
        self._root = folder / "root"
        for each in ("root", "secret", "certs"):
            (folder / each).mkdir(parents=True)
        (folder / "runs").symlink_to(runs)
        for path in (folder / "certs", runs):  # fsGroup
            os.chown(path, 0, security["fsGroup"])
            path.chmod(0o2775)
        named = self._told["jobset.sigs.k8s.io/coordinator"]
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{network.address(0)} {named}\n")

    def give_secret(self, archives: dict[int, Path]) -> None:
        """Mount the Secret, with these archives of certificates by host."""
        (mode,) = (volume["secret"]["defaultMode"] for volume in self._spec["volumes"] if "secret" in volume)
        for index, archive in archives.items():
            path = self._folder / "secret" / f"{index}.tar"
            path.write_bytes(archive.read_bytes())
            os.chown(path, 0, self._spec["securityContext"]["fsGroup"])
            path.chmod(mode)

    def command(self, container: dict[str, Any], entry: list[str]) -> list[str]:
        """Return what runs a container in the pod."""
        told = environment(container, self._told, self._network.address(self._host))
        words = [*entry, *container.get("command", ()), *container.get("args", ())]
        words = [re.sub(r"\$\((\w+)\)", lambda name: told[name[1]], word) for word in words]
        variables = ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME=/tmp"]
        variables += [f"{name}={value}" for name, value in told.items()]
        place = [str(self._root), str(self._user), str(self._group), str(self._folder)]
        inside = [*self._network.inside(self._host), "unshare", "--mount", "sh", "-c", POD, "sh"]
        return [*inside, *place, *variables, *words]

    def init(self) -> None:
        """Run the init containers to their end."""
        for container in self._spec["initContainers"]:
            done = subprocess.run(self.command(container, []), capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == 0, done.stderr

    def start(self, screen: Path) -> subprocess.Popen[bytes]:
        """Start the container."""
        (container,) = self._spec["containers"]
        with screen.open("wb") as out:
            return subprocess.Popen(
                self.command(container, [sys.executable, "-m", "hybridsync"]), stdout=out, stderr=subprocess.STDOUT
            )


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(sum(job["replicas"] for job in REPLICATED)) as made:
        yield made


def test_the_pods_of_the_manifest_train_to_the_end(network: Network, tmp_path: Path) -> None:
    certs, runs = tmp_path / "certs", tmp_path / "claim"
    runs.mkdir()
    make_certificates(certs, network.num_hosts)
    archives = {}
    for index in range(network.num_hosts):  # as tar --transform='s,^\.,host,' makes them
        archives[index] = tmp_path / f"{index}.tar"
        with tarfile.open(archives[index], "w") as archive:
            archive.add(certs / str(index), "host")
    places = [(job["name"], index) for job in REPLICATED for index in range(job["replicas"])]
    pods = [Pod(network, host, name, index, tmp_path / f"pod{host}", runs) for host, (name, index) in enumerate(places)]
    pods[0].give_secret({0: archives[0]})
    for pod in pods[1:]:
        pod.give_secret({index: archives[index] for index in archives if index})
    screens = [tmp_path / f"screen{host}" for host in range(len(pods))]
    with ExitStack() as stack:
        stack.callback(lambda: [network.kill_all(host) for host in range(len(pods))])
        for pod in pods:
            pod.init()
        started = [pod.start(screen) for pod, screen in zip(pods, screens, strict=True)]
        codes = [each.wait(RUN_SECS) for each in started]
    told = "\n".join(screen.read_text() for screen in screens)
    assert codes == [0] * len(pods), told
    (workdir,) = runs.iterdir()
    assert workdir.name == MANIFEST["metadata"]["name"]
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["exit"] == "completed" and summary["final"]["accuracy"] > 0.9
    assert sorted(summary["units_by_host"]) == [f"host{host}" for host in range(len(pods))]
    owners = {path.stat().st_uid for path in runs.rglob("*")}
    assert owners == {
        MANIFEST["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    }
