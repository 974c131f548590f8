"""One step, looked at and thrown away."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ascent.api.check import check
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.model import LanguageModel
from ascent.plan.load import load_config
from ascent.plan.resolve import resolve
from tests.end_to_end import rewarded
from tests.setup.runs import tiny_plan


class Space(NamedTuple):
    """As shutil has it."""

    total: int
    used: int
    free: int


def test_it_shows_what_is_trained_and_what_a_step_costs() -> None:
    found = check(tiny_plan())
    assert [trained for _, trained in found.sample] == [False, True]
    assert found.sample[0][0].endswith("=") and found.sample[1][0].endswith("<eos>")
    assert 0 < found.trained < found.tokens
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.seconds > 0
    assert found.memory.total > found.memory.weights > 0
    assert found.memory.total < found.peak.bytes < found.peak.available


@pytest.mark.parametrize("name", ["sft", "reward_model", "dpo", "kto"])
def test_memory_is_that_of_what_the_row_keeps(name: str) -> None:
    found = check(tiny_plan(algorithm=name))
    assert found.seconds > 0 and found.memory.activations > 0
    assert (found.memory.logits == 0) == (
        name == "reward_model"
    )  # it has no head over the vocabulary
    assert found.memory.reference == (
        found.memory.weights if name == "kto" else 0
    )  # dpo's is gone by the first step


def test_a_step_that_is_smaller_than_the_budget_of_a_micro_batch_is_what_counts() -> None:
    small, large = (
        check(tiny_plan(data={"batch_size": size})).memory.activations for size in (1, 2)
    )
    assert large == 2 * small
    assert check(tiny_plan(update={"tokens_per_microbatch": 10**6})).memory.activations < 10**8


SAMPLED: dict[str, Any] = {
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:8",
    "rewards": [{"use": f"{rewarded.__file__}:shuffled"}],
    "rollouts.prompts_per_step": 2,
    "rollouts.max_new_tokens": 5,
}


def test_a_small_step_of_rollouts_is_what_counts() -> None:
    small, large = (
        check(
            resolve(
                validate(nest_keys({**SAMPLED, "algorithm": "grpo", "rollouts.group_size": size}))
            )
        ).memory
        for size in (4, 8)
    )
    assert large.activations == 2 * small.activations


def test_what_fails_at_the_first_checkpoint_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []

    def save(self: LanguageModel, folder: Path) -> None:
        saved.append(folder.name)
        if folder.name == "critic":
            raise RuntimeError("this architecture cannot be saved")

    monkeypatch.setattr(LanguageModel, "save", save)
    with pytest.raises(RuntimeError, match="this architecture cannot be saved"):
        check(
            resolve(
                validate(nest_keys({**SAMPLED, "algorithm": "ppo", "model.critic": "separate"}))
            )
        )
    assert saved == ["model", "critic"]


def test_models_are_not_saved_where_there_is_no_room_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Space(10**9, 10**9, free=1000))
    monkeypatch.setattr(LanguageModel, "save", lambda self, folder: pytest.fail("there is no room"))
    said: list[str] = []
    check(tiny_plan(), say=said.append)
    assert [
        line
        for line in said
        if line.startswith("saving was not tried: the models take 0.0 GiB, and ")
    ]


def test_bad_data_is_found_before_a_run(tmp_path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "a", "chosen": "x", "rejected": "x"}\n')
    with pytest.raises(ValueError, match=r"pairs\.jsonl.*1"):
        check(tiny_plan(algorithm="dpo", data={"train": str(file)}))


def test_rollouts_without_any_signal_are_refused() -> None:
    plan = resolve(
        load_config(
            "quickstart_rlvr",
            ["model.policy=tiny:digits", "rollouts.prompts_per_step=2", "rollouts.group_size=2"],
        )
    )
    said: list[str] = []
    with pytest.raises(ValueError, match="no answer of 5 rollout steps was better or worse"):
        check(plan, say=said.append)
    tries = [line for line in said if "sampling again" in line]
    assert [line.rpartition("(")[2] for line in tries] == [
        f"{tried} of 5)" for tried in (1, 2, 3, 4)
    ]
