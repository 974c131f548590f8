"""The metric registry: every number that a run logs, by name, with its unit, one sentence and a healthy range.

The terminal, the curves, the warnings, the trackers and docs/metrics.md read it. `<...>` in a name stands for any word:
a reward's name, a loss term, a clip fraction of a policy loss. Evaluation logs the same numbers under `eval/`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

EVAL = "eval/"
# Of a number with one of these words in its name, less is better.
ERRORS = ("loss", "nll", "error", "brier")


@dataclass(frozen=True)
class MetricInfo:
    """`low` and `high` bound the healthy range (docs/runs.md says which warning looks at it); `label` is the word in
    the terminal line, and `plot` the place among the curves, 1 first, None for neither."""

    name: str
    unit: str
    summary: str
    low: float = -math.inf
    high: float = math.inf
    label: str | None = None
    plot: int | None = None


def _metric(name: str, unit: str, summary: str, **more: object) -> MetricInfo:
    return MetricInfo(name, unit, summary, **more)  # type: ignore[arg-type]


SHARE, NATS, TOKENS, SECONDS = "fraction", "nats per token", "tokens", "seconds"
REGISTRY: tuple[MetricInfo, ...] = (
    _metric(
        "loss/total",
        "",
        "Weighted sum of all loss terms, which the optimizer minimizes.",
        label="loss",
        plot=4,
    ),
    _metric(
        "loss/<term>",
        "",
        "One loss term of the row, unweighted: its numerator over its denominator.",
    ),
    _metric(
        "denominator/<term>",
        "",
        "What a loss term is divided by: tokens, sequences, groups or pairs of the step.",
    ),
    _metric(
        "statistic/<name>",
        "",
        "A step statistic: one number computed over the whole optimizer step.",
    ),
    _metric(
        "reward/mean",
        "reward",
        "Mean reward of the step's rollouts, before any filter.",
        label="reward",
        plot=1,
    ),
    _metric("reward/std", "reward", "Standard deviation of the rewards of the step."),
    _metric(
        "reward/correct",
        SHARE,
        "Share of right answers, where a reward says right or wrong.",
        label="correct",
        plot=2,
    ),
    _metric(
        "reward/zero_std_frac",
        SHARE,
        "Share of groups of several rollouts whose rewards are all equal.",
        high=0.9,
    ),
    _metric(
        "reward/failure_frac",
        SHARE,
        "Share of rollouts that the reward could not score.",
        high=0.05,
    ),
    _metric(
        "reward/failures/<reward>/<reason>",
        "rollouts",
        "How many rollouts a reward could not score, by reason.",
    ),
    _metric("reward/opponent", "reward", "Mean reward of the opponent's completions (Nash-MD)."),
    _metric(
        "reward/reference",
        "reward",
        "Mean reward of the completions sampled from the reference (XPO).",
    ),
    _metric("reward/<component>", "reward", "Mean of one reward, or of one named component of it."),
    _metric("advantage/mean", "", "Mean advantage over trained tokens, after normalization."),
    _metric("advantage/std", "", "Standard deviation of the advantages over trained tokens."),
    _metric("advantage/abs_max", "", "Largest absolute advantage."),
    _metric(
        "advantage/lone_group_frac",
        SHARE,
        "Share of groups with a single scored rollout; its advantage is 0.",
    ),
    _metric(
        "advantage/no_baseline_frac",
        SHARE,
        "Share of rollouts without a baseline; their advantage is 0.",
    ),
    _metric("policy/loss", "", "The policy-gradient term, aggregated as the row says."),
    _metric(
        "policy/entropy",
        NATS,
        "Entropy of the policy at trained tokens.",
        low=0.02,
        high=1.0,
        label="entropy",
        plot=6,
    ),
    _metric("policy/approx_kl", NATS, "KL from the policy that sampled (k3).", high=0.1, plot=9),
    _metric(
        "policy/update_kl",
        NATS,
        "KL from before to after the step's updates, on about 512 trained tokens.",
        high=0.5,
    ),
    _metric(
        "policy/ref_kl", NATS, "KL from the reference model (k3).", high=1.0, label="kl", plot=8
    ),
    _metric(
        "policy/ref_kl_k1", NATS, "The same as the mean log-ratio (k1), which may be negative."
    ),
    _metric(
        "policy/kl_loss", "nats per token", "The row's KL estimator, averaged over trained tokens."
    ),
    _metric("policy/kl_coef", "", "The KL coefficient of a controller that moves it."),
    _metric(
        "policy/clip_frac_low",
        SHARE,
        "Share of trained tokens held at the lower clip bound.",
        high=0.3,
    ),
    _metric(
        "policy/clip_frac_high",
        SHARE,
        "Share of trained tokens held at the upper clip bound.",
        high=0.3,
    ),
    _metric(
        "policy/clip_frac_<which>",
        SHARE,
        "Share of trained tokens that another bound of the policy loss holds.",
    ),
    _metric(
        "policy/dropped_frac_<cell>",
        SHARE,
        "Share of trained tokens to which a token weight gives 0.",
    ),
    _metric("policy/ratio_max", "", "Largest importance ratio."),
    _metric("policy/ratio_min", "", "Smallest importance ratio."),
    _metric(
        "policy/ratio_clamped_frac",
        SHARE,
        "Share of trained tokens whose log-ratio was clamped for safety.",
    ),
    _metric(
        "policy/routes_changed_frac",
        SHARE,
        "Share of expert choices that differ from those of sampling (MoE).",
    ),
    _metric("completion/length_mean", TOKENS, "Mean completion length.", label="length", plot=7),
    _metric("completion/length_max", TOKENS, "Longest completion."),
    _metric(
        "completion/truncated_frac",
        SHARE,
        "Share of completions that the token budget ended.",
        high=0.3,
        label="truncated",
        plot=10,
    ),
    _metric(
        "sampler/unknown_frac",
        SHARE,
        "Share of trained tokens for which the sampler gave no log-prob.",
        high=0.0,
    ),
    _metric(
        "sampler/logprob_diff",
        NATS,
        "Mean absolute difference of sampler and trainer log-probs.",
        high=0.02,
    ),
    _metric("sampler/logprob_diff_max", "nats", "Largest such difference."),
    _metric("sampler/is_weight", "", "Mean importance weight trainer / sampler."),
    _metric(
        "sampler/is_ess", SHARE, "Effective sample size of these weights, as a share of the tokens."
    ),
    _metric(
        "sampler/is_capped_frac",
        SHARE,
        "Share of these weights above the cap of the rollout correction.",
    ),
    _metric(
        "sampler/is_rejected_frac",
        SHARE,
        "Share of trained tokens that the rollout correction rejects.",
    ),
    _metric(
        "sampler/staleness",
        "steps",
        "Mean number of weight versions between sampling and training.",
    ),
    _metric("sampler/staleness_max", "steps", "Largest such number."),
    _metric(
        "sampler/dynamic_sampling_tries",
        "tries",
        "How often further prompts were sampled for dropped groups.",
    ),
    _metric("critic/loss", "", "The value loss."),
    _metric(
        "critic/explained_variance",
        SHARE,
        "Share of the variance of returns that the critic explains.",
    ),
    _metric("critic/return", "reward", "Mean return, the critic's target."),
    _metric("critic/value_error", "reward", "Mean of return minus value."),
    _metric(
        "critic/<name>",
        "",
        "The same number of a critic with weights of its own: lr, grad_norm, skipped, tokens.",
    ),
    _metric(
        "preference/accuracy",
        SHARE,
        "Share of pairs in which the chosen response scores higher.",
        label="accuracy",
        plot=3,
    ),
    _metric("preference/margin", "", "Mean difference of chosen and rejected scores.", plot=5),
    _metric("preference/score", "", "Mean reward-model score of chosen and rejected."),
    _metric(
        "preference/win_rate", SHARE, "Share of comparisons that the policy wins, ties left out."
    ),
    _metric("preference/tie_frac", SHARE, "Share of prompts whose completions score equally."),
    _metric(
        "preference/<what>_<which>",
        "",
        "Mean implicit reward or log-prob of chosen, rejected, (un)desirable.",
    ),
    _metric(
        "steps/accuracy",
        SHARE,
        "Share of steps that a process reward model labels right.",
        label="accuracy",
    ),
    _metric("optim/lr", "", "Learning rate of the step.", plot=12),
    _metric("optim/grad_norm", "", "Gradient norm before clipping.", label="grad", plot=11),
    _metric(
        "optim/grad_norm_<batch>",
        "",
        "The same of the rollouts alone, and of the pretraining text alone.",
    ),
    _metric(
        "optim/skipped",
        "updates",
        "Updates that were skipped: their gradient was not finite.",
        label="skipped",
    ),
    _metric("optim/updates", "updates", "Optimizer steps of this step."),
    _metric(
        "tokens/run",
        TOKENS,
        "Tokens that the updates ran through the model; a prompt that neighbors share once.",
    ),
    _metric(
        "tokens/needed",
        TOKENS,
        "The same if each distinct prompt, and nothing else, were shared, and only trained sequences ran.",
    ),
    _metric("tokens/trained", TOKENS, "Tokens with a loss."),
    _metric(
        "env/<what>",
        "",
        "Turns, replies and counts of the environment, per episode; how episodes ended.",
    ),
    _metric("preference/brier", "", "Held-out Brier score of a reward model's win probabilities."),
    _metric(
        "preference/calibration_error",
        "",
        "Held-out expected calibration error of the win probabilities.",
    ),
    _metric(
        "preference/length_correlation",
        "",
        "Held-out correlation of a reward model's score with length.",
    ),
    _metric("time/sample", SECONDS, "Generating rollouts; rewards are computed meanwhile."),
    _metric("time/score", SECONDS, "Waiting for rewards after the last rollout was generated."),
    _metric(
        "time/overlap",
        SECONDS,
        "The part of both that ran beside the update (rollouts.max_staleness).",
    ),
    _metric("time/wait", SECONDS, "Waiting for it after the update; a part of time/refresh."),
    _metric(
        "time/prepare",
        SECONDS,
        "Reading and packing data, log-probs of other models, advantages, micro-batches.",
    ),
    _metric("time/update", SECONDS, "Forward, backward and optimizer."),
    _metric(
        "time/refresh",
        SECONDS,
        "Measuring the update's KL and handing the new weights to the sampler.",
    ),
    _metric("time/step", SECONDS, "The whole step, without evaluation, trackers and checkpoint."),
    _metric("time/evaluate", SECONDS, "Evaluating on held-out data, in steps that do."),
    _metric(
        "time/log", SECONDS, "Writing metrics and samples of the step before, to all trackers."
    ),
    _metric("time/save", SECONDS, "Saving the checkpoint of the step before, if it had one."),
    _metric(
        "time/tokens_per_s",
        "tokens per second",
        "Tokens that the updates ran through the model, by the time of the whole step.",
        plot=13,
    ),
)
_PATTERNS = [
    (
        re.compile(
            re.sub(r"<\w+>", "(.+)", re.escape(each.name).replace(r"\<", "<").replace(r"\>", ">"))
        ),
        each,
    )
    for each in REGISTRY
]


def find_metric(name: str) -> MetricInfo | None:
    """What is known about a logged name, of an evaluation too; the more special entry first."""
    name = name.removeprefix(EVAL)
    exact = [each for each in REGISTRY if each.name == name]
    found = exact or [each for pattern, each in _PATTERNS if pattern.fullmatch(name)]
    return found[0] if found else None


def is_registered(name: str) -> bool:
    """Whether the registry has an entry of exactly this name."""
    return any(each.name == name for each in REGISTRY)


def larger_is_better(name: str) -> bool:
    return not any(word in name for word in ERRORS)


def healthy(name: str) -> tuple[float, float]:
    """The healthy range of a metric of the registry."""
    info = find_metric(name)
    if info is None:
        raise KeyError(f"{name} is in no metric registry entry (ascent/metrics.py)")
    return info.low, info.high


def plotted() -> list[str]:
    """The metrics of the curves, the most important first."""
    return [
        each.name
        for each in sorted(
            (each for each in REGISTRY if each.plot), key=lambda each: each.plot or 0
        )
    ]


def labels() -> dict[str, str]:
    """The metrics of the terminal line and their words there."""
    return {each.name: each.label for each in REGISTRY if each.label}


def markdown() -> str:
    """docs/metrics.md, from the registry."""
    lines = [
        "# Metrics",
        "",
        "Every number that a run logs (`metrics.jsonl`, TensorBoard, W&B, the curves), from `ascent/metrics.py`; "
        "this page",
        "is `ascent show metrics --markdown`. Names in `<...>` stand for any word. Evaluation logs the same names "
        "under",
        "`eval/`. A number outside its healthy range raises a warning (docs/runs.md) or deserves a look.",
        "",
        "| name | unit | healthy | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{each.name}` | {each.unit} | {range_text(each)} | {each.summary} |"
        for each in REGISTRY
    ]
    return "\n".join(lines) + "\n"


def range_text(info: MetricInfo) -> str:
    if math.isinf(info.low) and math.isinf(info.high):
        return ""
    if math.isinf(info.low):
        return f"at most {info.high:g}"
    return f"{info.low:g} to {info.high:g}"
