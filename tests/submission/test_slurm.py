"""A job of Slurm is submitted, shown until it ends, and found again; stand-ins of Slurm's commands run it here."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridsync.cluster.job import Job
from hybridsync.core.errors import ConfigError, WaitTimeout
from hybridsync.submission import slurm
from hybridsync.submission.shared_workdir import make_logs
from tests.submission.stand_ins import Cluster


class Follower:
    """Calls `slurm.train`, and keeps what it says and shows."""

    def __init__(self, cluster: Cluster, *flags: str) -> None:
        self.cluster = cluster
        self.workdir = cluster.folder / "my 100% run"
        self.job = Job(2, str(self.workdir), "/certs", (f"--workdir={self.workdir}", *flags))
        self.said: list[str] = []
        self.shown: list[str] = []

    def train(self, options: str = "", on_line: Callable[[str], None] = lambda line: None) -> int:
        def show(line: str) -> None:
            self.shown.append(line)
            on_line(line)

        return slurm.train(self.job, options, lambda: make_logs(self.workdir), self.said.append, show)

    @property
    def log(self) -> Path:
        return self.workdir / "logs" / "slurm-17.log"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Cluster]]:
    """Make a cluster by the exit codes of its agents."""
    made: list[Cluster] = []

    def make(head: str, other: str) -> Cluster:
        made.append(Cluster(tmp_path, head, other))
        for name, value in (made[-1].environ | {"HYBRIDSYNC_PYTHON": "python-of-hosts"}).items():
            monkeypatch.setenv(name, value)
        return made[-1]

    yield make
    for each in made:
        each.end()


Make = Callable[[str, str], Cluster]


def once(line: str) -> None:
    """End the follower at its first line, as Ctrl-C or a supervisor of the user's does."""
    signal.raise_signal(signal.SIGTERM)


def test_a_job_is_submitted_and_shown_and_its_end_is_the_run_s(cluster: Make) -> None:
    follower = Follower(cluster("0", "0"), "--config=a.py")
    assert follower.train("--partition='my gpus' --time=60") == 0
    assert follower.said == [f"submitted job 17 of 2 hosts; its output is {follower.log}"]
    assert sorted(follower.shown) == [f"the agent {index} runs in {Path.cwd()}" for index in (0, 1)]
    told = (follower.cluster.folder / "sbatch").read_text().splitlines()
    output = f"--output={follower.cluster.folder}/my 100%% run/logs/slurm-%j.log"
    assert told[:3] == ["--parsable", "--nodes=2", output]
    assert told[4:] == ["--partition=my gpus", "--time=60", str(slurm.SCRIPT), "/certs", *follower.job.flags]
    assert follower.cluster.calls(1)[0][2:4] == ["--certs=/certs/1", f"--workdir={follower.workdir}"]


def test_a_run_that_is_refused_is_an_error_with_the_last_line_of_the_output(cluster: Make) -> None:
    follower = Follower(cluster("1", "1"))
    assert follower.train() == 1
    assert follower.said[1].startswith("error: job 17 ended as FAILED (exit code 1, None); its output is ")
    assert follower.said[1].endswith(f"/slurm-17.log, with this at the end: {follower.shown[-1]}")


def test_a_job_whose_output_is_nowhere_says_that_the_workdir_has_to_be_shared(cluster: Make) -> None:
    follower = Follower(cluster("1", "1"))
    sbatch = follower.cluster.folder / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace('>"$out" 2>&1', ">/dev/null 2>&1"))
    assert follower.train() == 1
    assert f"left no output at {follower.log}; name a --workdir that the nodes and this machine" in follower.said[1]


def test_a_job_goes_on_without_its_follower_and_the_same_command_shows_it_again(cluster: Make) -> None:
    first = Follower(cluster("save", "save"))
    handler = signal.getsignal(signal.SIGTERM)
    assert first.train(on_line=once) == 130
    assert signal.getsignal(signal.SIGTERM) is handler
    stop = "scancel --signal=INT --batch 17"
    assert first.said[1] == f"job 17 goes on; the same command shows it again; have it save and end with: {stop}"

    def end(line: str) -> None:
        if sum("the agent" in line for line in again.shown) == 2:  # the script is ready for signals before the second
            first.cluster.signal_script(signal.SIGINT)

    again = Follower(first.cluster)
    assert again.train(on_line=end) == 75
    assert again.said == [f"job 17 trains in {first.workdir} already, with the same flags; its output is {first.log}"]
    assert sum("the agent 0" in line for line in again.shown) == 1


def test_a_workdir_in_which_a_job_trains_takes_no_other_one(cluster: Make) -> None:
    first = Follower(cluster("save", "save"))
    assert first.train(on_line=once) == 130
    for flags, options in ((("--seed=2",), ""), ((), "--time=60")):
        other = Follower(first.cluster, *flags)
        with pytest.raises(ConfigError, match=r"job 17 trains in .*my 100% run already, with other flags; wait for"):
            other.train(options)


def test_what_sbatch_says_of_a_job_that_it_refuses_is_told(cluster: Make) -> None:
    follower = Follower(cluster("0", "0"))
    (follower.cluster.folder / "refuses").write_text("sbatch: error: invalid\naccount\n")
    with pytest.raises(ConfigError, match=r"sbatch refused the job: sbatch: error: invalid account; --sbatch="):
        follower.train()


def test_a_job_that_waits_says_why_once(cluster: Make) -> None:
    follower = Follower(cluster("0", "0"))
    asked = follower.cluster.folder / "asked"
    scontrol = follower.cluster.folder / "bin" / "scontrol"
    pending = "echo JobState=PENDING Reason=Resources Requeue=1 ExitCode=0:0"
    waits = f'"show job 17 --oneliner") if (($(cat {asked}) < 2)); then echo x >>{asked}.all; {pending}; exit; fi;'
    waits = waits.replace(f"$(cat {asked})", f"$(cat {asked}.all 2>/dev/null | wc -l)")
    scontrol.write_text(scontrol.read_text().replace('"show job 17 --oneliner")', waits))
    assert follower.train() == 0
    assert follower.said[1:] == ["job 17 waits in the queue (Resources)"]


def test_slurm_may_be_silent_for_a_while_and_not_for_ever(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(cluster("save", "save"))
    scontrol = follower.cluster.folder / "bin" / "scontrol"
    silent = follower.cluster.folder / "silent"
    scontrol.write_text(
        scontrol.read_text().replace('"show job', f'"show job 17 --oneliner") touch {silent}; exit 1 ;;\n  "show job')
    )
    monkeypatch.setattr(slurm, "UNREACHED_SECS", 0.2)
    with pytest.raises(WaitTimeout, match=r"Slurm has said nothing of job 17 for 0\.2 s; the job may go on: give the"):
        follower.train()
    assert silent.exists()
    scontrol.write_text(scontrol.read_text().replace("exit 1 ;;", "echo Invalid job id specified >&2; exit 1 ;;"))
    with pytest.raises(WaitTimeout, match=r"Slurm does not know job 17 any more; hybridsync status says how its run"):
        follower.train()


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"--cluster=slurm needs the program sbatch, which is not on the PATH"):
        slurm.check_slurm()
