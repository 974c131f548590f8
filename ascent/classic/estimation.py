"""Monte Carlo estimators compared with the exact answer.

Every number is also known exactly, by enumeration or in closed form. A `Report` holds the mean over many repetitions,
its bias and its standard deviation.

    kl_divergence      k1, k2, k3 on samples of pi: the estimators of `ascent.losses.kl`
    control_variate    a control variate of known mean
    antithetic_pairs   mirrored draws
    baselines          baselines of the policy gradient on a bandit
    importance         importance sampling and the effective sample size
    off_policy         off-policy evaluation, corrected or not
    sequence_weights   products of T token ratios, which lose nearly all samples
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ascent.losses import kl as estimators
from ascent.maths import divergence


class Report(NamedTuple):
    """One estimator over many repetitions, each of `samples` draws."""

    name: str
    mean: float
    exact: float
    std: float
    samples: int
    repetitions: int

    @property
    def bias(self) -> float:
        return self.mean - self.exact

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over repetitions."""
        return self.std / math.sqrt(self.repetitions)


def report(name: str, estimates_R: Tensor, exact: float, samples: int) -> Report:
    """Mean and standard deviation of R repetitions of an estimate."""
    if estimates_R.numel() < 2:
        raise ValueError(f"{estimates_R.numel()} repetitions of {name}; a spread needs at least 2")
    return Report(
        name,
        float(estimates_R.mean()),
        exact,
        float(estimates_R.std()),
        samples,
        repetitions=estimates_R.numel(),
    )


def kl_divergence(
    policy_V: Tensor,
    reference_V: Tensor,
    *,
    samples: int,
    repetitions: int,
    generator: torch.Generator,
) -> list[Report]:
    """k1, k2, k3 of KL(policy || reference), given as logits over V tokens, on tokens drawn from the policy."""
    _check(samples, repetitions)
    exact = float(divergence.kl(policy_V, reference_V))
    drawn = _draw(policy_V.log_softmax(-1), (repetitions, samples), generator)
    policy, reference = policy_V.log_softmax(-1)[drawn], reference_V.log_softmax(-1)[drawn]
    every = torch.ones_like(drawn, dtype=torch.bool)
    return [
        report(name, estimate(policy, reference, every).mean(-1), exact, samples)
        for name, estimate in (("k1", estimators.k1), ("k2", estimators.k2), ("k3", estimators.k3))
    ]


def control_variate(
    policy_V: Tensor,
    reference_V: Tensor,
    *,
    samples: int,
    repetitions: int,
    generator: torch.Generator,
) -> list[Report]:
    """k1 + c (e^x - 1): the addend has mean 0 under the policy. c = 0 is k1, c = 1 is k3, the best c lies nearby.

    The best coefficient is -cov(k1, e^x - 1) / var(e^x - 1), computed exactly here. Estimating it from the same samples
    would bias the estimate a little.
    """
    _check(samples, repetitions)
    p_V, q_V = policy_V.log_softmax(-1), reference_V.log_softmax(-1)
    exact, best = (
        float(divergence.kl(policy_V, reference_V)),
        best_coefficient(policy_V, reference_V),
    )
    drawn = _draw(p_V, (repetitions, samples), generator)
    plain, known = (p_V - q_V)[drawn], (q_V - p_V)[drawn].expm1()
    return [
        report(f"c = {c:.3g}", (plain + c * known).mean(-1), exact, samples)
        for c in dict.fromkeys((0.0, 0.5, 1.0, best))
    ]


def best_coefficient(policy_V: Tensor, reference_V: Tensor) -> float:
    """The c that minimizes the variance of k1 + c (e^x - 1), with x = log reference - log policy."""
    p_V = policy_V.softmax(-1)
    x_V = reference_V.log_softmax(-1) - policy_V.log_softmax(-1)
    plain_V, known_V = -x_V, x_V.expm1()
    covariance = (p_V * (plain_V - (p_V * plain_V).sum()) * known_V).sum()
    return float(-covariance / (p_V * known_V**2).sum())


