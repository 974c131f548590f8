"""TRL 1.16.0 preference and reward-model losses.

TRL's conventions: rows 0..N-1 are chosen, N..2N-1 rejected; `sigmoid` ignores label smoothing; IPO uses means; DPO and
KTO sum log-probs without a mask, so their gradients outside it mean nothing; ORPO's NLL covers the prompt and its odds
are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell, cell
from ascent.losses import (
    kto_bco,
    length_desensitized,
    optimal_transport,
    pointwise,
    preferences,
    ranking,
    supervised,
    token_weights,
)
from ascent.losses.loss import Terms, summed
from ascent.losses.objective import file_terms, mismatched_score, step_statistics, with_sums
from ascent.maths import masked
from ascent.maths.logprobs import next_token_logprobs
from ascent.maths.metrics import Accumulator
from tests.golden.cases import Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import Rows, gradient, mean_of, reduced


def dpo(case: Case) -> Ours:
    """One loss or a weighted list of them on the same pairs."""
    case.peer_ignores("discopop_tau", "f_alpha_divergence_coef", "label_smoothing")
    mask_BL, logprobs = case.flags("shift_completion_mask"), case.leaf("policy_per_token_logps")
    rows = Rows(mask_BL)
    known = rows.known(
        logprobs_T=logprobs, ref_logprobs_T=case.tensor("ref_per_token_logps")
    ) | pairs(rows.count)
    focuses: tuple[Cell, ...] = ()
    if case.params.get("use_weighting"):
        known["log_collision_T"] = rows.pack(case.tensor("log_sum_sq_probs"))
        focuses = (cell(token_weights.own_likelihood),)
    if case.params.get("ld_alpha") is not None:
        focuses += (cell(length_desensitized.length_desensitized, tail=case.params["ld_alpha"]),)
    terms = [_dpo_term(case, kind, known, focuses) for kind in case.params["loss_type"]]
    loss = sum(
        weight * reduced(term)
        for weight, term in zip(case.params["loss_weights"], terms, strict=True)
    )
    sums = {
        name: rows.segments.sum(masked.kept(known[f"{ours}_T"], rows.loss_mask_T))
        for name, ours in (("policy_logps", "logprobs"), ("ref_logps", "ref_logprobs"))
    }
    metrics = {}
    if case.params["loss_type"][0] not in (
        "ipo",
        "sft",
    ):  # TRL logs sums for ipo, we log what the loss uses
        metrics = _pair_metrics(next(iter(terms[0].values())).metrics)
    return Ours(
        {"loss": loss, "grad_policy_per_token_logps": gradient(loss, logprobs), **sums},
        metrics,
        where={"grad_policy_per_token_logps": mask_BL},
    )


def _dpo_term(case: Case, kind: str, known: dict[str, Any], focuses: tuple[Cell, ...]) -> Terms:
    """One of the losses; statistics of the whole batch first, as in training."""
    made = _dpo_cell(case, kind)
    return file_terms(
        {**known, **step_statistics(known, [made, *focuses])}, loss=made, token_weights=focuses
    )


def _divergence(case: Case) -> str:
    return str(case.params.get("f_divergence_type", "reverse_kl"))


def _dpo_cell(case: Case, kind: str) -> Cell:
    """TRL reads label smoothing in four of its losses; `sigmoid` is not one of them."""
    beta, smoothing = case.params["beta"], case.params["label_smoothing"]
    name = {"js_divergence": "jensen_shannon", "alpha_divergence": "alpha"}
    divergence = _divergence(case)
    bent: dict[str, Any] = {"beta": beta, "divergence": name.get(divergence, divergence)}
    bent |= (
        {"alpha": case.params["f_alpha_divergence_coef"]}
        if divergence == "alpha_divergence"
        else {}
    )
    made: dict[str, Callable[[], Cell]] = {
        "sft": lambda: cell(supervised.chosen_nll),
        "sigmoid": lambda: cell(preferences.dpo, **bent),
        "sigmoid_norm": lambda: cell(preferences.dpo_mean, **bent),
        "robust": lambda: cell(preferences.robust, label_smoothing=smoothing, **bent),
        "exo_pair": lambda: cell(preferences.exo, label_smoothing=smoothing, **bent),
        "discopop": lambda: cell(preferences.discopop, tau=case.params["discopop_tau"], **bent),
        "hinge": lambda: cell(preferences.hinge, **bent),
        "ipo": lambda: cell(preferences.ipo_mean, **bent),
        "nca_pair": lambda: cell(pointwise.nca, beta=beta),
        "bco_pair": lambda: cell(pointwise.bco_pair, beta=beta),
        "sppo_hard": lambda: cell(pointwise.sppo, beta=beta),
        "apo_zero": lambda: cell(pointwise.apo_zero, beta=beta),
        "apo_down": lambda: cell(pointwise.apo_down, beta=beta),
        "aot": lambda: cell(optimal_transport.aot, beta=beta, label_smoothing=smoothing),
        "aot_unpaired": lambda: cell(
            optimal_transport.aot_unpaired, beta=beta, label_smoothing=smoothing
        ),
    }
    return made[kind]()


def kto(case: Case) -> Ours:
    """apo_zero_unpaired is KTO whose reference point is held at 0; `calculate_KL` says which of the two it is."""
    mask_BL, logprobs = case.flags("shift_completion_mask"), case.leaf("policy_per_token_logps")
    rows, point = Rows(mask_BL), torch.zeros((), dtype=case.dtype)
    case.peer_ignores("loss_type")
    if case.params["calculate_KL"]:
        other = Rows(case.flags("KL_shift_completion_mask"))
        policy_T, ref_logprobs_T = (
            other.pack(case.tensor(f"{who}_KL_per_token_logps")) for who in ("policy", "ref")
        )
        score, scored = mismatched_score(
            policy_T, ref_logprobs_T, other.loss_mask_T, other.segments
        )
        point = score / (other.count if case.follows(Convention.EMPTY_ROWS) else scored)
    else:
        case.peer_ignores(
            "policy_KL_per_token_logps", "ref_KL_per_token_logps", "KL_shift_completion_mask"
        )
    known = rows.known(logprobs_T=logprobs, ref_logprobs_T=case.tensor("ref_per_token_logps"))
    known |= {"desirable_B": case.flags("label"), "mismatched_score": point}
    numbers = {
        name: case.params[name] for name in ("beta", "desirable_weight", "undesirable_weight")
    }
    made = kto_bco.kto if case.params["calculate_KL"] else kto_bco.apo_zero_unpaired
    terms = file_terms(known, loss=cell(made, **numbers))
    loss, found = reduced(terms), terms[made.__name__].metrics
    metrics = {
        "rewards/chosen": found["preference/reward_desirable"].value(),
        "rewards/rejected": found["preference/reward_undesirable"].value(),
    }
    metrics["rewards/margins"] = metrics["rewards/chosen"] - metrics["rewards/rejected"]
    return Ours(
        {
            "loss": loss,
            "kl": point.clamp(min=0),
            "grad_policy_per_token_logps": gradient(loss, logprobs),
        },
        metrics,
        where={"grad_policy_per_token_logps": mask_BL},
    )


def cpo(case: Case) -> Ours:
    """A loss without reference (CPO, SimPO) plus the chosen responses' NLL."""
    logits, labels = case.leaf("logits"), case.tensor("labels").long()
    rows, known = _from_logits(case, logits, case.flags("attention_mask"), labels != -100)
    terms = {
        **file_terms(_bent(case, known), loss=_free_cell(case, case.params["simpo_gamma"])),
        **file_terms(known, loss=cell(supervised.chosen_nll)),
    }
    loss = reduced(terms, {"chosen_nll": case.params["cpo_alpha"]})
    metrics = _pair_metrics(
        next(iter(terms.values())).metrics, of_means=case.params["loss_type"] in MEANS
    )
    if case.params["cpo_alpha"]:
        metrics["nll_loss"] = float(
            (terms["chosen_nll"].numerator / terms["chosen_nll"].denominator).detach()
        )
    sums = rows.segments.sum(masked.kept(known["logprobs_T"], known["loss_mask_T"]))
    return Ours(
        {"loss": loss, "grad_logits": gradient(loss, logits), "summed_logps": sums}, metrics
    )


