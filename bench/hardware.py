"""What a benchmark ran on, for its JSON."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any


def hardware() -> dict[str, Any]:
    listed = (
        subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        if sys.platform == "linux"
        else ""
    )
    named = [
        line.split(":", 1)[1].strip()
        for line in listed.splitlines()
        if line.startswith("Model name")
    ]
    return {
        "cpu": named[0] if named else platform.processor(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
