"""Curves that look alike are drawn once per test process.

Hundreds of tests train a run of a few steps, and the picture at its end takes longer than the run. A history of new
panels is drawn; one with the panels of an earlier history gets that one's file. tests/runs/test_curves.py calls the
function itself.
"""

from __future__ import annotations

from pathlib import Path

import ascent.runs.folder
from ascent.runs import curves

_drawn: dict[tuple[object, ...], bytes] = {}


def draw(records: curves.Records, path: Path, *, title: str = "") -> list[str]:
    names = curves.select_metrics(records)
    lengths = [
        len(curves.points(records, curve)) for name in names for curve in (name, curves.EVAL + name)
    ]
    # Few points have markers, and a single one has no line.
    key = (*names, *(min(length, 2) if length < 30 else 30 for length in lengths))
    if key in _drawn:
        path.write_bytes(_drawn[key])
    else:
        curves.draw(records, path, title=title)
        _drawn[key] = path.read_bytes()
    return names


def reuse() -> None:
    """From now on, runs of this process draw through this file."""
    ascent.runs.folder.draw = draw