def antithetic_pairs(
    *, slope: float, samples: int, repetitions: int, generator: torch.Generator
) -> list[Report]:
    """E[e^(slope z)] = e^(slope^2 / 2) for standard normal z: independent draws against pairs z, -z; equal evaluations.

    Mirrored draws help where the function is mostly odd around its mean (small slope). For an even function such as
    z^2 the pair is the same number twice: half the samples are thrown away.
    """
    _check(samples, repetitions)
    if samples % 2:
        raise ValueError(f"samples={samples} cannot be split into pairs; use an even number")
    rows = []
    for name, function, exact in (
        ("e^(slope z)", lambda z: (slope * z).exp(), math.exp(slope**2 / 2)),
        ("z^2", lambda z: z**2, 1.0),
    ):
        z = torch.randn(repetitions, samples, generator=generator, dtype=torch.float64)
        half = torch.randn(repetitions, samples // 2, generator=generator, dtype=torch.float64)
        rows.append(report(f"{name}, independent", function(z).mean(-1), exact, samples))
        rows.append(
            report(
                f"{name}, pairs", function(torch.cat([half, -half], -1)).mean(-1), exact, samples
            )
        )
    return rows


def baselines(
    logits_V: Tensor,
    rewards_V: Tensor,
    *,
    samples: int,
    repetitions: int,
    generator: torch.Generator,
) -> list[Report]:
    """The gradient of E[reward] with respect to the first logit, on a bandit of V arms, under four baselines.

    Every baseline that does not look at the action leaves the mean alone. `best` is E[score^2 R] / E[score^2], the
    minimizer for this component; `leave one out` is the mean of the other samples of the same batch, as in RLOO.
    """
    _check(samples, repetitions)
    if samples < 2:
        raise ValueError(f"samples={samples}: leave one out needs at least 2")
    p_V = logits_V.softmax(-1)
    score_V = (torch.arange(len(p_V)) == 0).to(p_V) - p_V[0]
    exact = float((p_V * score_V * rewards_V).sum())
    best = float((p_V * score_V**2 * rewards_V).sum() / (p_V * score_V**2).sum())
    drawn = _draw(logits_V.log_softmax(-1), (repetitions, samples), generator)
    score, reward = score_V[drawn], rewards_V[drawn]
    others = (reward.sum(-1, keepdim=True) - reward) / (samples - 1)
    return [
        report(name, (score * (reward - baseline)).mean(-1), exact, samples)
        for name, baseline in (
            ("none", 0.0),
            ("expected reward", float((p_V * rewards_V).sum())),
            ("leave one out", others),
            ("best constant", best),
        )
    ]


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 over the last axis: n equal weights are worth n samples, one giant weight is worth 1."""
    return torch.exp(2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1))


def importance(
    *, shift: float, samples: int, repetitions: int, generator: torch.Generator
) -> list[Report]:
    """E[z^2] = 1 under N(0, 1), from draws of N(shift, 1): plain and self-normalized weights, and none at all.

    Half the weights' story is the effective sample size, here about n e^(-shift^2) for large n: see `ess_of_shift`.
    """
    _check(samples, repetitions)
    z = torch.randn(repetitions, samples, generator=generator, dtype=torch.float64) + shift
    log_w = shift**2 / 2 - shift * z
    w, f = log_w.exp(), z**2
    return [
        report("unweighted", f.mean(-1), 1.0, samples),
        report("weighted", (w * f).mean(-1), 1.0, samples),
        report("self-normalized", (w * f).sum(-1) / w.sum(-1), 1.0, samples),
    ]


def ess_of_shift(*, shift: float, samples: int, generator: torch.Generator) -> tuple[float, float]:
    """The measured share of effective samples for N(0, 1) from N(shift, 1), and its limit e^(-shift^2)."""
    _check(samples, 2)
    z = torch.randn(samples, generator=generator, dtype=torch.float64) + shift
    return float(effective_sample_size(shift**2 / 2 - shift * z)) / samples, math.exp(-(shift**2))


def off_policy(
    target_V: Tensor,
    behavior_V: Tensor,
    rewards_V: Tensor,
    *,
    cap: float,
    samples: int,
    repetitions: int,
    generator: torch.Generator,
) -> list[Report]:
    """The value of the target policy: from its own samples, and from the behavior policy's in four ways."""
    _check(samples, repetitions)
    if not cap > 0:
        raise ValueError(f"cap={cap}, but it bounds a ratio and must be above 0; for example 2")
    exact = float((target_V.softmax(-1) * rewards_V).sum())
    own = _draw(target_V.log_softmax(-1), (repetitions, samples), generator)
    drawn = _draw(behavior_V.log_softmax(-1), (repetitions, samples), generator)
    w, reward = (
        (target_V.log_softmax(-1) - behavior_V.log_softmax(-1))[drawn].exp(),
        rewards_V[drawn],
    )
    return [
        report("on-policy", rewards_V[own].mean(-1), exact, samples),
        report("off-policy, uncorrected", reward.mean(-1), exact, samples),
        report("off-policy, ratio", (w * reward).mean(-1), exact, samples),
        report("off-policy, self-normalized", (w * reward).sum(-1) / w.sum(-1), exact, samples),
        report(
            f"off-policy, ratio capped at {cap:g}",
            (w.clamp(max=cap) * reward).mean(-1),
            exact,
            samples,
        ),
    ]


class Collapse(NamedTuple):
    """The share of samples that is left after T tokens, by the product of ratios and by one token's own ratio."""

    length: int
    product: float
    token: float


def sequence_weights(
    target_V: Tensor,
    behavior_V: Tensor,
    *,
    lengths: list[int],
    samples: int,
    generator: torch.Generator,
) -> list[Collapse]:
    """Effective samples of whole-sequence ratios over independent tokens: about (share of one token) ** T."""
    _check(samples, 2)
    if min(lengths) < 1:
        raise ValueError(f"lengths {lengths}: a sequence has at least 1 token")
    log_ratio_V = target_V.log_softmax(-1) - behavior_V.log_softmax(-1)
    drawn = _draw(behavior_V.log_softmax(-1), (max(lengths), samples), generator)
    log_ratio = log_ratio_V[drawn].to(torch.float64)
    token = float(effective_sample_size(log_ratio.reshape(-1))) / log_ratio.numel()
    return [
        Collapse(length, float(effective_sample_size(log_ratio[:length].sum(0))) / samples, token)
        for length in lengths
    ]


# The toy problems that the command, the figures and the docs share: four tokens, or four arms.
POLICY_V = (0.0, 1.0, 2.0, 0.5)
REFERENCE_V = (0.3, 0.5, 2.4, 0.0)
REWARDS_V = (9.0, 10.0, 11.0, 12.0)
OUTCOMES_V = (1.0, 2.0, 3.0, 11.0)


def demonstrations(*, samples: int, repetitions: int, seed: int) -> dict[str, list[Report]]:
    """Every comparison of this file on the toy problems, by name."""
    generator = torch.Generator().manual_seed(seed)
    policy_V, reference_V, rewards_V, outcomes_V = (
        torch.tensor(row, dtype=torch.float64)
        for row in (POLICY_V, REFERENCE_V, REWARDS_V, OUTCOMES_V)
    )
    size = {"samples": samples, "repetitions": repetitions}
    pairs = antithetic_pairs(slope=0.5, generator=generator, **size)
    return {
        "kl": kl_divergence(policy_V, reference_V, generator=generator, **size),
        "control-variate": control_variate(policy_V, reference_V, generator=generator, **size),
        "antithetic": pairs[:2],
        "antithetic-even": pairs[2:],
        "baselines": baselines(policy_V, rewards_V, generator=generator, **size),
        "importance": importance(shift=1.0, generator=generator, **size),
        "off-policy": off_policy(
            policy_V, reference_V, outcomes_V, cap=1.2, generator=generator, **size
        ),
    }


def _draw(logprobs_V: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    count = shape[0] * shape[1]
    return torch.multinomial(
        logprobs_V.exp(), count, replacement=True, generator=generator
    ).reshape(shape)


def _check(samples: int, repetitions: int) -> None:
    if samples < 1 or repetitions < 2:
        raise ValueError(
            f"samples={samples}, repetitions={repetitions}; use at least 1 sample and 2 repetitions"
        )
