import dataclasses
import itertools
import math
import os

import numpy as np
import pytest
import torch

from ascent.classic import ppo
from ascent.classic.batch import collect_batch
from ascent.classic.descent import FlatAdam
from ascent.classic.result import evaluate
from ascent.classic.run import start
from bench import classic

SMALL = ppo.Settings(steps=512, envs=4, length=64, epochs=3, minibatch=64, lr=3e-3, hidden=(16,))


def prepared(env_id="CartPole-v1", settings=SMALL, seed=0):
    run = start(env_id, settings, seed=seed)
    return run, collect_batch(run, settings)[0]


def optimizer_of(run, lr=3e-3):
    return FlatAdam([*run.policy.parameters(), *run.critic.parameters()], lr=lr, norm=0.5)


def policy_gradient(run, batch, objective, beta=5.0):
    settings = dataclasses.replace(SMALL, objective=objective, value_weight=0.0)
    loss = ppo.loss(run.policy, run.critic, batch, settings, beta)
    return torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(run.policy.parameters()))]
    )


@pytest.mark.parametrize(
    ("env_id", "hold"), [("CartPole-v1", 0), ("Pendulum-v1", 0), ("Pendulum-v1", 4)]
)
def test_at_the_old_policy_all_objectives_have_the_policy_gradient(env_id, hold):
    run, batch = prepared(env_id, dataclasses.replace(SMALL, hold=hold))
    logprobs_T = run.policy.logprobs(run.policy(batch.observations_TO), batch.actions)
    assert torch.equal(logprobs_T, batch.old_logprobs_T)
    plain = torch.autograd.grad(
        -(logprobs_T * batch.advantages_T).mean(), list(run.policy.parameters())
    )
    expected = torch.cat([g.reshape(-1) for g in plain])
    for objective in ppo.OBJECTIVES:
        torch.testing.assert_close(
            policy_gradient(run, batch, objective), expected, rtol=1e-4, atol=1e-6
        )


def test_clipping_holds_the_ratio_that_the_unclipped_objective_lets_go():
    moved = {}
    for objective in ("clip", "unclipped"):
        settings = dataclasses.replace(SMALL, objective=objective, epochs=40, lr=1e-2)
        run, batch = prepared(settings=settings)
        ppo.improve(run, batch, optimizer_of(run, 1e-2), settings, beta=1.0)
        moved[objective] = ppo.measure(run.policy, batch, clip=0.2)
    assert moved["unclipped"]["kl"] > 3 * moved["clip"]["kl"]
    assert moved["unclipped"]["ratio_largest"] > moved["clip"]["ratio_largest"]


def test_the_penalty_holds_the_policy_near_the_old_one():
    settings = dataclasses.replace(SMALL, objective="penalty", epochs=20)
    moved = []
    for beta in (0.01, 100.0):
        run, batch = prepared(settings=settings)
        ppo.improve(run, batch, optimizer_of(run), settings, beta)
        moved.append(ppo.measure(run.policy, batch, clip=0.2)["kl"])
    assert moved[0] > 5 * moved[1]


def test_the_coefficient_follows_the_measured_kl_of_each_update():
    settings = dataclasses.replace(SMALL, objective="penalty", steps=2500, kl_target=0.002)
    history = ppo.train("CartPole-v1", settings, seed=0).history
    assert history[0]["beta"] == 1.0
    for now, following in itertools.pairwise(history):
        low, high = now["kl"] < 0.002 / 1.5, now["kl"] > 0.002 * 1.5
        assert following["beta"] == now["beta"] * (2 if high else 0.5 if low else 1)
    assert len({update["beta"] for update in history}) > 1


def test_early_stop_ends_the_update_after_the_epoch_that_went_too_far():
    settings = dataclasses.replace(SMALL, epochs=50, stop_kl=0.003, lr=1e-2)
    run, batch = prepared(settings=settings)
    epochs = ppo.improve(run, batch, optimizer_of(run, 1e-2), settings, beta=1.0)
    assert 1 <= epochs < 50
    assert ppo.sampled_kl(run.policy, batch) > 1.5 * 0.003
    patient = dataclasses.replace(settings, stop_kl=1e6)
    run, batch = prepared(settings=settings)
    assert ppo.improve(run, batch, optimizer_of(run, 1e-2), patient, beta=1.0) == 50


