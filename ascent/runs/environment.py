"""The environment of a run: its start, versions, hardware, commit, command. No environment variables: secrets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ascent import __version__

PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors"),
    *("datasets", "numpy", "peft", "triton", "vllm"),
)


def describe(
    *, devices: Sequence[str] = (), command: Sequence[str] | None = None, ranks: int = 1
) -> dict[str, Any]:
    """The environment; the caller passes the names of the `devices`, because this package does not import torch."""
    return {
        "timestamp": round(time.time(), 3),
        "command": list(sys.argv if command is None else command),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {"ascent": __version__, **versions(PACKAGES)},
        "hardware": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "devices": list(devices),
            "ranks": ranks,
        },
        "git": git_state(Path.cwd()),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence for each package whose version differs: only equal versions give equal bits."""
    then, today = before.get("packages", {}), now.get("packages", {})
    return [
        f"{name} {then.get(name, '(not installed)')} -> {today.get(name, '(not installed)')} since the last start; "
        "only equal versions give equal bits"
        for name in {**then, **today}
        if then.get(name) != today.get(name)
    ]


def versions(packages: Sequence[str]) -> Mapping[str, str]:
    """Versions of the installed ones."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the folder and whether files differ from it; None outside a repository or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
