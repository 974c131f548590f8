"""Runs in test processes end with a stub in place of curves.png.

Hundreds of tests train a run of a few steps, and the picture at its end takes longer than the run; no test looks at
more than that the file is a PNG. tests/runs/test_curves.py calls the function that draws.
"""

from __future__ import annotations

import base64
from pathlib import Path

import ascent.runs.folder
from ascent.runs import curves

WHITE_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)


def draw_stub(records: curves.Records, path: Path, *, title: str = "") -> list[str]:
    """Takes the place of `curves.draw` and returns what that returns: the plotted metrics."""
    path.write_bytes(WHITE_PIXEL)
    return curves.select_metrics(records)


def stub_pictures() -> None:
    """From now on, runs of this process end with the stub."""
    ascent.runs.folder.draw = draw_stub
