"""Samples on a terminal: chosen, colored by advantage, and harmless."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.cli.samples import (
    background,
    color_tokens,
    escape_controls,
    omission_note,
    print_sample,
    select_samples,
)
from ascent.runs.folder import RunFolder


def sample(
    step: int = 1, reward: float | None = 1.0, prompt: str = "sort 2 1", **more: Any
) -> dict[str, Any]:
    return {
        "step": step,
        "id": "p",
        "sample": 0,
        "prompt": prompt,
        "completion": "1 2",
        "reward": reward,
        "parts": {"verifier/correct": reward},
        "stop": "eos",
        "advantages": 0.5,
        "tokens": ["1", " 2", "<eos>"],
        "logprobs": [-0.1, -0.2, -0.3],
        "of": 2,
        **more,
    }


def test_tokens_are_green_above_zero_red_below_and_brighter_the_larger() -> None:
    assert background(2.0, 2.0) == "white on rgb(0,175,0)"
    assert background(-2.0, 2.0) == "white on rgb(175,0,0)"
    assert background(1.0, 2.0) == "white on rgb(0,118,0)"
    assert background(0.0, 2.0) == background(0.0, 0.0) == ""
    text = color_tokens(sample(advantages=[1.0, -1.0, 0.0]), 1.0)
    assert text.plain == "1 2<eos>"
    assert [(span.start, span.end, str(span.style)) for span in text.spans] == [
        (0, 1, "white on rgb(0,175,0)"),
        (1, 3, "white on rgb(175,0,0)"),
    ]


def test_what_was_not_trained_on_is_dim_and_labeled() -> None:
    stream = io.StringIO()
    print_sample(Console(file=stream, width=200), sample(advantages=None, reward=None), 1.0)
    assert "not trained on" in stream.getvalue() and "reward unscored" in stream.getvalue()
    assert {str(span.style) for span in color_tokens(sample(advantages=None), 1.0).spans} == {"dim"}


def test_no_policy_can_drive_the_terminal() -> None:
    assert escape_controls("a\x1b[2Jb\r\n\tc\x9b1m\x7f") == "a\u241b[2Jb\u240d\n\tc\ufffd1m\u2421"
    assert color_tokens(sample(tokens=["a\n", "b", "c"]), 1.0).plain == "a␊\nbc"
    assert "\x1b" not in color_tokens(sample(tokens=["\x1b[2J", "x", "y"]), 1.0).plain


def test_choosing_by_step_reward_and_prompt() -> None:
    samples = [sample(1, 0.2), sample(1, 0.9), sample(2, 0.5, "add 1"), sample(2, None)]
    nothing: dict[str, Any] = {"step": None, "best": False, "worst": False, "prompt": None}
    assert select_samples(samples, **nothing) == samples[2:]
    assert select_samples(samples, **{**nothing, "step": 1}) == samples[:2]
    assert [each["reward"] for each in select_samples(samples, **{**nothing, "best": True})] == [
        0.9,
        0.5,
        0.2,
    ]
    assert [each["reward"] for each in select_samples(samples, **{**nothing, "worst": True})] == [
        0.2,
        0.5,
        0.9,
    ]
    assert select_samples(samples, **{**nothing, "prompt": "add"}) == [samples[2]]
    for wrong, message in (
        ({"step": 7}, "no sample of step 7; there are some of steps 1 to 2"),
        ({"prompt": "mul"}, "no kept sample has 'mul'"),
        ({"best": True, "worst": True}, "choose one"),
    ):
        with pytest.raises(ValueError, match=message):
            select_samples(samples, **{**nothing, **wrong})


def test_what_was_left_out_is_noted() -> None:
    assert "of step 1, 1 of 2 samples were kept" in omission_note([sample(1)], 1)
    assert omission_note([sample(1), sample(1)], 1) == ""


def test_the_command_prints_text_or_json(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "algorithm: grpo\n", {}, say=lambda text: None) as run:
        record = {name: value for name, value in sample().items() if name not in ("step", "of")}
        run.log_samples(1, [record], of=3)
    told = CliRunner().invoke(app, ["show", "samples", str(tmp_path / "run")]).stdout
    assert (
        "step 1, sample 0: reward 1  (verifier/correct 1)  ended by eos after 3 tokens  advantage 0.5"
        in told
    )
    assert "sort 2 1\n1 2<eos>" in told
    assert "1 of 3 samples were kept" in told
    (line,) = (
        CliRunner()
        .invoke(app, ["show", "samples", str(tmp_path / "run"), "--json"])
        .stdout.splitlines()
    )
    assert json.loads(line)["tokens"] == ["1", " 2", "<eos>"]
