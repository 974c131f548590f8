"""How many sockets a process may use."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from ascent.open_files import allowed_sockets
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
print(allowed_sockets(int(sys.argv[3])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"),
    [
        (256, 1024, 100, "100 256"),  # enough as it is
        (256, 1024, 300, "300 600"),  # raised as far as needed
        (256, 1024, 2000, "512 1024"),  # raised as far as allowed
        (64, 64, 100, "32 64"),
    ],
)
def test_the_limit_is_raised_as_far_as_needed(
    soft: int, hard: int, wanted: int, found: str
) -> None:
    words = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(wanted)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == found
