"""The reward reads answers leniently and cannot be fooled by going round in circles; the program runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ascent.models import tiny
from ascent.records import Completion, Message, Prompt, Rollout, Turn

PATH = Path(__file__).parents[2] / "examples" / "sort_numbers.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sort_numbers", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("3, 9, 19", 1),
        ("Sorted from smallest to largest: 3, 9 and 19.", 1),
        ("19, 3, 9 sorted is 3, 9, 19", 1),
        ("19, 3, 9", 0),
        ("3, 9", 0),
        ("", 0),
        ("9, 19, 3, 9, 19, 3, 9, 19", 0),
        ("19, 3, 9, 19, 3, 9, 19", 0),
        ("1. 3 2. 9 3. 19", 0),
    ],
)
def test_words_do_not_matter_and_order_does(example, text, right):
    prompt = Prompt("p", (Message("user", example.ASK.format("19, 3, 9")),), "3 9 19")
    for stop, ended in (("eos", 0.2), ("length", 0.0)):
        turn = Turn((1,), Completion("p", 0, (2,), (-0.5,), (0,), stop), text)
        assert example.in_order(Rollout(prompt, 0, (turn,))) == {
            "correct": right,
            "ended": ended * right,
        }


def test_held_out_sets_are_never_trained_on(example):
    seen: set[tuple[int, ...]] = set()
    heldout = {each["answer"] for each in example.prompts(64, 1, seen)}
    train = {each["answer"] for each in example.prompts(2000, 0, seen)}
    assert not heldout & train and len(heldout) > 50


def test_it_runs_as_a_program(example, tmp_path, monkeypatch, capsys):
    model = tiny.create(tmp_path / "model")
    given = [
        str(model),
        "--run",
        str(tmp_path / "run"),
        "--steps",
        "1",
        "--prompts",
        "2",
        "--heldout",
        "4",
    ]
    monkeypatch.setattr(sys, "argv", ["sort_numbers.py", *given])
    example.main()
    assert "held-out accuracy by step: 0: 0.000, 1: 0.000" in capsys.readouterr().out
