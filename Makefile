# make demo     train a small model with my_ops and plot its loss    (installs and builds first)
# make test     build and run the whole test suite
# make build    .venv with torch, a CUDA compiler if none is found, and my_ops built in place
# make docs     the guide and the reference, as HTML in out/docs
# make bench    time every operator, on the GPU where there is one; PEERS=1 beside other libraries
# make wheel    a release wheel for every supported GPU in dist, its contents listed and tried
# make sanitize run every CUDA kernel under compute-sanitizer            (needs a GPU)
# make fuzz     thousands of random calls; make soak a million, with a look at the memory
# make check    formatters, linters and types, without writing; make format writes
# make help     prints these lines
# make clean    remove what was built; .venv stays
#
# TORCH=2.13.0 chooses torch, VENV=path an environment of your own (a torch in it stays unless TORCH
# is given), MY_OPS_CUDA=0 a CPU-only build, TORCH_CUDA_ARCH_LIST=9.0a one GPU, MAX_JOBS and
# TEST_WORKERS how many compilers and tests run at a time.

DEFAULT_TORCH := 2.14.1
VENV ?= .venv
PYTHON ?= python3
MAX_JOBS ?= $(shell nproc)
TEST_WORKERS ?= $(shell echo $$(( $$(nproc) < 8 ? $$(nproc) : 8 )))

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
export MAX_JOBS
export PYTHONPATH := $(CURDIR)

python := $(VENV)/bin/python
pip := $(python) -m pip --disable-pip-version-check
sources := $(sort $(shell find csrc -type f)) setup.py pyproject.toml tools/cuda_toolchain.py
c_sources := $(filter %.h %.cuh %.cpp %.cu,$(sources))

.PHONY: demo test build docs wheel bench fuzz soak sanitize check format clean help always

demo: build
	$(python) examples/train_tiny_lm.py

# The group "large" needs tens of GB of one GPU: its tests run one after the other.
test: build
	$(python) -m pytest -n $(TEST_WORKERS) --dist loadgroup

build: build/my_ops.built

# Looked at in every run, written only when something in it changes: what the steps below depend on.
build/choices: always
	@test -x $(python) || $(PYTHON) -m venv $(VENV)
	@installed=$$($(torch_version)); wanted="$(or $(TORCH),$${installed:-$(DEFAULT_TORCH)})"; \
	if test "$$wanted" != "$$installed" && test "$$wanted" != "$${installed%%+*}"; then \
	  echo "[1/3] torch $$wanted in $(VENV)"; \
	  $(pip) install --progress-bar on "torch==$$wanted"; \
	fi
	@mkdir -p build
	@printf '%s\n' "$(abspath $(VENV)), $$($(torch_version))" "MY_OPS_CUDA=$(MY_OPS_CUDA)" \
	  "MY_OPS_WERROR=$(MY_OPS_WERROR)" "TORCH_CUDA_ARCH_LIST=$(TORCH_CUDA_ARCH_LIST)" \
	  "CUDA_HOME=$(CUDA_HOME)" $(sources) > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
torch_version = $(python) -c "import importlib.metadata as m; print(m.version('torch'))" 2> /dev/null

# Each step leaves a stamp, so that a second run skips it.
$(VENV)/my_ops_tools.installed: build/choices pyproject.toml
	@echo "[2/3] Build and test tools, and nvcc where there is none"
	@$(pip) install -q $$($(python) tools/extras.py build test examples dev docs)
	@test "$(MY_OPS_CUDA)" = 0 || $(python) tools/cuda_toolchain.py --install
	@touch $@

# ninja prints whole commands as they end; a count and a file name show that it moves.
build/my_ops.built: $(VENV)/my_ops_tools.installed $(sources)
	@echo "[3/3] Building my_ops._C in place ($(MAX_JOBS) jobs)"
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(python) -u setup.py build_ext --inplace 2>&1 \
	  | sed -u -E 's/^(\[[0-9]+\/[0-9]+\]) .* -c .*(csrc\/[^ ]+\.(cpp|cu)).*/\1 \2/'
	@touch $@

docs: build
	$(python) -m sphinx -qW --keep-going -b html docs out/docs
	@echo "out/docs/index.html"

# Other examples in each run; pytest prints how to repeat one that fails.
fuzz: build
	HYPOTHESIS_PROFILE=long $(python) -m pytest -n $(TEST_WORKERS) tests/test_fuzz*.py

soak: build
	$(python) tools/soak.py

# PEERS=1 installs the libraries to compare with; torch stays the one that is there. BENCH are
# arguments: make bench BENCH="rmsnorm --quick"
bench: build
	@test -z "$(PEERS)" || $(pip) install -q $$($(python) tools/extras.py bench) \
	  "torch==$$($(torch_version))"
	$(python) benchmarks/run.py $(BENCH)
	$(python) benchmarks/report.py

wheel: $(VENV)/my_ops_tools.installed
	$(python) tools/release_wheel.py

sanitize: build
	$(python) tools/sanitize.py

check: build
	$(VENV)/bin/clang-format --dry-run -Werror $(c_sources)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/stubtest my_ops._C

format:
	$(VENV)/bin/clang-format -i $(c_sources)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

help:
	@sed -n '/^#/!q; s/^#  *//p' Makefile

clean:
	rm -rf build dist out *.egg-info my_ops/_build_info.py my_ops/_C*.so
