"""Cross-peer answers about policies: losses and advantages, put under the names of each peer's own adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ascent.losses import rollout_correction
from tests.golden.cases import as_tensor

Values = Mapping[str, Any]


class Answer(NamedTuple):
    """One peer's answer under the names of that peer's adapter."""

    function: str
    inputs: Values
    params: Values
    expected: Values
    dtype: str = "float64"
    where: str | None = None


Builder = Callable[[Values, Values, Values], Answer]

TRL_GRPO = "trl.trainer.grpo_trainer.GRPOTrainer._compute_loss"
SWIFT_GRPO = "swift.rlhf_trainers.grpo_trainer.GRPOTrainer._compute_loss_and_metrics"
OPENRLHF_ADVANTAGES = "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker.compute_advantages_and_returns"


def _radii(options: Values) -> tuple[float, float]:
    both = options.get("clip", options.get("eps", 0.2))
    return options.get("eps_low", both), options.get("eps_high", both)


def verl(
    mode: str,
    aggregation: str,
    *,
    cap: float = 3.0,
    low: float | None = None,
    high: float | None = None,
) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        lower, upper = _radii(p)
        inputs = {name: x[name] for name in ("log_prob", "old_log_prob", "advantages")} | {
            "response_mask": x["mask"]
        }
        params = {"loss_mode": mode, "loss_agg_mode": aggregation, "clip_ratio_c": cap}
        params |= {
            "clip_ratio_low": lower if low is None else low,
            "clip_ratio_high": upper if high is None else high,
        }
        params |= {name: p[name] for name in ("tau_pos", "tau_neg") if name in p}
        return Answer(
            f"core_algos.compute_policy_loss_{mode}",
            inputs,
            params,
            {"loss": e["loss"], "grad_log_prob": e["grad"]},
        )

    return build


def trl(
    kind: str, *, level: str = "token", high: float | None = None, longest: int | None = None
) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        lower, upper = _radii(p)
        inputs = _grpo_inputs(x)
        if "rollout_log_prob" in x:
            inputs["importance_sampling_ratio"] = _truncated(x, p["threshold"])
        params = {
            "loss_type": kind,
            "importance_sampling_level": level,
            "epsilon_low": lower,
            "epsilon_high": upper if high is None else high,
            "beta": p.get("beta", 0.0),
            "use_bias_correction_kl": False,
            "max_completion_length": longest or len(x["mask"][0]),
            "num_items_in_batch": _tokens(x),
            "off_policy_mask_threshold": p.get("threshold")
            if "rollout_log_prob" not in x
            else None,
        }
        function = TRL_GRPO
        if kind == "sapo":
            params |= {f"sapo_temperature_{side}": p[f"tau_{side}"] for side in ("pos", "neg")}
        if kind == "gmpo":
            function = "trl.experimental.gmpo.gmpo_trainer.GMPOTrainer._compute_loss"
        return Answer(
            function, inputs, params, {"loss": e["loss"], "grad_per_token_logps": e["grad"]}
        )

    return build


def swift(kind: str, *, level: str = "token", high: float | None = None) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        lower, upper = _radii(p)
        weighted = "rollout_log_prob" in x
        inputs = _grpo_inputs(x) | (
            {"rollout_per_token_logps": x["rollout_log_prob"]} if weighted else {}
        )
        params = {
            "loss_type": kind,
            "importance_sampling_level": level,
            "epsilon_low": lower,
            "epsilon_high": upper if high is None else high,
            "delta": None,
            "beta": p.get("beta", 0.0),
            "rollout_importance_sampling_mode": "token_truncate" if weighted else None,
            "rollout_importance_sampling_threshold": p["threshold"] if weighted else None,
            "off_policy_sequence_mask_delta": None if weighted else p.get("threshold"),
            "overlong_filter": False,
            "max_completion_length": len(x["mask"][0]),
            "num_items_in_batch": _tokens(x),
            "num_processes": 1,
            "current_gradient_accumulation_steps": 1,
        }
        params |= {name: p[name] for name in ("tau_pos", "tau_neg") if name in p}
        return Answer(
            SWIFT_GRPO, inputs, params, {"loss": e["loss"], "grad_per_token_logps": e["grad"]}
        )

    return build


def openrlhf(kind: str, *, per_token: bool, cap: float | None = None) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        lower, upper = _radii(p)
        inputs = {
            "log_probs": x["log_prob"],
            "old_log_probs": x["old_log_prob"],
            "advantages": x["advantages"],
        }
        params = {
            "clip_eps_low": lower,
            "clip_eps_high": upper,
            "dual_clip": cap,
            "token_level_loss": per_token,
        }
        params |= {"policy_loss_type": kind, "enable_vllm_is_correction": False}
        expected = {"loss": e["loss"], "grad_log_probs": e["grad"]}
        return Answer(
            "openrlhf.models.loss.PolicyLoss", inputs | {"action_mask": x["mask"]}, params, expected
        )

    return build


def _grpo_inputs(x: Values) -> dict[str, Any]:
    names = {
        "log_prob": "per_token_logps",
        "old_log_prob": "old_per_token_logps",
        "advantages": "advantages",
    }
    names |= {"mask": "completion_mask", "ref_log_prob": "ref_per_token_logps"}
    return {theirs: x[ours] for ours, theirs in names.items() if ours in x}


def _tokens(x: Values) -> int:
    return sum(map(sum, x["mask"]))


def _truncated(x: Values, cap: float) -> list[list[float]]:
    old, sampled, keep = (
        as_tensor(x[name]) for name in ("old_log_prob", "rollout_log_prob", "mask")
    )
    return rollout_correction.token_truncate(old, sampled, keep > 0, cap=cap).weight_T.tolist()


def verl_advantage(
    estimator: str, *, std: bool | None = None, eps: float | None = None, dtype: str = "float64"
) -> Builder:
    """Sequence estimators; a score per row, or one row of tokens where the topic gives a mask."""

    def build(x: Values, p: Values, e: Values) -> Answer:
        mask = x.get("mask") or [[1] for _ in x["rewards"]]
        scores = [
            [reward] + [0.0] * (len(row) - 1)
            for reward, row in zip(x["rewards"], mask, strict=True)
        ]
        params = (
            {}
            if std is None
            else {"norm_adv_by_std_in_grpo": std} | ({} if eps is None else {"epsilon": eps})
        )
        found = e["advantages"] if "mask" in x else [[value] for value in e["advantages"]]
        inputs = {"token_level_rewards": scores, "response_mask": mask, "index": x["index"]}
        return Answer(
            f"core_algos.compute_{estimator}_outcome_advantage",
            inputs,
            params,
            {"advantages": found},
            dtype,
        )

    return build


def openrlhf_advantage(estimator: str) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        mask = x.get("mask") or [[1] for _ in x["rewards"]]
        rewards, kl = x.get("rewards"), [[0.0] * len(row) for row in mask]
        beta = 0.0
        if (
            "token_level_rewards" in x
        ):  # token rewards come in through its KL term: -1 times minus the reward
            rewards, beta = [0.0] * len(mask), 1.0
            kl = [[-reward for reward in row] for row in x["token_level_rewards"]]
        inputs = {"rewards": rewards, "action_mask": mask, "kl": kl, "values": x.get("values")}
        inputs |= {"response_length": [sum(row) for row in mask], "truncated": [0] * len(mask)}
        params = {
            "estimator": estimator,
            "n_samples_per_prompt": p.get("num_generations", 1),
            "gamma": p.get("gamma", 1.0),
            "lambd": p.get("lam", 1.0),
            "kl_coef": beta,
            "reward_clip_range": None,
            "no_std_norm": False,
            "overlong_buffer_len": None,
            "max_new_tokens": len(mask[0]),
            "stop_properly_penalty_coef": None,
        }
        expected = {name: e[name] for name in ("advantages", "returns") if e.get(name) is not None}
        if "mask" not in x:
            expected = {name: [[value] for value in values] for name, values in expected.items()}
        exact = estimator in ("rloo", "group_norm")
        dtype = "float64" if exact else "float64 (statistics in float32)"
        return Answer(OPENRLHF_ADVANTAGES, inputs, params, expected, dtype, "action_mask")

    return build


def trl_advantage(estimator: str) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        mask = [[1] for _ in x["rewards"]]
        inputs = {
            "rewards_per_func": [[reward] for reward in x["rewards"]],
            "completion_mask": mask,
        }
        params = {"num_generations": p["num_generations"], "reward_weights": [1.0]}
        if estimator == "grpo":
            params |= {
                "scale_rewards": "group",
                "multi_objective_aggregation": "sum_then_normalize",
            }
        else:
            params |= {"reward_clip_range": None, "beta": 0.0, "normalize_advantages": False}
            inputs["old_per_token_logps"] = [[0.0] for _ in x["rewards"]]
        trainer = f"trl.trainer.{estimator}_trainer.{estimator.upper()}Trainer"
        return Answer(
            f"{trainer}._generate_and_score_completions",
            inputs,
            params,
            {"advantages": e["advantages"]},
        )

    return build


def swift_advantage(estimator: str, scale: str, *, ragged: bool = False) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        parts = x.get("reward_components") or [[reward] for reward in x["rewards"]]
        inputs = {"rewards_per_func": parts, "reward_weights": p.get("weights", [1.0])}
        params = {"advantage_estimator": estimator, "scale_rewards": scale}
        function = "swift.rl_core.advantage.compute_advantages"
        if ragged:
            function += "_dynamic"
            inputs |= {"prompt_ids": x["index"], "request_ids": list(range(len(parts)))}
        else:
            params |= {"num_generations": p["num_generations"], "kl_in_reward": False}
        per_row = e["advantages"]
        if isinstance(per_row[0], list):  # a row's advantage stands on each of its tokens
            per_row = [max(row, key=abs) for row in per_row]
        return Answer(function, inputs, params, {"advantages": per_row})

    return build


def verl_gdpo(x: Values, p: Values, e: Values) -> Answer:
    names = [f"part{number}" for number in range(len(p["weights"]))]
    columns = dict(zip(names, map(list, zip(*x["reward_components"], strict=True)), strict=True))
    params = {"gdpo_reward_keys": names, "gdpo_reward_weights": p["weights"]}
    found = [
        [value * keep for keep in row]
        for value, row in zip(e["advantages"], x["mask"], strict=True)
    ]
    inputs = {"reward_components": columns, "response_mask": x["mask"], "index": x["index"]}
    return Answer(
        "core_algos.compute_gdpo_outcome_advantage",
        inputs,
        params,
        {"advantages": found},
        "float32",
    )


def verl_tokens(estimator: str, options: tuple[str, ...]) -> Builder:
    def build(x: Values, p: Values, e: Values) -> Answer:
        inputs = {name: x[name] for name in ("token_level_rewards", "values") if name in x}
        params = {name: p[name] for name in options}
        return Answer(
            f"core_algos.compute_{estimator}",
            inputs | {"response_mask": x["mask"]},
            params,
            e,
            where="response_mask",
        )

    return build
