# Every target sets up what it needs: python3 (3.10 or newer) and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo serve test test-fast matrix hard-cases chaos coverage lint bench clean

help:
	@echo "make demo       the example project at work, with real workers, from nothing"
	@echo "make serve      the example site and its admin on localhost"
	@echo "make test       all tests (make test ARGS='-k fence' for some, PARALLEL=0 for one at a time)"
	@echo "make test-fast  all tests but those that start workers, browsers or kill processes"
	@echo "make matrix     the fast tests on every Python, Django and Redis that is here (ARGS='NAME...' for some)"
	@echo "make hard-cases ROUNDS=200  the randomised kills, stops and cuts, for as long as you like"
	@echo "make chaos SECONDS=1200  processes play with locks under faults; their history is checked (SEED=... plays it again)"
	@echo "make coverage   all tests, and what they did not reach"
	@echo "make lint       style, types, direction of imports, missing migrations"
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
	@$(PIP) install --editable ".[rich]" --group $(1)
	@REDIS_URL= $(BIN)/python -m example_project.servers >/dev/null || $(PIP) install --group redis || true
	@touch $@
endef

$(VENV)/.installed-demo: pyproject.toml
	$(call install,demo)

$(VENV)/.installed-dev: pyproject.toml
	$(call install,dev)

demo: $(VENV)/.installed-demo
	@$(BIN)/python -m example_project.demo

serve: $(VENV)/.installed-demo
	@$(BIN)/python -m example_project.serve

# Tests mostly wait, for processes to start and leases to end: some run side by side.
PARALLEL ?= 3
PYTEST := PYTHONDEVMODE=1 $(BIN)/python -m pytest -n $(PARALLEL) --dist worksteal

test: $(VENV)/.installed-dev
	@$(PYTEST) $(ARGS)

test-fast: $(VENV)/.installed-dev
	@$(PYTEST) -m "not slow" $(ARGS)

# Each environment of tox, and each Redis server; what is missing is said. Some four minutes each.
matrix: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.matrix $(ARGS)

ROUNDS ?= 200
hard-cases: $(VENV)/.installed-dev
	@HARD_CASES_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/hard_cases/test_random.py --timeout 14400 -rA $(ARGS)

SECONDS ?= 60
chaos: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed "$(SEED)" $(ARGS)

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

# The peers live in an environment of their own: the package never depends on them.
BENCH := .venv-bench

$(BENCH)/.installed: pyproject.toml benchmarks/requirements.txt
	@test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	@echo "Installing into $(BENCH) (only when the requirements have changed)"
	@$(BENCH)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(BENCH)/bin/python -m pip --quiet install --editable . --requirement benchmarks/requirements.txt
	@$(BENCH)/bin/python -m example_project.servers >/dev/null || $(BENCH)/bin/python -m pip --quiet install --group redis
	@touch $@

bench: $(BENCH)/.installed
	@mkdir -p .bench
	@$(BENCH)/bin/python -m benchmarks --json .bench/results.json --plots .bench/plots $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH) .bench .tox .matrix build dist .demo .serve .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
