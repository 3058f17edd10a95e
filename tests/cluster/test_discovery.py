"""A host finds its place by flags, its own variables, JobSet's or Slurm's; what contradicts itself is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hybridsync.cluster.discovery import DEFAULT_PORT, Place, discover
from hybridsync.cluster.hostlist import MAX_HOSTS, expand
from hybridsync.core.errors import ConfigError

OWN = {"HYBRIDSYNC_HEAD": "10.0.0.1:9000", "HYBRIDSYNC_INDEX": "2", "HYBRIDSYNC_HOSTS": "3"}
JOBSET = {
    "JOB_COMPLETION_INDEX": "0",
    "JOBSET_COORDINATOR": "digits-head-0-0.digits",
    "JOBSET_JOB_GLOBAL_INDEX": "3",
    "JOBSET_GLOBAL_REPLICAS": "5",
}
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "node[08-10],big",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURMD_NODENAME": "node10",
}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "flags", "place"),
    [
        ({}, {}, Place(f"127.0.0.1:{DEFAULT_PORT}", 0, 1)),
        ({}, {"port": 9}, Place("127.0.0.1:9", 0, 1)),
        ({}, {"hosts": 1}, Place(f"127.0.0.1:{DEFAULT_PORT}", 0, 1)),
        ({}, {"hosts": 1, "head": "[::1]"}, Place(f"[::1]:{DEFAULT_PORT}", 0, 1)),
        ({}, {"head": "a.b-c_d", "index": 1, "hosts": 2, "port": 80}, Place("a.b-c_d:80", 1, 2)),
        ({}, {"head": "[fe80::1]:80", "index": 0, "hosts": 2}, Place("[fe80::1]:80", 0, 2)),
        (OWN, {}, Place("10.0.0.1:9000", 2, 3)),
        (OWN, {"head": "other:1", "index": 0}, Place("other:1", 0, 3)),
        (OWN | {"HYBRIDSYNC_INDEX": ""}, {"index": 1}, Place("10.0.0.1:9000", 1, 3)),
        (JOBSET, {}, Place(f"digits-head-0-0.digits:{DEFAULT_PORT}", 3, 5)),
        (JOBSET | OWN, {}, Place("10.0.0.1:9000", 2, 3)),
        (JOBSET | SLURM, {"port": 81}, Place("digits-head-0-0.digits:81", 3, 5)),
        ({"JOB_COMPLETION_INDEX": "1"} | without(OWN, "HYBRIDSYNC_INDEX"), {}, Place("10.0.0.1:9000", 1, 3)),
        (SLURM, {}, Place(f"node08:{DEFAULT_PORT}", 2, 4)),
        (SLURM, {"index": 1}, Place(f"node08:{DEFAULT_PORT}", 1, 4)),
        (SLURM | {"HYBRIDSYNC_HEAD": "10.0.0.8:9000"}, {}, Place("10.0.0.8:9000", 2, 4)),
        (
            without(SLURM, "SLURMD_NODENAME") | {"SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "3"},
            {},
            Place("node08:4711", 3, 4),
        ),
        ({"SLURM_JOB_NODELIST": "solo", "SLURMD_NODENAME": "solo"}, {}, Place(f"solo:{DEFAULT_PORT}", 0, 1)),
    ],
)
def test_a_host_finds_its_place(environ: dict[str, str], flags: dict[str, Any], place: Place) -> None:
    assert discover(environ, **flags) == place


@pytest.mark.parametrize(
    ("environ", "flags", "says"),
    [
        ({}, {"head": "a:1"}, "head a:1 (--head), but no index and no hosts; set --index or HYBRIDSYNC_INDEX and"),
        ({}, {"index": 1}, "index 1 (--index), but no head and no hosts"),
        ({}, {"hosts": 2}, "hosts 2 (--hosts), but no head and no index"),
        (
            {},
            {"index": 1, "hosts": 2},
            "index 1 (--index), hosts 2 (--hosts), but no head; set --head or HYBRIDSYNC_HEAD",
        ),
        ({}, {"head": "a:1", "index": 2, "hosts": 2}, "index 2 (--index) is not below the number of hosts 2 (--hosts)"),
        (OWN, {"hosts": 2}, "index 2 (HYBRIDSYNC_INDEX) is not below the number of hosts 2 (--hosts)"),
        ({}, {"head": "a:1", "index": -1, "hosts": 2}, "--index is '-1'; it is a whole number, 0 or more"),
        ({}, {"head": "a:1", "index": 0, "hosts": 0}, "--hosts is '0'; it is a whole number, 1 or more"),
        (OWN | {"HYBRIDSYNC_INDEX": "two"}, {}, "HYBRIDSYNC_INDEX is 'two'"),
        (OWN | {"HYBRIDSYNC_HOSTS": "3.0"}, {}, "HYBRIDSYNC_HOSTS is '3.0'"),
        (OWN | {"HYBRIDSYNC_INDEX": "١"}, {}, "HYBRIDSYNC_INDEX is '١'"),
        (OWN | {"HYBRIDSYNC_HEAD": "http://a:1"}, {}, "head 'http://a:1' (HYBRIDSYNC_HEAD) is no address"),
        (OWN | {"HYBRIDSYNC_HEAD": "a:0"}, {}, "head 'a:0' (HYBRIDSYNC_HEAD) is no address"),
        (OWN | {"HYBRIDSYNC_HEAD": "a:65536"}, {}, "head 'a:65536' (HYBRIDSYNC_HEAD) is no address"),
        (OWN | {"HYBRIDSYNC_HEAD": "::1"}, {}, "head '::1' (HYBRIDSYNC_HEAD) is no address"),
        (without(OWN, "HYBRIDSYNC_HOSTS"), {}, "index 2 (HYBRIDSYNC_INDEX), but no hosts"),
        (without(JOBSET, "JOBSET_GLOBAL_REPLICAS"), {}, "index 3 (JOBSET_JOB_GLOBAL_INDEX), but no hosts"),
        (without(JOBSET, "JOBSET_COORDINATOR"), {}, "hosts 5 (JOBSET_GLOBAL_REPLICAS), but no head"),
        (
            JOBSET | {"JOB_COMPLETION_INDEX": "2"},
            {},
            "JOB_COMPLETION_INDEX is 2 in the Job whose JOBSET_JOB_GLOBAL_INDEX is 3",
        ),
        ({"JOB_COMPLETION_INDEX": "2"}, {}, "index 2 (JOB_COMPLETION_INDEX), but no head and no hosts"),
        (
            SLURM | {"SLURM_JOB_NUM_NODES": "5"},
            {},
            "SLURM_JOB_NUM_NODES is 5, but SLURM_JOB_NODELIST=node[08-10],big names 4",
        ),
        (
            SLURM | {"SLURMD_NODENAME": "n2"},
            {},
            "SLURMD_NODENAME is n2, but SLURM_JOB_NODELIST=node[08-10],big does not",
        ),
        (SLURM | {"SLURM_LOCALID": "1"}, {}, "SLURM_LOCALID is 1: several tasks run on one node"),
        (without(SLURM, "SLURMD_NODENAME"), {}, "SLURM_NODEID=0 counts the 1 nodes of the step"),
        (without(SLURM, "SLURMD_NODENAME", "SLURM_NODEID"), {}, "but no index; set --index or HYBRIDSYNC_INDEX"),
        (SLURM | {"SLURM_JOB_NODELIST": "node[08-"}, {}, "the list of hosts 'node[08-' cannot be read"),
    ],
)
def test_half_a_place_and_a_contradiction_are_refused_with_both_values(
    environ: dict[str, str], flags: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        discover(environ, **flags)


def test_the_steps_of_a_slurm_job_have_each_index_once_though_each_is_its_own_step_s_first_node() -> None:
    names = expand(SLURM["SLURM_JOB_NODELIST"])
    places = [discover(SLURM | {"SLURMD_NODENAME": name}) for name in names]
    assert [place.index for place in places] == [0, 1, 2, 3]
    assert {place.head for place in places} == {f"node08:{DEFAULT_PORT}"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a[1]", ["a1"]),
        ("a[1-3,5,08-10]", ["a1", "a2", "a3", "a5", "a08", "a09", "a10"]),
        ("a[9-11]", ["a9", "a10", "a11"]),
        ("a[0098-0100].x-y", ["a0098.x-y", "a0099.x-y", "a0100.x-y"]),
        ("r[1-2]c[3-4]", ["r1c3", "r1c4", "r2c3", "r2c4"]),
        ("r[1-2][3,5]", ["r13", "r15", "r23", "r25"]),
        ("b,a[2-3],c", ["b", "a2", "a3", "c"]),
    ],
)
def test_a_list_of_hosts_is_expanded_in_its_order(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("a,", "cannot be read"),
        (",a", "cannot be read"),
        ("a,,b", "cannot be read"),
        ("a b", "cannot be read"),
        ("a[1", "cannot be read"),
        ("a1]", "cannot be read"),
        ("a[[1]]", "cannot be read"),
        ("a[]", "has '' in a bracket"),
        ("a[1,]", "has '' in a bracket"),
        ("a[1-]", "has '1-' in a bracket"),
        ("a[x]", "has 'x' in a bracket"),
        ("a[1-9/2]", "has '1-9/2' in a bracket"),
        ("bgl[000x733]", "has '000x733' in a bracket"),
        ("a[5-4]", "has the range '5-4' that counts down"),
        ("a[1-2],a2", "has 'a2' twice"),
        ("a[1-2]0,a[10,30]", "has 'a10' twice"),
        ("a[0-999999999]", f"more than {MAX_HOSTS} names"),
        ("a[000-999][000-999]", f"more than {MAX_HOSTS} names"),
    ],
)
def test_a_list_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        expand(text)
