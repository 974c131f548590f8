"""The picture of the main curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ascent.runs.curves import chosen, draw


def test_main_metrics_come_first_and_others_fill_up() -> None:
    records = [{"step": 1.0, "time": 5.0, "odd": 1.0, "loss": 2.0, "reward": math.nan}, {"step": 2.0, "reward": 0.5}]
    assert chosen(records) == ["reward", "loss", "odd"]
    many = [{"step": 1.0, **{f"m{n}": float(n) for n in range(20)}}]
    assert len(chosen(many)) == 6


def test_held_out_numbers_share_the_panel_and_equal_curves_are_drawn_once() -> None:
    records = [{"step": 1.0, "reward": 0.5, "correct": 0.5, "eval/reward/mean": 0.1, "eval/loss/total": 2.0}]
    assert chosen(records) == ["reward", "eval/loss/total"]
    differing = [*records, {"step": 2.0, "reward": 0.5, "correct": 0.4}]
    assert chosen(differing) == ["reward", "correct", "eval/loss/total"]


def test_a_png_is_drawn_and_holes_are_left_out(tmp_path: Path) -> None:
    records = [{"step": float(n), "loss": 1 / n if n % 3 else math.nan, "optim/grad_norm": 1.0} for n in range(1, 50)]
    assert draw(records, tmp_path / "c.png", title="run") == ["loss", "optim/grad_norm"]
    content = (tmp_path / "c.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert (width, height) == (960, 360)


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([{"step": 1.0, "loss": math.nan}], tmp_path / "c.png")
