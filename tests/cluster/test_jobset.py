"""The JobSet manifest is what JobSet's API takes, strictly, and its pods find their places by what it passes them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hybridsync.cluster.discovery import DEFAULT_PORT, Place, discover
from hybridsync.config import apply_overrides, load_config
from hybridsync.core.errors import ConfigError
from hybridsync.runtime.cluster_spec import ClusterSpec
from hybridsync.runtime.role.compilation_cache import open_cache

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
MANIFEST = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
VENDORED = json.loads((Path(__file__).parent / "jobset_v0_12_0.json").read_text())
REPLICATED = MANIFEST["spec"]["replicatedJobs"]
PODS = {job["name"]: job["template"]["spec"]["template"]["spec"] for job in REPLICATED}

OBJECT_META = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z]([a-z0-9-]*[a-z0-9])?$"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""The part of ObjectMeta that people write: a CRD leaves it open."""


def strict(schema: Any) -> Any:
    """Return a schema that refuses fields which it does not name, as the API server's strict validation does."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: {field: strict(value) for field, value in each.items()} if name == "properties" else strict(each)
        for name, each in schema.items()
    }
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


def validator() -> jsonschema.Draft202012Validator:
    schema = copy.deepcopy(VENDORED["schema"])
    schema["properties"]["metadata"] = OBJECT_META
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["apiVersion"]["const"] = f"{VENDORED['group']}/{VENDORED['name']}"
    schema["properties"]["kind"]["const"] = VENDORED["kind"]
    return jsonschema.Draft202012Validator(strict(schema))


def named_twice(value: Any) -> Iterator[str]:
    """Yield the names that stand twice in one list, as the API server's lists with a key forbid."""
    if isinstance(value, list):
        names = [each["name"] for each in value if isinstance(each, dict) and "name" in each]
        yield from {name for name in names if names.count(name) > 1}
    for each in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from named_twice(each)


def wrong(manifest: dict[str, Any]) -> list[str]:
    """Return what the API would refuse in a manifest."""
    found = [f"{error.json_path}: {error.message}" for error in validator().iter_errors(manifest)]
    return found + [f"{name!r} stands twice in a list" for name in named_twice(manifest)]


def test_the_manifest_is_what_the_api_takes() -> None:
    assert wrong(MANIFEST) == []


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (lambda all: all["spec"].update(failurepolicy={}), "'failurepolicy' was unexpected"),
        (lambda all: all["spec"]["replicatedJobs"][0].update(replica=1), "'replica' was unexpected"),
        (lambda all: all["spec"]["replicatedJobs"][0].update(replicas="one"), "'one' is not of type 'integer'"),
        (
            lambda all: all["spec"]["failurePolicy"]["rules"][1].update(action="RestartPod"),
            "'RestartPod' is not one of",
        ),
        (lambda all: all["spec"]["failurePolicy"]["rules"][1].pop("name"), "'name' is a required property"),
        (lambda all: pod(all)["containers"][0].update(envs=[]), "'envs' was unexpected"),
        (lambda all: pod(all)["securityContext"].update(runAsNonroot=True), "'runAsNonroot' was unexpected"),
        (lambda all: pod(all)["volumes"][0]["secret"].update(mode=0o440), "'mode' was unexpected"),
        (
            lambda all: pod(all).update(volumes=[*pod(all)["volumes"], {"name": "tmp", "emptyDir": {}}]),
            "'tmp' stands twice",
        ),
        (lambda all: all.update(apiVersion="jobset.x-k8s.io/v1"), "'jobset.x-k8s.io/v1alpha2' was expected"),
        (lambda all: all["metadata"].update(name="Digits"), "'Digits' does not match"),
    ],
)
def test_a_planted_error_is_found(plant: Callable[[dict[str, Any]], object], says: str) -> None:
    planted = copy.deepcopy(MANIFEST)  # aliases of the file become one object each: a plant may show in both jobs
    plant(planted)
    assert any(says in each for each in wrong(planted)), wrong(planted)


def annotations_of(name: str, job_index: int) -> dict[str, str]:
    """Return the annotations that the controller of JobSet v0.12 gives a pod (pkg/controllers/jobset_controller.go)."""
    names = [job["name"] for job in REPLICATED]
    before = sum(job["replicas"] for job in REPLICATED[: names.index(name)])
    to, jobset = MANIFEST["spec"]["coordinator"], MANIFEST["metadata"]["name"]
    return {
        "jobset.sigs.k8s.io/coordinator": f"{jobset}-{to['replicatedJob']}-{to['jobIndex']}-{to['podIndex']}.{jobset}",
        "jobset.sigs.k8s.io/job-global-index": str(before + job_index),
        "jobset.sigs.k8s.io/global-replicas": str(sum(job["replicas"] for job in REPLICATED)),
    }


