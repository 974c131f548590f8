# Every target creates the virtual environment first, so a fresh clone needs only Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
# worksteal: the tests of a file stay in one process, which then trains their shared runs once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help setup check test test-learning quickstart docs wheel
.DEFAULT_GOAL := help

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: $(STAMP)  ## Create .venv and install the pinned versions, if they are not there yet.

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "ascent needs Python 3.11 or newer, but $(PYTHON) is older; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	@command -v bwrap >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && { apt-get update -qq; apt-get install -qq -y bubblewrap; } >/dev/null; } \
	  || echo "model-written programs need a sandbox: install the package bubblewrap (Debian, Ubuntu: apt-get install bubblewrap)"
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && { apt-get update -qq; apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1; } \
	  || echo "the tests of pages need a browser: install the package chromium (Debian, Ubuntu: apt-get install chromium)"
	@touch $@

check: setup  ## Format, lint, types, architecture and the fast tests: a few minutes.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy ascent
	$(BIN)/python -m pytest -q tests/test_architecture.py
	$(PYTEST) -q -m "not slow and not learning" --ignore=tests/test_architecture.py

# Hundreds of child processes import the package; where Python is told to write no bytecode, each would compile it again.
test: setup  ## All tests that a CPU can run, except the long learning studies.
	$(BIN)/python -m compileall -q ascent
	$(PYTEST) -m "not learning"

# Studies that finished for this commit are skipped, so an interrupted run continues.
test-learning: setup  ## The long learning studies, resumable by row. ASCENT_LEARNING names their folder.
	ASCENT_LEARNING=$${ASCENT_LEARNING:-$(CURDIR)/$(VENV)/learning/$$(git describe --always --dirty 2>/dev/null || echo tree)} \
	  $(PYTEST) -m learning

quickstart: setup  ## Train a small policy from scratch in minutes: SFT, then RL with a verifier.
	$(BIN)/ascent quickstart

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

docs: $(DOCS_STAMP)  ## Build the documentation site into site/; open site/index.html, no server needed.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: setup  ## Build the wheel and the source distribution into dist/.
	$(BIN)/python -m hatchling build -t sdist -t wheel
