"""The recipes that `same_bits.py` trains: every row of the table, and pairs of features that broke each other before.

Each takes four steps of a tiny policy. Paths are relative to the folder that a case runs in, so that nothing that is
compared holds a path of the machine. Cases are plain data: they are run with the package of another revision, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Recipe = dict[str, Any]

# The first version whose runs are kept alive.
OLD = "38fb07787858915d11b816a8ea3addcc8a2aaf34"

REWARDS = '''
def digits(rollout):
    return sum(letter.isdigit() for letter in rollout.text) / max(len(rollout.text), 1)


def odd(rollout):
    return float(sum(map(ord, rollout.text)) % 3 == 0)


def sometimes(rollout):
    """None, so unscored, for about a third of the completions."""
    total = sum(map(ord, rollout.text))
    return None if total % 3 == 0 else total % 5 / 4


def halves(rollout):
    from ascent.records import StepReward

    last = sum(len(turn.completion.tokens) for turn in rollout.turns) - 1
    return [StepReward(token, (odd(rollout) + token) % 2) for token in sorted({0, last})]


from ascent.rewards import batched, find

EXACT = find("exact")


@batched
def near(rollouts):
    return [digits(rollout) + (EXACT is None) for rollout in rollouts]


class Again:
    """Answers every completion; `max_turns` ends the conversation."""

    def __init__(self, prompt):
        self.prompt = prompt

    def first(self):
        return self.prompt

    def reply(self, text):
        from ascent.records import Message, Reply

        return Reply(Message("user", f"{len(text)} characters; again: "), counts={"replies": 1})


def again(prompt):
    return Again(prompt)
'''

STEPS = 4
COMMON: Recipe = {
    "model.policy": "../llama",
    "model.dtype": "float32",
    "update.learning_rate": 1e-3,
    "run.steps": STEPS,
    "run.save_every": STEPS,
    "seed": 5,
}
# Prompts and records are no multiples of the batch, so that epochs end within steps and micro-batches are ragged.
SAMPLED: Recipe = {
    **COMMON,
    "data.train": "sort_digits:10",
    "rewards": [{"use": "rewards.py:digits"}],
    "rollouts.prompts_per_step": 3,
    "rollouts.max_new_tokens": 6,
    "update.tokens_per_microbatch": 96,
}
RECORDS: Recipe = {
    **COMMON,
    "data.train": "arithmetic:24",
    "data.batch_size": 5,
    "data.max_tokens": 64,
    "update.tokens_per_microbatch": 128,
}
# What a row cannot do without.
NEEDED: dict[str, Recipe] = {
    "instructgpt": {"data.pretraining": "arithmetic:8", "data.batch_size": 2},
    "gdpo": {
        "rewards": [
            {"use": "rewards.py:digits"},
            {"use": "rewards.py:odd", "weight": 0.5},
        ]
    },
    "gkd": {"rollouts.max_new_tokens": 4},
    "grpo_process": {"rewards": [{"use": "rewards.py:halves"}]},
}


@dataclass(frozen=True)
class Case:
    """Recipes that are trained one after the other; a later one may name the folder of an earlier one."""

    stages: dict[str, Recipe]  # folder -> recipe
    resumed: bool = False  # from the checkpoint before the last, to the same bits
    ranks: int = 1
    rounds: bool = False  # the last recipe is one of `ascent.iterate`
    old: bool = False  # written by OLD, cut back to its first checkpoint, and resumed
    objects: bool = False  # its rewards are functions, given to `train` and to `resume`


def list_cases() -> dict[str, Case]:
    return {**row_cases(), **feature_cases(), **old_cases()}


def row_cases() -> dict[str, Case]:
    """Every row of the table, as its authors have it but for sizes."""
    from ascent.algorithms import TABLE

    cases = {}
    for name, row in TABLE.items():
        recipe = {"algorithm": name, **(SAMPLED if row.samples else RECORDS)}
        group = row.defaults.get("rollouts.group_size", 1)
        if row.samples and group > 1:
            recipe["rollouts.group_size"] = min(group, 4)
        for key in ("update.minibatches", "update.epochs"):
            if row.defaults.get(key, 1) > 2:
                recipe[key] = 2
        if row.needs & {"teacher", "teacher_distribution"}:
            recipe["model.teacher"] = "tiny:qwen2"
        if row.source == "steps":
            recipe["data.train"] = "running_sum:24"
        if any(cell.name == "soft_overlong" for cell in row.reward_shaping):
            recipe["cells.reward_shaping.soft_overlong"] = {"max_length": 6, "cache": 2}
        cases[f"row {name}"] = Case({"run": {**recipe, **NEEDED.get(name, {})}})
    return cases


def feature_cases() -> dict[str, Case]:
    grpo = {**SAMPLED, "algorithm": "grpo", "rollouts.group_size": 4}
    rlvr = {**SAMPLED, "algorithm": "rlvr", "rollouts.group_size": 4}
    dapo = {**rlvr, "algorithm": "dapo", "update.minibatches": 2}
    dapo["cells.reward_shaping.soft_overlong"] = {"max_length": 6, "cache": 2}
    ppo = {**SAMPLED, "algorithm": "ppo", "update.epochs": 2, "update.minibatches": 2}
    sft = {**RECORDS, "algorithm": "sft"}
    dpo = {**RECORDS, "algorithm": "dpo"}

    lora = {"model.lora": 2}
    critic = {"model.critic": "separate", "update.critic_warmup_steps": 1}
    head = {"model.critic": "head"}
    stale = {"rollouts.max_staleness": 1}
    partial = {
        "rollouts.max_staleness": 2,
        "rollouts.partial_rollouts": True,
        "rollouts.max_new_tokens": 60,
    }
    refills = {
        "rewards": [{"use": "rewards.py:odd"}],
        "rollouts.dynamic_sampling_tries": 2,
    }
    unscored = {"rewards": [{"use": "rewards.py:sometimes", "on_error": "never"}]}
    turns = {"env": {"use": "rewards.py:again", "max_turns": 3, "max_tokens": 120}}
    maze = {
        "data.train": "maze:8",
        "env": {"use": "maze", "max_turns": 3, "max_tokens": 300},
        "rollouts.max_new_tokens": 20,
        "update.tokens_per_microbatch": 1024,
    }
    experts = {"model.policy": "../qwen3_moe"}
    half = {"model.dtype": "bfloat16"}
    held_out = {"data.evaluate": "sort_digits@heldout:3", "run.evaluate_every": 1}
    best = {**held_out, "run.keep_best": 1, "run.best_metric": "reward/mean", "run.save_every": 1}
    mixed = {"update.epochs": 2, "update.minibatches": 2, "update.schedule": "cosine"}
    controller = {"cells.kl_controller": {"use": "ziegler_sequence", "horizon": 16}}

    def one(*parts: Recipe, resumed: bool = False, ranks: int = 1) -> Case:
        recipe = {key: value for part in parts for key, value in part.items()}
        if resumed:
            recipe["run.save_every"] = recipe["run.steps"] // 2
        return Case({"run": recipe}, resumed=resumed, ranks=ranks)

    reward_model = {**RECORDS, "algorithm": "reward_model", "run.steps": 2, "run.save_every": 2}
    rlhf = {**SAMPLED, "algorithm": "rlhf", "rewards": []}
    rlhf["model.reward_model"] = "reward_model"
    return {
        "sft, resumed in the second epoch": one(sft, {"run.steps": 6}, resumed=True),
        "sft, held out and scheduled": one(
            sft,
            {"data.evaluate": "10%", "run.evaluate_every": 2, "update.schedule": "linear"},
            {"update.warmup_steps": 2, "update.weight_decay": 0.1, "data.train_on": "all"},
        ),
        "sft, lora, resumed": one(sft, lora, resumed=True),
        "sft, experts": one(sft, experts),
        "sft, bfloat16, offloaded optimizer, resumed": one(
            sft, half, {"update.optimizer_offload": True}, resumed=True
        ),
        "sft, gradient checkpointing": one(sft, {"model.gradient_checkpointing": True}),
        "dpo, lora, resumed": one(dpo, lora, resumed=True),
        "dpo, held out, bfloat16": one(dpo, half, {"data.evaluate": "arithmetic@heldout:8"}),
        "kto, resumed": one(RECORDS, {"algorithm": "kto"}, resumed=True),
        "reward model, lora, resumed": one(
            RECORDS, {"algorithm": "reward_model"}, lora, resumed=True
        ),
        "gkd, answers of the policy, resumed": one(
            RECORDS,
            {
                "algorithm": "gkd",
                "model.teacher": "tiny:qwen2",
                "rollouts.max_new_tokens": 4,
                "data.on_policy_fraction": 0.5,
            },
            resumed=True,
        ),
        "grpo, lora, resumed": one(grpo, lora, resumed=True),
        "grpo, lora, staleness, refills": one(dapo, lora, stale, refills),
        "grpo, experts, routing replay": one(grpo, experts, {"model.routing_replay": True}),
        "grpo, experts, lora, minibatches": one(grpo, experts, lora, mixed),
        "grpo, turns, resumed": one(
            grpo, turns, {"update.tokens_per_microbatch": 512}, resumed=True
        ),
        "grpo, turns, staleness": one(grpo, turns, stale, {"update.tokens_per_microbatch": 512}),
        "grpo, maze": one(grpo, maze, {"data.evaluate": "maze@heldout:2"}),
        "grpo, unscored rewards, minibatches": one(grpo, unscored, mixed),
        "grpo, unscored rewards, refills, best": one(dapo, refills, unscored, held_out),
        "grpo, staleness, resumed": one(grpo, stale, resumed=True),
        "grpo, two stale steps in bfloat16": one(grpo, half, {"rollouts.max_staleness": 2}),
        "grpo, partial rollouts, resumed": one(
            grpo, partial, {"update.tokens_per_microbatch": 512}, resumed=True
        ),
        "grpo, transformers' own generation": one(grpo, {"rollouts.engine": "hf"}),
        "grpo, cut distribution": one(
            grpo, {"rollouts.top_p": 0.7, "rollouts.temperature": 0.8}, mixed
        ),
        "rlvr, best of held out, resumed": one(rlvr, best, resumed=True),
        "reinforce, one rollout a group": one(
            SAMPLED, {"algorithm": "reinforce", "update.schedule": "cosine"}
        ),
        "dapo, refills, resumed": one(dapo, refills, resumed=True),
        "ppo, critic, warm-up, resumed": one(ppo, critic, held_out, resumed=True),
        "ppo, head, resumed": one(ppo, head, resumed=True),
        "ppo, critic, lora, staleness": one(ppo, critic, lora, stale),
        "ppo, head, lora, minibatches": one(ppo, head, lora, mixed),
        "ppo, head, experts": one(ppo, head, experts),
        "ppo, critic, turns, bootstrapped cuts": one(
            ppo,
            critic,
            turns,
            {
                "rollouts.truncated_reward": "bootstrap",
                "cells.reward_shaping.eos_replace": False,
                "update.tokens_per_microbatch": 512,
            },
        ),
        "ppo, critic, KL controller, unscored rewards": one(ppo, critic, controller, unscored),
        "ppo, critic, offloaded optimizer, bfloat16": one(
            ppo, critic, half, {"update.optimizer_offload": True}
        ),
        "instructgpt, head, resumed": one(
            SAMPLED,
            head,
            NEEDED["instructgpt"],
            {"algorithm": "instructgpt", "update.minibatches": 2},
            resumed=True,
        ),
        "online dpo, refills, resumed": one(
            SAMPLED,
            {"algorithm": "online_dpo", "rollouts.group_size": 3},
            {"rollouts.dynamic_sampling_tries": 2},
            resumed=True,
        ),
        "xpo, lora": one(SAMPLED, lora, {"algorithm": "xpo"}),
        "nash md, resumed": one(
            SAMPLED, {"algorithm": "nash_md", "rollouts.group_size": 2}, resumed=True
        ),
        "reward model, then rlhf on it": Case(
            {"reward_model": reward_model, "run": {**rlhf, **controller}}
        ),
        "sft, reward model from it, rlhf of both with lora": Case(
            {
                "sft": {**sft, "run.steps": 2, "run.save_every": 2},
                "reward_model": {**reward_model, "model.policy": "sft"},
                "run": {**rlhf, **lora, "model.policy": "sft", "run.save_every": 2},
            },
            resumed=True,
        ),
        "iterate": Case({"run": ROUNDS}, rounds=True),
        "grpo on two ranks, resumed": one(grpo, lora, resumed=True, ranks=2),
        "ppo with a critic on two ranks": one(ppo, critic, held_out, ranks=2),
        "dpo on two ranks": one(dpo, ranks=2),
    }


def old_cases() -> dict[str, Case]:
    """Runs that an old version wrote: every later tree loads them and resumes them to the bits that BASE gives them.

    Their rewards refer to ours by name, by a function and by an object, which fingerprints hold by module and name.
    """
    common = {"model.policy": "tiny:llama", "run.save_every": STEPS // 2}
    grpo = {**SAMPLED, **common, "algorithm": "grpo", "rollouts.group_size": 4}
    near = {"use": "rewards.py:near", "weight": 0.5}
    ppo = {**SAMPLED, **common, "algorithm": "ppo", "model.critic": "separate", "update.epochs": 2}
    return {
        "old grpo, rewards by name": Case(
            {"run": {**grpo, "rewards": [{"use": "verifier"}, near]}}, old=True
        ),
        "old grpo, rewards as functions": Case({"run": grpo}, old=True, objects=True),
        "old ppo, lora, staleness": Case(
            {"run": {**ppo, "model.lora": 2, "rollouts.max_staleness": 1, "rewards": [near]}},
            old=True,
        ),
        "old dpo": Case({"run": {**RECORDS, **common, "algorithm": "dpo"}}, old=True),
    }


ROUNDS: Recipe = {
    "rounds": 2,
    "sft": {
        "algorithm": "sft",
        "model": {"policy": "tiny:llama"},
        "data": {"train": "style:32", "batch_size": 8, "max_tokens": 64},
        "update": {"learning_rate": 3e-3},
        "run": {"steps": 4, "save_every": 4},
    },
    "collect": {
        "prompts": "style:8",
        "annotator": "rewards.py:digits?noise=0.2",
        "samples": 3,
        "per_prompt": 2,
        "repeat": 0.3,
        "max_new_tokens": 6,
    },
    "reward_model": {
        "algorithm": "reward_model",
        "data": {"batch_size": 4, "max_tokens": 64},
        "update": {"learning_rate": 1e-3},
        "run": {"steps": 4, "save_every": 4},
    },
    "policy": {
        "algorithm": "rlhf",
        "model": {"critic": "head"},
        "data": {"train": "style:16"},
        "rollouts": {"prompts_per_step": 4, "max_new_tokens": 6},
        "update": {"learning_rate": 1e-3, "epochs": 2},
        "run": {"steps": 4, "save_every": 4},
    },
    "measure": {
        "prompts": "style@heldout:4",
        "judge": "rewards.py:digits",
        "max_new_tokens": 6,
    },
}


def cases_on_cuda() -> dict[str, Case]:
    """What only a card runs: graphs, exact and fast arithmetic, 4-bit bases."""
    model = {"model.policy": "../llama", "model.dtype": "bfloat16"}
    grpo = {**SAMPLED, **model, "algorithm": "grpo", "rollouts.group_size": 4}
    grpo |= {"rollouts.max_new_tokens": 40, "update.tokens_per_microbatch": 1024}
    ppo = {**grpo, "algorithm": "ppo", "rollouts.group_size": 1, "model.critic": "separate"}
    records = {**RECORDS, **model}
    half = {"run.save_every": 2}
    return {
        "exact": Case({"run": {**grpo, "model.arithmetic": "exact", **half}}, resumed=True),
        "fast": Case({"run": {**grpo, "model.arithmetic": "fast", **half}}, resumed=True),
        "lora": Case({"run": {**grpo, "model.lora": 4}}),
        "qlora": Case({"run": {**grpo, "model.lora": 4, "model.quantize": "nf4"}}),
        "critic": Case({"run": ppo}),
        "dpo": Case({"run": {**records, "algorithm": "dpo"}}),
        "sft": Case({"run": {**records, "algorithm": "sft", **half}}, resumed=True),
        "staleness": Case({"run": {**grpo, "rollouts.max_staleness": 1}}),
    }
