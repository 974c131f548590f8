"""More rows that learn from rollouts: other policy losses, baselines and token weights. Slots not named are GRPO's."""

from __future__ import annotations

from dataclasses import replace

from ascent.advantages import group_baselines, normalize, token_baseline
from ascent.algorithms.grpo import GRPO, GSPO, NO_KL, OPO
from ascent.cells import cell
from ascent.losses import (
    aggregation,
    covariance,
    entropy,
    kl,
    kl_controllers,
    policy_losses,
    ratios,
    rejection_masks,
    rollout_correction,
    sequence_policy_losses,
    token_weights,
)

ONE_UPDATE = {
    "rollouts.group_size": 16,
    "update.epochs": 1,
    "update.minibatches": 1,
    "update.learning_rate": 1e-6,
}
FOUR_UPDATES = {**ONE_UPDATE, "update.minibatches": 4}

VESPO = replace(
    NO_KL,
    name="vespo",
    title="VESPO: one smooth weight per sequence, from the whole product of ratios",
    paper="arXiv 2602.10693",
    formula="W = product of the sequence's ratios; L = -token mean of sg(W^k e^(lambda (1 - W))) * A * log pi",
    origin="TRL: k, lambda = 2, 3 for A >= 0 and 3, 2 below; group 16 is ours",
    pitfalls=("Mismatch weights enter W; they do not multiply the loss a second time.",),
    ratio=cell(ratios.none),
    policy_loss=cell(sequence_policy_losses.vespo),
    aggregation=cell(aggregation.token_mean),
    defaults=FOUR_UPDATES,
)

LUSPO = replace(
    GSPO,
    name="luspo",
    title="LUSPO: GSPO whose sequences count by their length",
    paper="arXiv 2602.05261",
    formula="as gspo, summed over a sequence's tokens instead of averaged",
    origin="TRL's form; clip as gspo",
    pitfalls=(
        "Undoes GSPO's preference for short answers; the loss grows with length, so lower the learning rate.",
    ),
    aggregation=cell(aggregation.sequence_mean_token_sum),
)

DPPO_TV = replace(
    NO_KL,
    name="dppo_tv",
    title="DPPO: a trust region on the probability, not on the ratio",
    paper="arXiv 2602.04879",
    formula="L = -token mean of sg(min(ratio, 20)) * A * log pi, dropped where pi moved more than .2 the way A favours",
    origin="verl: radius .2 in probability, cap 20; group 16 is ours",
    pitfalls=(
        "low and high are differences of probabilities: a clip of .28 here is a much wider door.",
    ),
    policy_loss=cell(policy_losses.dppo_tv, low=0.2, high=0.2, cap=20.0),
    aggregation=cell(aggregation.token_mean),
    defaults=FOUR_UPDATES,
)

DPPO_KL = replace(
    DPPO_TV,
    name="dppo_kl",
    title="DPPO with a binary KL as its distance",
    formula="as dppo_tv, with the KL between 'this token' and 'any other' in the place of the probability difference",
    origin="verl: radius .05 nats, cap 20",
    pitfalls=("From .5 to .6 the KL is .02: a radius of .2 would never act.",),
    policy_loss=cell(policy_losses.dppo_kl, low=0.05, high=0.05, cap=20.0),
)

DRO = replace(
    NO_KL,
    name="dro",
    title="DRO: policy gradient with a quadratic leash to the old policy",
    paper="arXiv 2405.19107",
    formula="L = -token mean of A * log pi - beta/2 (log pi - log old)^2",
    origin="verl's form; beta .1 is ours",
    pitfalls=("The leash is on the sampled tokens only; nothing bounds the others.",),
    ratio=cell(ratios.none),
    policy_loss=cell(policy_losses.dro, beta=0.1),
    aggregation=cell(aggregation.token_mean),
    defaults=FOUR_UPDATES,
)

CLIP_COV = replace(
    NO_KL,
    name="clip_cov",
    title="Clip-Cov: no gradient for a few tokens that drain the entropy",
    paper="arXiv 2505.22617",
    formula="PPO's clip; a random 2e-4 of the step's tokens, among those with covariance in (1, 5), get no gradient",
    origin="paper and verl: share 2e-4, band 1 to 5, clip .2",
    pitfalls=(
        "Covariances and the choice belong to the whole step, so each step costs one more forward.",
    ),
    policy_loss=cell(covariance.clip_cov),
    aggregation=cell(aggregation.token_mean),
    defaults=FOUR_UPDATES,
)

KL_COV = replace(
    CLIP_COV,
    name="kl_cov",
    title="KL-Cov: a KL penalty on the few tokens that drain the entropy",
    formula="L = -token mean of A * ratio, + |log-ratio| on the 2e-4 of the step's tokens with the largest covariance",
    origin="paper and verl: share 2e-4, beta 1 (verl's config: .1); no clip at all",
    pitfalls=("Nothing bounds the other tokens: few updates per rollout.",),
    policy_loss=cell(covariance.kl_cov),
)

