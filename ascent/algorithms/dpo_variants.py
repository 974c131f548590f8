"""Rows that learn from preferences, beyond the first ones in `files`. Slots and defaults not named are DPO's."""

from __future__ import annotations

from dataclasses import replace

from ascent.algorithms.offline import CPO, DPO, KTO, SIMPO
from ascent.cells import cell
from ascent.losses import (
    kto_bco,
    length_desensitized,
    optimal_transport,
    pointwise,
    preferences,
    supervised,
    token_weights,
)

# Two answers to a prompt, one pass over their pairs.
FRESH = {"rollouts.group_size": 2, "update.epochs": 1, "update.minibatches": 1}

ROBUST_DPO = replace(
    DPO,
    name="robust_dpo",
    title="Robust DPO: unbiased under a known share of wrong labels",
    paper="arXiv 2403.00409",
    formula="L = mean over pairs of [(1 - e) l(z) - e l(-z)] / (1 - 2 e), l = -log sigmoid, z = beta h",
    origin="beta .1; label_smoothing .1 as in the paper's noise of one label in ten",
    pitfalls=(
        "The loss may be negative, and its gradient grows by 1 / (1 - 2 e): set e to what you believe.",
    ),
    loss=cell(preferences.robust, beta=0.1, label_smoothing=0.1),
)

EXO = replace(
    DPO,
    name="exo",
    title="EXO: the reverse KL between pair and labels",
    paper="arXiv 2402.00856",
    formula="L = KL(model's choice between the two || (1 - e, e)), the model's choice being sigmoid(beta h)",
    origin="paper: e 1e-3, beta .1",
    pitfalls=("e must be above 0; at 1e-3 a wrong label costs log 1000.",),
    loss=cell(preferences.exo, beta=0.1, label_smoothing=1e-3),
)

NCA = replace(
    DPO,
    name="nca",
    title="NCA: each response's own reward, by noise contrast",
    paper="arXiv 2402.05369",
    formula="L = -log sigmoid(r_w) - [log sigmoid(-r_w) + log sigmoid(-r_l)] / 2, r = beta u",
    origin="beta .1 as TRL; the paper uses .01",
    pitfalls=("Stops the chosen log-prob from falling; margins grow more slowly than DPO's.",),
    loss=cell(pointwise.nca, beta=0.1),
)

BCO_PAIR = replace(
    DPO,
    name="bco_pair",
    title="BCO on pairs: a classifier of single responses",
    paper="arXiv 2404.04656",
    formula="L = -log sigmoid(beta u_w) - log sigmoid(-beta u_l)",
    origin="beta .1; no reward shift (the unpaired row has it)",
    pitfalls=("Without the shift the decision threshold is u = 0, wherever the rewards lie.",),
    loss=cell(pointwise.bco_pair, beta=0.1),
)

BCO = replace(
    KTO,
    name="bco",
    title="BCO: thumbs up or down as a classifier with a moving threshold",
    paper="arXiv 2404.04656",
    formula="L = -log sigmoid(+-(beta u - shift)), shift = mean of all rewards beta u seen so far",
    origin="paper: beta .1",
    pitfalls=(
        "The shift is carried from step to step (and saved); it is updated once per optimizer step, then used.",
        "Where good and bad answers come from different prompts, the paper weighs the bad ones; that is not here.",
    ),
    loss=cell(kto_bco.bco, beta=0.1),
)

SPPO = replace(
    DPO,
    name="sppo",
    title="SPPO: self-play, log-ratios regressed on win or loss",
    paper="arXiv 2405.00675",
    formula="L = (u_w - 1/(2 beta))^2 + (u_l + 1/(2 beta))^2",
    origin="beta .1 as TRL's sppo_hard; the paper's eta = 1 / beta is 1000",
    pitfalls=(
        "Log-ratios are sums: with beta .1 each response is pulled to +-5 nats whatever its length.",
    ),
    loss=cell(pointwise.sppo, beta=0.1),
)

APO_ZERO = replace(
    DPO,
    name="apo_zero",
    title="APO-zero: chosen up, rejected down",
    paper="arXiv 2408.06266",
    formula="L = 1 - sigmoid(beta u_w) + sigmoid(beta u_l)",
    origin="beta .1",
    pitfalls=(
        "For data better than the model. The loss is bounded: gradients vanish far from the reference.",
    ),
    loss=cell(pointwise.apo_zero, beta=0.1),
)

APO_DOWN = replace(
    APO_ZERO,
    name="apo_down",
    title="APO-down: both down, the rejected more",
    formula="L = sigmoid(beta u_w) + 1 - sigmoid(beta (u_w - u_l))",
    pitfalls=("For data worse than the model: it lowers the chosen log-prob on purpose.",),
    loss=cell(pointwise.apo_down, beta=0.1),
)

