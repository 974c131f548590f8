"""The figures of a step's path: no longer than those that are committed, and one more frame shows."""

from __future__ import annotations

import json

import pytest
import torch

from ascent.update import optim
from tests.regression import path
from tests.regression.path import FIGURES, PACKAGE, figures_of, longer, record


@pytest.mark.skipif(torch.cuda.is_available(), reason="path.json has the figures of a CPU")
def test_the_path_of_a_step_is_no_longer_and_one_more_frame_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One training: the figures of the tree, but for a frame that the test puts between loop and optimizer."""
    names: dict[str, object] = {"inner": optim.AdamW.step}
    source = "def step(self, *args, **options):\n    return inner(self, *args, **options)\n"
    exec(compile(source, str(PACKAGE / "update/optim.py"), "exec"), names)
    monkeypatch.setattr(optim.AdamW, "step", names["step"])
    figures, known = figures_of(record()), json.loads(FIGURES.read_text())
    depth = "frames at the optimizer's step"
    assert longer(figures, known) == [f"{depth}: {known[depth] + 1}, {known[depth]} before"]
    figures[depth] -= 1
    assert longer(figures, known) == []


def test_a_place_that_has_moved_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = path.PathRecorder()
    with pytest.raises(AssertionError, match=r"no second step passed through loop\.py:_update"):
        figures_of(recorder)
    recorder.files.add("loop.py")
    with pytest.raises(AssertionError, match="PLACES names functions that have moved"):
        figures_of(recorder)
