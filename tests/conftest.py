"""Settings for every test process."""

import os

from hypothesis import settings

# Two test processes share two cores: more threads in each only make them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no counterexample.
settings.register_profile("ascent", deadline=None)
settings.load_profile("ascent")
