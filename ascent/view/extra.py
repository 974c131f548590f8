"""The extra `view`: the server (starlette, uvicorn) and the charts (uPlot's files in the package uplot-python)."""

from __future__ import annotations

from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "uplot-python==1.1.1"
# The files of that package which the page loads, with their sha256: nothing else is served, whatever is installed.
CHARTS = {
    "uPlot.iife.js": "655bc8aa33781e8721c5af6b59f1699c03c9bda951aa74a6ab518ac20cc4326d",
    "uPlot.min.css": "3f121cd4a997b634e07a887658850018e475c26f0bddd874109a8d382c19de87",
}
INSTALL = "pip install 'ascent-posttrain[view]'"


def require() -> None:
    """ValueError where the extra is not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"the page needs {' and '.join(missing)}, which the extra view installs: {INSTALL}"
        )
    chart_folder()


def chart_folder() -> Path:
    """The folder of uPlot's files. The package is located, not imported: its Python code is not used."""
    found = find_spec("uplot")
    folders = (
        [Path(each) / "static" for each in (found.submodule_search_locations or [])]
        if found
        else []
    )
    folder = next(
        (each for each in folders if all((each / name).is_file() for name in CHARTS)), None
    )
    if folder is None:
        raise ValueError(
            f"the page draws with uPlot from {PACKAGE}, which the extra view installs: {INSTALL}"
        )
    for name, digest in CHARTS.items():
        if sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise ValueError(
                f"{folder / name} is not that of {PACKAGE}, which the page was tested with: {INSTALL}"
            )
    return folder
