"""Rows with a critic, or with no baseline at all: REINFORCE to RLHF's PPO. Slots not named are the base's below."""

from __future__ import annotations

from dataclasses import replace

from ascent.advantages import normalize, returns, reward_shaping
from ascent.algorithms.row import Row
from ascent.cells import cell
from ascent.losses import (
    aggregation,
    kl,
    kl_controllers,
    policy_losses,
    ratios,
    rollout_correction,
    supervised,
    values,
)

REINFORCE = Row(
    name="reinforce",
    title="REINFORCE: reward-to-go times the gradient of the log-prob",
    paper="Williams, 1992",
    formula="L = -mean over sequences of sum over tokens of (reward to go) * log pi",
    origin="no numbers of its own",
    pitfalls=(
        "Without a baseline a reward that is always positive pushes every completion up; variance is the highest here.",
        "On-policy only: one update per rollout batch.",
    ),
    advantage=cell(returns.reward_to_go),
    advantage_norm=cell(normalize.none),
    rollout_correction=cell(rollout_correction.none),
    ratio=cell(ratios.none),
    policy_loss=cell(policy_losses.plain),
    aggregation=cell(aggregation.sequence_mean_token_sum),
    defaults={"rollouts.group_size": 1, "update.epochs": 1, "update.minibatches": 1},
)

VPG = replace(
    REINFORCE,
    name="vpg",
    title="Vanilla policy gradient with a critic",
    paper="arXiv 1506.02438 (GAE), Spinning Up's VPG",
    formula="L = -token mean of A * log pi, A from GAE (lam .97), whitened; plus the critic's squared error",
    origin="lam .97 from Spinning Up; gamma 1 because text rewards come at the end (.99 ^ 1000 tokens is 4e-5)",
    pitfalls=("One update per rollout batch: nothing bounds a second one.",),
    advantage=cell(returns.gae, lam=0.97),
    advantage_norm=cell(normalize.whiten_token),
    aggregation=cell(aggregation.token_mean),
    value_loss=cell(values.mse),
)

PPO = replace(
    VPG,
    name="ppo",
    title="PPO for RLHF, as the N+ reproduction of OpenAI's summarization work",
    paper="arXiv 1707.06347; details: arXiv 2403.17031 (N+)",
    formula=(
        "r_t = -beta (log old - log ref), plus the score on the last token (no EOS: the score is -1); A = GAE, "
        "whitened over tokens; L = token mean of the clipped surrogate + .1 * clipped value loss"
    ),
    origin="N+: beta .05, gamma 1, lam .95, clip .2, value clip .2, value weight .1, 4 epochs, Adam eps 1e-5, T .7",
    pitfalls=(
        "The score sits on the EOS token; N+ and TRL put it one slot later, which multiplies it by lam once more.",
        "The value clip is in reward units: center the reward model on the SFT set first.",
        "KL in the reward is scaled with the advantages: beta is relative to the reward's scale.",
    ),
    reward_shaping=(
        cell(reward_shaping.eos_replace, score=-1.0),
        cell(reward_shaping.kl_penalty, beta=0.05),
    ),
    advantage=cell(returns.gae, lam=0.95),
    ratio=cell(ratios.token),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.2),
    value_loss=cell(values.clipped, radius=0.2, weight=0.1),
    kl_controller=cell(kl_controllers.fixed),
    defaults={
        "rollouts.group_size": 1,
        "rollouts.temperature": 0.7,
        "update.epochs": 4,
        "update.minibatches": 1,
        "update.learning_rate": 3e-6,
        "update.adam_eps": 1e-5,
    },
)

RLHF = replace(
    PPO,
    name="rlhf",
    title="Our recommended row for learning from a reward model",
    paper="ours; built on arXiv 2403.17031 (N+)",
    formula="PPO with a critic: KL in the reward, EOS rule, GAE, token whitening, clipped value loss, early stop on KL",
    origin="N+ numbers, temperature 1, up to 4 epochs that stop once KL to the old policy passes 1.5 * .01",
    pitfalls=(
        "Watch KL to the reference and held-out preference accuracy: a rising score alone can be a hacked one.",
    ),
    defaults={
        "rollouts.group_size": 1,
        "update.epochs": 4,
        "update.minibatches": 1,
        "update.learning_rate": 3e-6,
        "update.adam_eps": 1e-5,
        "update.target_kl": 0.015,
    },
)

INSTRUCTGPT = replace(
    PPO,
    name="instructgpt",
    title="PPO-ptx: RLHF with pretraining gradients mixed in",
    paper="arXiv 2203.02155",
    formula="PPO with KL in the reward (beta .02), 8 minibatches, plus 27.8 * token-mean NLL of pretraining text",
    origin="InstructGPT: beta .02, ptx 27.8, clip .2; value loss and lam as in N+",
    pitfalls=(
        "27.8 belongs to their two batch sizes: compare the two gradient norms before you trust it.",
    ),
    reward_shaping=(cell(reward_shaping.kl_penalty, beta=0.02),),
    extra_losses=(cell(supervised.pretraining_nll, weight=27.8),),
    defaults={
        "rollouts.group_size": 1,
        "update.epochs": 1,
        "update.minibatches": 8,
        "update.learning_rate": 9e-6,
        "update.adam_eps": 1e-5,
    },
)

PPO_PENALTY = replace(
    PPO,
    name="ppo_penalty",
    title="PPO with an adaptive KL penalty instead of the clip",
    paper="arXiv 1707.06347, section 4",
    formula="L = -token mean of ratio * A + beta * KL(old || pi); beta doubles above 1.5 d and halves below d/1.5",
    origin="paper: initial beta 1, target d .01, factor 2, tolerance 1.5",
    pitfalls=(
        "This KL is to the OLD policy. Ziegler's controller steers KL to the reference: a different thing.",
    ),
    reward_shaping=(),
    policy_loss=cell(policy_losses.surrogate),
    kl=cell(kl.to_old, weight=1.0),
    kl_controller=cell(kl_controllers.ppo_penalty, target_per_token=0.01),
    defaults={
        "rollouts.group_size": 1,
        "update.epochs": 4,
        "update.minibatches": 1,
        "update.adam_eps": 1e-5,
    },
)

VAPO = replace(
    VPG,
    name="vapo",
    title="VAPO: a critic for long chains of thought",
    paper="arXiv 2504.05118",
    formula=(
        "two GAE passes: policy lam 1 - 1/(.05 n) grows with length n, critic targets with lam 1; clip .2/.28; "
        "plus .1 * NLL of the correct completions"
    ),
    origin="paper: alpha .05, critic lam 1, NLL weight .1; clip .2/.28 and group 16 from memory, unconfirmed",
    pitfalls=(
        "Pre-train the critic on returns of the frozen policy first; one made from the reward model is biased.",
        "At alpha .05 completions of 20 tokens or fewer get lam 0: meant for thousands of tokens.",
    ),
    advantage=cell(returns.length_adaptive_gae, alpha=0.05, critic_lam=1.0),
    ratio=cell(ratios.token),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.28),
    value_loss=cell(values.mse),
    extra_losses=(cell(supervised.correct_nll, weight=0.1),),
    defaults={"rollouts.group_size": 16, "update.epochs": 1, "update.minibatches": 16},
)

ROWS = (RLHF, REINFORCE, VPG, PPO, INSTRUCTGPT, PPO_PENALTY, VAPO)