def _bent(case: Case, known: dict[str, Any]) -> dict[str, Any]:
    """AlphaPO's reward in the place of the log-prob that a loss reads; with simpo that is a loss of ours."""
    alpha, kind = case.params.get("alpha", 0.0), case.params["loss_type"]
    if not alpha or kind == "simpo" or not case.follows(Convention.BENT_OTHERS):
        return known
    sums = with_sums(known)
    length_B = sums["lengths_B"] if kind in MEANS else torch.ones_like(sums["lengths_B"])
    bent_B = preferences.bent(sums["logprobs_B"] / length_B, alpha) * length_B
    return {name: x for name, x in sums.items() if name != "logprobs_T"} | {"logprobs_B": bent_B}


def tpo(case: Case) -> Ours:
    """Pairs as in CPO; the NLL is that of a third, gold response (none is stacked when its weight is 0)."""
    logits, ids = case.leaf("logits"), case.tensor("input_ids").long()
    weight = case.params["tpo_alpha"]
    branch = ids.shape[0] // (3 if weight else 2)
    completion = case.flags("completion_mask")
    every = torch.ones_like(completion)
    rows, known = _from_logits(case, logits, every, completion)
    known |= pairs(2 * branch)
    loss_term = file_terms(known, loss=_free_cell(case, case.params["tpo_l_gamma"]))
    loss = reduced(loss_term)
    if weight:
        known["gold_B"] = torch.arange(rows.count) >= 2 * branch
        loss = loss + weight * mean_of(summed(cell(supervised.gold_nll)(known)))
    metrics = _pair_metrics(
        next(iter(loss_term.values())).metrics, of_means=case.params["loss_type"] in MEANS
    )
    return Ours({"loss": loss, "grad_logits": gradient(loss, logits)}, metrics)


