"""Settings for every test process."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests import pictures
from tests.wall_clock import wall_clock

# Two test processes share two cores: more threads in each only make them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The width of the terminal that started the tests, which xdist hands to its processes, must not break lines.
os.environ.pop("COLUMNS", None)

# A busy machine is no counterexample.
settings.register_profile("ascent", deadline=None)
settings.load_profile("ascent")

pictures.stub_pictures()

pytest_plugins = ["tests.view.browser", "tests.view.summary"]

# Whole folders that take tens of seconds: real models, environments, disks and child processes. They belong to
# `make test`; `make check` keeps the mathematics, the table, the config and the golden vectors.
SLOW = {
    "models",
    "data",
    "classic",
    "update",
    "checkpoints",
    "runs",
    "engines",
    "examples",
    "end_to_end",
}
SLOW |= {
    "api",
    "cli",
    "view",
    "setup",
    "rollouts",
    "sandbox",
    "test_notebooks.py",
    "test_from_trl.py",
    "test_wrong_calls.py",
}
SLOW |= {
    "test_shipped_recipes.py",
    "test_wheel.py",
    "test_mutations.py",
    "test_docs.py",
    "test_python_and_cli.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in SLOW:
            item.add_marker(pytest.mark.slow)
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(wall_clock)


# Under xdist the process that prints loads this file only.
from tests.golden.summary import pytest_terminal_summary  # noqa: E402, F401
