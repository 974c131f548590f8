"""Critic-free rows: completions of a prompt or a batch are compared with each other. Slots not named are GRPO's."""

from __future__ import annotations

from dataclasses import replace

from ascent.advantages import filters, group_baselines, normalize, returns, reward_shaping
from ascent.algorithms.row import Row
from ascent.cells import cell
from ascent.losses import aggregation, kl, kl_controllers, policy_losses, ratios, rollout_correction

GRPO = Row(
    name="grpo",
    title="GRPO with outcome rewards, as in DeepSeekMath",
    paper="arXiv 2402.03300",
    formula="A = (R - group mean) / group std; L = sequence mean of token mean [clipped surrogate + .04 * k3 to ref]",
    origin="paper: group 64, KL .04, lr 1e-6, one update per rollout; std + 1e-4 and n - 1 as TRL; clip .2 by custom",
    pitfalls=(
        "Dividing by the group's std weighs a prompt of pass rate p by 1/sqrt(p(1-p)): nearly solved prompts dominate.",
        "Averaging 1/length pushes right answers short and lets wrong ones grow.",
        "With one update per rollout the ratio is 1 and the loss VALUE is 0 up to KL, while its gradient is not.",
        "k3 in the loss follows KL(ref || pi), the other direction; rho_k3 follows KL(pi || ref).",
    ),
    advantage=cell(group_baselines.group_mean_baseline),
    advantage_norm=cell(normalize.group_std, eps=1e-4),
    rollout_correction=cell(rollout_correction.none),
    ratio=cell(ratios.token),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.2),
    aggregation=cell(aggregation.sequence_mean_token_mean),
    kl=cell(kl.k3, weight=0.04),
    kl_controller=cell(kl_controllers.fixed),
    defaults={
        "rollouts.group_size": 64,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

NO_KL = replace(GRPO, kl=None, kl_controller=None)

RLVR = replace(
    NO_KL,
    name="rlvr",
    title="Our recommended row for verifiable rewards",
    paper="ours; docs/decisions/0008",
    formula="A = (R - group mean) / batch std of that; clip .2/.28; token mean; no KL; groups without signal dropped",
    origin="ours: the center of Dr. GRPO and LitePPO, the asymmetric clip and token mean of DAPO",
    pitfalls=(
        "Set rollout_correction: token_truncate (cap 2) when the sampler is another engine than the trainer.",
    ),
    advantage_norm=cell(normalize.batch_std_centered),
    filter=(cell(filters.nonzero_variance),),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.28),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

GRPO_R1 = replace(
    GRPO,
    name="grpo_r1",
    title="GRPO with DeepSeek-R1's numbers",
    paper="arXiv 2501.12948",
    formula="as grpo, with a clip so wide (10) that it hardly acts, KL .001, group 16, 16 minibatches per rollout",
    origin="R1: KL .001, clip 10, group 16, 8192 outputs in 16 minibatches; lr 3e-6 from memory, unconfirmed",
    pitfalls=(
        "A clip radius of 10 leaves only the upper side for A > 0: the KL term carries the stability.",
    ),
    policy_loss=cell(policy_losses.clip, low=10.0, high=10.0),
    kl=cell(kl.k3, weight=0.001),
    defaults={
        "rollouts.prompts_per_step": 512,
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 16,
        "update.learning_rate": 3e-6,
    },
)

GRPO_PROCESS = replace(
    GRPO,
    name="grpo_process",
    title="GRPO with a reward for every step",
    paper="arXiv 2402.03300, section 4.1.3",
    formula="z-score all step rewards of the group together; A of a token = sum of those at or after it; loss as grpo",
    origin="as grpo",
    pitfalls=(
        "Statistics run over the group's steps, not over one completion's; tokens after the last step get 0.",
    ),
    advantage=cell(group_baselines.steps_to_go, eps=1e-4),
    advantage_norm=cell(normalize.none),
)

DR_GRPO = replace(
    NO_KL,
    name="dr_grpo",
    title="Dr. GRPO: GRPO without its two biases",
    paper="arXiv 2503.20783",
    formula="A = R - group mean (no std); L = mean over sequences of token SUM / a constant; no KL",
    origin="authors' code: budget 3000, group 8, clip .2, lr 1e-6",
    pitfalls=(
        "Both deletions belong together. The constant is rollouts.max_new_tokens unless the recipe names another.",
    ),
    advantage_norm=cell(normalize.none),
    aggregation=cell(aggregation.sequence_mean_token_scaled, length=3000),
    defaults={
        "rollouts.group_size": 8,
        "rollouts.max_new_tokens": 3000,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

DAPO = replace(
    NO_KL,
    name="dapo",
    title="DAPO: clip higher, dynamic sampling, token mean, soft overlong penalty",
    paper="arXiv 2503.14476",
    formula="R + soft overlong penalty; GRPO's z-score; clip .2/.28; token mean; groups without signal replaced",
    origin="authors' recipe: 20480 tokens with 4096 soft, group 16, 512 prompts in 16 updates, lr 1e-6, no KL; penalty "
    "1 for their rewards of -1 and 1, which is .5 for rewards of 0 and 1",
    pitfalls=(
        "The filter looks at the reward before the penalty: after it an all-wrong group looks informative.",
        "Masking overlong answers as well overlaps with the soft penalty; the authors' best runs leave it off.",
        "A penalty as large as the distance between right and wrong gives a right answer at the limit a wrong one's "
        "advantage: for rewards of -1 and 1 set cells.reward_shaping.soft_overlong.penalty to 1.",
        "A step samples 8,192 answers. With fewer prompts use fewer minibatches: 16 of them are for 512 prompts.",
    ),
    reward_shaping=(cell(reward_shaping.soft_overlong, max_length=20480, cache=4096, penalty=0.5),),
    filter=(cell(filters.nonzero_variance),),
    policy_loss=cell(policy_losses.clip, low=0.2, high=0.28),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.prompts_per_step": 512,
        "rollouts.group_size": 16,
        "rollouts.max_new_tokens": 20480,
        "rollouts.dynamic_sampling_tries": 10,
        "update.tokens_per_microbatch": 24576,
        "update.epochs": 1,
        "update.minibatches": 16,
        "update.learning_rate": 1e-6,
    },
)

LITE_PPO = replace(
    NO_KL,
    name="lite_ppo",
    title="LitePPO: group mean, batch std, token mean",
    paper="arXiv 2508.08221",
    formula="A = (R - group mean) / batch std; clip .2; token mean; no KL",
    origin="paper: group 8; the std is of the centered rewards (peers use the raw ones)",
    pitfalls=(
        "Three different numbers are called 'batch std': .5175, .5 and .4677 on the same eight rewards.",
    ),
    advantage_norm=cell(normalize.batch_std_centered),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 8,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

GSPO = replace(
    NO_KL,
    name="gspo",
    title="GSPO: one length-normalized ratio per sequence",
    paper="arXiv 2507.18071",
    formula="s = exp(mean over tokens of log pi - log old); L = -mean over sequences of the clipped s * A",
    origin="paper: clip 3e-4 / 4e-4, 4 minibatches per rollout; group 16 is ours",
    pitfalls=(
        "The clip radius belongs to a per-token average: .2 would never act.",
        "About two orders of magnitude more tokens are clipped than in GRPO; that is normal here.",
    ),
    ratio=cell(ratios.sequence_geometric),
    policy_loss=cell(policy_losses.clip, low=3e-4, high=4e-4),
    defaults={
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 4,
        "update.learning_rate": 1e-6,
    },
)

GSPO_TOKEN = replace(
    GSPO,
    name="gspo_token",
    title="GSPO-token: the sequence's ratio, each token's own gradient",
    paper="arXiv 2507.18071, section 4.3",
    formula="s_t = sg(s) * pi_t / sg(pi_t); as gspo, but advantages may differ between tokens",
    origin="as gspo",
    pitfalls=(
        "Equal to gspo, in value and gradient, while the advantage is the same on every token.",
    ),
    ratio=cell(ratios.sequence_geometric_token),
)

CISPO = replace(
    NO_KL,
    name="cispo",
    title="CISPO: cap the importance weight, keep every token's gradient",
    paper="arXiv 2506.13585 (MiniMax-M1)",
    formula="L = -token mean of sg(min(ratio, cap)) * A * log pi",
    origin="cap 5 as in ScaleRL, no floor; group 16 is ours",
    pitfalls=(
        "cap is a ratio. Where peers read it as a radius, .2 silently divides every gradient by five.",
    ),
    policy_loss=cell(policy_losses.cispo, floor=0.0, cap=5.0),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

SCALE_RL = replace(
    CISPO,
    name="scale_rl",
    title="ScaleRL's loss: CISPO with batch std and the mean over prompts",
    paper="arXiv 2510.13786",
    formula="A = (R - group mean) / batch std; CISPO with cap 5; token mean in each prompt's group, mean over prompts",
    origin="paper: cap 5, group 16; prompt mean and dropped zero-variance groups from memory, unconfirmed",
    pitfalls=("The group's token count is a step statistic: it spans micro-batches.",),
    advantage_norm=cell(normalize.batch_std_centered),
    filter=(cell(filters.nonzero_variance),),
    aggregation=cell(aggregation.prompt_mean),
)

SAPO = replace(
    NO_KL,
    name="sapo",
    title="SAPO: a soft, asymmetric clip",
    paper="arXiv 2511.20347",
    formula="L = -sequence mean of token mean of (4/tau) sigmoid(tau (ratio - 1)) * A; tau 1 for A > 0, else 1.05",
    origin="paper: tau 1.0 / 1.05; group 16 is ours",
    pitfalls=(
        "The soft clip's value at ratio 1 is 2/tau, so the loss value has an offset: read the gradient norm instead.",
    ),
    policy_loss=cell(policy_losses.sapo, tau_positive=1.0, tau_negative=1.05),
    defaults={
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 4,
        "update.learning_rate": 1e-6,
    },
)

GMPO = replace(
    NO_KL,
    name="gmpo",
    title="GMPO: geometric mean of per-token clipped ratios",
    paper="arXiv 2507.20673",
    formula="clip each log-ratio on the side A favours at .4; L = -sequence mean of exp(mean clipped log-ratio) * A",
    origin="paper: .4 in log space (ratios .67 to 1.49); group 16 is ours",
    pitfalls=("The clip comes before the mean (after it would be GSPO), and in log space.",),
    policy_loss=cell(policy_losses.gmpo, low=0.4, high=0.4),
    defaults={
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 4,
        "update.learning_rate": 1e-6,
    },
)

GDPO = replace(
    NO_KL,
    name="gdpo",
    title="GDPO: several rewards, normalized before they are added",
    paper="arXiv 2601.05242",
    formula="z-score each reward part in its group, add them (weighted), z-score the sum over the batch's sequences",
    origin="authors' TRL fork: eps 1e-4, whitening over sequences (their verl fork whitens over tokens)",
    pitfalls=(
        "A component that hardly varies is scaled up like any other: make easy rewards depend on the hard one.",
    ),
    advantage=cell(group_baselines.decoupled_parts, eps=1e-4),
    advantage_norm=cell(normalize.batch_zscore, eps=1e-4),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 16,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

RLOO = replace(
    NO_KL,
    name="rloo",
    title="RLOO: the other completions are the baseline",
    paper="arXiv 2402.14740",
    formula="R includes -beta * sequence KL; A = R - mean of the others; L = -mean over sequences of A * sum log pi",
    origin="paper: beta .03, group 4 (or 2), lr 1e-6, 2 gradient steps per batch",
    pitfalls=(
        "KL enters R before the baseline, as in the paper; OpenRLHF adds it after.",
        "A product ratio clipped at .2 (TRL's form) is clipped after .0004 nats per token on 500 tokens.",
    ),
    reward_shaping=(cell(reward_shaping.kl_penalty, beta=0.03),),
    kl_controller=cell(kl_controllers.fixed),
    advantage=cell(group_baselines.leave_one_out),
    advantage_norm=cell(normalize.none),
    ratio=cell(ratios.none),
    policy_loss=cell(policy_losses.plain),
    aggregation=cell(aggregation.sequence_mean_token_sum),
    defaults={
        "rollouts.group_size": 4,
        "update.epochs": 1,
        "update.minibatches": 2,
        "update.learning_rate": 1e-6,
    },
)

OPO = replace(
    RLOO,
    name="opo",
    title="OPO: the variance-optimal, length-weighted baseline, strictly on-policy",
    paper="arXiv 2505.23585",
    formula="A = R - sum n R / sum n over the group; L = -token mean of A * log pi; no KL, no ratio",
    origin="paper: one update per rollout; group 8",
    pitfalls=("Exactly one update per rollout: nothing corrects for staleness.",),
    reward_shaping=(),
    kl_controller=None,
    advantage=cell(group_baselines.length_weighted),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 8,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

REMAX = replace(
    RLOO,
    name="remax",
    title="ReMax: the greedy completion is the baseline",
    paper="arXiv 2310.10505",
    formula="A_t = reward to go (KL included) - score of one greedy completion; L = -token mean of A * log pi",
    origin="paper for the estimator; beta .05 is our RLHF default",
    pitfalls=(
        "One greedy rollout more per prompt, from the current policy: a stale one is a wrong baseline.",
    ),
    reward_shaping=(cell(reward_shaping.kl_penalty, beta=0.05),),
    advantage=cell(group_baselines.greedy_baseline),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 1,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

REINFORCE_PP = replace(
    NO_KL,
    name="reinforce_pp",
    title="REINFORCE++: reward-to-go whitened over the global batch, PPO's clip",
    paper="arXiv 2501.03262",
    formula="A_t = R - beta * later KL, whitened over all tokens of the batch; clip .2; token mean",
    origin="OpenRLHF: beta .01, clip .2; variance with n - 1 (OpenRLHF: n)",
    pitfalls=("Statistics span all ranks; per-rank whitening is another algorithm.",),
    reward_shaping=(cell(reward_shaping.kl_penalty, beta=0.01),),
    kl_controller=cell(kl_controllers.fixed),
    advantage=cell(returns.reward_to_go),
    advantage_norm=cell(normalize.whiten_token),
    aggregation=cell(aggregation.token_mean),
    defaults={
        "rollouts.group_size": 1,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

REINFORCE_PP_BASELINE = replace(
    REINFORCE_PP,
    name="reinforce_pp_baseline",
    title="REINFORCE++-baseline: group mean, then batch whitening, k2 in the loss",
    paper="arXiv 2501.03262",
    formula="A = R - group mean, whitened over all tokens of the batch; clip .2; token mean; + 1e-5 * k2 to ref",
    origin="authors' scripts: k2 in the loss with 1e-5; group 8",
    pitfalls=("Token whitening shifts the mean: a group's advantages no longer add up to 0.",),
    reward_shaping=(),
    advantage=cell(group_baselines.group_mean_baseline),
    kl=cell(kl.k2, weight=1e-5),
    defaults={
        "rollouts.group_size": 8,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": 1e-6,
    },
)

ROWS = (
    RLVR,
    RLOO,
    REMAX,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    GRPO,
    GRPO_R1,
    GRPO_PROCESS,
    DR_GRPO,
    DAPO,
    LITE_PPO,
    GSPO,
    GSPO_TOKEN,
    CISPO,
    SAPO,
    GDPO,
    OPO,
    GMPO,
    SCALE_RL,
)
