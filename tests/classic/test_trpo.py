import os

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ascent.classic import trpo
from ascent.classic.batch import Batch
from ascent.classic.policies import build_policy
from ascent.classic.result import evaluate
from bench import classic

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = (spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))


def small_policy(action_space):
    torch.manual_seed(0)
    policy = build_policy(BOX, action_space, hidden=(4,)).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def small_problem(action_space, steps=200):
    policy, rng = small_policy(action_space), np.random.default_rng(0)
    observations_TO = torch.from_numpy(rng.normal(size=(steps, 3)))
    actions = torch.from_numpy(policy.choose(observations_TO.numpy(), rng))
    with torch.no_grad():
        outputs_TP = policy(observations_TO)
        old_logprobs_T = policy.logprobs(outputs_TP, actions)
    advantages_T = torch.from_numpy(rng.normal(size=steps))
    keep_T = torch.ones(steps, dtype=torch.bool)
    targets_T = torch.zeros(steps, dtype=torch.float64)
    batch = Batch(
        observations_TO, actions, advantages_T, targets_T, old_logprobs_T, outputs_TP, keep_T
    )
    return trpo.Problem(policy, batch)


def parameters_of(policy):
    return nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


def test_conjugate_gradient_solves_a_known_system():
    torch.manual_seed(0)
    root = torch.randn(12, 12, dtype=torch.float64)
    matrix, solution = root @ root.T + torch.eye(12), torch.randn(12, dtype=torch.float64)
    found = trpo.conjugate_gradient(lambda v: matrix @ v, matrix @ solution, steps=30)
    assert float((found - solution).abs().max()) < 1e-8


def test_conjugate_gradient_needs_one_step_for_each_different_eigenvalue():
    diagonal = torch.tensor([1.0, 1.0, 5.0, 5.0], dtype=torch.float64)
    target = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    one, two = (
        trpo.conjugate_gradient(lambda v: diagonal * v, target, steps=steps) for steps in (1, 2)
    )
    assert float((two - target / diagonal).abs().max()) < 1e-12
    assert float((one - target / diagonal).abs().max()) > 0.1


def test_conjugate_gradient_of_nothing_is_nothing():
    assert not trpo.conjugate_gradient(lambda v: v, torch.zeros(3), steps=5).any()


def explicit_fisher(policy, observations_TO):
    """E_s E_a [score score'] with the expectation over actions taken exactly, column by column."""
    parameters = list(policy.parameters())
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, size, dtype=torch.float64)
    for row in observations_TO:
        outputs = policy(row[None])
        if outputs.shape[1] == 3:
            for action, share in enumerate(outputs.softmax(1)[0].detach()):
                logprob = policy.logprobs(outputs, torch.tensor([action]))
                score = trpo.flat(torch.autograd.grad(logprob.sum(), parameters, retain_graph=True))
                total += share * torch.outer(score, score)
            continue
        # A Gaussian's Fisher matrix in (mean, log std) is diag(1 / variance, 2); pull it back through the network.
        rows = [trpo.flat(grads(output, parameters)) for output in outputs[0]]
        jacobian = torch.stack(rows)
        metric = torch.cat([torch.exp(-2 * outputs[0, 2:]), torch.full((2,), 2.0)]).detach()
        total += jacobian.T @ (metric[:, None] * jacobian)
    return total / len(observations_TO)


