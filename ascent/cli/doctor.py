"""`ascent doctor`."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import typer

from ascent.cli.lines import echo
from ascent.distribution import install_hint

CORE = (
    *("torch", "transformers", "tokenizers", "safetensors", "datasets"),
    *("pydantic", "yaml", "typer", "rich", "numpy", "matplotlib"),
)
EXTRAS = {
    "classic": ("gymnasium",),
    "lora": ("peft",),
    "qlora": ("bitsandbytes",),
    "track": ("tensorboard", "wandb"),
}
ROOM_GIB = 20


class Finding(NamedTuple):
    """One line of the report; `broken` means that Ascent cannot run."""

    what: str
    state: str
    fix: str = ""
    broken: bool = False


def doctor() -> None:
    """Report what works here, what is missing, what to install."""
    findings = [
        python(),
        *core(),
        gpu(),
        exact_arithmetic(),
        compiler(),
        sandbox(),
        *extras(),
        disk(Path.cwd()),
    ]
    for found in findings:
        mark = "BROKEN" if found.broken else "missing" if found.fix else "ok"
        echo(
            f"{mark:<8} {found.what:<22} {found.state}" + (f"; {found.fix}" if found.fix else ""),
            hang=32,
        )
    if any(found.broken for found in findings):
        raise typer.Exit(1)


def python() -> Finding:
    old = sys.version_info < (3, 11)
    return Finding(
        "python",
        platform.python_version(),
        "install Python 3.11 or newer" if old else "",
        broken=old,
    )


def core() -> list[Finding]:
    from importlib.metadata import version

    found = []
    for module in CORE:
        name = "pyyaml" if module == "yaml" else module
        if importlib.util.find_spec(module) is None:
            found.append(Finding(name, "not installed", f"pip install {name}", broken=True))
        else:
            found.append(Finding(name, version(name)))
    return found


def gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("gpu", "unknown without torch", "install torch first")
    import torch

    if torch.cuda.is_available():
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
        return Finding("gpu", f"{torch.cuda.get_device_name()}, {free:.0f} of {total:.0f} GiB free")
    if torch.backends.mps.is_available():
        return Finding(
            "gpu",
            "that of this Mac (mps) is not used, because it is untested; ASCENT_MPS=1 tries it",
        )
    built = (
        f"torch was built for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else "torch was built without CUDA"
    )
    fix = (
        "check the driver with nvidia-smi"
        if torch.version.cuda
        else "install a CUDA build of torch to use one"
    )
    return Finding(
        "gpu",
        f"none in use: {built}; everything runs on {torch.get_num_threads()} CPU threads",
        fix,
    )


def exact_arithmetic() -> Finding:
    """Whether model.arithmetic=exact runs here."""
    if (
        importlib.util.find_spec("torch") is None
        or importlib.util.find_spec("transformers") is None
    ):
        return Finding("exact arithmetic", "unknown without torch and transformers")
    import torch

    from ascent.models.exact import device_problem

    problem = device_problem(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return Finding(
        "exact arithmetic",
        f"not here: {problem}" if problem else "this GPU can (model.arithmetic=exact)",
    )


def compiler() -> Finding:
    """Without one, sampling on a CPU takes longer."""
    from ascent.c_extension import FIX, NotCompiled, load

    try:
        load()
    except NotCompiled as error:
        return Finding("cpu sampling", f"slower than it could be: {error}", FIX)
    return Finding("cpu sampling", "compiled")


def sandbox() -> Finding:
    found = shutil.which("bwrap")
    if found:
        return Finding("sandbox", f"bubblewrap at {found}")
    return Finding(
        "sandbox",
        "no bubblewrap",
        "install the package bubblewrap to run programs that a policy wrote",
    )


def extras() -> list[Finding]:
    found = []
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        state = f"without {', '.join(absent)}" if absent else "installed"
        found.append(Finding(f"extra {extra}", state, install_hint(extra) if absent else ""))
    return found


def disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / 2**30
    fix = f"checkpoints of a 1.5B model want {ROOM_GIB} GiB" if free < ROOM_GIB else ""
    return Finding("disk", f"{free:.0f} GiB free in {folder}", fix)
