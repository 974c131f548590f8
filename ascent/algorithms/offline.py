"""Rows that learn from files: demonstrations, rankings and preferences."""

from __future__ import annotations

from dataclasses import replace

from ascent.algorithms.row import Row
from ascent.cells import cell
from ascent.losses import kto_bco, preferences, ranking, supervised

SFT = Row(
    name="sft",
    title="Supervised fine-tuning",
    paper="-",
    formula="L = -sum of log pi over trained tokens / their number in the whole optimizer step",
    origin="lr 2e-5 as TRL",
    pitfalls=("Train the EOS token, or the model never learns to stop.",),
    source="examples",
    loss=cell(supervised.nll),
    defaults={"update.learning_rate": 2e-5},
)

REWARD_MODEL = Row(
    name="reward_model",
    title="Pairwise reward model (Bradley-Terry)",
    paper="arXiv 2009.01325; margin: arXiv 2307.09288",
    formula="L = -mean over pairs of log sigmoid(s_chosen - s_rejected - margin) + .01 (s_chosen + s_rejected)^2",
    origin="centering .01 (arXiv 2312.09244 and TRL's documentation), lr 3e-6 and one epoch from N+",
    pitfalls=(
        "The score is read at the last real token; with pad equal to EOS that is the wrong token.",
        "Centre the scores on the SFT set after training: PPO's value clip relies on it.",
    ),
    source="pairs",
    loss=cell(ranking.bradley_terry, centering=0.01),
    defaults={"update.learning_rate": 3e-6, "update.adam_eps": 1e-5},
)

REWARD_MODEL_KWISE = replace(
    REWARD_MODEL,
    name="reward_model_kwise",
    title="K-wise reward model: all pairs of a ranking, one item per prompt",
    paper="arXiv 2203.02155 (InstructGPT)",
    formula="L = mean over prompts of the mean over untied pairs of -log sigmoid(s_better - s_worse)",
    origin="InstructGPT: K 4 to 9, lr 9e-6",
    pitfalls=(
        "All responses of a prompt must be in one micro-batch; split over several they would be seen K - 1 times.",
    ),
    source="rankings",
    loss=cell(ranking.kwise),
    defaults={"update.learning_rate": 9e-6, "update.adam_eps": 1e-5},
)

REWARD_MODEL_LISTWISE = replace(
    REWARD_MODEL_KWISE,
    name="reward_model_listwise",
    title="Listwise reward model (Plackett-Luce)",
    paper="Plackett, 1975; Luce, 1959",
    formula="L = mean over prompts of sum over places k of logsumexp(scores from place k on) - score at place k",
    origin="as reward_model_kwise",
    pitfalls=(
        "Needs a strict order: of tied responses the first is used; how many are left out is said.",
    ),
    loss=cell(ranking.plackett_luce),
)

DPO = Row(
    name="dpo",
    title="Direct preference optimization",
    paper="arXiv 2305.18290; label smoothing: cDPO (Mitchell, 2023)",
    formula="L = -mean over pairs of log sigmoid(beta (u_chosen - u_rejected)), u = summed log pi - log ref",
    origin="paper: beta .1, lr 1e-6",
    pitfalls=(
        "Both log-probs often fall together: watch logprobs_chosen, not only the margin.",
        "Log-ratios are SUMS over response tokens; the prompt is not in them.",
    ),
    source="pairs",
    loss=cell(preferences.dpo, beta=0.1),
    defaults={"update.learning_rate": 1e-6},
)

IPO = replace(
    DPO,
    name="ipo",
    title="IPO: a squared loss towards a fixed margin",
    paper="arXiv 2310.12036",
    formula="L = mean over pairs of (mean-token u_chosen - mean-token u_rejected - 1/(2 beta))^2",
    origin="beta .1; per-token means, as the authors advised (ipo_sum is the other form)",
    pitfalls=(
        "On the same pair and beta the two forms give 20.7 and 4.0: beta does not carry over.",
    ),
    loss=cell(preferences.ipo_mean, beta=0.1),
)

KTO = replace(
    DPO,
    name="kto",
    title="KTO: thumbs up or down, without pairs",
    paper="arXiv 2402.01306",
    formula="1 - sigmoid(beta (u - z)) if desirable, 1 - sigmoid(beta (z - u)) if not; z = max(0, mean mismatched u)",
    origin="paper: beta .1, weights 1/1",
    pitfalls=(
        "z is one number per optimizer step, over all micro-batches and ranks; it needs at least two rows.",
        "With unbalanced classes keep weight * count of the desirable at 1 to 4/3 times that of the undesirable.",
    ),
    source="unpaired",
    loss=cell(kto_bco.kto, beta=0.1),
)

ORPO = Row(
    name="orpo",
    title="ORPO: SFT and preference in one, no reference",
    paper="arXiv 2403.07691",
    formula="L = token-mean NLL of the chosen responses + .1 * mean over pairs of -log sigmoid(log odds ratio)",
    origin="paper: weight .1; NLL over the response (the authors' flag defaults to prompt and response)",
    pitfalls=("The odds use MEAN token log-probs; sums would make them vanish.",),
    source="pairs",
    loss=cell(preferences.odds_ratio, weight=0.1),
    extra_losses=(cell(supervised.chosen_nll),),
    defaults={"update.learning_rate": 8e-6},
)

SIMPO = Row(
    name="simpo",
    title="SimPO: length-normalized, reference-free, with a margin",
    paper="arXiv 2405.14734",
    formula="L = -mean over pairs of log sigmoid(beta (mean log pi_chosen - mean log pi_rejected) - margin)",
    origin="authors' configs: beta 2.5, margin 1.375 (= .55 * beta), lr 1e-6",
    pitfalls=(
        "margin is gamma itself; their config file takes gamma / beta: copying .55 here is a 2.5x error.",
    ),
    source="pairs",
    loss=cell(preferences.simpo, beta=2.5, margin=1.375),
    defaults={"update.learning_rate": 1e-6},
)

CPO = replace(
    SIMPO,
    name="cpo",
    title="CPO: DPO without a reference, plus SFT on the chosen",
    paper="arXiv 2401.08417",
    formula="L = -mean over pairs of log sigmoid(beta (log pi_chosen - log pi_rejected)) + NLL of the chosen",
    origin="paper and TRL: beta .1, NLL weight 1",
    pitfalls=("Summed log-probs favour short responses; without the NLL term they collapse.",),
    loss=cell(preferences.reference_free, beta=0.1),
    extra_losses=(cell(supervised.chosen_nll),),
)

ROWS = (
    SFT,
    REWARD_MODEL,
    REWARD_MODEL_KWISE,
    REWARD_MODEL_LISTWISE,
    DPO,
    IPO,
    KTO,
    ORPO,
    SIMPO,
    CPO,
)
