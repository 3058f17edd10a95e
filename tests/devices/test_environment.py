"""Environments of worker processes: the GPUs of a host among its workers, and their memory."""

from __future__ import annotations

import re

import pytest

from hybridsync.config.device_config import DeviceConfig
from hybridsync.core.errors import ConfigError
from hybridsync.devices.environment import host_gpus, own_gpus, worker_environments

CUDA = DeviceConfig(platform="cuda")


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("2,0", ("2", "0")),
        (" 1 , 3", ("1", "3")),
        ("GPU-8932f937,MIG-b1a2/3/0", ("GPU-8932f937", "MIG-b1a2/3/0")),
        ("0,-1,1", ("0",)),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_gpus_that_the_environment_names_are_all(named: str, found: tuple[str, ...]) -> None:
    assert host_gpus({"CUDA_VISIBLE_DEVICES": named}, ["nvidia0"]) == found


def test_gpus_are_counted_by_their_device_files() -> None:
    files = ["nvidia3", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"]
    assert host_gpus({}, files) == ("0", "1"), "CUDA numbers those of a container from 0"


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "visible", "fractions"),
    [
        (1, 1, ["0"], ["0.9"]),
        (1, 4, ["0"], ["0.225"]),
        (4, 4, ["0", "1", "2", "3"], ["0.9"] * 4),
        (4, 2, ["0", "1"], ["0.9"] * 2),
        (3, 7, ["0", "1", "2"], ["0.3", "0.45", "0.45"]),
    ],
)
def test_workers_are_spread_over_the_gpus_and_share_their_memory(
    num_gpus: int, num_workers: int, visible: list[str], fractions: list[str]
) -> None:
    seats = worker_environments(CUDA, num_workers, {}, [f"nvidia{gpu}" for gpu in range(num_gpus)])
    assert [seat["CUDA_VISIBLE_DEVICES"] for seat in seats] == visible
    assert [seat["XLA_CLIENT_MEM_FRACTION"] for seat in seats] == fractions
    assert {seat["JAX_PLATFORMS"] for seat in seats} == {"cuda,cpu"}


@pytest.mark.parametrize(
    ("config", "visible"),
    [
        (DeviceConfig(platform="cuda", per_worker=2), ["0,1", "2,3"]),
        (DeviceConfig(platform="cuda", mesh={"fsdp": 2, "tensor": 2}), ["0,1,2,3", "4,5,6,7"]),
        (DeviceConfig(platform="cuda", mesh={"fsdp": -1}), ["0,1,2,3", "4,5,6,7"]),
        (DeviceConfig(platform="cuda", collective="xla"), ["0", "1"]),  # which is about threads
    ],
)
def test_a_worker_of_several_gpus_gets_consecutive_ones(config: DeviceConfig, visible: list[str]) -> None:
    seats = worker_environments(config, 2, {}, [f"nvidia{gpu}" for gpu in range(8)])
    assert [seat["CUDA_VISIBLE_DEVICES"] for seat in seats] == visible


@pytest.mark.parametrize(
    ("config", "gpus", "text"),
    [
        (
            DeviceConfig(platform="cuda", per_worker=4),
            ["0", "1", "2", "3", "GPU-5"],
            r"2 workers with 4 devices each .* need 8 devices, there are 5; .* \(GPUs of this host: 0, 1, .*GPU-5\)",
        ),
        (DeviceConfig(platform="cuda", per_worker=1), ["0"], "2 workers with 1 devices each .* there are 1"),
        (CUDA, [], "workers are to compute on GPUs, and this host has 0"),
    ],
)
def test_gpus_that_do_not_suffice_are_refused_with_both_numbers(
    config: DeviceConfig, gpus: list[str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        worker_environments(config, 2, {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_share_of_memory_that_the_user_names_is_kept_and_not_given_twice(name: str) -> None:
    (seat,) = worker_environments(CUDA, 2, {name: "0.3"}, ["nvidia0"])
    assert not any(key.endswith("MEM_FRACTION") for key in seat), "a process has the user's from its parent"
    twice = re.escape(f"{name}=0.3 and devices.memory_fraction=0.4 give the share")
    with pytest.raises(ConfigError, match=twice):
        worker_environments(DeviceConfig(platform="cuda", memory_fraction=0.4), 2, {name: "0.3"}, ["nvidia0"])
    both = {"XLA_CLIENT_MEM_FRACTION": "0.3", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
    with pytest.raises(ConfigError, match=r"XLA_CLIENT_MEM_FRACTION=0\.3 and XLA_PYTHON_CLIENT_MEM_FRACTION=0\.3"):
        worker_environments(CUDA, 2, both, ["nvidia0"])
    (seat,) = worker_environments(DeviceConfig(platform="cuda", memory_fraction=0.4), 2, {}, ["nvidia0"])
    assert seat["XLA_CLIENT_MEM_FRACTION"] == "0.4"


def test_a_worker_process_has_the_cpu_devices_of_its_mesh_and_the_platform_that_was_named() -> None:
    assert worker_environments(DeviceConfig(), 3, {}) == ({"JAX_PLATFORMS": "cpu"},)
    assert worker_environments(DeviceConfig(), 3, {"JAX_PLATFORMS": "tpu"}) == ({"JAX_PLATFORMS": "tpu"},)
    assert worker_environments(DeviceConfig(platform="cpu", per_worker=2), 3, {"JAX_PLATFORMS": "cuda"}) == (
        {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
    )
    seats = worker_environments(DeviceConfig(), 2, {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "1,0"})
    assert [seat["CUDA_VISIBLE_DEVICES"] for seat in seats] == ["1", "0"]
    assert seats[0]["JAX_PLATFORMS"] == "cuda"
    with pytest.raises(ConfigError, match=r"-1.* leaves the number of a worker process's devices open"):
        worker_environments(DeviceConfig(mesh={"fsdp": -1}), 2, {})


def test_a_process_knows_the_gpus_that_its_order_named() -> None:
    (seat,) = worker_environments(DeviceConfig(platform="cuda", per_worker=2), 1, {"CUDA_VISIBLE_DEVICES": "4,GPU-7"})
    assert own_gpus(seat) == ("4", "GPU-7")
    assert own_gpus({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "4"}) == ()
