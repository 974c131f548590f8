"""PPO in one file is the library's row `ppo` with a separate critic: both losses, and the weights of both models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.models.load import load
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.generate import SamplingParams
from ascent.rollouts.source import RolloutSource
from ascent.update.objective import critic_objective, objective_of
from tests.examples.one_file.replay import (
    LOSS,
    WEIGHT,
    Replayed,
    Scored,
    asked_of,
    learner_of,
    module,
    same_weights,
    saved,
    stands_alone,
    told,
)


def test_ppo_is_the_librarys(tmp_path: Path) -> None:
    one = module("ppo")
    settings = one.Settings(questions=8, epochs=3, learning_rate=1e-3)
    policy, tokenizer = one.make_model(seed=1)
    one.finetune(policy, tokenizer, steps=50, seed=1)
    folder = saved(policy, tokenizer, tmp_path / "start")
    torch.manual_seed(2)
    ppo = one.PPO(policy, tokenizer, settings)
    critic = load(folder, head="scalar")
    start = {f"model.{k}": v for k, v in ppo.critic.trunk.state_dict().items()}
    critic.module.load_state_dict(start | {"score.weight": ppo.critic.head.weight})
    ours = learner_of(load(folder), settings.learning_rate, settings.adam_eps)
    judge = learner_of(critic, settings.critic_learning_rate, settings.adam_eps)
    row, sampler, score = TABLE["ppo"], Replayed(1), Scored()
    prompts = one.TASK.prompts("train", 24, seed=5)
    source = RolloutSource(
        asked_of(prompts, tokenizer),
        sampler,
        score,
        Models(ours, learner_of(load(folder), 1.0), judge),
        row,
        RolloutConfig(prompts_per_step=8, group_size=1, epochs=3, tokens_per_microbatch=96),
        SamplingParams(settings.max_new_tokens, seed=0),
        decode=str,
        shuffle=False,
    )
    moved, ended = 0.0, set()
    for step in (1, 2, 3):
        batch, truncated_B, _ = ppo.sample_and_score(prompts[8 * step - 8 : 8 * step])
        ended |= set(truncated_B.tolist())
        scores_B = torch.rand(8)
        rollouts = ppo.compute_advantages(batch, truncated_B, scores_B)
        sampler.hear(batch, truncated_B.tolist())
        score.rewards = scores_B.tolist()
        batches = source.next(step)
        for _ in range(settings.epochs):
            loss, error = ppo.update(rollouts)
            stats = ours.step(batches, objective_of(row, critic=False))
            critics = judge.step(batches, critic_objective(row))
            assert stats["loss/total"].value() == pytest.approx(loss, abs=LOSS)
            assert critics["loss/total"].value() == pytest.approx(error, abs=LOSS)
            moved = max(moved, stats["policy/ratio_max"].value())
            batches = source.more(stats)
        assert batches == []
        source.refresh(ours.weights())
    assert moved > 1.2 and ended == {
        True,
        False,
    }  # off-policy passes; answers with and without an end
    assert same_weights(ours, policy) < WEIGHT
    assert same_weights(judge, ppo.critic, trunk="model", head="score") < WEIGHT


def test_gae_of_the_worked_example() -> None:
    """The numbers of ascent/advantages/returns.py, worked out by hand: two places of padding, four tokens, one more."""
    one = module("ppo")
    loss_mask_BL = torch.tensor([[False, False, True, True, True, True, False]])
    rewards_BL = torch.tensor([[0, 0, 0, 0, 0, 1.0, 0]])
    values_BL = torch.tensor([[0, 0, 0.2, 0.4, 0.1, 0.6, 0]])
    found = one.gae(rewards_BL, values_BL, loss_mask_BL, gamma=1.0, lam=0.95)[0, 2:6]
    assert torch.allclose(found, torch.tensor([0.7091925, 0.535995, 0.88, 0.4]), atol=1e-6)


def test_it_stands_alone() -> None:
    stands_alone("ppo")


def test_the_program_runs_and_says_what_changed() -> None:
    said = told("ppo")
    assert "step   2" in said and "before" in said and "after" in said


@pytest.mark.learning
def test_it_learns() -> None:
    """Measured: .33 before, .89 after 40 steps, seed 0; 40 s of one core."""
    before, after = module("ppo").main([])
    assert after > before + 0.3, (before, after)