def orpo(case: Case) -> Ours:
    """The NLL runs over prompt and response of the chosen rows, the odds over responses."""
    logits, labels = case.leaf("logits"), case.tensor("labels").long()
    attended = case.flags("attention_mask")
    rows, known = _from_logits(case, logits, attended, labels != -100)
    odds = file_terms(known, loss=cell(preferences.odds_ratio))
    _, text = (
        _from_logits(case, logits, attended, attended)
        if case.follows(Convention.ORPO_PROMPT)
        else (rows, known)
    )
    nll = file_terms(text, loss=cell(supervised.chosen_nll))
    beta = case.params["beta"]
    loss = reduced(nll) + beta * reduced(odds)
    found = _pair_metrics(odds["odds_ratio"].metrics, of_means=True)
    metrics = {name: value * (beta if name in REWARDS else 1) for name, value in found.items()}
    metrics |= {"log_odds_ratio": -reduced(odds), "nll_loss": reduced(nll)}
    sums = rows.segments.sum(masked.kept(known["logprobs_T"], known["loss_mask_T"]))
    return Ours(
        {"loss": loss, "grad_logits": gradient(loss, logits), "summed_logps": sums}, metrics
    )


def reward_model(case: Case) -> Ours:
    chosen, rejected = case.leaf("chosen_rewards"), case.leaf("rejected_rewards")
    known = {"scores_B": torch.cat([chosen, rejected]), **pairs(2 * chosen.numel())}
    if case.has("margin"):
        known["margins_P"] = case.tensor("margin")
    terms = file_terms(
        known,
        loss=cell(
            ranking.bradley_terry, centering=case.params["center_rewards_coefficient"] or 0.0
        ),
    )
    loss, found = reduced(terms), terms["bradley_terry"].metrics
    metrics = {
        "accuracy": found["preference/accuracy"],
        "margin": found["preference/margin"],
        "mean_reward": found["preference/score"],
    }
    return Ours(
        {
            "loss": loss,
            "grad_chosen": gradient(loss, chosen),
            "grad_rejected": gradient(loss, rejected),
        },
        {name: tally.value() for name, tally in metrics.items()},
    )


