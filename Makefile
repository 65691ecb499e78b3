# make demo     train a small model with my_ops and plot its loss    (installs and builds first)
# make test     build and run the whole test suite
# make build    .venv with torch, a CUDA compiler if none is found, and my_ops built in place
# make sanitize run every CUDA kernel under compute-sanitizer            (needs a GPU)
# make check    formatters and linters, without writing; make format writes
# make clean    remove what was built; .venv stays
#
# TORCH=2.13.0 chooses torch, VENV=path an environment of your own, MY_OPS_CUDA=0 a CPU-only build.

TORCH ?= 2.14.1
VENV ?= .venv
PYTHON ?= python3
MAX_JOBS ?= $(shell nproc)

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
export MAX_JOBS
export MY_OPS_WERROR ?= 1
export PYTHONPATH := $(CURDIR)

python := $(VENV)/bin/python
pip := $(python) -m pip --disable-pip-version-check
sources := $(shell find csrc -type f) setup.py pyproject.toml tools/cuda_toolchain.py
c_sources := $(filter %.h %.cuh %.cpp %.cu,$(sources))

.PHONY: demo test build sanitize check format clean

demo: build
	$(python) examples/train_tiny_lm.py

test: build
	$(python) -m pytest -n $(MAX_JOBS) --dist worksteal

build: build/my_ops.built

# Each step leaves a stamp, so that a second run skips it.
$(VENV)/torch.installed:
	@echo "[1/3] Python environment in $(VENV) with torch $(TORCH)"
	@test -x $(python) || $(PYTHON) -m venv $(VENV)
	@$(pip) install --progress-bar on "torch==$(TORCH)" "setuptools>=77" wheel ninja
	@touch $@

$(VENV)/tools.installed: $(VENV)/torch.installed pyproject.toml
	@echo "[2/3] Test tools, and nvcc where there is none"
	@$(pip) install -q $$($(python) tools/extras.py test examples dev)
	@test "$(MY_OPS_CUDA)" = 0 || $(python) tools/cuda_toolchain.py --install
	@touch $@

# ninja prints whole commands as they end; a count and a file name show that it moves.
build/my_ops.built: $(VENV)/tools.installed $(sources)
	@echo "[3/3] Building my_ops._C in place ($(MAX_JOBS) jobs)"
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(python) -u setup.py build_ext --inplace 2>&1 \
	  | sed -u -E 's/^(\[[0-9]+\/[0-9]+\]) .* -c .*(csrc\/[^ ]+\.(cpp|cu)).*/\1 \2/'
	@touch $@

sanitize: build
	compute-sanitizer --tool memcheck --error-exitcode 1 $(python) tools/sanitize.py

check:
	$(VENV)/bin/clang-format --dry-run -Werror $(c_sources)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

format:
	$(VENV)/bin/clang-format -i $(c_sources)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf build dist out *.egg-info my_ops/_build_info.py my_ops/_C*.so