def test_sampled_kl_agrees_with_the_exact_one():
    run, batch = prepared("CartPole-v1", dataclasses.replace(SMALL, length=1000))
    ppo.improve(run, batch, optimizer_of(run), SMALL, beta=1.0)
    exact = ppo.measure(run.policy, batch, clip=0.2)["kl"]
    assert exact > 1e-4
    assert ppo.sampled_kl(run.policy, batch) == pytest.approx(exact, rel=0.25)


def test_the_entropy_term_keeps_the_policy_open():
    entropies = []
    for weight in (0.0, 1.0):
        settings = dataclasses.replace(SMALL, steps=3000, entropy_weight=weight)
        entropies.append(ppo.train("CartPole-v1", settings, seed=0).history[-1]["entropy"])
    assert entropies[0] < entropies[1] <= math.log(2) + 1e-6


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    first, again, other = (ppo.train("CartPole-v1", SMALL, seed=seed) for seed in (3, 3, 4))
    assert first.returns == again.returns and first.history == again.history
    assert first.returns != other.returns
    for a, b in zip(first.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ppo.train("CartPole-v1", dataclasses.replace(SMALL, steps=10), seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_a_result_records_episodes_steps_and_updates():
    result = ppo.train("CartPole-v1", SMALL, seed=0)
    assert len(result.history) == 2 and result.history[-1]["steps"] == 512
    assert len(result.returns) == len(result.steps) and result.steps == sorted(result.steps)
    # CartPole pays 1 a step, so finished episodes and steps must agree up to the episodes still running.
    assert 0 <= 512 - sum(result.returns) < 4 * 200
    assert all(math.isfinite(x) for update in result.history for x in update.values())


def test_ppo_learns_cartpole():
    """Seeds 0 to 7: 500. (After 24,000 steps with a constant learning rate 492 to 500 but for one seed, 230, whose
    value changes with rounding: 500 there with another library for products, and 380 for another seed.)"""
    settings = ppo.Settings(
        steps=32_000, length=64, minibatch=256, gamma=0.98, lam=0.9, lr=2e-3, anneal=True
    )
    result = ppo.train("CartPole-v1", settings, seed=0)
    assert np.mean(result.returns[:20]) < 60
    assert np.mean(evaluate(result.policy, "CartPole-v1", 20, 10**6)) > 350


def test_bad_settings_are_refused_with_value_and_rule():
    for wrong, words in (
        ({"objective": "clipped"}, "objective='clipped'; choose one of clip, penalty, unclipped"),
        ({"gamma": 1.01}, "gamma=1.01, but it must be between 0 and 1"),
        ({"lr": -1.0}, "lr=-1.0, but it must be a finite number above 0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"envs": 0}, "envs=0, but it must be a whole number, at least 1"),
        ({"epochs": True}, "epochs=True"),
    ):
        with pytest.raises(ValueError, match=words):
            ppo.Settings(**wrong)
    with pytest.raises(ValueError, match="no environment is called"):
        ppo.train("CartPoll-v1", SMALL, seed=0)
    with pytest.raises(ValueError, match="seed=-1"):
        ppo.train("CartPole-v1", SMALL, seed=-1)


@pytest.mark.learning
def test_ppo_reaches_475_on_cartpole_on_four_of_five_seeds():
    count, finals = classic.reached("ppo")
    assert count >= 4, finals


@pytest.mark.learning
@pytest.mark.parametrize("env_id", ["Acrobot-v1", "Pendulum-v1"])
@pytest.mark.skipif(
    "PEER_PYTHON" not in os.environ, reason="PEER_PYTHON names no Python with stable-baselines3"
)
def test_against_stable_baselines3_no_worse_in_return_and_1_3_times_faster(env_id):
    found = classic.against_peer(os.environ["PEER_PYTHON"], "ppo", env_id)
    gap = found["ours_minus_theirs_95"]["final"]
    assert gap["mean"] + gap["half_width_95"] >= 0, gap
    assert found["times_faster"]["seconds"] >= 1.3, found["times_faster"]


@pytest.mark.learning
def test_clip_and_adaptive_kl_beat_the_unclipped_objective_over_five_seeds():
    means = {}
    for name, settings in classic.OBJECTIVES.items():
        runs = [ppo.train("CartPole-v1", settings, seed=seed) for seed in classic.SEEDS]
        means[name] = np.mean([np.mean(run.returns[-100:]) for run in runs])
    assert min(means["clip"], means["penalty"]) > 1.2 * means["unclipped"], means