def pairs(count: int) -> dict[str, Tensor]:
    """The first half of the rows is chosen, the second rejected."""
    return {"chosen_P": torch.arange(count // 2), "rejected_P": torch.arange(count // 2, count)}


def _free_cell(case: Case, margin: float) -> Cell:
    """Losses without a reference: no case has one to give."""
    kind, beta, smoothing = (
        case.params["loss_type"],
        case.params["beta"],
        case.params["label_smoothing"],
    )
    if kind == "simpo" and case.params.get("alpha", 0.0):
        alpha = case.params["alpha"]
        return cell(
            preferences.alphapo, beta=beta, margin=margin, alpha=alpha, label_smoothing=smoothing
        )
    if kind in ("simpo", "tpo-l"):
        return cell(preferences.simpo, beta=beta, margin=margin, label_smoothing=smoothing)
    if kind == "sigmoid":
        return cell(preferences.reference_free, beta=beta, label_smoothing=smoothing)
    free = {"hinge": preferences.reference_free_hinge, "ipo": preferences.reference_free_ipo}
    return cell(free[kind], beta=beta)


def _from_logits(
    case: Case, logits: Tensor, attended: Tensor, scored: Tensor
) -> tuple[Rows, dict[str, Any]]:
    """Log-probs of each row's tokens; the first token of a row is predicted by nothing."""
    rows, ids = Rows(attended), case.tensor("input_ids").long()
    logprobs_T = next_token_logprobs(rows.pack(logits), rows.pack(ids), rows.segments)
    first_T = torch.zeros_like(rows.loss_mask_T)
    first_T[rows.segments.offsets[:-1][rows.segments.lengths_B > 0]] = True
    known = rows.known() | pairs(rows.count)
    known |= {"logprobs_T": logprobs_T, "loss_mask_T": rows.pack(scored) & ~first_T}
    return rows, known


REWARDS = {
    "rewards/chosen": "preference/reward_chosen",
    "rewards/rejected": "preference/reward_rejected",
    "rewards/margins": "preference/margin",
}
SUMS = {
    "logps/chosen": "preference/logprobs_chosen",
    "logps/rejected": "preference/logprobs_rejected",
}
MEANS = ("ipo", "simpo", "tpo-l")


def _pair_metrics(found: Mapping[str, Accumulator], *, of_means: bool = False) -> dict[str, float]:
    """`logps` are sums in ours; where a loss works on means, TRL logs the means under the same name."""
    names = {**REWARDS, "rewards/accuracies": "preference/accuracy", **({} if of_means else SUMS)}
    return {theirs: found[ours].value() for theirs, ours in names.items()}


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "trl.trainer.dpo_trainer.DPOTrainer._compute_loss": dpo,
    "trl.trainer.kto_trainer.KTOTrainer._compute_loss": kto,
    "trl.experimental.cpo.cpo_trainer.CPOTrainer.get_batch_loss_metrics": cpo,
    "trl.experimental.orpo.orpo_trainer.ORPOTrainer.get_batch_loss_metrics": orpo,
    "trl.experimental.tpo.tpo_trainer.TPOTrainer._compute_loss": tpo,
    "trl.trainer.reward_trainer.RewardTrainer.compute_loss": reward_model,
}
