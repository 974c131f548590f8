"""reasoning-gym under our names; the package itself is an extra, so most of this runs where it is installed."""

from __future__ import annotations

import importlib.util

import pytest

from ascent.records import Message, Prompt
from ascent.tasks import find_task
from ascent.tasks.named import from_name, is_task
from ascent.tasks.reasoning import Reasoning

HERE = importlib.util.find_spec("reasoning_gym") is not None
NAME = "reasoning:leg_counting"


def test_names() -> None:
    assert is_task(NAME) and is_task(f"{NAME}@heldout:4") and is_task("reasoning:arc_1d:3")
    assert not is_task("reasoning:") and not is_task("reasoning")
    assert find_task(NAME) == Reasoning("leg_counting")


@pytest.mark.skipif(HERE, reason="reasoning-gym is installed")
def test_the_missing_package_is_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"leg_counting needs the package reasoning-gym; .* 'ascent-posttrain\[reasoning\]'",
    ):
        from_name(NAME, "prompts", count=1)


@pytest.mark.skipif(not HERE, reason="the extra `reasoning` is not installed")
def test_items_splits_and_scores() -> None:
    task = Reasoning("leg_counting")
    train, held = task.prompts("train", 300), task.prompts("heldout", 20)
    assert task.prompts("train", 10) == train[:10]
    assert task.prompts("train", 10, seed=1) != train[:10]

    def asked(prompts: tuple[Prompt, ...]) -> set[str]:
        return {prompt.messages[0].content for prompt in prompts}

    assert not asked(train) & asked(held)
    assert all(task.verify(prompt, str(prompt.answer))["correct"] == 1 for prompt in held)
    assert task.verify(held[0], "a few") == {"correct": 0.0, "score": 0.0}
    shown = task.demonstrations("train", 3)
    assert [example.messages[-1].content for example in shown] == [
        prompt.answer for prompt in train[:3]
    ]
    with pytest.raises(ValueError, match="no_such_thing"):
        Reasoning("no_such_thing").prompts("train", 1)


class Dataset:
    """Its scorer looks for the answer anywhere."""

    def score_answer(self, answer: str, entry: dict[str, str]) -> float:
        return float(entry["answer"] in answer)


def test_a_text_far_longer_than_the_answer_is_wrong_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ascent.tasks.reasoning._dataset", lambda name, seed: Dataset())
    entry = {"question": "?", "answer": "7" * 600}
    prompt = Prompt("p", (Message("user", "?"),), entry["answer"], {"entry": entry})
    task = Reasoning("leg_counting")
    assert task.verify(prompt, "7" * 2400) == {"correct": 1.0, "score": 1.0}
    assert task.verify(prompt, "7" * 2401) == {"correct": 0.0, "score": 0.0}


def test_what_it_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="knows no preferences; it has prompts, examples"):
        from_name(NAME, "pairs")
    with pytest.raises(ValueError, match="split='test'"):
        Reasoning("leg_counting").prompts("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count=0"):
        Reasoning("leg_counting").prompts("train", 0)