GPG = replace(
    OPO,
    name="gpg",
    title="GPG: plain policy gradient, rescaled by how many samples earned anything",
    paper="arXiv 2504.02546",
    formula="A = (R - group mean) * sequences / sequences with R other than 0; L = -token mean of A * log pi",
    origin="verl's estimator; group 8 as opo",
    pitfalls=("'Earned' means a reward other than 0: with +-1 rewards the factor is always 1.",),
    advantage=cell(group_baselines.success_scaled),
)

INTELLECT_2 = replace(
    GRPO,
    name="intellect_2",
    title="INTELLECT-2's two-sided clip",
    paper="arXiv 2505.07291",
    formula="as grpo, with a clip of .2, a bound of 4 on the ratio for A < 0, and KL .001",
    origin="paper: delta 4, KL .001, group 16; aggregation as grpo",
    pitfalls=("TRL's delta and verl's clip_ratio_c are this cap.",),
    policy_loss=cell(policy_losses.dual_clip, low=0.2, high=0.2, cap=4.0),
    kl=cell(kl.k3, weight=0.001),
    defaults=FOUR_UPDATES,
)

GRPO_V32 = replace(
    GRPO,
    name="grpo_v32",
    title="GRPO as in DeepSeek-V3.2: unbiased KL, off-policy sequences masked",
    paper="arXiv 2512.02556",
    formula="as grpo, KL as ratio * k3; a sequence with A < 0 and mean log(rollout / pi) above .5 is dropped",
    origin="TRL's reading; the KL weight .001 and group 16 are ours",
    pitfalls=("Dropped sequences stay in the denominator and in the KL.",),
    token_weights=(cell(token_weights.near_policy, max_drift=0.5),),
    kl=cell(kl.rho_k3, weight=0.001),
    kl_controller=cell(kl_controllers.fixed),
    defaults=FOUR_UPDATES,
)

HIGH_ENTROPY = replace(
    NO_KL,
    name="high_entropy",
    title="Train the forking tokens only: the fifth with the highest entropy",
    paper="arXiv 2506.01939",
    formula="as dapo's loss (clip .2/.28, token mean), on the 20% of the step's tokens with the highest entropy",
    origin="paper: share .2",
    pitfalls=("The quantile belongs to the whole step; dropped tokens stay in the denominator.",),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.28),
    token_weights=(cell(token_weights.top_entropy, share=0.2),),
    aggregation=cell(aggregation.token_mean),
    defaults=FOUR_UPDATES,
)

SKYWORK_OR1 = replace(
    NO_KL,
    name="skywork_or1",
    title="Skywork-OR1: an entropy bonus that wakes up when entropy falls",
    paper="arXiv 2505.22312",
    formula="clip .2, token mean; minus c * entropy, c up by .005 after a step at or below .2 nats, else down",
    origin="TRL: target .2, change .005, range 0 to 1",
    pitfalls=(
        "The coefficient is carried from step to step; it is 0 while the step before was above the target.",
    ),
    aggregation=cell(aggregation.token_mean),
    entropy_bonus=cell(entropy.adaptive_bonus),
    defaults=ONE_UPDATE,
)

FIPO = replace(
    NO_KL,
    name="fipo",
    title="FIPO: a token counts by what the policy did to the tokens after it",
    paper="as in ms-swift 4.6.0",
    formula="L = -token mean of f * clipped surrogate, f = e^(discounted later log-ratios) clamped to [1, 1.2]",
    origin="ms-swift: half-life 32 tokens, radius .2, upper side only, safety 4",
    pitfalls=("With one update per rollout every log-ratio is 0 and f is 1.",),
    policy_loss=cell(sequence_policy_losses.fipo),
    aggregation=cell(aggregation.token_mean),
    defaults=FOUR_UPDATES,
)

REAL = replace(
    NO_KL,
    name="real",
    title="REAL: rank right completions above wrong ones, no advantages",
    paper="as in ms-swift 4.6.0",
    formula="S = mean log-ratio / .5; L = mean over groups of log(1 + sum wrong e^S) + log(1 + sum right e^-S)",
    origin="ms-swift: tau .5; group 16 is ours",
    pitfalls=("Needs both kinds in a group; the advantage only tells them apart.",),
    advantage_norm=cell(normalize.none),
    ratio=cell(ratios.none),
    policy_loss=cell(sequence_policy_losses.real, tau=0.5),
    aggregation=cell(aggregation.group_mean),
    defaults=ONE_UPDATE,
)

