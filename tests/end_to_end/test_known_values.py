"""Critics and advantages against a policy whose values are known, because everything it can say is enumerated."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.advantages import normalize, returns
from ascent.algorithms import TABLE
from ascent.cells import cell
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.source import RolloutSource
from ascent.setup.critic import Critic
from ascent.update.learner import LocalLearner
from ascent.update.objective import critic_objective, objective_of
from ascent.update.schedule import Schedule
from tests.end_to_end import small_world
from tests.end_to_end.small_world import BUDGET, END, PROMPTS, WORDS, Oracle, Said, Truth

STEPS = 40
PLAN = RolloutConfig(prompts_per_step=64, group_size=4, epochs=2, minibatches=4)
PPO = replace(TABLE["ppo"], reward_shaping=())  # no KL: the reward alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_world.create(tmp_path_factory.mktemp("small") / "world")


def source_of(
    model: LanguageModel, policy: Any, critic: Any, row: Any = PPO, plan: RolloutConfig = PLAN
) -> RolloutSource:
    return RolloutSource(
        small_world.asked(),
        small_world.engine(model),
        small_world.scored,
        Models(policy, None, critic, True),
        row,
        plan,
        small_world.settings(),
        decode=small_world.text,
    )


def learner_of(model: Any) -> LocalLearner:
    return LocalLearner(model, Schedule(3e-3, "linear", 0, STEPS * PLAN.epochs * PLAN.minibatches))


@pytest.mark.parametrize("kind", ["separate", "head"])
def test_a_critic_finds_the_values_of_its_policy(kind: str, folder: Path) -> None:
    """A separate critic watches a policy that stays; a head moves the trunk it shares, and is judged by what it made.

    Both learn from PPO's own targets and value clip. The values of all 1600 states have a standard deviation of about
    a quarter; the error is under a tenth.
    """
    model = load(folder, head="both" if kind == "head" else "tokens")
    policy = learner_of(model)
    judged: Any = model
    critic, objective = (
        policy,
        replace(objective_of(PPO), weights={"policy": 0.0, "value_loss": 1.0}),
    )
    if kind == "separate":
        judged = Critic(load(folder, head="scalar"))
        critic, objective = learner_of(judged), critic_objective(PPO)
    before, _ = Truth(model).judged(judged)
    source = source_of(model, policy, critic)
    for step in range(1, STEPS + 1):
        batches = source.next(step)
        while batches:
            critic.step(batches, objective)
            batches = source.more({})
        source.refresh({})
    explained, error = Truth(model).judged(judged)
    print(
        f"{kind}: explained variance {before:.3f} -> {explained:.3f}, root mean square error {error:.4f}"
    )
    assert before < 0.1
    assert explained > 0.8
    assert error < 0.1


def test_with_the_true_values_one_step_advantages_are_exact(folder: Path) -> None:
    """Text moves on by appending, so r + V(next) - V is Q - V of the sampled token itself, not a sample of it."""
    model = load(folder)
    truth = Truth(model)
    row = replace(PPO, advantage=cell(returns.td), advantage_norm=cell(normalize.none))
    source = source_of(
        model, learner_of(model), Oracle(truth), row, replace(PLAN, epochs=1, minibatches=1)
    )
    seen = 0
    for batch in source.next(1):
        lengths = batch["segments"].lengths_B.tolist()
        for tokens_T, advantages_T in zip(
            batch["tokens_T"].split(lengths), batch["advantages_T"].split(lengths), strict=True
        ):
            whole: Said = tuple(tokens_T.tolist())
            prompt = next(each for each in PROMPTS if whole[: len(each)] == each)
            said = whole[len(prompt) :]
            exact = [
                truth.after(prompt, said[: n + 1]) - truth.values[prompt, said[:n]]
                for n in range(len(said))
            ]
            assert advantages_T[len(prompt) :].tolist() == pytest.approx(exact, abs=1e-6)
            seen += len(said)
    assert seen > 300


def test_with_the_true_values_gae_is_exact_on_average(folder: Path) -> None:
    """Over everything the policy can say after a first word, GAE's advantage of that word is Q - V, for every lam."""
    model = load(folder)
    truth = Truth(model)
    prompt = PROMPTS[0]
    said = _completions(truth, prompt)
    batch = small_world.packed([(*prompt, *each) for each in said])
    segments = batch["segments"]
    batch["loss_mask_T"] = batch["positions_T"] >= len(prompt)
    batch |= Oracle(truth).infer(batch, frozenset({"values_T"}))
    ends_T = segments.last(batch["loss_mask_T"])
    rewards_T = torch.zeros(segments.total, dtype=torch.float64)
    rewards_T[ends_T] = torch.tensor(
        [small_world.worth(each) for each in said], dtype=torch.float64
    )
    chances = [_chance(truth, prompt, each) for each in said]
    assert math.fsum(chances) == pytest.approx(1, abs=1e-5)
    for lam in (0.0, 0.5, 0.95, 1.0):
        found = returns.gae(rewards_T, batch["values_T"], batch["loss_mask_T"], segments, lam=lam)
        first = (segments.offsets[:-1] + len(prompt)).tolist()
        assert found.returns_T is not None
        target = math.fsum(
            c * float(found.returns_T[place]) for c, place in zip(chances, first, strict=True)
        )
        assert target == pytest.approx(truth.values[prompt, ()], abs=1e-5)
        for word in range(len(WORDS)):
            own = [n for n, each in enumerate(said) if each[0] == word]
            mean = math.fsum(chances[n] * float(found.advantages_T[first[n]]) for n in own)
            exact = truth.after(prompt, (word,)) - truth.values[prompt, ()]
            assert mean / truth.policy[prompt, ()][word] == pytest.approx(exact, abs=1e-5)


def _completions(truth: Truth, prompt: Said) -> list[Said]:
    states = [said for asked, said in truth.values if asked == prompt]
    tried = [(*said, word) for said in states for word in range(len(WORDS))]
    return [said for said in tried if said[-1] == END or len(said) == BUDGET]


def _chance(truth: Truth, prompt: Said, said: Said) -> float:
    return math.prod(truth.policy[prompt, said[:n]][word] for n, word in enumerate(said))
