"""From the recipe's rewards to rollouts with rewards: verifiers, files, reward models, weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.build.plan import Plan, resolve
from ascent.build.rewarding import Verifier, scorer_of
from ascent.config.load import nested
from ascent.config.validate import validate
from ascent.records import Completion, Message, Prompt, Rollout, Turn
from ascent.rewards.outcome import Tally
from ascent.tasks import TASKS


def rollout(text: str, prompt: Prompt | None = None) -> Rollout:
    asked = prompt or TASKS["sort_digits"].prompts("train", 1)[0]
    done = Completion(asked.id, 0, (1, 2), (-0.1, -0.2), (0, 0), "eos")
    return Rollout(asked, 0, (Turn((5,), done, text),))


def plan(*rewards: dict[str, object], **more: object) -> Plan:
    tree = {"algorithm": "rlvr", "model.policy": "tiny:llama", "data.train": "sort_digits:8", "rewards": list(rewards)}
    return resolve(validate(nested({**tree, **more})))


def test_a_tasks_verifier_counts_what_is_right_and_shows_the_rest() -> None:
    asked = TASKS["sort_digits"].prompts("train", 1)[0]
    right, wrong = scorer_of(plan({"use": "verifier"}), Tally())([rollout(asked.answer or ""), rollout("0")])
    assert right.reward == 1.0
    assert right.parts["verifier/correct"] == 1.0
    assert wrong.reward == 0.0
    assert 0 <= (wrong.parts["verifier/places"] or 0) < 1


def test_a_prompt_of_no_task_is_unscored_and_counted() -> None:
    tally = Tally()
    stranger = Prompt("mine", (Message("user", "?"),), "7")
    (found,) = scorer_of(plan({"use": "verifier"}), tally)([rollout("7", stranger)])
    assert found.reward is None
    assert Verifier().score([rollout("7", stranger)])[0].kind == "no_task"  # type: ignore[union-attr]


def test_rewards_from_a_file_add_up_with_their_weights(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(rollout):\n    return 1.0 if len(rollout.text) < 3 else 0.0\n")
    asked = TASKS["sort_digits"].prompts("train", 1)[0]
    both = scorer_of(plan({"use": "verifier"}, {"use": f"{file}:short", "weight": 0.25}), Tally())
    right, brief = both([rollout(asked.answer or ""), rollout("x")])
    assert right.reward == pytest.approx(1.0)
    assert brief.reward == pytest.approx(0.25)
    assert brief.parts["short"] == 1.0


def test_a_name_that_is_no_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="mathematix"):
        scorer_of(plan({"use": "mathematix"}), Tally())
