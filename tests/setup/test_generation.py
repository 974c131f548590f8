"""A model's answers do not depend on what else is asked."""

from __future__ import annotations

from pathlib import Path

from ascent.models.tiny import create
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.setup.generation import Generator, weights_of
from ascent.tasks import TASKS


def test_answers_are_grouped_by_prompt_and_repeat_themselves(tmp_path: Path):
    model, prompts = str(create(tmp_path / "m", seed=0)), TASKS["style"].prompts("train", 3)
    with Generator(model, prompts, SamplingParams(4, seed=0)) as generator:
        found = generator.groups([GREEDY, 0, 1], noise_key="x")
        again = generator.groups([0, 1], noise_key="x", part=slice(1))
    assert [[each.sample for each in group] for group in found] == [[GREEDY, 0, 1]] * 3
    assert [group[0].prompt.messages for group in found] == [prompt.messages for prompt in prompts]
    assert [each.text for each in again[0]] == [each.text for each in found[0][1:]]
    assert len(again) == 1


def test_weights_are_known_by_their_content(tmp_path: Path):
    one, two, other = (
        str(create(tmp_path / str(n), seed=seed)) for n, seed in enumerate((0, 0, 1))
    )
    assert weights_of(one) == weights_of(two) != weights_of(other)
    assert weights_of("owner/name") == "owner/name"
