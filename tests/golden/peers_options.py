"""What the four peers offer, option by option, and what gives it here. The data behind docs/peers.md (`peers.py`).

Under `ours`, words in backquotes are checked: `row NAME` is a row of the table, `slot.function` a cell of the
vocabulary, `slot.function.number` one of its numbers; anything else in backquotes is a key of recipes or a function.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """One value of one of a peer's settings."""

    setting: str
    value: str
    ours: str
    differs: str = ""


def _options(setting: str, *entries: tuple[str, ...]) -> tuple[Option, ...]:
    return tuple(Option(setting, *entry) for entry in entries)


EMPTY_ROWS = "fully masked rows are not counted (loss .053, gradient .029 apart on one batch); from Python count_empty"
LONE = "a group of one gets 0; its raw reward from Python (`advantage.group_mean_baseline.lone_reward`)"
CAP = "no cap at 10, which zeroes the gradient where drift is worst; from Python (`kl.k3.cap`)"
TIES = "answers of equal reward form no pair; TRL takes one of the two for the better"
EMPTY_PAIRS = "an empty response is skipped; TRL divides by its length of 0 (NaN)"
OWN_BETA = "beta .1 unless given; TRL's is .01"
K1_ALONE = "KL in the reward is k1: no other estimate gives the KL's gradient from there"
TOP_ENTROPY = "the entropy bonus covers all tokens, there the kept ones; GMPO's mean too, there the dropped leave it"
SMOOTHING = "TRL's sigmoid ignores label_smoothing; ours is cDPO (.016 apart at .1)"