APO_ZERO_UNPAIRED = replace(
    KTO,
    name="apo_zero_unpaired",
    title="APO-zero without pairs: KTO with its reference point at 0",
    paper="arXiv 2408.06266",
    formula="L = 1 - sigmoid(beta u) if desirable, sigmoid(beta u) if not",
    origin="beta .1",
    pitfalls=(
        "No mismatched completions are needed, and none correct for a policy that has drifted as a whole.",
    ),
    loss=cell(kto_bco.apo_zero_unpaired, beta=0.1),
)

AOT = replace(
    DPO,
    name="aot",
    title="AOT: margins above the reference's by optimal transport, rank by rank",
    paper="arXiv 2406.05882",
    formula="sort the step's margins under pi and under ref, apart; L = mean of -log sigmoid(beta (a_k - b_k))",
    origin="beta .1",
    pitfalls=("Order statistics of a step: with few pairs per step it is close to DPO.",),
    loss=cell(optimal_transport.aot, beta=0.1),
)

AOT_UNPAIRED = replace(
    AOT,
    name="aot_unpaired",
    title="AOT without pairing: good log-ratios above bad ones, rank by rank",
    formula="sort the step's chosen and rejected log-ratios, apart; L = mean of -log sigmoid(beta (w_k - l_k))",
    pitfalls=(
        "Chosen and rejected responses may come from different prompts; easy prompts then dominate the ranks.",
    ),
    loss=cell(optimal_transport.aot_unpaired, beta=0.1),
)

DISCOPOP = replace(
    DPO,
    name="discopop",
    title="DiscoPOP: a loss a language model discovered",
    paper="arXiv 2406.08414",
    formula="z = beta h, g = sigmoid(z / .05); L = (1 - g) * -log sigmoid(z) + g * e^-z",
    origin="paper: tau .05; beta .1",
    pitfalls=(
        "Not convex: while -2.37 < z / .05 < 1.44 pairs are pushed the WRONG way, and a run from the reference starts "
        "at 0. With beta .1 ours stayed there (win rate .37 against SFT); with beta 3 the band is .06 nats wide, the "
        "first updates leave it, and it learns (.67, five seeds).",
    ),
    loss=cell(preferences.discopop, beta=0.1, tau=0.05),
)

DPO_NORM = replace(
    DPO,
    name="dpo_norm",
    title="Length-normalized DPO",
    paper="arXiv 2411.15124 (Tulu 3)",
    formula="L = -log sigmoid(beta (u_w / n_w - u_l / n_l))",
    origin="Tulu 3: beta 5, lr 5e-7",
    pitfalls=("beta is fifty times DPO's because means are small: do not carry .1 over.",),
    loss=cell(preferences.dpo_mean, beta=5.0),
    defaults={"update.learning_rate": 5e-7},
)

SLIC = replace(
    DPO,
    name="slic",
    title="SLiC-HF's hinge on DPO's log-ratios",
    paper="arXiv 2305.10425",
    formula="L = max(0, 1 - beta h)",
    origin="beta .1 as TRL; the paper has no reference and adds SFT: cpo with cells.loss.use=reference_free_hinge",
    pitfalls=("A pair beyond the margin gives no gradient at all.",),
    loss=cell(preferences.hinge, beta=0.1),
)

F_DPO = replace(
    DPO,
    name="f_dpo",
    title="f-DPO: another divergence than the reverse KL",
    paper="arXiv 2309.16240",
    formula="L = -log sigmoid(beta (phi(u_w) - phi(u_l))), phi = log 2 + log sigmoid(u) (Jensen-Shannon)",
    origin="Jensen-Shannon, the paper's best trade-off; beta .1. cells.loss.divergence: forward_kl and alpha too",
    pitfalls=(
        "forward_kl has e^-u of a whole response: it overflows where the policy has left the rejected one.",
    ),
    loss=cell(preferences.dpo, beta=0.1, divergence="jensen_shannon"),
)

LD_DPO = replace(
    DPO,
    name="ld_dpo",
    title="LD-DPO: what exceeds the shared length counts less",
    paper="arXiv 2409.06411",
    formula="as dpo, with tokens beyond the shorter response's length counted .5",
    origin="tail .5: the middle of the paper's range; beta .1",
    pitfalls=(
        "Only the longer response of a pair changes; tail 1 is DPO, tail 0 truncates.",
        "Its token weight works with every pair loss; lengths that a loss divides by are not weighted.",
    ),
    token_weights=(cell(length_desensitized.length_desensitized, tail=0.5),),
)

