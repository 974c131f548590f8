"""The mark of tests that compare with the clock on the wall, or wait for a browser or another process.

Such a test is right about the code and can still lose the processor for seconds on a busy machine, so it may try three
times. What is wrong with the code fails three times.
"""

from __future__ import annotations

import pytest

wall_clock = pytest.mark.flaky(reruns=2)