TRL = (
    *_options(
        "DPO loss_type",
        ("sigmoid", "`row dpo`", SMOOTHING),
        ("sigmoid_norm", "`row dpo_norm`"),
        ("hinge", "`row slic`"),
        (
            "ipo",
            "`row ipo`",
            "the same means; `loss.ipo_sum` is the summed form (20.2 apart on one pair)",
        ),
        ("exo_pair", "`row exo`"),
        ("nca_pair", "`row nca`"),
        ("robust", "`row robust_dpo`"),
        ("bco_pair", "`row bco_pair`"),
        ("sppo_hard", "`row sppo`"),
        (
            "aot",
            "`row aot`",
            "ranks over the whole optimizer step; TRL ranks each micro-batch alone",
        ),
        ("aot_unpaired", "`row aot_unpaired`", "as aot"),
        ("apo_zero", "`row apo_zero`"),
        ("apo_down", "`row apo_down`"),
        ("discopop", "`row discopop`"),
        ("sft", "`extra_losses.chosen_nll`", "one token mean over the step's chosen tokens"),
    ),
    *_options(
        "DPO modifiers",
        (
            "f_divergence_type reverse_kl, forward_kl, js_divergence, alpha_divergence",
            "`row f_dpo`, `loss.dpo.divergence`",
        ),
        (
            "ld_alpha",
            "`row ld_dpo`, `token_weights.length_desensitized`",
            "with every loss of pairs, CPO's, SimPO's and ORPO's too",
        ),
        ("use_weighting (WPO)", "`row wpo`", "works with hinge too, where TRL raises"),
        (
            "loss_weights (MPO)",
            "`row mpo`",
            "WPO's weight is on every loss of pairs, never on the chosen's NLL",
        ),
        (
            "label_smoothing",
            "`loss.dpo.label_smoothing`, `loss.robust.label_smoothing`, `loss.exo.label_smoothing`",
        ),
    ),
    *_options(
        "unpaired",
        (
            "KTO kto",
            "`row kto`",
            "the reference point is one mean over the step; TRL averages per-rank means",
        ),
        ("KTO apo_zero_unpaired", "`row apo_zero_unpaired`"),
        (
            "KTO desirable_weight, undesirable_weight",
            "`loss.kto.desirable_weight`, `loss.kto.undesirable_weight`",
        ),
        (
            "BCO",
            "`row bco`",
            "the shift moves once per optimizer step, before it is used; TRL's moves per micro-batch",
        ),
    ),
    *_options(
        "without a reference",
        ("CPO sigmoid", "`row cpo`"),
        ("CPO hinge", "`row cpo` with `loss.reference_free_hinge`"),
        ("CPO ipo", "`row cpo` with `loss.reference_free_ipo`", EMPTY_PAIRS),
        ("CPO simpo", "`row simpo`", EMPTY_PAIRS),
        ("CPO simpo with cpo_alpha", "`row cpo_simpo`"),
        ("CPO alpha (AlphaPO)", "`row alphapo`"),
        ("TPO sigmoid", "`row tpo`"),
        ("TPO hinge", "`row tpo` with `loss.reference_free_hinge`", OWN_BETA),
        ("TPO ipo", "`row tpo` with `loss.reference_free_ipo`", OWN_BETA),
        (
            "TPO tpo-l",
            "`row tpo` with `loss.simpo`",
            "beta 2.5 and margin 1.375 unless given; TRL's are .01 and .5",
        ),
        ("ORPO", "`row orpo`", "NLL over the response; TRL's covers the prompt too"),
    ),
    *_options(
        "online and regression",
        ("Online DPO sigmoid", "`row online_dpo`", TIES),
        ("Online DPO ipo", "`row online_dpo` with `loss.ipo_sum`", TIES),
        ("XPO sigmoid", "`row xpo`", TIES),
        ("XPO ipo", "`row xpo` with `loss.ipo_sum`", TIES),
        ("missing_eos_penalty", "a second reward that pays for ending"),
        (
            "Nash-MD",
            "`row nash_md`",
            "both answers are scored by the recipe's rewards, never by a judge of pairs; the mixture is always even",
        ),
        (
            "A2PO",
            "`row a2po`",
            "prompts that the reference never answers rightly stay; V* is 0 there",
        ),
    ),
    *_options(
        "supervised, rewards, distillation",
        ("SFT nll", "`row sft`"),
        ("SFT dft", "`row dft`"),
        ("reward model, margin, center_rewards_coefficient", "`row reward_model`"),
        (
            "GKD beta 0 to 1",
            "`row gkd`",
            "temperature reaches the loss; TRL's trainer never passes its own",
        ),
        ("GKD reduction batchmean", "`row gkd`"),
        (
            "GKD reduction sum, mean",
            "none",
            "a token mean always; there mean also divides by the vocabulary's size",
        ),
        (
            "GKD lmbda",
            "data.on_policy_fraction",
            "a share of every step's records; TRL tosses a coin for each whole step",
        ),
        (
            "PRM (stepwise supervision)",
            "`row prm`",
            "one score, the log-odds that a step is right; TRL has two classes",
        ),
    ),
    *_options(
        "GRPO loss_type",
        ("grpo", "`row grpo`", EMPTY_ROWS),
        (
            "dr_grpo",
            "`row dr_grpo`",
            "also drops the std; TRL's loss_type changes the aggregation alone",
        ),
        (
            "dapo",
            "`row dapo`",
            "the step's own tokens; TRL divides by the generation batch's, rescaled",
        ),
        (
            "bnpo",
            "`aggregation.token_mean`",
            "over the optimizer step; bnpo is a mean per micro-batch",
        ),
        (
            "cispo",
            "`row cispo`",
            "cap is 5; TRL falls back to epsilon .2, a fifth of every gradient",
        ),
        ("sapo", "`row sapo`", EMPTY_ROWS),
        ("luspo", "`row luspo`", EMPTY_ROWS),
        ("vespo", "`row vespo`"),
        ("gmpo", "`row gmpo`", "an empty row adds nothing; TRL adds -A over the number of rows"),
    ),
    *_options(
        "GRPO options",
        (
            "importance_sampling_level token",
            "`ratio.token`",
            "log-ratios held within 20; TRL's loss is 2.8e9 at 25",
        ),
        ("importance_sampling_level sequence", "`row gspo`, `ratio.sequence_geometric`"),
        ("importance_sampling_level sequence_token (1.12)", "`row gspo_token`"),
        ("delta", "`row intellect_2`, `policy_loss.dual_clip.cap`"),
        ("beta, use_bias_correction_kl", "`kl.k3`, `kl.rho_k3`"),
        ("off_policy_mask_threshold", "`row grpo_v32`, `token_weights.near_policy`"),
        ("top_entropy_quantile", "`row high_entropy`, `token_weights.top_entropy`", TOP_ENTROPY),
        ("entropy_coef", "`entropy_bonus.bonus`"),
        ("use_adaptive_entropy", "`row skywork_or1`, `entropy_bonus.adaptive_bonus`"),
        (
            "mask_truncated_completions",
            "`filter.not_truncated`",
            "by how the completion ended, not by its last token's id",
        ),
        (
            "scale_rewards group",
            "`advantage_norm.group_std`",
            "an all-equal group is exactly 0 (TRL up to 6e-4 in float32)",
        ),
        (
            "scale_rewards batch",
            "`advantage_norm.batch_std_raw`",
            "`row lite_ppo` divides by the std of centered rewards",
        ),
        ("scale_rewards none", "`advantage_norm.none`"),
        ("multi_objective_aggregation sum_then_normalize", "`row grpo`: parts are summed first"),
        ("multi_objective_aggregation normalize_then_sum", "`row gdpo`"),
        ("vllm token_truncate", "`rollout_correction.token_truncate`"),
        ("vllm token_mask", "`rollout_correction.token_mask`"),
        ("vllm sequence_truncate", "`rollout_correction.product_truncate`"),
        (
            "vllm sequence_mask (default, cap 3)",
            "`rollout_correction.product_mask`",
            "off by default: it mutes long answers",
        ),
    ),
    *_options(
        "other trainers",
        (
            "RLOO",
            "`row rloo`",
            "no ratio by default; TRL clips the whole completion's product at .2",
        ),
        ("RLOO normalize_advantages", "`row rloo` with `advantage_norm.batch_zscore`"),
        ("RLOO reward_clip_range", "`row rloo` with `reward_shaping.clip`"),
        ("RLOO with its clipped product", "`ratio.sequence_product` with `policy_loss.clip`"),
        (
            "PPO (1.12)",
            "`row ppo`",
            "score on the EOS token; TRL one place later (advantages .02 to .15 apart)",
        ),
        (
            "PPO whiten_rewards",
            "`row ppo` with `reward_shaping.whiten_rewards`",
            "as PPO: there over one place more per answer",
        ),
        ("PPO kl_estimator k1", "`reward_shaping.kl_penalty`"),
        ("PPO kl_estimator k3", "none", K1_ALONE),
        (
            "missing_eos_penalty",
            "`reward_shaping.eos_subtract`",
            "`reward_shaping.eos_replace` is the default rule",
        ),
        ("soft overlong punishment", "`reward_shaping.soft_overlong`"),
    ),
)

