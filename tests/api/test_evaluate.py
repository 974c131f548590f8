"""`ascent evaluate`: metrics worked by hand, the scorer of each kind of data, a model end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.api.evaluate import (
    EvalResult,
    default_reward,
    estimate_metrics,
    evaluate,
    lengths,
    load_prompts,
    scorer_for,
)
from ascent.records import Completion, Message, Prompt, Rollout, Stop, Turn
from ascent.rewards.outcome import Tally
from ascent.rollouts.generate import GREEDY
from tests.setup.runs import tiny_plan


def rollout(
    prompt: str,
    sample: int,
    *,
    tokens: int = 2,
    stop: Stop = "eos",
    text: str = "",
    answer: str | None = None,
) -> Rollout:
    asked = Prompt(prompt, (Message("user", "?"),), answer)
    completion = Completion(prompt, sample, (1,) * tokens, (-0.1,) * tokens, (0,) * tokens, stop)
    return Rollout(asked, sample, (Turn((5,), completion, text),))


def test_metrics_by_hand() -> None:
    """Prompt a: greedy right, 2 of 4 right. Prompt b: greedy wrong, 1 of 4 right, two of its answers cut off."""
    rollouts, scores = [], []
    for name, verdicts in (("a", [1.0, 1.0, 1.0, 0.0, 0.0]), ("b", [0.0, 1.0, 0.0, 0.0, 0.0])):
        for sample, verdict in zip((GREEDY, 0, 1, 2, 3), verdicts, strict=True):
            cut = name == "b" and sample in (2, 3)
            rollouts.append(
                rollout(name, sample, tokens=4 if cut else 2, stop="length" if cut else "eos")
            )
            scores.append({"correct": verdict})
    found = {
        name: each.value for name, each in estimate_metrics(rollouts, scores, samples=4).items()
    }
    assert found == pytest.approx(
        {
            "greedy/correct": 1 / 2,
            "greedy/truncated": 0,
            "mean@4/correct": (2 / 4 + 1 / 4) / 2,
            "mean@4/truncated": (0 + 2 / 4) / 2,
            "pass@1": 3 / 8,
            "pass@2": (5 / 6 + 1 / 2) / 2,
            "pass@4": 1,
        }
    )
    assert lengths(rollouts) == {
        "greedy": {"mean": 2, "median": 2, "max": 2},
        "drawn": {"mean": (6 * 2 + 2 * 4) / 8, "median": 2, "max": 4},
    }


def test_what_is_unscored_is_left_out_and_never_wrong() -> None:
    rollouts = [rollout("a", sample) for sample in (GREEDY, 0, 1)] + [
        rollout("b", sample) for sample in (GREEDY, 0, 1)
    ]
    scores = [{"correct": value} for value in (1.0, 1.0, None, None, 0.0, 1.0)]
    found = estimate_metrics(rollouts, scores, samples=2)
    assert (found["greedy/correct"].value, found["greedy/correct"].prompts) == (1.0, 1)
    assert (found["mean@2/correct"].value, found["mean@2/correct"].prompts) == (3 / 4, 2)
    assert (found["pass@1"].value, found["pass@2"].prompts) == (3 / 4, 1)


def test_rouge_is_for_reference_texts() -> None:
    text = "the cat sat on the mat"
    rollouts = [
        rollout("a", GREEDY, text="the cat sat", answer=text),
        rollout("b", GREEDY, text=text, answer=text),
    ]
    found = estimate_metrics(rollouts, [{}, {}], samples=0)
    assert found["greedy/rouge_l"].value == pytest.approx((2 * 3 / 9 + 1) / 2)
    assert set(found) == {"greedy/rouge_l", "greedy/truncated"}
    short = [rollout("a", GREEDY, text="72", answer="72")]
    assert "greedy/rouge_l" not in estimate_metrics(short, [{}], samples=0)


def prompt_with(question: str, answer: str | None) -> list[Prompt]:
    return [Prompt("p", (Message("user", question),), answer)]


@pytest.mark.parametrize(
    ("question", "answer", "reward"),
    [
        ("capital of Peru?", "Lima", "exact"),
        ('end with "####"', "72", "mathematics"),
        ("how many?", "so \\boxed{72}", "mathematics"),
        ("TL;DR:", "a cat sat on the mat", None),
        ("write a poem", None, None),
    ],
)
def test_the_reward_suits_the_answers(
    question: str, answer: str | None, reward: str | None
) -> None:
    assert default_reward(prompt_with(question, answer)) == reward


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_judges_of_files(tmp_path: Path) -> None:
    rollouts = [
        rollout("a", 0, text=" Lima ", answer="Lima"),
        rollout("b", 0, text="Rome", answer="Lima"),
        rollout("c", 0),
    ]
    tally = Tally()
    judge = scorer_for("a.jsonl", prompt_with("?", "Lima"), None)
    assert judge.score(rollouts, tally) == [{"correct": 1.0}, {"correct": 0.0}, {"correct": None}]
    assert tally.unscored["exact", "no_gold"] == 1
    graded = tmp_path / "own.py"
    graded.write_text("def share(rollout):\n    return len(rollout.text) / 10\n")
    own = scorer_for("a.jsonl", prompt_with("?", "Lima"), f"{graded}:share")
    assert own.score(rollouts[:2], Tally()) == [
        {"reward": 0.6},
        {"reward": 0.4},
    ]  # a grade is no verdict
    part = tmp_path / "part.py"
    part.write_text("def share(rollout, *, of=10):\n    return len(rollout.text) / of\n")
    for section in (f"{{use: '{part}:share', of: 20}}", {"use": f"{part}:share", "of": 20}):
        scorer = scorer_for("a.jsonl", prompt_with("?", "Lima"), section)
        assert scorer.score(rollouts[:2], Tally()) == [{"reward": 0.3}, {"reward": 0.2}]
    for wrong in ("", "{of: 20}", {"of": 20}, 3):
        with pytest.raises(
            ValueError,
            match=r"--reward .*, but it is a name, or a section such as '\{use: programs",
        ):
            scorer_for("a.jsonl", prompt_with("?", "Lima"), wrong)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"--reward '\{of: 20\}', but it is a name, or a section such as"
    ):
        scorer_for("a.jsonl", prompt_with("?", "Lima"), "{of: 20}")
    maths = scorer_for("a.jsonl", prompt_with("?", "#### 4"), None)
    assert maths.score([rollout("a", 0, text="#### 4.0", answer="4")], Tally())[0]["correct"] == 1


def test_prompts_of_tasks_and_files(tmp_path: Path) -> None:
    assert len(load_prompts("arithmetic", None)) == 256
    held = load_prompts("arithmetic", 5)
    assert [prompt.info["split"] for prompt in held] == ["heldout"] * 5
    assert [p.info["split"] for p in load_prompts("arithmetic@train:7", None)] == ["train"] * 7
    assert len(load_prompts("arithmetic:7", 3)) == 3
    name = write(tmp_path / "a.jsonl", [{"question": f"{n}?", "answer": str(n)} for n in range(4)])
    assert [prompt.answer for prompt in load_prompts(name, 2)] == ["0", "1"]
    bad = write(
        tmp_path / "bad.jsonl",
        [{"question": "0?", "answer": "0"}, {"question": " ", "answer": "1"}],
    )
    assert [prompt.answer for prompt in load_prompts(bad, None, "skip")] == ["0"]
    with pytest.raises(ValueError, match="1 invalid rows of 2"):
        load_prompts(bad, None)


def test_what_cannot_be_is_refused_first() -> None:
    with pytest.raises(ValueError, match="samples=-1"):
        evaluate("nowhere", "arithmetic", samples=-1)
    with pytest.raises(ValueError, match="limit=0"):
        evaluate("nowhere", "arithmetic", limit=0)
    with pytest.raises(ValueError, match="scored by its own verifier; leave out --reward exact"):
        evaluate("nowhere", "arithmetic", reward="exact")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "sft"
    ascent.train(tiny_plan(run={"steps": 1}), run=folder, say=lambda line: None)
    return str(folder)


def test_a_model_on_a_task_and_on_a_file(model: str, tmp_path: Path) -> None:
    drawn = {"samples": 2, "limit": 3, "max_new_tokens": 4}
    found = evaluate(model, "arithmetic", **drawn)  # type: ignore[arg-type]
    assert isinstance(found, EvalResult) and (found.prompts, found.samples) == (3, 2)
    assert found == evaluate(model, "arithmetic", **drawn)  # type: ignore[arg-type]
    assert {"greedy/correct", "mean@2/correct", "pass@1", "pass@2", "greedy/digits"} <= set(
        found.metrics
    )
    assert found.metrics["pass@1"].value == pytest.approx(found.metrics["mean@2/correct"].value)
    assert json.loads(json.dumps(found.as_dict()))["scored_by"] == "verifier of arithmetic"
    name = write(
        tmp_path / "a.jsonl",
        [{"question": "1+1=", "answer": "2"}, {"question": "2+2=", "answer": "4"}],
    )
    again = evaluate(model, name, samples=0, max_new_tokens=4)
    assert (again.prompts, again.scored_by) == (2, "reward exact")
    assert not any(each.startswith("pass@") for each in again.metrics)


def test_a_prompt_that_cannot_be_rendered_is_named(model: str, tmp_path: Path) -> None:
    name = write(
        tmp_path / "a.jsonl",
        [{"question": "fine", "answer": "2"}, {"question": "x <eos>", "answer": "4"}],
    )
    with pytest.raises(ValueError, match=r"a\.jsonl:2: .*<eos>"):
        evaluate(model, name, samples=0)
