# A convenience: every target calls what one can call by hand. `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
UV := .tools/uv/bin/uv
COMPILE := $(UV) pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet
EVERYTHING := --extra server --extra embedded --extra otel pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo up test long check coverage fmt lock bench bench-quick bench-bridges bench-outbox bench-plugin memory pages chaos chaos-bridges chaos-outbox chaos-bulk hostile foreign versions cluster real-services docs screenshots clean setup

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show real runs on a real stack, in under a minute
	$(PYTHON) run.py demo

up: ## Start the embedded stack and a worker; Ctrl-C stops them
	$(PYTHON) run.py up

test: ## Run all tests on their own stack
	$(PYTHON) run.py test

check: ## Lint; check formatting, types, import rules and the compose file
	$(PYTHON) run.py check

coverage: ## Run all tests and list the uncovered lines
	$(PYTHON) run.py test -m 'not cluster' --numprocesses 4 --dist loadfile --no-loadscope-reorder --cov --cov-report term

setup: ## Create or update the development environment
	@$(PYTHON) run.py test --version > /dev/null

fmt: setup ## Format the code and apply the linter's fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lock: setup ## Update the requirement files from pyproject.toml
	$(COMPILE) --group setup -o requirements-setup.txt
	$(COMPILE) $(EVERYTHING) --group build -o requirements.txt
	$(COMPILE) $(EVERYTHING) --group build --group dev -o requirements-dev.txt
	$(COMPILE) --extra server --extra otel --extra sentry pyproject.toml --group build -o requirements-image.txt

long: setup ## Run the tests that take too long for every change (about 8 minutes)
	$(PYTHON) run.py test -m long

bench: setup ## Compare with plain Temporal, DBOS and a hand-written run; write docs/benchmarks.md (10 minutes); then bench-bridges
	$(BIN)/python -m tests.bench
	$(MAKE) bench-bridges

bench-quick: setup ## Compare with plain Temporal, DBOS and a hand-written run, roughly (2 minutes); only print
	$(BIN)/python -m tests.bench --quick

bench-bridges: setup ## Compare the retry scheduler with Celery on the same RabbitMQ (about 2 minutes)
	$(BIN)/python -m tests.bench.rabbitmq

bench-outbox: setup ## Compare the outbox with Procrastinate on the same PostgreSQL (about 3 minutes)
	$(BIN)/python -m tests.bench.outbox

bench-plugin: setup ## Compare a history replay with and without the plugin; fails above 1.1 (half a minute)
	$(BIN)/python -m tests.bench.plugin_cpu

memory: setup ## Measure a worker with ten thousand parked runs (a quarter of an hour)
	$(BIN)/python -m tests.bench.parked_memory

pages: setup ## Measure the console's pages at ten thousand and at a million dead letters
	$(BIN)/python -m tests.bench.console

chaos: setup ## Every fault under runs, commands, cancels and resets; dying runs and their replays; starts with one key (up to 20 minutes)
	$(BIN)/python -m tests.chaos.stores
	$(BIN)/python -m tests.chaos.dead_letters
	$(BIN)/python -m tests.chaos.keys

cluster: setup ## Build a real Temporal cluster on PostgreSQL, and run tests, failures, releases, restores and load on it (an hour)
	$(BIN)/python -m tests.cluster

real-services: setup ## Build Gitea, install OpenCode, and run the connectors' tests against them (a quarter of an hour the first time)
	$(BIN)/python -m tests.services

chaos-bridges: setup ## Kill each dependency of the retry scheduler, under 10,000 messages (about 5 minutes)
	$(BIN)/python -m tests.chaos.rabbitmq

chaos-outbox: setup ## Kill the bridge, a worker, PostgreSQL and Temporal under 10,000 rows of an outbox (up to an hour)
	$(BIN)/python -m tests.chaos.outbox

chaos-bulk: setup ## Kill workers, console and PostgreSQL under one bulk replay of ten thousand dead letters (up to an hour)
	$(BIN)/python -m tests.chaos.bulk

hostile: setup ## Send a corpus of hostile documents by every way in, beside a quiet tenant (about 13 minutes)
	$(BIN)/python -m tests.chaos.hostile
	WHOLE_CORPUS=1 $(BIN)/python -m pytest tests/integration/console/test_extremes.py tests/integration/console/test_schema.py tests/integration/console/test_hostile_documents.py tests/integration/dead_letters/test_hostile_documents.py tests/integration/odd_inputs/test_starts.py tests/unit/test_hostile_documents.py

foreign: setup ## Run temporalio/samples-python's tests, every activity killed once and replayed (fetched, or REDRIVE_SAMPLES=checkout; 8 to 15 minutes)
	$(BIN)/python -m tests.chaos.foreign

versions: setup ## Try the plugin with the oldest and the newest SDK, on every Python of the machine (about 5 minutes)
	$(BIN)/python -m tests.chaos.versions

docs: setup ## Build the documentation as a site in build/site; warnings and broken links are errors
	$(BIN)/python -m docs_site

screenshots: setup ## Take the pictures of the docs from a running stack (about a minute)
	$(BIN)/python -m tests.browser.screenshots

clean: ## Remove environments and caches; the state in .redrive stays
	rm -rf .venv .tools .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
