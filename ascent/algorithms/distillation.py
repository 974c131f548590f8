"""Rows that learn from a teacher, from step labels, or from demonstrations weighted by the policy's probability."""

from __future__ import annotations

from dataclasses import replace

from ascent.algorithms.offline import SFT
from ascent.cells import cell
from ascent.losses import distillation, process, token_weights

DFT = replace(
    SFT,
    name="dft",
    title="DFT: supervised fine-tuning, each token weighed by its own probability",
    paper="arXiv 2508.05629",
    formula="L = -token mean of sg(pi) * log pi",
    origin="paper; lr 2e-5 as sft",
    pitfalls=(
        "From random weights every probability is tiny and nothing moves: start from a pretrained model.",
    ),
    token_weights=(cell(token_weights.probability),),
)

GKD = replace(
    SFT,
    name="gkd",
    title="GKD: distillation between forward and reverse KL",
    paper="arXiv 2306.13649",
    formula="L = token mean of beta KL(T || M) + (1 - beta) KL(S || M), M = (1 - beta) S + beta T",
    origin="TRL: beta .5, temperature 1, half of the answers the student's own; lr 2e-5 as sft",
    pitfalls=(
        "beta 0 and 1 are the plain KLs, not the limits of the middle form, which vanishes at both ends.",
        "Own answers of an untrained student teach little: set data.on_policy_fraction to 0 and train on records "
        "first.",
    ),
    loss=cell(distillation.gkd, beta=0.5, temperature=1.0),
    defaults={**SFT.defaults, "data.on_policy_fraction": 0.5, "data.train_on": "completion"},
)

KD = replace(
    GKD,
    name="kd",
    title="Distillation by cross-entropy",
    paper="arXiv 1503.02531",
    formula="L = token mean of -sum over the vocabulary of teacher * log student",
    origin="OpenRLHF: temperature 1",
    pitfalls=("The value includes the teacher's entropy: it does not go to 0.",),
    loss=cell(distillation.kd, temperature=1.0),
    defaults=SFT.defaults,
)

PRM = replace(
    SFT,
    name="prm",
    title="Process reward model, right or wrong steps",
    paper="arXiv 2305.20050",
    formula="L = mean over the ends of steps of the cross-entropy of the step's class",
    origin="as OpenRLHF; lr 9e-6 as reward models here",
    pitfalls=("The judgement is read at the step's last token, not one later.",),
    source="steps",
    loss=cell(process.prm_hard),
    defaults={"update.learning_rate": 9e-6},
)

PRM_SOFT = replace(
    PRM,
    name="prm_soft",
    title="Process reward model on estimated success rates",
    paper="arXiv 2312.08935 (Math-Shepherd)",
    formula="L = mean over the ends of steps of -p log q - (1 - p) log(1 - q), p the share of successes",
    pitfalls=("A success rate from eight continuations has a standard error of up to .18.",),
    loss=cell(process.prm_soft),
)

ROWS = (DFT, GKD, KD, PRM, PRM_SOFT)
