# The first target that runs makes its own environment; later ones find it ready.
PYTHON ?= python3
TORCH ?= 2.14.1
VENV ?= .venv
COMPAT := 2.11.0 2.13.0 2.14.1 2.15.0
PY := $(VENV)/bin/python
READY := $(VENV)/.ready-torch-$(TORCH)
ARGS ?=

# Without bytecode each run rewrites the assertions of all test files, in each worker.
unexport PYTHONDONTWRITEBYTECODE

# One worker for each core; see tests/support/tiers/options.py. A test that compiles takes its time on a busy machine.
PYTEST := $(PY) -m pytest -n auto --dist worksteal
PATIENT := -o faulthandler_timeout=600

# The documentation as build/site/index.html; a broken link or anchor within it is an error.
SITE := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

.PHONY: environment demo test test-slow test-part test-docs test-all durations check test-compat test-pytorch simulate test-gpu bench bench-gpu docs site clean

environment: $(READY)

demo: $(READY)
	$(VENV)/bin/inductor-plugin demo $(ARGS)

test: $(READY)
	$(PYTEST) --tier fast $(ARGS)

test-slow: $(READY)
	$(PYTEST) $(PATIENT) --tier rest $(ARGS)

# So many test seconds of test-slow (half as long on two cores): first the tests of files changed since the commit SINCE, then others.
PART_S ?= 600
SINCE ?=
test-part: $(READY)
	$(PYTEST) $(PATIENT) --tier rest --part-s $(PART_S) --part-since "$(SINCE)" $(ARGS)

test-all: $(READY)
	$(PYTEST) $(PATIENT) $(ARGS)

# Every snippet of the documentation and every example, whatever it takes.
test-docs: $(READY)
	$(PYTEST) $(PATIENT) tests/docs tests/examples $(ARGS)

durations: $(READY)
	$(PYTEST) $(PATIENT) --write-durations $(ARGS)

check: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright --threads 2 --pythonpath $(PY)
	$(VENV)/bin/lint-imports
	$(SITE) --quiet

test-compat: $(COMPAT:%=test-compat-%)

test-compat-%:
	$(MAKE) test VENV=.venv-$* TORCH=$* ARGS='-m "compat and (claim or not slow)" $(ARGS)'

# PYTORCH is a checkout of PyTorch, best of the installed version; a run that was stopped goes on where it was, unless the sources
# have changed. It fails if a test differs, or below 400 tests, and writes benchmarks/results/pytorch_tests_cpu.json.
PYTORCH ?= $(error name a checkout of PyTorch: make test-pytorch PYTORCH=...)
test-pytorch: $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[pytorch-tests]"
	$(PY) -m benchmarks.pytorch "$(PYTORCH)" $(ARGS)

# The session without a GPU: simulated, and in a bare checkout.
simulate: $(READY)
	$(PY) -m tests.gpu.session --simulate
	$(PY) -m pytest tests/gpu/harness/test_bare.py -m "not slow" $(ARGS)

test-gpu: $(READY)
	$(PY) -m tests.gpu.session --part tests $(ARGS)

bench: $(READY)
	$(PY) -m benchmarks.startup.cold_warm $(ARGS)

bench-gpu: $(READY)
	$(PY) -m tests.gpu.session --part speed $(ARGS)

docs: $(READY)
	$(PY) -m docs.generate

site: $(READY)
	$(SITE)

clean:
	rm -rf build dist *.egg-info .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# Without --no-compile pip writes bytecode of 18,000 files, one after the other (a minute and a half); few are ever imported.
$(READY): pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile "torch==$(TORCH)" -e ".[dev,docs]"
	rm -f $(VENV)/.ready-torch-*
	touch $@
