"""Settings for every test process."""

import contextlib
import multiprocessing.forkserver
import os
import sys

import pytest
import torch
from hypothesis import settings

from tests import pictures
from tests.wall_clock import wall_clock

# Two test processes share two cores: more threads in each only make them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The width of the terminal that started the tests must not break lines. xdist hands it to its processes; readline, as
# it is imported, to child processes alone, behind the back of os.environ.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# A busy machine is no counterexample.
settings.register_profile("ascent", deadline=None)
settings.load_profile("ascent")

pictures.stub_pictures()

pytest_plugins = [
    "tests.durations",
    "tests.regression.messages",
    "tests.tiers",
    "tests.view.browser",
    "tests.view.summary",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(wall_clock)


def pytest_collection_finish() -> None:
    """Start the server that ranks and killed runs are forked from: it imports for seconds, beside the first tests."""
    users = {"tests.parallel.group", "tests.end_to_end.crashing"} & sys.modules.keys()
    if users and not torch.cuda.is_available():
        multiprocessing.set_forkserver_preload(["tests.end_to_end.warm"])
        multiprocessing.forkserver.ensure_running()


# Under xdist the process that prints loads this file only.
from tests.golden.summary import pytest_terminal_summary  # noqa: E402, F401
