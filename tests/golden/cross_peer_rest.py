"""Cross-peer answers about everything else: KL, mismatch weights, preferences, reward models, values, controllers."""

from __future__ import annotations

from typing import Any

from tests.golden.cases import as_tensor
from tests.golden.cross_peer_policy import Answer, Builder, Values
from tests.golden.swift import ROLLOUT_WEIGHTS

TRL_DPO = "trl.trainer.dpo_trainer.DPOTrainer._compute_loss"


def verl_kl(x: Values, p: Values, e: Values) -> Answer:
    expected = {"kl": e["kl"], "mean_kl": e["mean_kl"], "grad_sum_wrt_logprob": e["grad"]}
    return Answer("core_algos.kl_penalty", x, {"kl_penalty": "low_var_kl"}, expected)


def openrlhf_kl(x: Values, p: Values, e: Values) -> Answer:
    inputs = {"log_probs": x["logprob"], "log_probs_base": x["ref_logprob"]}
    expected = {"kl": e["kl"], "mean_kl": e["mean_kl"], "grad_sum_wrt_log_probs": e["grad"]}
    return Answer(
        "openrlhf.models.utils.compute_approx_kl",
        inputs,
        {"kl_estimator": "k3"},
        expected,
        "float32",
    )


def kl_of(policy: Builder) -> Builder:
    """The KL of a GRPO loss: advantage 0, beta 1, a mean over n tokens; the peer's gradient was multiplied by n."""

    def build(x: Values, p: Values, e: Values) -> Answer:
        rows, width = len(x["logprob"]), len(x["logprob"][0])
        inputs = {
            "log_prob": x["logprob"],
            "old_log_prob": x["logprob"],
            "ref_log_prob": x["ref_logprob"],
        }
        inputs |= {"advantages": [0.0] * rows, "mask": [[1] * width for _ in range(rows)]}
        mean_slope = (as_tensor(e["grad"]) / (rows * width)).tolist()
        return policy(inputs, {"beta": 1.0}, {"loss": e["mean_kl"], "grad": mean_slope})

    return build


def verl_weights(level: str) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        params = {"rollout_is": level, "rollout_is_threshold": p["threshold"]}
        inputs = {"log_ratio": x["log_ratio"], "response_mask": x["mask"]}
        return Answer("rollout_corr_helper.compute_rollout_correction_weights", inputs, params, e)

    return build


def swift_weights(mode: str) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        names = {
            "rollout_importance_sampling_mode": mode,
            "rollout_importance_sampling_threshold": p["threshold"],
        }
        return Answer(ROLLOUT_WEIGHTS, x, names, e)

    return build


def trl_dpo(kind: str) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        params = {"loss_type": [kind], "loss_weights": [1.0], **p}
        return Answer(
            TRL_DPO, x, params, {"loss": e["loss"], "grad_policy_per_token_logps": e["grad"]}
        )

    return build


def openrlhf_dpo(*, ipo: bool, mean: bool = False) -> Builder:
    """Its inputs are one number per response; a token's gradient is its response's (over its length, for means)."""

    def build(x: Values, p: Values, e: Values) -> Answer:
        policy, reference, slope = _per_response(x, e, mean=mean)
        half = len(policy) // 2
        inputs = {"policy_chosen_logps": policy[:half], "policy_rejected_logps": policy[half:]}
        inputs |= {
            "reference_chosen_logps": reference[:half],
            "reference_rejected_logps": reference[half:],
        }
        expected = {
            "loss": e["loss"],
            "grad_policy_chosen": slope[:half],
            "grad_policy_rejected": slope[half:],
        }
        return Answer("openrlhf.models.loss.DPOLoss", inputs, {"ipo": ipo, **p}, expected)

    return build


def trl_kto(x: Values, p: Values, e: Values) -> Answer:
    inputs = {**x, "KL_shift_completion_mask": x["shift_completion_mask"]}
    expected = {"loss": e["loss"], "grad_policy_per_token_logps": e["grad"]}
    function = "trl.trainer.kto_trainer.KTOTrainer._compute_loss"
    return Answer(function, inputs, {"loss_type": "kto", "calculate_KL": True, **p}, expected)


