"""A critic with weights of its own: where it starts, what it may read, that it and the policy do not touch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.api.train import assemble, resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.data.render import Renderer
from ascent.maths.segments import Segments
from ascent.models.heads import Normalization
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.plan.resolve import Plan, resolve
from ascent.records import Message
from ascent.runs.folder import read_run
from ascent.setup.critic import critic_of, learner_of
from ascent.setup.policy import load_policy
from ascent.setup.reward_models import RewardModel
from ascent.update.learner import fingerprint
from tests.end_to_end.crashing import REWARD

SETTINGS: dict[str, Any] = {
    "algorithm": "ppo",
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:8",
    "rewards": [{"use": REWARD}],
    "rollouts.prompts_per_step": 4,
    "rollouts.max_new_tokens": 5,
    "update.learning_rate": 1e-3,
    "update.epochs": 2,
    "run.steps": 3,
    "run.save_every": 1,
    "run.keep": 3,
}
VALUES, SCORES = frozenset({"values_T"}), frozenset({"scores_B"})


def plan(**more: Any) -> Plan:
    return resolve(
        validate(
            nest_keys(
                {**SETTINGS, **{key.replace("__", "."): value for key, value in more.items()}}
            )
        )
    )


def quiet(text: str) -> None: ...


def reward_model(folder: Path, *, mean: float = 0.7) -> Path:
    """A reward model as training leaves it: a head of its own, and what demonstrations score on average."""
    trunk = create(folder / "trunk", seed=5)
    model = load(trunk, head="scalar", seed=9)
    model.normalization = Normalization(mean, 1.0, 10)
    model.save(folder / "scored")
    return folder / "scored"


def test_from_the_policy_it_has_the_policys_trunk_and_values_of_0(tmp_path: Path) -> None:
    policy = load_policy(plan(), tmp_path)
    critic, said = critic_of(plan(), tmp_path, policy)
    ours, theirs = (
        policy.module.base_model.state_dict(),
        critic.model.module.base_model.state_dict(),
    )
    assert ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )
    assert not critic.model.module.score.weight.any()
    assert critic.model.notes[-1] == "the scalar head is new: all values are 0"
    assert said == "the critic starts as model.policy tiny:llama, with a new head: all values are 0"


def test_from_the_reward_model_it_values_an_ended_answer_as_rewards_do(tmp_path: Path) -> None:
    """Trunk, head and center are the reward model's: at the end token the value is the reward itself."""
    folder = reward_model(tmp_path)
    made = plan(model__reward_model=str(folder), rewards=[])
    policy = load_policy(made, tmp_path / "run")
    critic, said = critic_of(made, tmp_path / "run", policy)
    scored = load(folder, head="scalar")
    assert torch.equal(critic.model.module.score.weight, scored.module.score.weight)
    assert said.endswith("head included")
    answer = "sorted"
    served = RewardModel(str(folder))([([{"role": "user", "content": "3 1 2"}], answer)])[0]
    rendered = Renderer(policy.tokenizer, train_on="completion").answer(
        (Message("user", "3 1 2"),), (Message("assistant", answer),)
    )
    tokens = rendered.tokens.tolist()
    with torch.no_grad():
        assert float(scored.outputs(_packed(tokens), SCORES)["scores_B"]) - 0.7 == pytest.approx(
            served, abs=1e-6
        )
        assert float(critic.outputs(_packed(tokens), SCORES)["scores_B"]) == pytest.approx(
            served, abs=1e-6
        )
        more = critic.outputs(_packed([*tokens, 0]), VALUES)[
            "values_T"
        ]  # the value after the end token
    assert float(more[-1]) == pytest.approx(served, abs=1e-6)
    critic.save(tmp_path / "saved")
    again, _ = critic_of(made, tmp_path / "run", policy, tmp_path / "saved")
    assert again.center == critic.center == pytest.approx(0.7)


def _packed(tokens: list[int]) -> dict[str, Any]:
    return {
        "tokens_T": torch.tensor(tokens),
        "positions_T": torch.arange(len(tokens)),
        "segments": Segments.from_lengths([len(tokens)]),
    }


def test_another_width_is_fine_and_another_vocabulary_is_not(tmp_path: Path) -> None:
    policy = load_policy(plan(), tmp_path / "run")
    wide = create(tmp_path / "wide", hidden=96, seed=1)
    critic, _ = critic_of(plan(model__critic_from=str(wide)), tmp_path / "run", policy)
    assert critic.model.module.config.hidden_size == 96
    other = create(tmp_path / "other", texts=["sort the digits"], vocabulary=300)
    with pytest.raises(
        ValueError,
        match=r"critic \(model.critic_from .*other\) has a tokenizer of 2.. tokens, the policy one of 258",
    ):
        critic_of(plan(model__critic_from=str(other)), tmp_path / "run", policy)


def test_the_same_number_of_other_words_is_refused_too(tmp_path: Path) -> None:
    """Swapping two words of a tokenizer keeps every size and changes every meaning."""
    policy = load_policy(plan(), tmp_path / "run")
    other = create(tmp_path / "other")
    file = other / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"the first difference being 'a'; it would read other words"
    ):
        critic_of(plan(model__critic_from=str(other)), tmp_path / "run", policy)
    with pytest.raises(ValueError, match=r"the reference has a tokenizer of 258 tokens"):
        assemble(plan(model__reference=str(other)), tmp_path / "assembled")


