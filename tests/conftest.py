"""Settings for every test process."""

import os

from hypothesis import settings

# Two test processes share two cores: more threads in each only make them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no counterexample.
settings.register_profile("ascent", deadline=None)
settings.load_profile("ascent")

# Under xdist the process that prints loads this file only.
from tests.golden.summary import pytest_terminal_summary  # noqa: E402, F401