GRPO_PASSK = replace(
    NO_KL,
    name="grpo_passk",
    title="GRPO for pass@k: only the best of a group learns",
    paper="arXiv 2503.19595",
    formula="A = (best - second best) / group std for the best completion, 0 for the others",
    origin="verl's grpo_passk; group 16 is ours",
    pitfalls=("Two right answers in a group are a tie: no gradient. Good for hard prompts only.",),
    advantage=cell(group_baselines.best_of_group),
    aggregation=cell(aggregation.token_mean),
    defaults=ONE_UPDATE,
)

OPTIMAL_BASELINE = replace(
    NO_KL,
    name="optimal_baseline",
    title="A variance-optimal baseline for every position",
    paper="as in verl 0.9.1; Greensmith et al., 2004",
    formula="A_t = reward to go - group mean of it at position t, weighted by accumulated 1 - 2 pi + sum_v pi(v)^2",
    origin="verl: lone tails without baseline; group 16 is ours",
    pitfalls=(
        "Where only the longest member is left it has no baseline: its whole reward to go is its advantage.",
    ),
    advantage=cell(token_baseline.optimal_token_baseline),
    advantage_norm=cell(normalize.none),
    aggregation=cell(aggregation.token_mean),
    defaults=ONE_UPDATE,
)

NASH_MD = replace(
    NO_KL,
    name="nash_md",
    title="Nash-MD: beat a mixture of yourself and the reference",
    paper="arXiv 2312.00886",
    formula="A_t = (win probability - 1/2) - .1 (log pi - log ref)_t; L = -mean of sum of A_t log pi",
    origin="TRL: beta .1, opponent from an even geometric mixture, win probability = sigmoid of the reward difference",
    pitfalls=(
        "Rewards of 1 and 0 make chances of .731 and .269: scale them up for clearer wins.",
        "Every answer costs a second one, of the opponent, which the slow reference sampler draws.",
    ),
    advantage=cell(group_baselines.against_opponent, beta=0.1),
    advantage_norm=cell(normalize.none),
    ratio=cell(ratios.none),
    policy_loss=cell(policy_losses.plain),
    aggregation=cell(aggregation.sequence_mean_token_sum),
    defaults={
        "rollouts.group_size": 1,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 5e-7,
    },
)

A2PO = replace(
    NASH_MD,
    name="a2po",
    title="A*-PO: regress log-ratios on the optimal advantage",
    paper="arXiv 2505.20686",
    formula="L = mean of (.001 * log(pi / ref) of the sequence - (R - V*))^2, V* = .5 log mean e^(R / .5) under ref",
    origin="TRL: beta 1e-3 in the loss, .5 in V*, one sample per prompt",
    pitfalls=(
        "V* is estimated before training, from the reference's own samples (group_baselines.optimal_values).",
    ),
    advantage=cell(group_baselines.against_optimum),
    policy_loss=cell(sequence_policy_losses.regression, beta=1e-3),
    aggregation=cell(aggregation.sequence_mean_token_mean),
)

RLSD = replace(
    NO_KL,
    name="rlsd",
    title="RLSD: a teacher says which tokens earned the reward",
    paper="as in ms-swift 4.6.0",
    formula="as grpo's loss, each token times .5 + .5 e^(sign(A) (log teacher - log pi)), clamped to .8 to 1.2",
    origin="ms-swift: mix .5, radius .2",
    pitfalls=(
        "The teacher only shifts weight between tokens; the sign of the advantage is the reward's.",
    ),
    token_weights=(cell(token_weights.teacher_agreement, mix=0.5, radius=0.2),),
    defaults=ONE_UPDATE,
)

REJECTION = replace(
    NO_KL,
    name="grpo_rejection",
    title="GRPO for a foreign sampler: truncated weights, drifted sequences rejected",
    paper="as in verl 0.9.1",
    formula="clip .2/.28, token mean, times min(w, 2); sequences whose mean k3 to the sampler is above .001 dropped",
    origin="verl's decoupled presets: token weights at 2, k3 rejection",
    pitfalls=("Rejection leaves the denominator alone: much of it lowers the learning rate.",),
    rollout_correction=cell(rollout_correction.token_truncate, cap=2.0),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.28),
    token_weights=(cell(rejection_masks.distance_within, level="mean", measure="k3", limit=0.001),),
    aggregation=cell(aggregation.token_mean),
    defaults=ONE_UPDATE,
)

ROWS = (
    VESPO,
    LUSPO,
    DPPO_TV,
    DPPO_KL,
    DRO,
    CLIP_COV,
    KL_COV,
    GPG,
    INTELLECT_2,
    GRPO_V32,
    HIGH_ENTROPY,
    SKYWORK_OR1,
    FIPO,
    REAL,
    GRPO_PASSK,
    OPTIMAL_BASELINE,
    NASH_MD,
    A2PO,
    RLSD,
    REJECTION,
)