def test_a_reward_model_of_another_vocabulary_asks_for_another_start(tmp_path: Path) -> None:
    create(tmp_path / "trunk", texts=["sort the digits"], vocabulary=300)
    load(tmp_path / "trunk", head="scalar").save(tmp_path / "scored")
    made = plan(model__reward_model=str(tmp_path / "scored"), rewards=[])
    with pytest.raises(
        ValueError, match=r"model\.reward_model .* name another model as model\.critic_from"
    ):
        assemble(made, tmp_path / "run")


def test_neither_gradient_touches_the_other(tmp_path: Path) -> None:
    training = assemble(plan(), tmp_path)
    ((_, critic, learning, _),) = training.others
    batches = training.source.next(1)
    policy = training.learner
    shared = {each.data_ptr() for each in policy.weights().values()} & {
        each.data_ptr() for each in critic.weights().values()
    }
    assert shared == set()
    marks = fingerprint(policy.optimizer.weights), fingerprint(critic.optimizer.weights)
    critic.step(batches, learning)
    assert fingerprint(policy.optimizer.weights) == marks[0]
    assert all(weight.grad is None for weight in policy.optimizer.weights.values())
    after = fingerprint(critic.optimizer.weights)
    assert after != marks[1]
    metrics = policy.step(batches, training.objective)
    assert fingerprint(critic.optimizer.weights) == after
    assert all(weight.grad is None for weight in critic.optimizer.weights.values())
    assert fingerprint(policy.optimizer.weights) != marks[0]
    assert "critic/loss" not in metrics and "policy/loss" in metrics


@pytest.mark.parametrize("critic", ["separate", "head"])
def test_the_first_ratio_is_one(critic: str, tmp_path: Path) -> None:
    training = assemble(plan(model__critic=critic), tmp_path)
    stats = training.learner.step(training.source.next(1), training.objective)
    assert stats["policy/ratio_max"].value() == pytest.approx(1, abs=1e-5)
    assert stats["policy/ratio_min"].value() == pytest.approx(1, abs=1e-5)


def test_it_has_a_learning_rate_of_its_own(tmp_path: Path) -> None:
    made = plan(update__critic_learning_rate=5e-4, update__schedule="linear")
    critic, _ = critic_of(made, tmp_path, load_policy(made, tmp_path))
    schedule = learner_of(made, critic).schedule
    assert (schedule.peak, schedule.shape, schedule.total) == (5e-4, "linear", 6)


QLORA = {"model__lora": 2, "model__quantize": "nf4"}


@pytest.mark.parametrize(
    "more", [{}, {"model__lora": 2}, QLORA], ids=["all weights", "lora", "qlora"]
)
def test_it_is_saved_and_restored_to_the_same_bits(more: dict[str, Any], tmp_path: Path) -> None:
    if more:
        pytest.importorskip("peft")
    if "model__quantize" in more:
        pytest.importorskip("bitsandbytes")
    folder = tmp_path / "run"
    train_plan(plan(**more), folder, say=quiet)
    last = folder / "checkpoints/3"
    files = json.loads((last / "manifest.json").read_text())["files"]
    weights = "adapter_model.safetensors" if more else "model.safetensors"
    assert {f"critic/{weights}", f"model/{weights}"} <= set(files)
    moved = [
        json.loads((folder / f"checkpoints/{n}/manifest.json").read_text())["files"] for n in (1, 2)
    ]
    assert moved[0][f"critic/{weights}"] != moved[1][f"critic/{weights}"]
    shutil.rmtree(last)
    resume_run(folder, say=quiet)
    assert json.loads((last / "manifest.json").read_text())["files"] == files


def test_it_may_learn_alone_first(tmp_path: Path) -> None:
    train_plan(plan(update__critic_warmup_steps=2), tmp_path / "run", say=quiet)
    files = [
        json.loads((tmp_path / f"run/checkpoints/{n}/manifest.json").read_text())["files"]
        for n in (1, 2, 3)
    ]
    policy, critic = (
        [each[f"{name}/model.safetensors"]["sha256"] for each in files]
        for name in ("model", "critic")
    )
    assert policy[0] == policy[1] != policy[2]
    assert len(set(critic)) == 3
    rows = read_run(tmp_path / "run").metrics
    assert ["loss/total" in row for row in rows] == [False, False, True]
    assert all("critic/loss" in row for row in rows)


def test_the_numbers_are_those_of_n_plus() -> None:
    config = resolve(
        validate(
            nest_keys(
                {"algorithm": "ppo", "model.policy": "p", "data.train": "t", "rewards": []}
                | {"model.reward_model": "m"}
            )
        )
    ).config
    assert (config.rollouts.temperature, config.rollouts.group_size) == (0.7, 1)
    assert (config.update.epochs, config.update.minibatches, config.update.adam_eps) == (4, 1, 1e-5)
    assert config.update.learning_rate == 3e-6
    cells = config.cells.model_dump(exclude_unset=True)
    assert cells["reward_shaping"] == {"eos_replace": {"score": -1.0}, "kl_penalty": {"beta": 0.05}}
    assert cells["advantage"] == {"use": "gae", "gamma": 1.0, "lam": 0.95}
    assert cells["policy_loss"] == {"use": "clip", "low": 0.2, "high": 0.2}
    assert cells["value_loss"] == {"use": "clipped", "weight": 0.1, "radius": 0.2}
    assert cells["advantage_norm"]["use"] == "whiten_token"
