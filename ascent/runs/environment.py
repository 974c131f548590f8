"""What a run ran on: versions, hardware, the commit of the code, the command.

Environment variables stay out: they hold secrets.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "ascent",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "numpy",
    "peft",
    "triton",
    "vllm",
)


def describe(*, devices: Sequence[str] = (), command: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything known without torch; whoever has torch passes the names of the `devices` in use."""
    return {
        "command": list(sys.argv if command is None else command),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions(PACKAGES),
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "devices": list(devices),
        },
        "git": git_state(Path.cwd()),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which versions are others than at the last start, in words: only the same ones promise the same bits."""
    then, today = before.get("packages", {}), now.get("packages", {})
    return [
        f"{name} {then.get(name, '(not installed)')} -> {today.get(name, '(not installed)')} since the last start; the "
        "same bits are promised by the same versions only"
        for name in {**then, **today}
        if then.get(name) != today.get(name)
    ]


def versions(packages: Sequence[str]) -> Mapping[str, str]:
    """Of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit the folder is at and whether files differ from it; None outside a repository or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
