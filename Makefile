# `make train`, `make test` and `make setup` work on a clean machine; a second call installs nothing.
# Another Python gets a folder of its own: `make test PYTHON=python3.12` uses .venv-python3.12.

DEFAULT_PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PYTHON ?= $(DEFAULT_PYTHON)
VENV := $(if $(filter $(DEFAULT_PYTHON),$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTOS := $(shell find hybridsync -name '*.proto' 2>/dev/null)

INTEGRATION := .venv-integration

# Without it each of the many processes of the tests would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test lint types unit integration soak train proto clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py
	@test -n "$(PYTHON)" || { echo "HybridSync needs Python 3.11 or newer: make setup PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

test: lint unit

lint: $(STAMP) types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

# Tests wait for disks, deadlines and each other, so four run at a time on two cores, and a worker without tests takes
# some from another. Tests that start many processes run three at a time, those that measure times alone.
unit: $(STAMP)
	$(BIN)/python -m pytest --numprocesses=4 --dist=worksteal --durations=15 --ignore=tests/multiprocess
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --durations=15 -m 'not soak and not integration and not alone' tests/multiprocess
	$(BIN)/python -m pytest -m 'alone and not soak' tests/multiprocess

# What needs a package index or other machines, in an environment of its own; and one case of each soak. Tests of hosts
# and clusters (the group `hosts`) run one at a time, because two at once are late at their deadlines. Tests that install
# packages (the group `wheel`) run at the same time as those, which wait for leases most of the time.
integration: $(INTEGRATION)/.installed
	$(INTEGRATION)/bin/python -m pytest -m integration --numprocesses=2 --dist=loadgroup --durations=15 tests/integration tests/multiprocess -o faulthandler_timeout=1200
	$(INTEGRATION)/bin/python -m pytest -m one_of_each_soak --numprocesses=3 --dist=worksteal --durations=15 --timeout=600 -o faulthandler_timeout=1800

$(INTEGRATION)/.installed: pyproject.toml setup.py Makefile
	@test -n "$(PYTHON)" || { echo "HybridSync needs Python 3.11 or newer: make integration PYTHON=/path/to/python"; exit 1; }
	test -x $(INTEGRATION)/bin/python || $(PYTHON) -m venv $(INTEGRATION)
	$(INTEGRATION)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,wandb,mlflow]' grain datasets torch==2.13.0 tensorboard nbclient ipykernel
	@touch $@

# Long cases of uneven lengths: whoever has nothing left takes some from the other.
soak: $(STAMP)
	$(BIN)/python -m pytest -m 'soak and not alone' --timeout=3600 -o faulthandler_timeout=0 --numprocesses=2 --dist=worksteal
	$(BIN)/python -m pytest -m 'soak and alone' --timeout=3600 -o faulthandler_timeout=0

train: $(STAMP)
	$(BIN)/python -m hybridsync train --config=configs/digits_mlp.py --workdir=runs/digits

proto: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)

clean:
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info build dist