VERL = (
    *_options(
        "adv_estimator",
        ("gae", "`row ppo`, `advantage.gae` with `advantage_norm.whiten_token`"),
        ("grpo, grpo_vectorized", "`row grpo`", "eps 1e-4 for 1e-6; " + LONE),
        ("rloo, rloo_vectorized", "`row rloo`", LONE + "; verl's two disagree"),
        ("opo", "`row opo`", LONE),
        ("reinforce_plus_plus", "`row reinforce_pp`"),
        ("reinforce_plus_plus_baseline", "`row reinforce_pp_baseline`", LONE),
        ("remax", "`row remax`"),
        (
            "gdpo",
            "`row gdpo`",
            "whitened over sequences; verl over tokens (.25 apart on one batch)",
        ),
        ("grpo_passk", "`row grpo_passk`", "a group of one gets 0; verl raises"),
        ("gpg", "`row gpg`", LONE),
        (
            "optimal_token_baseline",
            "`row optimal_baseline`",
            "positions count trained tokens; by columns from Python",
        ),
        ("tir_optimal_token_baseline", "`row optimal_baseline`"),
        (
            "norm_adv_by_std_in_grpo true, false",
            "`advantage_norm.group_std`, `advantage_norm.none`",
        ),
        (
            "handle_zero_tail",
            "`advantage.optimal_token_baseline.lone_tail`: true; false from Python",
        ),
    ),
    *_options(
        "policy loss_mode",
        (
            "vanilla",
            "`policy_loss.dual_clip`",
            "verl's dual clip is always on; ours is `policy_loss.clip` unless asked (.049 apart)",
        ),
        ("gspo", "`row gspo`", "averaged per sequence; verl's trainer passes token-mean"),
        ("sapo", "`row sapo`"),
        (
            "cispo",
            "`row cispo`",
            "bounds are ratios 0 and 5; verl's are radii, [.8, 1.2] by default",
        ),
        ("geo_mean", "`row gmpo`", "radius .4 in log space; verl reuses its ratio clip .2"),
        ("dppo_tv", "`row dppo_tv`"),
        ("dppo_kl", "`row dppo_kl`"),
        ("dro", "`row dro`"),
        (
            "clip_cov",
            "`row clip_cov`",
            "covariances and choice of the whole step; verl's of a micro-batch",
        ),
        ("kl_cov", "`row kl_cov`", "as clip_cov"),
        ("gpg", "`policy_loss.plain` with `aggregation.token_mean`"),
        ("reinforce", "`policy_loss.plain` with `aggregation.sequence_mean_token_sum`"),
        (
            "bypass_mode ppo_clip",
            "`rollout_correction.bypass`",
            "what is rejected stays in the denominator",
        ),
        (
            "bypass_mode reinforce",
            "`policy_loss.plain` with `rollout_correction.token_truncate` (or any other)",
            "weights of the policy before the step; verl's of the policy being trained (equal at one update per batch)",
        ),
        (
            "entropy_coeff",
            "`entropy_bonus.bonus`",
            "a token mean; verl aggregates it like the policy term",
        ),
    ),
    *_options(
        "loss_agg_mode",
        ("token-mean", "`aggregation.token_mean`"),
        ("token-sum", "`aggregation.token_sum`"),
        ("seq-mean-token-mean", "`aggregation.sequence_mean_token_mean`"),
        ("seq-mean-token-sum", "`aggregation.sequence_mean_token_sum`"),
        (
            "seq-mean-token-sum-norm",
            "`aggregation.sequence_mean_token_scaled`",
            "a constant; verl's default is the width",
        ),
    ),
    *_options(
        "KL",
        (
            "kl, k1",
            "`kl.k1`",
            "refused as a loss: its expected gradient is 0; `reward_shaping.kl_penalty` puts it in the reward",
        ),
        ("mse, k2", "`kl.k2`"),
        ("low_var_kl, k3", "`kl.k3`", CAP),
        ("k3+, low_var_kl+", "`kl.k3_straight_through`", CAP),
        ("kl+, k1+", "`kl.k1_straight_through`"),
        ("k2+, mse+", "`kl.k2`"),
        ("abs, abs+", "none", "the absolute log-ratio estimates no KL"),
        ("fixed and adaptive controllers", "`kl_controller.fixed`, `kl_controller.ziegler_token`"),
    ),
    *_options(
        "KL in the reward",
        ("kl_penalty kl, k1", "`reward_shaping.kl_penalty`"),
        ("kl_penalty mse, k2, low_var_kl, k3, abs", "none", K1_ALONE),
    ),
    *_options(
        "rollout correction",
        ("rollout_is token, a number", "`rollout_correction.token_truncate`"),
        ("rollout_is token, lo_hi (IcePop)", "`rollout_correction.token_mask`"),
        ("rollout_is sequence, a number", "`rollout_correction.product_truncate`"),
        ("rollout_is sequence, lo_hi", "`rollout_correction.product_mask`"),
        (
            "rollout_is_batch_normalize, a number",
            "`rollout_correction.token_normalized`, `rollout_correction.product_normalized`",
            "mean of the step",
        ),
        (
            "rollout_is_batch_normalize, lo_hi",
            "`rollout_correction.token_normalized.reject`, `rollout_correction.product_normalized.reject`, from Python",
            "off: the more is rejected, the larger are the weights left",
        ),
        (
            "rollout_rs token_k1, seq_sum_k1, seq_mean_k1",
            "`token_weights.ratio_within`",
            "bounds trainer / sampler, not its inverse",
        ),
        ("rollout_rs token_k2, token_k3", "`token_weights.distance_within` with level token"),
        ("rollout_rs seq_sum_k2, seq_sum_k3", "`token_weights.distance_within` with level sum"),
        (
            "rollout_rs seq_mean_k2, seq_mean_k3",
            "`token_weights.distance_within` with level mean, `row grpo_rejection`",
        ),
        ("rollout_rs seq_max_k2, seq_max_k3", "`token_weights.distance_within` with level largest"),
        (
            "several rollout_rs at once",
            "one `token_weights.ratio_within` and one `token_weights.distance_within`",
            "more from Python",
        ),
        (
            "the denominator after rejection",
            "unchanged",
            "verl's v0 trainer shrinks it, its v1 does not",
        ),
    ),
    *_options(
        "value loss", ("clipped", "`value_loss.clipped`"), ("without clip", "`value_loss.mse`")
    ),
)

