"""Prompts that are there twice are counted, in training and across the border to held-out ones."""

from __future__ import annotations

from ascent.records import Message, Prompt
from ascent.rollouts.generate import RenderedPrompt
from ascent.setup.prompt_overlap import prompt_overlap


def asked(*numbers: int) -> list[RenderedPrompt]:
    return [
        RenderedPrompt(Prompt(f"p{place}", (Message("user", "?"),)), (number,))
        for place, number in enumerate(numbers)
    ]


def test_repeats_and_leaks_are_counted_and_nothing_is_said_without_any() -> None:
    assert prompt_overlap(asked(1, 2, 3), asked(4, 5)) == ()
    (told,) = prompt_overlap(asked(1, 2, 1, 1), asked(4))
    assert told.startswith("2 of 4 training prompts repeat another one")
    (told,) = prompt_overlap(asked(1, 2), asked(2, 2, 5))
    assert told.startswith("2 of 3 held-out prompts are also trained on")
