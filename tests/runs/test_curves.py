"""The picture of the main curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ascent.runs.curves import draw, select_metrics


def test_main_metrics_come_first_and_others_fill_up() -> None:
    records = [
        {"step": 1.0, "timestamp": 5.0, "odd": 1.0, "loss/total": 2.0, "reward/mean": math.nan},
        {"step": 2.0, "reward/mean": 0.5},
    ]
    assert select_metrics(records) == ["reward/mean", "loss/total", "odd"]
    many = [{"step": 1.0, **{f"m{n}": float(n) for n in range(20)}}]
    assert len(select_metrics(many)) == 6


def test_held_out_numbers_share_the_panel_and_equal_curves_are_drawn_once() -> None:
    records = [
        {"step": 1.0, "reward/mean": 0.5, "reward/correct": 0.5, "eval/reward/mean": 0.1, "eval/loss/total": 2.0}
    ]
    assert select_metrics(records) == ["reward/mean", "eval/loss/total"]
    differing = [*records, {"step": 2.0, "reward/mean": 0.5, "reward/correct": 0.4}]
    assert select_metrics(differing) == ["reward/mean", "reward/correct", "eval/loss/total"]


def test_a_png_is_drawn_and_holes_are_left_out(tmp_path: Path) -> None:
    records = [
        {"step": float(n), "loss/total": 1 / n if n % 3 else math.nan, "optim/grad_norm": 1.0} for n in range(1, 50)
    ]
    assert draw(records, tmp_path / "c.png", title="run") == ["loss/total", "optim/grad_norm"]
    content = (tmp_path / "c.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert (width, height) == (960, 360)


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([{"step": 1.0, "loss/total": math.nan}], tmp_path / "c.png")
