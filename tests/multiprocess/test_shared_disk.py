"""Two launches of one run on two hosts, whose common disk grants both of them the workdir's lock.

A preloaded library grants every lock (shareddisk.c). The second host is a mount namespace with another boot id, and a
name of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.storage.checkpoints.manifest import read_manifest
from hybridsync.storage.lock_record import BEAT_SECS, MISSED_BEATS
from hybridsync.telemetry.summary import read_identity
from tests import shims
from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import gone, tally, until_told

SOURCE = Path(__file__).with_name("shareddisk.c")
SECOND_HOST = "the-second-host"
UNITS = 2000

pytestmark = pytest.mark.timeout(400)


class SharedDisk:
    """A workdir that both hosts see, and the renames in it.

    Args:
      folder: for the workdir, the library, and what the second host's boot id is read from.
    """

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "run"
        self._renames, boot = folder / "renames", folder / "boot_id"
        boot.write_text("5ec0d000-0000-4000-8000-000000000002\n")
        become = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname {SECOND_HOST} && exec "$0" "$@"'
        self._second_host = ("unshare", "--mount", "--uts", "sh", "-c", become)
        self.environment = {
            "LD_PRELOAD": str(shims.build(SOURCE, folder)),
            "SHARED_DISK": str(self.workdir),
            "SHARED_RENAMES": str(self._renames),
        }

    def check_second_host(self) -> None:
        """Skip the test where this user can make no such host."""
        command = [*self._second_host, "sh", "-c", "cat /proc/sys/kernel/random/boot_id && hostname"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.skip(f"no second host can be made (root may): {done.stderr.strip()}")
        boot, name = done.stdout.split()
        assert (boot[:8], name) == ("5ec0d000", SECOND_HOST)

    def launch(self, *, second: bool, planted: str = "") -> Job:
        """Launch the run on one of both hosts; its units take their time until `Job.hurry`."""
        return tally(
            *(self.workdir, "--checkpoint_secs=0.5"),
            plan="asp",
            units=UNITS,
            workers=2,
            unit_secs=0.1,
            planted=until_told(planted),
            under=self._second_host if second else (),
        )

    def renamed(self) -> list[tuple[int, Path]]:
        """Return process and target of each rename so far, but for what lies in `partial/` and has no name yet."""
        lines = [line.split("\t") for line in self._renames.read_text().splitlines()]
        targets = [(int(pid), Path(target).relative_to(self.workdir)) for pid, target in lines]
        return [(pid, target) for pid, target in targets if "partial" not in target.parts]

    def check_checkpoints(self) -> None:
        """Check that every step on the disk is what was saved, and that the newest has all units."""
        folder = self.workdir / "checkpoints"
        store = CheckpointStore(folder, run=read_identity(self.workdir))
        for step in store.steps():
            read_manifest(folder / str(step)).check_files(folder / str(step))
        newest = store.newest()
        assert newest is not None and newest.units == UNITS and newest.quarantined == ()
        assert not (folder / "quarantine").exists()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedDisk]:
    shared = SharedDisk(tmp_path)
    shared.check_second_host()
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    yield shared


def descendants(pid: int) -> list[int]:
    """Return the processes below one, parents first."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError):
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return found[1:]


def the_first_stands_still_and_the_second_takes_over(
    disk: SharedDisk, *, with_supervisor: bool = False, planted: str = ""
) -> None:
    """The first goes on when the second has committed: with its supervisor, or without it, as one that hangs."""
    with disk.launch(second=False, planted=planted) as first:
        first.until_units(40)
        refused_at = SYSTEM_CLOCK.monotonic()
        with disk.launch(second=True) as refused:
            assert refused.wait() == 1, refused.output
        print(f"refused {SYSTEM_CLOCK.monotonic() - refused_at:.1f} s after its start")
        holder = f"in use by process {first.process.pid} on {socket.gethostname()}, which beats; this is process "
        assert holder in refused.output and f"on {SECOND_HOST}: wait for that run" in refused.output
        units = first.units()
        first.until_units(units + 20)

        chief = next(event["pid"] for event in first.events("role_started") if event["role"] == "chief")
        below = descendants(first.process.pid)
        assert chief in below
        for pid in (first.process.pid, *below):
            os.kill(pid, signal.SIGSTOP)
        began = SYSTEM_CLOCK.monotonic()
        with disk.launch(second=True) as second:
            second.until(lambda: "is taken over when" in second.screen(), "it watched the first")
            watched = second.printed_at()
            second.until(lambda: "starting 1 chief" in second.screen(), "it took the lock")
            waited = second.printed_at() - watched
            print(f"took over {SYSTEM_CLOCK.monotonic() - began:.1f} s after its start, {waited:.1f} s of them a wait")
            assert waited > MISSED_BEATS * BEAT_SECS - 1.0
            second.until_phase("asp")
            saves = len(disk.renamed())
            second.until(lambda: len(disk.renamed()) > saves + 2, "it had committed")

            before, first_ones = len(disk.renamed()), {first.process.pid, *below}

            def late() -> list[str]:
                return [str(target) for pid, target in disk.renamed()[before:] if pid in first_ones]

            for pid in below:
                os.kill(pid, signal.SIGCONT)
            if with_supervisor:
                first.send(signal.SIGCONT)
            else:
                second.until(lambda: is_over(chief) or late(), "the first's chief had ended", 60.0)
            assert late() == [], f"the first has renamed {late()} when the second had the workdir"
            first.send(signal.SIGCONT)
            assert first.process.wait(60) == 70, first.screen()
            taken = f"names process {second.process.pid} on {SECOND_HOST}, and this is process"
            assert taken in first.screen(), first.screen()
            assert all(gone(pid) for pid in below)

            units = second.units()
            second.until_units(units + 20)
            second.hurry()
            assert second.wait() == 0, second.output + second.logs()
        assert late() == [], f"the first has renamed {late()} when the second had the workdir"
        assert_exactly_once(second.summary())
        (resumed,) = [event for event in second.session_events() if event["kind"] == "phase_entered"]
        assert resumed["reason"] == "resume"
        assert not (disk.workdir / "beat").exists() and (disk.workdir / "lock").read_bytes() == b""
        disk.check_checkpoints()


def is_over(pid: int) -> bool:
    """Return whether a process has ended, of which its parent that stands still need not have taken note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_chief_that_stood_still_is_fenced_before_it_renames_anything(disk: SharedDisk) -> None:
    the_first_stands_still_and_the_second_takes_over(disk)


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_run_that_stood_still_ends_when_it_finds_another_one_in_its_place(disk: SharedDisk) -> None:
    the_first_stands_still_and_the_second_takes_over(disk, with_supervisor=True)


@pytest.mark.soak
def test_a_chief_that_does_not_read_the_lock_again_is_found(disk: SharedDisk) -> None:
    with pytest.raises(AssertionError, match=r"the first has renamed \['.*'\] when the second had the workdir"):
        the_first_stands_still_and_the_second_takes_over(disk, planted="nobody_reads_the_lock_again")