OPENRLHF = (
    *_options(
        "advantage estimator",
        (
            "gae",
            "`row ppo`",
            "variance with n - 1 (advantages .031 apart); observations stepped over, not decayed through",
        ),
        ("reinforce", "`row reinforce_pp`", "variance with n - 1 (.116 apart)"),
        ("reinforce_baseline", "`row reinforce_pp_baseline`", "variance with n - 1 (.030 apart)"),
        ("rloo", "`row rloo`", "KL enters the reward before the baseline, not after"),
        (
            "group_norm",
            "`row grpo`",
            "eps 1e-4 for 1e-9; an all-equal group is exactly 0 (59.6 in float32 there)",
        ),
        ("dr_grpo", "`row dr_grpo`", "also divides by a constant; OpenRLHF drops the std alone"),
        ("no_std_norm", "`advantage_norm.none`"),
    ),
    *_options(
        "policy loss",
        ("ppo", "`row ppo`, `policy_loss.clip`"),
        (
            "gspo",
            "`row gspo`",
            "with a correction the ratio stays to the old policy, not to the sampler",
        ),
        ("dual_clip", "`policy_loss.dual_clip`"),
        (
            "token_level_loss true, false",
            "`aggregation.token_mean`, `aggregation.sequence_mean_token_mean`",
        ),
        ("vllm tis", "`rollout_correction.token_truncate`"),
        ("vllm icepop", "`rollout_correction.token_mask`"),
        (
            "vllm seq-mask-tis",
            "`rollout_correction.geometric_mask`",
            "weights are capped, as its comment says; an empty row is skipped",
        ),
    ),
    *_options(
        "other losses",
        ("ValueLoss", "`value_loss.clipped`, `value_loss.mse`"),
        ("SFTLoss, GPTLMLoss", "`row sft`"),
        ("PairWiseLoss, margin", "`row reward_model`"),
        (
            "LogExpLoss",
            "`row reward_model`",
            "a log-sigmoid: OpenRLHF's log(1 + exp) overflows, gradient NaN",
        ),
        ("DPOLoss, label_smoothing", "`row dpo`"),
        ("DPOLoss ipo", "`loss.ipo_sum`"),
        ("KTOLoss, desirable_weight, undesirable_weight (0.9.6)", "`row kto`"),
        ("KDLoss (0.9.6)", "`row kd`"),
        (
            "PRMLoss hard, vocab (0.9.6)",
            "`row prm`",
            "a scalar head judges, read at a line break; there two words",
        ),
        (
            "PRMLoss soft (0.9.6)",
            "`row prm_soft`",
            "NaN is an unknown label; there -100 is taken for a probability",
        ),
    ),
    *_options(
        "rewards and KL",
        ("kl estimator k1, k2, k3", "`kl.k1`, `kl.k2`, `kl.k3`", CAP + "; " + K1_ALONE),
        ("kl.use_loss", "`kl.k2`", "aggregated like the policy term; there always a token mean"),
        ("overlong_buffer_len", "`reward_shaping.soft_overlong`"),
        ("stop-properly, coefficient below 0", "`reward_shaping.eos_replace`"),
        ("stop-properly, coefficient 0 to 1", "`reward_shaping.eos_scale`"),
        ("reward_clip_range", "`reward_shaping.clip`", "before the baseline; there after it"),
        ("dynamic filtering", "`filter.nonzero_variance`", "on the reward before shaping"),
        ("adaptive KL controller", "`kl_controller.ziegler_token`"),
    ),
)

