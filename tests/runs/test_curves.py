"""The picture of the main curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ascent.runs.curves import best_point, draw, draw_comparison, merge_curves, select_metrics


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
        {
            "step": 1.0,
            "reward/mean": 0.5,
            "reward/correct": 0.5,
            "eval/reward/mean": 0.1,
            "eval/loss/total": 2.0,
        }
    ]
    assert select_metrics(records) == ["reward/mean", "eval/loss/total"]
    differing = [*records, {"step": 2.0, "reward/mean": 0.5, "reward/correct": 0.4}]
    assert select_metrics(differing) == ["reward/mean", "reward/correct", "eval/loss/total"]


def test_a_png_is_drawn_and_holes_are_left_out(tmp_path: Path) -> None:
    records = [
        {"step": float(n), "loss/total": 1 / n if n % 3 else math.nan, "optim/grad_norm": 1.0}
        for n in range(1, 50)
    ]
    assert draw(records, tmp_path / "c.png", title="run") == ["loss/total", "optim/grad_norm"]
    content = (tmp_path / "c.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert (width, height) == (960, 360)


SFT = {
    "loss/nll": 2.0,
    "denominator/nll": 46.0,
    "loss/total": 2.1,
    "tokens/run": 9.0,
    "optim/lr": 1e-3,
    "optim/grad_norm": 3.0,
    "time/step": 0.1,
    "time/tokens_per_s": 90.0,
    "eval/loss/total": 2.2,
    "eval/tokens/run": 5.0,
}


def test_the_panels_of_sft() -> None:
    """The held-out loss is a second line in the panel of the loss; counters fill no panel."""
    assert select_metrics([{"step": 1.0, **SFT}]) == [
        "loss/total",
        "optim/grad_norm",
        "optim/lr",
        "time/tokens_per_s",
    ]


def test_all_panels_have_the_same_whole_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *args, **more: (drawn.append(self), save(self, *args, **more)),
    )
    draw(
        [
            {"step": float(n), "loss/total": 1 / n, **({"optim/lr": 1.0} if n == 3 else {})}
            for n in range(1, 5)
        ],
        tmp_path / "c.png",
    )
    panels = drawn[0].axes
    assert len(panels) == 2 and panels[0].get_xlim() == panels[1].get_xlim()
    assert panels[0].get_xlim()[0] <= 1 and panels[0].get_xlim()[1] >= 4
    assert all(float(tick).is_integer() for axes in panels for tick in axes.get_xticks())


def test_runs_of_one_group_are_drawn_as_their_mean(tmp_path: Path) -> None:
    first = [{"step": 1.0, "eval/loss/total": 2.0}, {"step": 2.0, "eval/loss/total": 1.0}]
    second = [{"step": 2.0, "eval/loss/total": 3.0}, {"step": 3.0, "eval/loss/total": math.nan}]
    assert merge_curves([[(1, 2.0), (2, 1.0)], [(2, 3.0)]]) == [(2, [1.0, 3.0])]
    draw_comparison(
        {"a": [first, second], "b": [first]}, ["eval/loss/total"], tmp_path / "new/c.svg"
    )
    assert b"<svg" in (tmp_path / "new/c.svg").read_bytes()
    with pytest.raises(
        ValueError, match=r"c\.jpeg cannot be drawn; its name must end in \.png, \.svg, \.pdf"
    ):
        draw_comparison({"a": [first]}, ["eval/loss/total"], tmp_path / "c.jpeg")


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([{"step": 1.0, "loss/total": math.nan}], tmp_path / "c.png")


def test_the_best_point_is_of_what_the_metric_depends_on() -> None:
    """Another loss since step 5 is another held-out loss, and the same evaluation by sampled answers."""
    curve = [(0.0, 3.0), (4.0, 2.0), (6.0, 1.0), (9.0, 0.0)]
    changes = [{"step": 5, "key": "cells.kl.weight", "was": 0.1, "now": 0.2}]
    names = (
        "eval/reward/mean",
        "eval/completion/length_mean",
        "eval/preference/accuracy",
        "reward/mean",
    )
    found = {name: best_point(name, curve, changes, {})[0] for name in names}
    assert found == {
        "eval/reward/mean": 0,
        "eval/completion/length_mean": 0,
        "eval/preference/accuracy": 6,
        "reward/mean": 0,
    }
    assert best_point("eval/loss/total", curve, changes, {}) == (9, 0)
    assert best_point("eval/loss/total", curve[:2], changes, {}) == (4, 2)
