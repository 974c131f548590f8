# Every target creates the virtual environment first, so a fresh clone needs only Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
# worksteal: the tests of a file stay in one process, which then trains their shared runs once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

SINCE ?= HEAD~1

.PHONY: help setup check test test-rest test-all test-learning same-bits path listing mutants quickstart docs wheel
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

check: setup  ## Format, lint, types, architecture and every fast test: some minutes.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy ascent
	$(BIN)/python -m pytest -q tests/test_architecture.py
	$(PYTEST) -q --tier check --ignore=tests/test_architecture.py

# Hundreds of child processes import the package; where Python is told to write no bytecode, each would compile it again.
# What exists of the mutants of changed files is part of this.
test: setup  ## What a CPU can test in ten minutes: the cheapest case of everything (tests/tiers.py).
	$(BIN)/python -m compileall -q ascent
	$(PYTEST) --tier test
	$(BIN)/python -m tests.test_mutations --since $(SINCE)

test-rest: setup  ## What test leaves out of test-all.
	$(BIN)/python -m compileall -q ascent
	$(PYTEST) --tier rest

test-all: setup  ## Everything that a CPU can test, except the long learning studies: half an hour.
	$(BIN)/python -m compileall -q ascent
	$(PYTEST)

# Studies that finished for this commit are skipped, so an interrupted run continues.
test-learning: setup  ## The long learning studies, resumable by row. ASCENT_LEARNING names their folder.
	ASCENT_LEARNING=$${ASCENT_LEARNING:-$(CURDIR)/$(VENV)/learning/$$(git describe --always --dirty 2>/dev/null || echo tree)} \
	  $(PYTEST) -m learning

# Prints and ends with 1 where bits differ from those of the revision in tests/regression/BASE.
same-bits: setup  ## Train 134 recipes with two revisions and compare: [BASE=rev] [ONLY=words] [DEVICE=cuda].
	$(BIN)/python -m tests.regression.same_bits $(if $(BASE),--base $(BASE)) $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(DEVICE),--device $(DEVICE))

path: setup  ## Files, lines, tokens and stack depth of one GRPO step: [WRITE=1].
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m tests.regression.path $(if $(WRITE),--write)

listing: setup  ## Write what users see into tests/regression/public_listing.txt; read its diff.
	$(BIN)/python -m tests.regression.public_listing --write

mutants: setup  ## Random mutants of a folder and what notices them: FOLDER=losses [COUNT=20] [SEED=0].
	$(BIN)/python -m tests.regression.mutants $(FOLDER) --count $(or $(COUNT),20) --seed $(or $(SEED),0)

quickstart: setup  ## Train a small policy from scratch in minutes: SFT, then RL with a verifier.
	$(BIN)/ascent quickstart

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

docs: $(DOCS_STAMP)  ## Build the documentation site into site/; open site/index.html, no server needed.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: setup  ## Build the wheel and the source distribution into dist/.
	$(BIN)/python -m hatchling build -t sdist -t wheel