def environment(container: dict[str, Any], told: dict[str, str], address: str = "10.0.0.5") -> dict[str, str]:
    """Return what a container of a pod with these annotations is told; the Job adds its completion index."""
    found = {"JOB_COMPLETION_INDEX": "0"}
    fields = {f"metadata.annotations['{name}']": text for name, text in told.items()} | {"status.podIP": address}
    for variable in container["env"]:
        if "value" in variable:  # may name variables that stand before it
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], variable["value"])
        else:
            found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return found


@pytest.mark.parametrize(("address", "head"), [("10.0.0.5", "10.0.0.5"), ("fd00::5", "[fd00::5]")])
def test_each_pod_finds_its_own_place_and_the_head_is_the_first(address: str, head: str) -> None:
    places = [
        discover(environment(PODS[job["name"]]["containers"][0], annotations_of(job["name"], index), address))
        for job in REPLICATED
        for index in range(job["replicas"])
    ]
    named = f"digits-head-0-0.digits:{DEFAULT_PORT}"
    assert places == [Place(f"{head}:{DEFAULT_PORT}", 0, 3), Place(named, 1, 3), Place(named, 2, 3)]
    assert MANIFEST["spec"]["successPolicy"]["targetReplicatedJobs"] == [REPLICATED[0]["name"]] == ["head"]


@pytest.mark.parametrize("name", PODS)
def test_each_pod_opens_its_own_certificates_of_the_secret(name: str) -> None:
    (container,) = PODS[name]["initContainers"]
    assert environment(container, annotations_of(name, 0))["INDEX"] == ("0" if name == "head" else "1")
    secrets = {volume["secret"]["secretName"] for volume in PODS[name]["volumes"] if "secret" in volume}
    assert secrets == {f"digits-{name}"}
    assert all(mount["name"] != "secret" for mount in PODS[name]["containers"][0]["volumeMounts"])


@pytest.mark.parametrize("job", REPLICATED, ids=lambda job: job["name"])
def test_a_host_is_a_job_of_one_pod_that_the_jobset_restarts_alone(job: dict[str, Any]) -> None:
    spec = job["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # a policy for exit codes asks for it
    (codes,) = (rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule)
    assert codes["values"] == [1]
    assert codes["containerName"] in {container["name"] for container in PODS[job["name"]]["containers"]}
    rules = MANIFEST["spec"]["failurePolicy"]["rules"]
    assert [(rule["action"], rule.get("onJobFailureReasons")) for rule in rules] == [
        ("FailJobSet", ["PodFailurePolicy"]),
        ("RestartJob", None),
    ]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_keeps_the_restricted_security_standard(name: str) -> None:
    spec = PODS[name]
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in [*spec["initContainers"], *spec["containers"]]:
        confined = container["securityContext"]
        assert confined["allowPrivilegeEscalation"] is False and confined["readOnlyRootFilesystem"] is True
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert spec["containers"][0]["ports"][0]["containerPort"] == DEFAULT_PORT


def test_the_image_s_user_is_the_pods_and_what_it_copies_is_there() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    (user,) = (line.split()[1] for line in last_stage if line.startswith("USER "))
    security = PODS["head"]["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)


def test_the_claim_is_the_one_that_the_pods_mount() -> None:
    claim = yaml.safe_load((FOLDER / "claim.yaml").read_text())
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for spec in PODS.values():
        names = {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in spec["volumes"]
            if "persistentVolumeClaim" in volume
        }
        assert names == {claim["metadata"]["name"]}


def test_the_run_of_the_manifest_is_one_that_hosts_carry_on_a_network_that_nobody_has_called_private() -> None:
    values = dict(re.findall(r"^--(\w+)=(.*)$", "\n".join(PODS["head"]["containers"][0]["args"]), re.MULTILINE))
    file = ROOT / "configs" / f"{values['config'].removeprefix('recipe:')}.py"
    config = load_config(file).config
    hosts = ClusterSpec("10.0.0.5:4711", 0, 3, "10.0.0.5", Path(values["certs"]))
    hosts.check(apply_overrides(config, [f"plan={values['plan']}"]))
    with pytest.raises(ConfigError, match=r"bsp sums between hosts over gloo"):
        hosts.check(config)


@pytest.mark.parametrize("name", PODS)
def test_the_folder_of_compiled_programs_is_one_that_a_run_takes(name: str, tmp_path: Path) -> None:
    """An emptyDir has mode 777, so what lies below its mount is refused."""
    container = PODS[name]["containers"][0]
    asked = environment(container, annotations_of(name, 0))["HYBRIDSYNC_COMPILATION_CACHE"]
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    mounts = [f"{mount['mountPath']}/" for mount in container["volumeMounts"]]
    asked = next((f"{volume}/{asked.removeprefix(mount)}" for mount in mounts if asked.startswith(mount)), asked)
    assert open_cache("", 1, pytest.fail, {"HYBRIDSYNC_COMPILATION_CACHE": asked}) == ""
