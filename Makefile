# `make demo` and `make test` each need nothing done before them: both create .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed-from-constraints

.DEFAULT_GOAL := help
.PHONY: help install demo test peer-test check wheel bench clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(READY) ## Create .venv with the versions in constraints.txt (once).

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY) ## Train a small TokenFormer on Shakespeare and print what it writes.
	$(BIN)/gnomon demo

# Compiled models cannot be looked into by the shape checks, so their tests have a session of their own.
test: $(READY) ## Run the tests.
	$(BIN)/python tests/peer/run.py --quick
	GNOMON_SHAPE_CHECKS=0 $(BIN)/python -m pytest -m compile tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

peer-test: $(READY) ## Run transformers' own model tests on every class (the tests run them on three).
	$(BIN)/python tests/peer/run.py

check: $(READY) ## Lint, formatting, types, and the direction of imports.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: $(READY) ## Build the wheel into dist/.
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

bench: $(READY) ## Run the benchmarks.
	set -e; for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script; done

clean: ## Remove everything that make made.
	rm -rf $(VENV) build dist
