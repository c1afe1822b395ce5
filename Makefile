# Everything runs in .venv, which the first target that needs it sets up.
PYTHON ?= python3
GPU ?= b200
BIN := .venv/bin
READY := .venv/ready
# Tests marked `gpu` run where there is one.
MARK := $(if $(shell nvidia-smi -L 2>/dev/null),,-m "not gpu")

.PHONY: help setup demo test lint engines releases
.DEFAULT_GOAL := help

help:
	@echo "make setup  a virtual environment in .venv with the pinned development tools"
	@echo "make demo   build the default spec for one GPU (GPU=$(GPU)), verify and inspect the bundle"
	@echo "make test   all tests; those of the kernels run in Triton's interpreter"
	@echo "make lint   ruff and mypy"
	@echo "make releases  the releases of Triton that are supported and not installed, for tests"
	@echo "make engines  the engines' operation modules, which tests trace (VLLM=1: vLLM's too)"

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ssd-aot needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/ssd-aot build --gpu $(GPU)
	$(BIN)/ssd-aot verify dist/$(GPU)
	$(BIN)/ssd-aot inspect dist/$(GPU)

# Two processes: Triton decides at its import whether kernels are interpreted or compiled.
test: $(READY) engines
	$(BIN)/python -m pytest -q -n 2 $(MARK)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -n 2 tests/interpreted

# Tests that need them are skipped where they cannot be downloaded.
engines: $(READY)
	-$(BIN)/python tests/engine_modules.py sglang mamba_ssm $(if $(VLLM),vllm)

# 200 MB each to download, 2.5 GB in all on the disk.
releases: $(READY)
	$(BIN)/python tests/triton_releases.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
