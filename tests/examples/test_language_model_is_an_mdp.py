"""The example learns, its two views agree on policy to the last digits, and it runs as a program."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[2] / "examples" / "language_model_is_an_mdp.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("language_model_is_an_mdp", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_score_counts_successors(example):
    prompts, said = torch.tensor([7, 1]), torch.tensor([[8, 9, 0, 1, 2, 3], [2, 2, 3, 9, 0, 5]])
    # Second row: 1-2 yes, 2-2 no, 2-3 yes, 3-9 no, 9-0 yes, 0-5 no.
    assert example.score(prompts, said).tolist() == [1.0, 0.5]


def test_reading_a_text_at_once_gives_what_was_sampled_step_by_step(example):
    torch.manual_seed(0)
    model = example.TinyModel().double()
    episodes = example.sample_episodes(model, 5, torch.Generator().manual_seed(0))
    logprobs_T, _, _ = example.evaluate_actions(model, episodes)
    memory, last, stepwise = None, episodes.prompts_B[:, None], []
    for column in episodes.completions_BL.T:
        logits, _, memory = model(last, memory)
        stepwise.append(logits[:, 0].log_softmax(-1).gather(1, column[:, None])[:, 0])
        last = column[:, None]
    assert torch.allclose(logprobs_T, torch.stack(stepwise, 1).reshape(-1))


def test_both_views_have_the_gradient_of_reinforce_on_policy(example):
    torch.manual_seed(0)
    model = example.TinyModel().double()
    episodes = example.sample_episodes(model, 64, torch.Generator().manual_seed(1))
    episodes = episodes._replace(rewards_B=episodes.rewards_B.double())
    logprobs_T, _, _ = example.evaluate_actions(model, episodes)
    # Written out: -(R - b) sum of log-probs, mean over completions; no ratio, no clip, no estimator.
    by_hand = -((episodes.rewards_B - 0.1) * logprobs_T.reshape(64, -1).sum(1)).mean()
    expected = example.gradient(by_hand, model)
    old_logprobs_T = logprobs_T.detach()
    assert torch.allclose(
        example.bandit_gradient(model, episodes, old_logprobs_T, 0.1), expected, atol=1e-14
    )
    assert torch.allclose(
        example.mdp_gradient(model, episodes, old_logprobs_T, 0.1), expected, atol=1e-14
    )
    assert expected.norm() > 1e-3


def test_the_views_part_off_policy(example):
    assert example.compare_views(moved=0.0).difference < 1e-12
    near, far = example.compare_views(moved=0.01), example.compare_views(moved=0.1)
    assert 1e-3 < near.difference < far.difference
    assert near.cosine > 0.99 > far.cosine


def test_the_language_model_learns_to_count(example):
    model, scores = example.train_language_model()
    assert scores[0] < 0.2 and sum(scores[-5:]) / 5 > 0.9
    assert example.greedy_text(model, 7) == "7 8 9 0 1 2 3"


def test_the_program_runs():
    command = [sys.executable, str(PATH), "--cartpole-steps", "2048", "--updates", "3"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "CartPole" in output and "language model" in output and "policy moved by 0 " in output
