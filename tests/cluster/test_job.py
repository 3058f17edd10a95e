"""Which flags belong to which cluster, and what Slurm's words of a job become."""

from __future__ import annotations

import pytest

from hybridsync.cluster.job import (
    BELONGS,
    CLUSTERS,
    LOCAL,
    Job,
    check_flags,
    check_workdir_path,
    number_of_hosts,
)
from hybridsync.cluster.slurm_job import running_job, state_of, submission
from hybridsync.cluster.ssh_hosts import addresses_of
from hybridsync.core.errors import ConfigError

JOB = Job(2, "/runs/a b", "/certs", ("--config=a.py", "--seed=1"))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_flag_of_another_cluster_is_refused_by_name(cluster: str) -> None:
    for name, clusters in BELONGS.items():
        if cluster in clusters:
            check_flags(cluster, ["hosts", name])
        else:
            given = [name] if cluster == LOCAL else ["hosts", name]
            with pytest.raises(ConfigError, match=rf"^--{name} is for --cluster=.*, and this is --cluster={cluster};"):
                check_flags(cluster, given)


def test_a_cluster_without_hosts_is_told_how_to_name_them() -> None:
    check_flags(LOCAL, [])
    for cluster, wanted in (("slurm", "--hosts=N"), ("ray", "--hosts=N"), ("ssh", "--hosts=FILE")):
        with pytest.raises(ConfigError, match=rf"--cluster={cluster} is told of no hosts; add {wanted}"):
            check_flags(cluster, ["workers"])


@pytest.mark.parametrize("hosts", ["0", "-1", "hosts.txt", "", "2.5", "²"])
def test_what_is_no_number_of_hosts_is_refused(hosts: str) -> None:
    with pytest.raises(ConfigError, match=r"is no number of hosts; --cluster=ray takes how many, 1 or more"):
        number_of_hosts("ray", hosts)


def test_a_relative_workdir_is_refused_with_its_whole_path() -> None:
    check_workdir_path("/runs/a")
    with pytest.raises(ConfigError, match=r'--workdir=runs/a is relative, .* --workdir="\$PWD/runs/a"'):
        check_workdir_path("runs/a")


@pytest.mark.parametrize("text", ["", "# nobody\n\n"])
def test_a_file_without_hosts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--hosts=h\.txt names no host; write an address a line"):
        addresses_of(text, "h.txt")


def test_a_host_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--hosts=h\.txt names 10\.0\.0\.1 twice"):
        addresses_of("10.0.0.1\n10.0.0.1 me@b\n", "h.txt")


@pytest.mark.parametrize(
    "options", ["--nodes=3", "-N 3", "--output=x", "-o x", "--comment=x", "--time=1 --wait", "--parsable"]
)
def test_options_of_sbatch_that_the_command_says_itself_are_refused(options: str) -> None:
    with pytest.raises(ConfigError, match=r"which hybridsync train says itself; leave it out"):
        submission(JOB, "train.sbatch", options)


def test_options_of_sbatch_are_read_as_a_shell_reads_them() -> None:
    line = submission(JOB, "train.sbatch", "--account='a b' --wait-all-nodes=1 --nodelist=n1")
    assert line[5:] == ["--account=a b", "--wait-all-nodes=1", "--nodelist=n1", "train.sbatch", "/certs", *JOB.flags]
    with pytest.raises(ConfigError, match=r"--sbatch='a cannot be read: No closing quotation"):
        submission(JOB, "train.sbatch", "'a")


STATES = [
    ("COMPLETED", "0:0", True, 0),
    ("FAILED", "1:0", True, 1),
    ("FAILED", "75:0", True, 75),
    ("FAILED", "70:0", True, 70),
    ("FAILED", "2:0", True, 70),
    ("FAILED", "0:9", True, 70),
    ("CANCELLED", "0:15", True, 70),
    ("TIMEOUT", "0:0", True, 70),
    ("NODE_FAIL", "1:0", True, 70),
    ("RUNNING", "0:0", False, None),
    ("PENDING", "75:0", False, None),
    ("COMPLETING", "0:0", False, None),
    ("REQUEUED", "75:0", False, None),
]


@pytest.mark.parametrize(("name", "ended", "is_over", "code"), STATES, ids=[f"{s[0]} {s[1]}" for s in STATES])
def test_a_job_s_end_is_the_run_s_where_its_script_has_ended_by_itself(
    name: str, ended: str, is_over: bool, code: int | None
) -> None:
    text = f"JobId=17 JobName=hybridsync UserId=a(1) JobState={name} Reason=None Requeue=1 BatchFlag=1 ExitCode={ended}"
    state = state_of(text)
    assert state is not None and state.is_over == is_over
    if code is not None:
        assert state.exit_code == code


def test_what_describes_no_job_is_no_state() -> None:
    assert state_of("") is None and state_of("slurm_load_jobs error: Unable to contact slurm controller") is None


def test_a_job_is_found_again_by_its_flags_whatever_else_is_in_the_queue() -> None:
    own = next(word for word in submission(JOB, "s", "--time=1") if word.startswith("--comment=")).partition("=")[2]
    others = "3 RUNNING (null)\n4 PENDING\n5 RUNNING hybridsync 00 /runs/a\n6 RUNNING of mine /runs/a b\n"
    assert running_job(JOB, "--time=1", f"{others}17 PENDING {own}\n") == "17"
    assert running_job(JOB, "--time=1", f"{others}17 COMPLETING {own}\n16 FAILED {own}\n") is None
    with pytest.raises(ConfigError, match=r"job 17 trains in /runs/a b already, with other flags; .* --batch 17$"):
        running_job(JOB, "--time=2", f"{others}17 RUNNING {own}\n")