def openrlhf_kto(x: Values, p: Values, e: Values) -> Answer:
    policy, reference, slope = _per_response(x, e, mean=False)
    inputs: dict[str, Any] = {}
    expected = {"loss": e["loss"]}
    for which, wanted in (("chosen", True), ("rejected", False)):
        rows = [row for row, label in enumerate(x["label"]) if label is wanted]
        inputs[f"policy_{which}_logps"] = [policy[row] for row in rows]
        inputs[f"reference_{which}_logps"] = [reference[row] for row in rows]
        expected[f"grad_policy_{which}"] = [slope[row] for row in rows]
    keep = as_tensor(x["shift_completion_mask"])
    for theirs, ours in (("policy_KL_logps", "policy_KL"), ("reference_KL_logps", "ref_KL")):
        inputs[theirs] = (as_tensor(x[f"{ours}_per_token_logps"]) * keep).sum(1).tolist()
    return Answer("openrlhf.models.loss.KTOLoss", inputs, p, expected)


def _per_response(
    x: Values, e: Values, *, mean: bool
) -> tuple[list[float], list[float], list[float]]:
    keep = as_tensor(x["shift_completion_mask"])
    length = keep.sum(1)
    policy, reference = (
        (as_tensor(x[f"{who}_per_token_logps"]) * keep).sum(1) for who in ("policy", "ref")
    )
    slope = (as_tensor(e["grad"]) * keep).sum(1)
    if mean:
        return (policy / length).tolist(), (reference / length).tolist(), slope.tolist()
    return policy.tolist(), reference.tolist(), (slope / length).tolist()


def trl_reward(*, margin: bool) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        half = len(x["chosen"])
        inputs = {"chosen_rewards": x["chosen"], "rejected_rewards": x["rejected"]}
        inputs |= {"margin": x["margin"]} if margin else {}
        expected = {
            "loss": e["loss"],
            "grad_chosen": e["grad"][:half],
            "grad_rejected": e["grad"][half:],
        }
        function = "trl.trainer.reward_trainer.RewardTrainer.compute_loss"
        return Answer(function, inputs, {"center_rewards_coefficient": None}, expected)

    return build


def openrlhf_reward(name: str, *, margin: bool) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        half = len(x["chosen"])
        inputs = {"chosen_reward": x["chosen"], "reject_reward": x["rejected"]}
        inputs |= {"margin": x["margin"]} if margin else {}
        expected = {
            "loss": e["loss"],
            "grad_chosen": e["grad"][:half],
            "grad_reject": e["grad"][half:],
        }
        return Answer(f"openrlhf.models.loss.{name}", inputs, {}, expected)

    return build


def verl_value(x: Values, p: Values, e: Values) -> Answer:
    inputs = {
        "vpreds": x["values"],
        "values": x["old_values"],
        "returns": x["returns"],
        "response_mask": x["mask"],
    }
    params = {"cliprange_value": p["clip"], "loss_agg_mode": "token-mean"}
    return Answer(
        "core_algos.compute_value_loss",
        inputs,
        params,
        {"vf_loss": e["loss"], "grad_vpreds": e["grad"]},
    )


def openrlhf_value(x: Values, p: Values, e: Values) -> Answer:
    inputs = {name: x[name] for name in ("values", "old_values", "returns")} | {
        "action_mask": x["mask"]
    }
    params = {"clip_eps": p["clip"], "token_level_loss": True}
    return Answer(
        "openrlhf.models.loss.ValueLoss",
        inputs,
        params,
        {"loss": e["loss"], "grad_values": e["grad"]},
    )


def controller(function: str) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        params = {
            "type": "adaptive",
            "kl_coef": p["init"],
            "target_kl": p["target"],
            "horizon": p["horizon"],
        }
        return Answer(function, x, params, {"value_after_each_update": e["value"]})

    return build