def grads(output, parameters):
    found = torch.autograd.grad(output, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


@pytest.mark.parametrize("action_space", ACTIONS)
@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_fisher_vector_product_equals_the_explicit_fisher_matrix(action_space, damping):
    problem = small_problem(action_space, steps=20)
    fisher = explicit_fisher(problem.policy, problem.batch.observations_TO)
    kl = problem.kl(problem.policy(problem.batch.observations_TO))
    product = trpo.fisher_product(kl, list(problem.policy.parameters()), damping=damping)
    for seed in range(3):
        v = torch.randn(
            len(fisher), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        torch.testing.assert_close(product(v), fisher @ v + damping * v, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("action_space", ACTIONS)
@pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.3])
def test_an_accepted_step_is_within_delta_and_improves_the_surrogate(action_space, delta):
    problem = small_problem(action_space)
    metrics = trpo.constrained_step(problem, trpo.Settings(delta=delta, damping=1e-3))
    with torch.no_grad():
        outputs_TP = problem.policy(problem.batch.observations_TO)
        kl, surrogate = float(problem.kl(outputs_TP)), float(problem.surrogate(outputs_TP))
    assert metrics["accepted"] == 1
    assert metrics["kl"] == pytest.approx(kl)
    assert 0.3 * delta < kl <= delta
    assert surrogate > float(problem.batch.advantages_T.mean())


def test_the_natural_step_gains_what_it_predicts_when_the_region_is_small():
    metrics = trpo.constrained_step(
        small_problem(ACTIONS[0]), trpo.Settings(delta=1e-6, damping=0.0, cg_steps=100)
    )
    assert metrics["improvement"] == pytest.approx(metrics["predicted"], rel=0.01)


def test_a_step_that_makes_the_surrogate_worse_is_never_taken():
    problem = small_problem(ACTIONS[0])
    parameters = list(problem.policy.parameters())
    before = problem.surrogate(problem.policy(problem.batch.observations_TO))
    downhill = -1e-4 * trpo.flat(torch.autograd.grad(before, parameters))
    origin = parameters_of(problem.policy)
    metrics = trpo.line_search(problem, downhill, before.item(), 0.0, trpo.Settings())
    assert "accepted" not in metrics
    assert torch.equal(parameters_of(problem.policy), origin)


def test_a_step_beyond_the_region_is_walked_back():
    problem = small_problem(ACTIONS[0])
    parameters = list(problem.policy.parameters())
    before = problem.surrogate(problem.policy(problem.batch.observations_TO))
    uphill = 3.0 * trpo.flat(torch.autograd.grad(before, parameters))
    settings = trpo.Settings(delta=1e-3, backtracks=40)
    metrics = trpo.line_search(problem, uphill, before.item(), 0.0, settings)
    assert metrics["backtracks"] > 0
    assert metrics["kl"] <= 1e-3


def test_no_advantage_means_no_step():
    problem = small_problem(ACTIONS[0])
    batch = problem.batch
    flat = trpo.Problem(
        problem.policy, batch._replace(advantages_T=torch.zeros_like(batch.advantages_T))
    )
    origin = parameters_of(problem.policy)
    assert trpo.constrained_step(flat, trpo.Settings())["accepted"] == 0
    assert torch.equal(parameters_of(problem.policy), origin)


def test_a_larger_penalty_keeps_the_policy_nearer():
    moved = [
        trpo.penalized_steps(
            small_problem(ACTIONS[0]), trpo.Settings(form="penalty", beta=beta, penalty_lr=1e-2)
        )
        for beta in (1.0, 100.0)
    ]
    assert moved[0]["kl"] > 3 * moved[1]["kl"] > 0
    assert moved[0]["improvement"] > moved[1]["improvement"] > 0


@pytest.mark.parametrize(
    ("env_id", "hold"), [("CartPole-v1", 0), ("Pendulum-v1", 0), ("Pendulum-v1", 4)]
)
def test_every_accepted_step_of_a_run_has_kl_within_delta(env_id, hold):
    settings = trpo.Settings(
        steps=1500, envs=2, length=128, critic_epochs=2, hidden=(16,), delta=0.02, hold=hold
    )
    history = trpo.train(env_id, settings, seed=0).history
    assert len(history) == 6
    assert all(update["kl"] <= 0.02 for update in history)
    assert sum(update["accepted"] for update in history) >= 5


def test_trpo_learns_cartpole():
    settings = trpo.Settings(steps=14_000, length=512, lam=0.98, damping=1e-3, critic_minibatch=512)
    result = trpo.train("CartPole-v1", settings, seed=0)
    assert np.mean(result.returns[:20]) < 60
    assert np.mean(evaluate(result.policy, "CartPole-v1", 20, 10**6)) > 200


def test_bad_settings_are_refused_with_value_and_rule():
    for wrong, words in (
        ({"delta": 0.0}, "delta=0.0, but it must be a finite number above 0"),
        ({"form": "dual"}, "choose one of constraint, penalty"),
        ({"shrink": 1.5}, "shrink=1.5, but it must be between 0 and 1"),
        ({"cg_steps": 2.5}, "cg_steps=2.5, but it must be a whole number"),
        ({"hidden": (0,)}, "one width >= 1"),
    ):
        with pytest.raises(ValueError, match=words):
            trpo.Settings(**wrong)


@pytest.mark.learning
def test_trpo_reaches_475_on_cartpole_on_four_of_five_seeds():
    count, finals = classic.reached("trpo")
    assert count >= 4, finals


@pytest.mark.learning
@pytest.mark.parametrize("env_id", ["Acrobot-v1", "Pendulum-v1"])
@pytest.mark.skipif(
    "PEER_PYTHON" not in os.environ, reason="PEER_PYTHON names no Python with stable-baselines3"
)
def test_against_stable_baselines3_no_worse_in_return_and_1_3_times_faster(env_id):
    found = classic.against_peer(os.environ["PEER_PYTHON"], "trpo", env_id)
    gap = found["ours_minus_theirs_95"]["final"]
    assert gap["mean"] + gap["half_width_95"] >= 0, gap
    assert found["times_faster"]["seconds"] >= 1.3, found["times_faster"]
