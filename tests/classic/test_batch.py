import pytest
import torch

from ascent.classic import ppo, trpo
from ascent.classic.batch import Settings, collect_batch
from ascent.classic.run import start

SMALL = Settings(envs=4, length=64, hidden=(16,))


def gathered():
    run = start("CartPole-v1", SMALL, seed=0)
    return run, *collect_batch(run, SMALL)


def test_what_the_update_compares_against_carries_no_gradient():
    _, batch, _ = gathered()
    assert not any(x.requires_grad for x in batch)


def test_the_old_policy_is_the_one_that_acted():
    run, batch, _ = gathered()
    outputs_TP = run.policy(batch.observations_TO)
    assert torch.equal(outputs_TP, batch.old_outputs_TP)
    assert torch.equal(run.policy.logprobs(outputs_TP, batch.actions), batch.old_logprobs_T)


def test_advantages_are_white_and_targets_are_not_built_from_the_white_ones():
    run, batch, _ = gathered()
    assert float(batch.advantages_T.mean()) == pytest.approx(0, abs=1e-6)
    assert float(batch.advantages_T.std()) == pytest.approx(1, abs=1e-4)
    with torch.no_grad():
        raw_T = batch.returns_T - run.critic(batch.observations_TO)
    assert float(raw_T.std()) > 2


def test_an_epoch_visits_every_step_once_and_keeps_rows_together():
    _, batch, _ = gathered()
    pieces = list(batch.minibatches(100, torch.Generator().manual_seed(0)))
    assert [len(piece.old_logprobs_T) for piece in pieces] == [100, 100, 56]
    rows = torch.cat([torch.cat([p.observations_TO, p.advantages_T[:, None]], 1) for p in pieces])
    whole = torch.cat([batch.observations_TO, batch.advantages_T[:, None]], 1)
    assert sorted(rows.tolist()) == sorted(whole.tolist())
    assert not torch.equal(rows, whole)


def test_a_rollout_needs_at_least_one_step():
    for kind in (Settings, trpo.Settings, ppo.Settings):
        with pytest.raises(ValueError, match="length=0, but it must be a whole number, at least 1"):
            kind(length=0)
