"""Worker processes with a mesh of four CPU devices each train an annotated decoder under every protocol."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hybridsync.protocols import REGISTRY
from tests.multiprocess.job import Job
from tests.sweeps import swept

pytestmark = pytest.mark.timeout(600)
DECODER = "tests/devices/decoder_config.py"


@pytest.mark.parametrize("kind", swept(["nnx", "linen"]))
def test_every_protocol_trains_on_meshes_of_processes(tmp_path: Path, kind: str) -> None:
    names = [*REGISTRY]
    plan = ",".join(f"{name}:{100 // len(names)}%" for name in names[:-1]) + f",{names[-1]}"
    flags = (f"--plan={plan}", f"--set=workload={16 * len(names)}", f"--set=model.kind={kind}")
    with Job(tmp_path / "run", DECODER, *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
    (started,) = job.events("run_started")
    assert started["mesh"] == {"fsdp": 2, "tensor": 2}
    assert [event["protocol"] for event in job.events("phase_entered")] == names
    assert job.summary()["units"]["rolled_back"] == 0
    assert job.summary()["final"]["loss"] < 4.3
    measures = [name for name in ("worker-0", "worker-1") if "measures the states" in job.log(name)]
    assert measures == ["worker-1"], "the model is on the workers' devices"


def test_a_worker_killed_on_a_mesh_costs_the_other_nothing(tmp_path: Path) -> None:
    with Job(tmp_path / "run", DECODER, "--plan=bsp", "--set=workload=400", "--compute_secs=0.05") as job:
        job.until_phase("bsp")
        pid = job.kill_worker(1, signal.SIGKILL)
        job.until_lost(pid)
        assert job.wait() == 0, job.output + job.logs()
    assert job.summary()["units"]["rolled_back"] == 0, "the survivor's state was on devices of its own"
    assert [0] in [event["members"] for event in job.events("phase_entered") if event["reason"] == "death"]
    compiled = [line for line in job.log("worker-0").splitlines() if "compiling" in line]
    for program in ("_unit_gradient", "_update_program"):
        assert sum(program in line for line in compiled) == 1, "the survivor stepped on with what it had compiled"


def test_a_worker_whose_gpu_jax_does_not_find_is_refused_and_computes_on_no_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "77")  # there, as far as the agent can tell
    flags = ("--platform=cuda", "--workers=2", "--set=workload=8")
    with Job(tmp_path / "run", "configs/digits_mlp.py", *flags) as job:
        assert job.wait() == 1, job.output + job.logs()
    assert "devices.platform is 'cuda', and JAX has no such devices here" in job.output
    assert job.events("evaluation") == []