SWIFT = (
    *_options(
        "advantage_estimator",
        ("grpo", "`row grpo`", "an unscored part is left out; there it counts as 0"),
        ("rloo", "`row rloo`"),
        (
            "reinforce_plus_plus",
            "`advantage.group_mean_baseline` with `advantage_norm.batch_std_centered`",
        ),
        ("dynamic (ragged groups)", "every group estimator: groups may differ in size"),
    ),
    *_options(
        "scale_rewards",
        ("group", "`advantage_norm.group_std`"),
        ("batch", "`advantage_norm.batch_std_raw`"),
        ("none", "`advantage_norm.none`"),
        ("gdpo", "`row gdpo`", "eps 1e-4 for 1e-8"),
    ),
    *_options(
        "loss_type",
        ("grpo", "`row grpo`", EMPTY_ROWS),
        ("bnpo", "`aggregation.token_mean`", "a fully masked step gives 0"),
        ("dr_grpo", "`row dr_grpo`", "also drops the std"),
        ("dapo", "`row dapo`", "a fully masked step gives 0; there NaN"),
        ("cispo", "`row cispo`", "cap 5; there epsilon_high, .2 unless set"),
        ("sapo", "`row sapo`"),
        ("fipo", "`row fipo`"),
        (
            "fipo_gamma, fipo_clip_range, fipo_clip_high_only, fipo_safety_threshold",
            "`policy_loss.fipo`, from Python",
        ),
        (
            "real",
            "`row real`",
            "groups may be cut apart; there K consecutive rows must stay together",
        ),
    ),
    *_options(
        "GRPO options",
        (
            "importance_sampling_level token, sequence, sequence_token",
            "`ratio.token`, `row gspo`, `row gspo_token`",
        ),
        ("delta", "`policy_loss.dual_clip.cap`"),
        ("beta", "`kl.k3`", CAP),
        (
            "beta with a rollout mode",
            "`kl.weighted_k3`",
            "KL is not weighed unless asked (gradient .018 apart)",
        ),
        ("kl_in_reward", "`reward_shaping.kl_penalty`"),
        (
            "rollout token_truncate, token_mask",
            "`rollout_correction.token_truncate`, `rollout_correction.token_mask`",
        ),
        (
            "rollout sequence_truncate",
            "`rollout_correction.geometric_truncate`",
            "'sequence' is a geometric mean there (.80 apart)",
        ),
        ("rollout sequence_mask", "`rollout_correction.geometric_mask`"),
        (
            "off_policy_sequence_mask_delta",
            "`token_weights.near_policy`",
            "dropped rows stay in the denominator (bnpo .050 apart)",
        ),
        (
            "top_entropy_quantile",
            "`token_weights.top_entropy`",
            "a floor of the whole step, after truncated answers have left",
        ),
        (
            "overlong_filter",
            "`filter.not_truncated`",
            "what is filtered out is gone; there it counts in means over rows",
        ),
        (
            "dynamic sampling",
            "`filter.nonzero_variance`",
            "on the summed rewards before shaping, as there",
        ),
    ),
    *_options(
        "teachers",
        ("RLSD", "`row rlsd`", "lambda is a constant; its warm-up and decay are not here"),
        ("RLSD negative_only", "`token_weights.teacher_agreement.negative_only`, from Python"),
        ("teacher log-ratio in the advantage", "`advantage_norm.plus_teacher`"),
    ),
)

PEERS = {
    "TRL 1.16.0 (and 1.12.0)": TRL,
    "verl 0.9.1": VERL,
    "OpenRLHF 0.11.0 (and 0.9.6)": OPENRLHF,
    "ms-swift 4.6.0": SWIFT,
}

# What a peer has and we do not, each with its reason.
NOT_HERE = (
    (
        "verl",
        "pf-ppo",
        "resampling of a replayed batch by reward: no vectors exist, and nobody has asked for it",
    ),
    (
        "verl",
        "distillation losses of the async trainer",
        "top-k teachers over a server; `row gkd` and `row kd` are whole",
    ),
    ("ms-swift", "SDAR and CHORD auxiliary losses", "no vectors exist to check them against"),
    (
        "TRL",
        "BCO's prompt-distribution matching (match_underlying_distribution)",
        "needs a classifier of prompts beside the policy; off by default there",
    ),
)
