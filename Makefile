# Every target sets up what it needs: python3 (3.10 or newer) and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo serve test test-fast nightly nightly-tests soak coverage lint docs bench beside clean

help:
	@echo "make demo       the example project at work, with real workers, from nothing (STORE=database: without Redis; ARGS=--examples: the short ones alone)"
	@echo "make serve      the example site and its admin on localhost"
	@echo "make test       what a change must pass (make test ARGS=tests/celery_tasks PARALLEL=8 for a room's, PARALLEL=0 for one at a time)"
	@echo "make test-fast  without those that start workers, browsers or kill processes"
	@echo "make nightly    what is slow: faults at random, the model, mutants, every byte, other versions (SEED=... plays it again, ARGS=mutants a step)"
	@echo "make soak       the package at work for an hour, disturbed and deployed (make soak MINUTES=6 ARGS='--broker rabbitmq --seed ...')"
	@echo "make coverage   all tests, and what they did not reach"
	@echo "make lint       style, types, direction of imports, missing migrations"
	@echo "make docs       the docs site, in .docs/html; warnings are errors"
	@echo "make beside     this version beside another commit (make beside REF=HEAD~1)"
	@echo "make bench      our lock beside its peers (make bench ARGS='--quick --workload handoff')"
	@echo "make clean      remove what the other targets made"

# The groups are installed again when pyproject.toml changes.
define install
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: its venv and ensurepip modules are missing (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (only when pyproject.toml has changed)"
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --editable "." --group $(1)
endef

# A redis-server, unless the machine has one.
define install_redis
	@REDIS_URL= $(BIN)/python -m example_project.servers >/dev/null || $(PIP) install --group redis || true
endef

$(VENV)/.installed-demo: pyproject.toml
	$(call install,demo)
	$(install_redis)
	@touch $@

$(VENV)/.installed-demo-database: pyproject.toml
	$(call install,demo)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(call install,dev)
	$(install_redis)
	@touch $@

STORE ?= redis
demo: $(VENV)/.installed-demo$(if $(filter database,$(STORE)),-database)
	@$(BIN)/python -m example_project.demo --store $(STORE) $(ARGS)

serve: $(VENV)/.installed-demo
	@$(BIN)/python -m example_project.serve

# Tests mostly wait, for processes to start and leases to end: some run side by side.
PARALLEL ?= 4
# Of Python's development mode all but the checks of its allocator, which cost a sixth of the time.
# Bytecode is written, whatever the environment says: else each process compiles everything again.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONDEVMODE=1 PYTHONMALLOC=pymalloc $(BIN)/python -m pytest -n $(PARALLEL) --dist worksteal

test: $(VENV)/.installed-dev
	@$(PYTEST) $(ARGS)

test-fast: $(VENV)/.installed-dev
	@$(PYTEST) -m "not slow" $(ARGS)

# An hour; ARGS names some of its steps. What it skips it says.
nightly: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.nightly $(ARGS)

nightly-tests: $(VENV)/.installed-dev
	@$(PYTEST) --nightly $(ARGS)

MINUTES ?= 60
soak: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.nightly.soak --minutes $(MINUTES) $(ARGS)

coverage: $(VENV)/.installed-dev
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m django makemigrations --check --dry-run --settings tests.settings

# From nothing each time: a page that was not read again would not be checked either.
docs: $(VENV)/.installed-dev
	@$(BIN)/python -m sphinx -E -W --keep-going -n -q -d .docs/doctrees docs .docs/html
	@echo "open .docs/html/index.html"

# The peers live in an environment of their own: the package never depends on them.
BENCH := .venv-bench

$(BENCH)/.installed: pyproject.toml benchmarks/requirements.txt
	@test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	@echo "Installing into $(BENCH) (only when the requirements have changed)"
	@$(BENCH)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(BENCH)/bin/python -m pip --quiet install --editable . --requirement benchmarks/requirements.txt
	@$(BENCH)/bin/python -m example_project.servers >/dev/null || $(BENCH)/bin/python -m pip --quiet install --group redis
	@touch $@

# The published page: make bench ARGS='--page docs/operations/measured.md'
bench: $(BENCH)/.installed
	@mkdir -p .bench
	@$(BENCH)/bin/python -m benchmarks --json .bench/results.json $(ARGS)

# This tree beside another commit, in one run: make beside REF=HEAD~1 ARGS='--work extend'
REF ?= HEAD
beside: $(BENCH)/.installed
	@$(BENCH)/bin/python -m benchmarks.beside $(REF) $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH) .bench .docs .tox build dist .demo .serve .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
