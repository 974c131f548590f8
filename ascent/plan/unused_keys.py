"""Which keys have an effect for a row, and why the others have none. One line for each rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ascent.algorithms import Row

Values = Mapping[str, Any]
REWARD_MODEL = (
    "reward_model"  # the name under which the list of rewards refers to model.reward_model
)
# Rewards that need what the trainer has: its models, its tasks, the episode. Others may run in other processes.
OF_THE_TRAINER = frozenset({REWARD_MODEL, "process_reward_model", "verifier", "env"})


class Rule(NamedTuple):
    """`applies` says whether the keys count for this row and these values; `why_not` completes "no effect: ..."."""

    keys: tuple[str, ...]
    applies: Callable[[Row, Values], bool]
    why_not: str


def _samples(row: Row, values: Values) -> bool:
    return row.samples


def _reads(row: Row, values: Values) -> bool:
    return not row.samples


def _has_a_policy_gradient(row: Row, values: Values) -> bool:
    return row.source == "rollouts"


def _needing(extra: str) -> Callable[[Row, Values], bool]:
    return lambda row, values: extra in row.needs


def _second_model(row: Row, values: Values) -> bool:
    return "critic" in row.needs and values["model.critic"] == "separate"


def _answers_anew(row: Row, values: Values) -> bool:
    return "teacher_distribution" in row.needs and values["data.on_policy_fraction"] > 0


def _drops_groups(row: Row, values: Values) -> bool:
    return row.source == "fresh_pairs" or bool(row.filter)


def _scores_with_model(row: Row, values: Values) -> bool:
    return _samples(row, values) and (not values["rewards"] or REWARD_MODEL in reward_names(values))


def _evaluates(row: Row, values: Values) -> bool:
    return values["data.evaluate"] is not None


RULES = (
    Rule(
        (
            *("rollouts.prompts_per_step", "rollouts.group_size", "rollouts.top_p"),
            *("rollouts.dynamic_sampling_tries", "rewards", "env"),
        ),
        _samples,
        "{name} learns from files ({source}), not from rollouts; remove it",
    ),
    Rule(
        (
            "rollouts.truncated_reward",
            "rollouts.max_staleness",
            "rollouts.partial_rollouts",
            "update.target_kl",
        ),
        lambda row, values: _reads(row, values) or _has_a_policy_gradient(row, values),
        "{name} compares two answers (fresh_pairs): it has no critic, and no ratio to who sampled them; remove it",
    ),
    Rule(
        (
            "rollouts.truncated_reward",
            "rollouts.max_staleness",
            "rollouts.partial_rollouts",
            "model.routing_replay",
        ),
        _samples,
        "{name} learns from files ({source}), not from rollouts; remove it",
    ),
    Rule(
        (
            "rollouts.servers",
            "rollouts.weights_folder",
            "rollouts.server_timeout",
            "rollouts.server_concurrency",
        ),
        lambda row, values: (
            _samples(row, values) and values["rollouts.engine"] in ("remote", "vllm")
        ),
        "completions are sampled in this process; remove it, or set rollouts.engine to remote or vllm",
    ),
    Rule(
        ("rollouts.lora_sync",),
        lambda row, values: (
            values["rollouts.engine"] in ("remote", "vllm") and values["model.lora"] is not None
        ),
        "it says how servers get a LoRA adapter; remove it, or set model.lora and rollouts.engine to remote or vllm",
    ),
    Rule(
        ("rollouts.max_new_tokens", "rollouts.temperature", "rollouts.engine"),
        lambda row, values: _samples(row, values) or _answers_anew(row, values),
        "{name} learns from files ({source}), not from rollouts; remove it",
    ),
    Rule(
        ("data.on_policy_fraction",),
        _needing("teacher_distribution"),
        "{name} has no teacher to say what it thinks of other answers than the records'; remove it",
    ),
    Rule(
        ("update.epochs", "update.minibatches", "update.target_kl"),
        _samples,
        "{name} learns from files ({source}); set run.steps and data.batch_size instead",
    ),
    Rule(
        ("data.batch_size", "data.max_tokens"),
        lambda row, values: _reads(row, values) or "pretraining" in row.needs,
        "{name} samples its batches; set rollouts.prompts_per_step, rollouts.group_size or rollouts.max_new_tokens",
    ),
    Rule(
        ("data.epochs",),
        _reads,
        "{name} samples answers to its prompts, which have no epochs; set run.steps",
    ),
    Rule(
        ("run.steps",),
        lambda row, values: not _reads(row, values) or values["data.epochs"] is None,
        "data.epochs gives the length of the run; keep one of them",
    ),
    Rule(
        ("data.train_on",),
        lambda row, values: row.source == "examples",
        "{name} learns from {source}; only what learns from examples chooses the tokens to train on; remove it",
    ),
    Rule(
        ("data.step_separator",),
        _needing("step_head"),
        "{name} trains no process reward model, which judges steps; remove it",
    ),
    Rule(
        ("data.pretraining",),
        _needing("pretraining"),
        "{name} mixes in no pretraining text; add cells.extra_losses.pretraining_nll or remove it",
    ),
    Rule(
        ("model.reference",),
        _needing("reference"),
        "no cell of {name} compares with a reference model; add a KL cell (cells.kl) or remove it",
    ),
    Rule(
        ("run.max_ref_kl",),
        lambda row, values: _samples(row, values) and "reference" in row.needs,
        "{name} knows no reference to be far from; add cells.reward_shaping.kl_penalty or remove it",
    ),
    Rule(
        ("model.teacher",),
        lambda row, values: bool(row.needs & {"teacher", "teacher_distribution"}),
        "no cell of {name} asks a teacher; add cells.token_weights.teacher_agreement to what samples, or remove it",
    ),
    Rule(
        ("model.critic",),
        _needing("critic"),
        "{name} has no critic; use a credit cell that has one, such as gae, or remove it",
    ),
    Rule(
        ("model.critic_from", "update.critic_learning_rate", "update.critic_warmup_steps"),
        _second_model,
        "{name} has no critic with weights of its own (model.critic: separate); remove it",
    ),
    Rule(
        ("model.reward_model",),
        _scores_with_model,
        "{name} does not score with it; add {{use: reward_model}} to rewards, or remove it",
    ),
    Rule(
        ("rollouts.dynamic_sampling_tries",),
        _drops_groups,
        "{name} has no filter that could drop a group; add cells.filter.nonzero_variance or remove it",
    ),
    Rule(
        ("run.evaluate_every", "run.keep_best"),
        _evaluates,
        "there is nothing to evaluate; set data.evaluate or remove it",
    ),
    Rule(
        ("run.best_metric",),
        lambda row, values: _evaluates(row, values) and values["run.keep_best"] > 0,
        "no checkpoint is kept for being good; set data.evaluate and run.keep_best or remove it",
    ),
    Rule(
        ("run.project",),
        lambda row, values: "wandb" in values["run.trackers"],
        "nothing is sent to Weights & Biases; add wandb to run.trackers or remove it",
    ),
    Rule(
        ("model.lora_alpha",),
        lambda row, values: values["model.lora"] is not None,
        "all weights are trained; set model.lora or remove it",
    ),
    Rule(
        ("data.centering_data",),
        _needing("score_head"),
        "{name} trains no reward model, whose scores they would center; remove it",
    ),
    Rule(
        ("data.mix",),
        _reads,
        "{name} samples answers to the prompts of data.train alone; remove it",
    ),
)


def unused_keys(row: Row, values: Values) -> dict[str, str]:
    """The keys among `values` that this row ignores, each with the reason and what to do."""
    idle: dict[str, str] = {}
    for rule in RULES:
        if not rule.applies(row, values):
            why_not = rule.why_not.format(name=row.name, source=row.source)
            idle |= {key: why_not for key in values if key.startswith(rule.keys)}
    return idle


def reward_names(values: Values) -> list[str]:
    return [reward["use"] for reward in values["rewards"]]
