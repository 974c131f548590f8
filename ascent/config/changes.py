"""Which keys of a recipe may change on resume, and why the others may not.

A change applies from the next step on. A key may change unless the saved state contradicts it or the change has no
effect. The names of inputs (models, datasets, rewards) may change; `ascent.setup.fingerprints` compares their content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ascent.config.heldout import heldout_share
from ascent.config.schema import Cells, Config
from ascent.config.validate import format_value

# Keys that name a model, and keys that name data.
MODELS = (
    "model.policy",
    "model.reference",
    "model.critic_from",
    "model.reward_model",
    "model.teacher",
)
DATA = ("data.train", "data.evaluate", "data.pretraining", "data.centering_data")

_STATE = "the saved weights and optimizer state belong to the old value"
_RECORDS = "it changes the set of records, which the saved position in the data counts"
_UPDATES = "it changes the number of updates per step, over which the learning rate is scheduled"
_ANOTHER = "another function makes it another algorithm"
_BUFFERED = (
    "the checkpoint holds rollouts that were sampled with the old value (rollouts.max_staleness)"
)
_PARTIAL = "the checkpoint holds unfinished rollouts that were begun with the old value (rollouts.partial_rollouts)"
_CONTROLLED = "the KL controller has changed the coefficient since the start"

# Every key, with the reason why it cannot change; empty where it can.
ON_RESUME: dict[str, str] = {
    "algorithm": "the saved state belongs to the old algorithm",
    "seed": "all random numbers so far depend on the old one",
    **dict.fromkeys((*MODELS, *DATA), ""),
    "model.critic": _STATE,
    "model.dtype": _STATE,
    "model.arithmetic": "",
    "model.gradient_checkpointing": "",
    "model.routing_replay": "",
    "model.lora": _STATE,
    "model.lora_alpha": "the saved adapter was trained at the old scale",
    "model.quantize": "the saved adapter was trained on the old base weights",
    "model.trust_remote_code": "",
    "data.mix": "the saved position in the data belongs to the old mixture",
    "data.on_policy_fraction": "",
    "data.epochs": "a run folder holds run.steps in its place; change that",
    "data.batch_size": "the saved position in the data counts steps of the old size",
    "data.max_tokens": _RECORDS,
    "data.max_prompt_tokens": _RECORDS,
    "data.prompt_overflow": _RECORDS,
    "data.invalid_rows": _RECORDS,
    "data.train_on": "the records were rendered with the old one",
    "data.step_separator": "the records were rendered with the old one",
    "data.shuffle": "the saved position in the data belongs to the old order",
    "rewards": "",
    "env": "",
    "rollouts.prompts_per_step": "",
    "rollouts.group_size": "",
    "rollouts.max_new_tokens": "",
    "rollouts.temperature": "",
    "rollouts.top_p": "",
    "rollouts.truncated_reward": "",
    "rollouts.dynamic_sampling_tries": "",
    "rollouts.engine": "",
    "rollouts.servers": "",
    "rollouts.weights_folder": "",
    "rollouts.lora_sync": "",
    "rollouts.server_timeout": "",
    "rollouts.server_concurrency": "",
    "rollouts.max_staleness": "the checkpoint holds a rollout buffer of the old size",
    "rollouts.partial_rollouts": "the checkpoint holds rollouts of the old kind",
    "update.learning_rate": "",
    "update.critic_learning_rate": "",
    "update.critic_warmup_steps": "it concerns the first steps, and the learning rate is scheduled after them",
    "update.weight_decay": "",
    "update.adam_beta1": "",
    "update.adam_beta2": "",
    "update.adam_eps": "",
    "update.optimizer_offload": "",
    "update.max_grad_norm": "",
    "update.schedule": "",
    "update.warmup_steps": "",
    "update.epochs": _UPDATES,
    "update.minibatches": _UPDATES,
    "update.target_kl": "",
    "update.tokens_per_microbatch": "",
    **{
        f"cells.{slot}": "" for slot in Cells.model_fields
    },  # their parameters; another function is refused below
    "run.steps": "",
    "run.save_every": "",
    "run.evaluate_every": "",
    "run.max_ref_kl": "",
    "run.keep": "",
    "run.keep_best": "",
    "run.best_metric": "the saved checkpoints are scored by the old metric",
    "run.trackers": "",
    "run.project": "",
}
BUFFERED_KEYS = (
    "rollouts.temperature",
    "rollouts.engine",
    "model.routing_replay",
    "model.arithmetic",
)
PARTIAL_KEYS = tuple(
    f"rollouts.{name}" for name in ("prompts_per_step", "group_size", "max_new_tokens", "top_p")
)
CONTROLLED_KEYS = ("cells.kl.weight", "cells.reward_shaping.kl_penalty.beta")
# What an evaluation depends on besides the policy: by sampled answers, and by held-out records.
_SAMPLED_BY = ("data.evaluate", "rewards", "env", "model.reward_model", "rollouts.max_new_tokens")
_LOSS_BY = ("data.evaluate", "algorithm", "cells", "model.reference", "model.teacher")


class NotSet:
    """The value of a key that is not set."""

    def __repr__(self) -> str:
        return "(not set)"


NOT_SET = NotSet()
Flat = dict[str, Any]


class Change(NamedTuple):
    """A key of a recipe with its old and new value."""

    key: str
    was: Any
    now: Any

    def describe(self, step: int) -> str:
        return f"{self.key} {_format(self.was)} -> {_format(self.now)}, from step {step} on"

    def record(self) -> dict[str, Any]:
        """As JSON, without values that are not set."""
        found = {"key": self.key, "was": self.was, "now": self.now}
        return {name: value for name, value in found.items() if value is not NOT_SET}


def _format(value: Any) -> str:
    return repr(value) if value is NOT_SET else format_value(value)


def flatten(config: Config) -> Flat:
    """Every set value by its dotted key: update.learning_rate, rewards[0].weight, cells.policy_loss.high."""
    return dict(flatten_mapping(config.model_dump(mode="json", exclude_unset=True)))


def flatten_mapping(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested mappings, and of lists of mappings."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from flatten_mapping(each, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for place, each in enumerate(value):
            yield from flatten_mapping(each, f"{key}[{place}]")
    else:
        yield key, value


def find_changes(was: Flat, now: Flat) -> list[Change]:
    """The differences of two recipes."""
    keys = dict.fromkeys((*was, *now))
    pairs = [Change(key, was.get(key, NOT_SET), now.get(key, NOT_SET)) for key in keys]
    return [each for each in pairs if each.was != each.now]


def check_changes(found: Sequence[Change], was: Flat, file: str) -> None:
    """ValueError with a line for each change that is not possible on resume; `file` holds the recipe."""
    lines = [
        f"{each.key} {_format(each.was)} -> {_format(each.now)} cannot be changed on resume: {why}"
        for each in found
        if (why := refusal_reason(each, was))
    ]
    if lines:
        fix = (
            f"restore it in {file}, or start a new run with the last checkpoint as its model.policy"
        )
        raise ValueError("\n".join([*lines, fix]))


def refusal_reason(change: Change, was: Flat) -> str:
    """Why a change of the recipe `was` is refused; empty where it is allowed."""
    key = change.key
    if key == "algorithm" and _is_moved_file(change.was, change.now):
        return ""
    if key.startswith("cells.") and (NOT_SET in (change.was, change.now) or key.endswith(".use")):
        return _ANOTHER
    if key == "run.best_metric" and NOT_SET in (change.was, change.now):
        return ""  # no checkpoint is kept by score before or after
    if (
        key.startswith("data.mix[")
        and key.endswith(".use")
        and NOT_SET not in (change.was, change.now)
    ):
        return ""
    if key == "data.evaluate" and any(
        isinstance(each, str) and heldout_share(each) for each in change[1:]
    ):
        return _RECORDS
    if key in BUFFERED_KEYS and was.get("rollouts.max_staleness"):
        return _BUFFERED
    if key in PARTIAL_KEYS and was.get("rollouts.partial_rollouts"):
        return _PARTIAL
    if key in CONTROLLED_KEYS and was.get("cells.kl_controller.use", "fixed") != "fixed":
        return _CONTROLLED
    return ON_RESUME[_table_key(key)]


def evaluated_since(
    lines: Iterable[Mapping[str, Any]], recipe: Mapping[str, Any], *, samples: bool
) -> int:
    """The first step whose evaluation can be compared with those of `recipe`; `lines` are those of changes.jsonl.

    The name of an input may change; what counts is its content, which has a line of its own.
    """
    keys: tuple[str, ...] = _SAMPLED_BY if samples else _LOSS_BY
    if heldout_share(recipe.get("data.evaluate")) is not None:
        keys += ("data.train",)
    names = (*MODELS, *DATA, "algorithm")
    steps = [
        line["step"]
        for line in lines
        if any(f"{line['key']}.".startswith((f"{key}.", f"{key}[")) for key in keys)
        and (line.get("input") or line["key"] not in names)
    ]
    return max(steps, default=0)


def _is_moved_file(was: Any, now: Any) -> bool:
    """A row of a user's file that is in another folder now."""
    return all(".py:" in str(each) for each in (was, now)) and Path(was).name == Path(now).name


def _table_key(key: str) -> str:
    """rewards[0].weight -> rewards, env.max_turns -> env, cells.policy_loss.high -> cells.policy_loss."""
    parts = key.partition("[")[0].split(".")
    return next(
        name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in ON_RESUME
    )