WPO = replace(
    DPO,
    name="wpo",
    title="WPO: pairs weighted by how likely the policy is to write them",
    paper="arXiv 2406.11827",
    formula="dpo's loss of a pair times c_w c_l, c = exp(mean over tokens of log pi - log sum_v pi(v)^2), frozen",
    origin="paper: sampled alignment, beta .1 as dpo",
    pitfalls=("Weights do not average 1: the effective learning rate falls with off-policy data.",),
    token_weights=(cell(token_weights.own_likelihood),),
)

MPO = replace(
    DPO,
    name="mpo",
    title="MPO: preference, quality and generation losses together",
    paper="arXiv 2411.10442",
    formula="L = .8 * dpo + .2 * bco_pair + 1 * NLL of the chosen",
    origin="authors' weights .8 / .2 / 1; they add up to 2, not 1",
    pitfalls=("The quality loss is BCO on pairs without its reward shift.",),
    loss=cell(preferences.dpo, beta=0.1, weight=0.8),
    extra_losses=(cell(supervised.chosen_nll), cell(pointwise.bco_pair, beta=0.1, weight=0.2)),
)

ONLINE_DPO = replace(
    DPO,
    name="online_dpo",
    title="Online DPO: the best of the policy's own answers against the worst",
    paper="arXiv 2402.04792",
    formula="a pair is the best and the worst of a prompt's answers of pi, by their rewards; L = dpo",
    origin="TRL: two answers, beta .1, lr 5e-7",
    pitfalls=(
        "Answers of equal reward form no pair: with rewards of 0 and 1, two answers and a policy that is right half "
        "of the time, every second prompt is sampled in vain; raise rollouts.group_size or "
        "rollouts.dynamic_sampling_tries.",
    ),
    source="fresh_pairs",
    defaults={**FRESH, "update.learning_rate": 5e-7},
)

XPO = replace(
    ONLINE_DPO,
    name="xpo",
    title="XPO: online DPO with a bonus for leaving the reference's answers",
    paper="arXiv 2405.21046",
    formula="a pair is one answer of pi and one of ref; L = dpo + 1e-5 * log pi(ref's answer)",
    origin="TRL: alpha 1e-5, beta .1, lr 5e-7",
    pitfalls=(
        "The bonus lowers the reference's answer whichever side won.",
        "A group is two answers, one of them the reference's, which says nothing of other answers of the policy.",
    ),
    extra_losses=(cell(supervised.reference_likelihood, weight=1e-5),),
)

CPO_SIMPO = replace(
    SIMPO,
    name="cpo_simpo",
    title="CPO-SimPO: SimPO plus SFT on the chosen",
    paper="arXiv 2401.08417 and 2405.14734",
    formula="L = simpo + NLL of the chosen responses",
    origin="beta 2.5, margin 1.375 as simpo; NLL weight 1 as cpo",
    pitfalls=(
        "The NLL is a token mean of the step, simpo's loss a mean over pairs: their ratio is the batch's.",
    ),
    extra_losses=(cell(supervised.chosen_nll),),
)

ALPHAPO = replace(
    SIMPO,
    name="alphapo",
    title="AlphaPO: SimPO with a bent reward",
    paper="arXiv 2501.03884",
    formula="r = (1 - e^(-alpha a)) / alpha of the mean log-prob a; L = -log sigmoid(beta (r_w - r_l) - margin)",
    origin="alpha .25, beta 2.5, margin .3: a point of the paper's grid",
    pitfalls=(
        "e^(-alpha a) grows with unlikely responses: one of mean log-prob -20 has r = -590 at alpha .25.",
    ),
    loss=cell(preferences.alphapo, beta=2.5, margin=0.3, alpha=0.25),
)

TPO = replace(
    CPO,
    name="tpo",
    title="TPO: a pair and a gold answer",
    paper="arXiv 2405.16681",
    formula="L = -log sigmoid(beta (log pi_w - log pi_l)) + NLL of the gold answer",
    origin="TRL: beta .01, NLL weight 1",
    pitfalls=("No reference model: what TRL calls reference here is the gold answer.",),
    loss=cell(preferences.reference_free, beta=0.01),
    extra_losses=(cell(supervised.gold_nll),),
)

ROWS = (
    ROBUST_DPO,
    EXO,
    NCA,
    BCO_PAIR,
    BCO,
    SPPO,
    APO_ZERO,
    APO_DOWN,
    APO_ZERO_UNPAIRED,
    AOT,
    AOT_UNPAIRED,
    DISCOPOP,
    DPO_NORM,
    SLIC,
    F_DPO,
    LD_DPO,
    WPO,
    MPO,
    ONLINE_DPO,
    XPO,
    CPO_SIMPO,
    ALPHAPO,
    TPO,
)
