"""What stands in for accelerators holds under newer Pythons, each with the newest JAX that its package index has.

Python 3.11 gets an older JAX than later ones: these tests are where a newest JAX meets forced devices. Each Python that
is installed here has an environment of its own, the one that `make test PYTHON=python3.12` uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACEMENT, SUMS = "tests/devices/test_placement.py", "tests/collectives/test_one_process.py"
STAND_INS = (
    f"{PLACEMENT}::test_parameters_and_momenta_lie_where_rules_say",
    f"{PLACEMENT}::test_leaves_without_rules_are_divided_by_their_size",
    f"{PLACEMENT}::test_states_go_to_the_host_and_back_bit_for_bit",
    f"{PLACEMENT}::test_each_step_on_meshes_is_that_of_one_device[nnx]",
    f"{PLACEMENT}::test_switches_both_ways_end_a_run_on_meshes",
    f"{PLACEMENT}::test_a_run_resumes_on_another_mesh",
    f"{PLACEMENT}::test_frozen_leaves_lie_where_parameters_would",
    f"{SUMS}::test_xla_has_the_bits_of_threads_on_one_device",
    f"{SUMS}::test_nothing_is_compiled_when_members_leave_and_come_back",
    "tests/multiprocess/test_device_meshes.py::test_a_worker_killed_on_a_mesh_costs_the_other_nothing",
)
NEWEST = ("jax", "flax", "optax", "orbax-checkpoint")
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(1800)]


def interpreter(version: str) -> str | None:
    """Return an interpreter of that version: on the path, or one of pyenv's, whose commands may be switched off."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    return next((str(each) for each in found if each and run(str(each), "-c", check).returncode == 0), None)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the sources, apart from the `make` and the pytest that have called this test."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "MAKE", "MFLAGS", "JAX_")) and name != "PYTHON"
    }
    environment["PIP_COMPILE"] = "0"  # most of what is installed is never imported here; half of the time goes there
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False)


@pytest.fixture(params=["3.12", "3.13"])
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with that Python and the newest packages that it may have."""
    if (found := interpreter(request.param)) is None:
        pytest.skip(f"Python {request.param} is missing: install it, or have pyenv do so")
    made = run("make", "setup", f"PYTHON={found}")
    there = str(ROOT / f".venv-{Path(found).name}" / "bin" / "python")
    if made.returncode == 0:
        made = run(there, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", *NEWEST)
    if made.returncode:
        pytest.skip(f"packages for Python {request.param} could not be installed: {made.stderr.strip()[-300:]}")
    return there


def test_stand_ins_of_accelerators_hold(python: str) -> None:
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=600", *STAND_INS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed(, \d+ warnings?)? in", done.stdout), "nothing was skipped"
