"""Which keys of a recipe may change when a run is resumed, why the others may not, and the words for those that do.

A change counts from the next step on; what was trained before stays as it is. So a key may change unless the saved
state would contradict it, or the change would have no effect. Keys that name an input (a model, data, a reward) may
change as far as this table goes: whether the content behind the name is still the same is another question
(`ascent.setup.fingerprints`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ascent.config.schema import Cells, Config
from ascent.config.validate import shown

# Keys that name a model, and keys that name data.
MODELS = ("model.policy", "model.reference", "model.critic_from", "model.reward_model", "model.teacher")
DATA = ("data.train", "data.evaluate", "data.pretraining", "data.centering_data")

_STATE = "the saved weights and moments are of the other one"
_RECORDS = "it decides which records there are, and the position in the data counts them"
_UPDATES = "the learning rate is scheduled over updates, and it says how many a step has"
_ANOTHER = "another function makes another algorithm of the run"
_WAITING = "rollouts that were sampled before wait in the checkpoint (rollouts.max_staleness)"
_MOVED = "its controller has moved it since the start and goes on from there"

# Every key, with the reason why it cannot change; an empty one where it can.
ON_RESUME: dict[str, str] = {
    "algorithm": "the saved state is the other algorithm's",
    "seed": "everything so far was drawn from the other one",
    **dict.fromkeys((*MODELS, *DATA), ""),
    "model.critic": _STATE,
    "model.dtype": _STATE,
    "model.gradient_checkpointing": "",
    "model.routing_replay": "",
    "model.lora": _STATE,
    "model.lora_alpha": "the saved adapter was trained at the other scale",
    "model.trust_remote_code": "",
    "data.mix": "the position in the data is one in the other mixture",
    "data.on_policy_fraction": "",
    "data.batch_size": "the position in the data counts steps of the other size",
    "data.max_tokens": _RECORDS,
    "data.max_prompt_tokens": _RECORDS,
    "data.prompt_overflow": _RECORDS,
    "data.invalid_rows": _RECORDS,
    "data.train_on": "the records were rendered with the other one",
    "data.step_separator": "the records were rendered with the other one",
    "data.shuffle": "the position in the data is one in the other order",
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
    "rollouts.max_staleness": "the checkpoint holds as many waiting rollouts as the other one asks for",
    "update.learning_rate": "",
    "update.critic_learning_rate": "",
    "update.critic_warmup_steps": "it is about the first steps, and the learning rate is scheduled after them",
    "update.weight_decay": "",
    "update.adam_beta1": "",
    "update.adam_beta2": "",
    "update.adam_eps": "",
    "update.max_grad_norm": "",
    "update.schedule": "",
    "update.warmup_steps": "",
    "update.epochs": _UPDATES,
    "update.minibatches": _UPDATES,
    "update.target_kl": "",
    "update.tokens_per_microbatch": "",
    **{f"cells.{slot}": "" for slot in Cells.model_fields},  # of their numbers; another function is refused below
    "run.steps": "",
    "run.save_every": "",
    "run.evaluate_every": "",
    "run.max_ref_kl": "",
    "run.keep": "",
    "run.keep_best": "",
    "run.best_metric": "the checkpoints that were kept have the other number as their score",
    "run.trackers": "",
    "run.project": "",
}
WHILE_WAITING = ("rollouts.temperature", "rollouts.engine", "model.routing_replay")
STEERED = ("cells.kl.weight", "cells.reward_shaping.kl_penalty.beta")


class Absent:
    """In the place of a value where a key is not there: it had, or has, no effect."""

    def __repr__(self) -> str:
        return "(not set)"


ABSENT = Absent()
Flat = dict[str, Any]


class Change(NamedTuple):
    """A key of a recipe, its value before, and its value from now on."""

    key: str
    was: Any
    now: Any

    def words(self, step: int) -> str:
        return f"{self.key} {_value(self.was)} -> {_value(self.now)}, from step {step} on"

    def record(self) -> dict[str, Any]:
        """As JSON has it: a value that is not there is left out."""
        found = {"key": self.key, "was": self.was, "now": self.now}
        return {name: value for name, value in found.items() if value is not ABSENT}


def _value(value: Any) -> str:
    return repr(value) if value is ABSENT else shown(value)


def flat(config: Config) -> Flat:
    """Every value that is set under its dotted key: update.learning_rate, rewards[0].weight, cells.policy_loss.high."""
    return dict(_flat(config.model_dump(mode="json", exclude_unset=True), ""))


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _flat(each, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for place, each in enumerate(value):
            yield from _flat(each, f"{key}[{place}]")
    else:
        yield key, value


def changes(was: Flat, now: Flat) -> list[Change]:
    """What differs between two recipes, in the order of their keys."""
    keys = dict.fromkeys((*was, *now))
    pairs = [Change(key, was.get(key, ABSENT), now.get(key, ABSENT)) for key in keys]
    return [each for each in pairs if each.was != each.now]


def refuse(found: Sequence[Change], was: Flat, file: str) -> None:
    """ValueError, with a line for each change that cannot mean what it says; `file` holds the recipe."""
    lines = [
        f"{each.key} {_value(each.was)} -> {_value(each.now)} cannot be changed on resume: {why}"
        for each in found
        if (why := reason(each, was))
    ]
    if lines:
        fix = f"put it back in {file}, or start a new run with the last checkpoint as its model.policy"
        raise ValueError("\n".join([*lines, fix]))


def reason(change: Change, was: Flat) -> str:
    """Why a change is refused, given the recipe before it; empty where it is not."""
    key = change.key
    if key == "algorithm" and _moved(change.was, change.now):
        return ""
    if key.startswith("cells.") and (ABSENT in (change.was, change.now) or key.endswith(".use")):
        return _ANOTHER
    if key == "run.best_metric" and ABSENT in (change.was, change.now):
        return ""  # nothing was kept by a score, or nothing will be
    if key.startswith("data.mix[") and key.endswith(".use") and ABSENT not in (change.was, change.now):
        return ""
    if key in WHILE_WAITING and was.get("rollouts.max_staleness"):
        return _WAITING
    if key in STEERED and was.get("cells.kl_controller.use", "fixed") != "fixed":
        return _MOVED
    return ON_RESUME[_of_the_table(key)]


def _moved(was: Any, now: Any) -> bool:
    """A row of one's own whose file lies in another folder now."""
    return all(".py:" in str(each) for each in (was, now)) and Path(was).name == Path(now).name


def _of_the_table(key: str) -> str:
    """rewards[0].weight -> rewards, env.max_turns -> env, cells.policy_loss.high -> cells.policy_loss."""
    parts = key.partition("[")[0].split(".")
    return next(name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in ON_RESUME)
