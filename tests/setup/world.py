"""Runs of every kind with every input in a file or folder of its own, small enough to train in a second each.

`KINDS` makes the settings of a run from a folder with the files of `furnished`; `INPUTS` says, for each kind, which
key of its recipe depends on which file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ascent.models.heads import Normalization
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.tasks.arithmetic import ARITHMETIC

SMALL: dict[str, Any] = {"hidden": 16, "heads": 2, "key_value_heads": 1, "layers": 1}
MODELS = ("policy", "reference", "teacher", "critic", "scored")

REWARD = """
import helping
from pathlib import Path
from ascent.records import StepReward


def even(rollout, *, table=None):
    return helping.parity(rollout) + (len(Path(table).read_text()) if table else 0)
"""
HELPING = """
def parity(rollout):
    return float(sum(sum(turn.completion.tokens) for turn in rollout.turns) % 2 == 0)
"""
ENV = """
from ascent.envs.single_turn import SingleTurn


class Mine(SingleTurn):
    pass


def upper(text):
    return text.upper()
"""
ROW = """
from dataclasses import replace
from ascent.algorithms import TABLE

MINE = replace(TABLE["sft"], name="mine")
"""


def furnished(folder: Path) -> Path:
    """Everything that any of the runs reads."""
    for seed, name in enumerate(MODELS[:-1]):
        create(folder / name, seed=seed, **SMALL)
    judge = load(create(folder / "trunk", seed=9, **SMALL), head="scalar", seed=9)
    judge.normalization = Normalization(0.7, 1.0, 10)
    judge.save(folder / "scored")
    for name, split in (("train", "train"), ("more", "train"), ("held", "heldout")):
        prompts = ARITHMETIC.prompts(split, 8, seed=len(name))  # type: ignore[arg-type]
        asked = [(each.messages[0].content, each.answer) for each in prompts]
        rows: dict[str, list[dict[str, Any]]] = {
            "examples": [{"prompt": question, "completion": answer} for question, answer in asked],
            "prompts": [{"prompt": question, "answer": answer} for question, answer in asked],
            "pairs": [
                {"prompt": question, "chosen": answer, "rejected": "no"}
                for question, answer in asked
            ],
        }
        for kind, records in rows.items():
            text = "".join(json.dumps(row) + "\n" for row in records)
            (folder / f"{name}_{kind}.jsonl").write_text(text)
    for name, text in {
        "reward.py": REWARD,
        "helping.py": HELPING,
        "table.txt": "1",
        "env.py": ENV,
        "corpus.txt": "one\ntwo\n",
        "rows.py": ROW,
    }.items():
        (folder / name).write_text(text)
    return folder


def _files(folder: Path, algorithm: str, kind: str) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "model.policy": str(folder / "policy"),
        "data.batch_size": 4,
        "data.max_tokens": 64,
        "data.train": str(folder / f"train_{kind}.jsonl"),
        "data.evaluate": str(folder / f"held_{kind}.jsonl"),
        "update.learning_rate": 1e-3,
        "run.steps": 2,
        "run.save_every": 1,
        "run.evaluate_every": 1,
    }


def _samples(folder: Path, algorithm: str, **more: Any) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "model.policy": str(folder / "policy"),
        "run.steps": 2,
        "run.save_every": 1,
        "data.train": str(folder / "train_prompts.jsonl"),
        "data.evaluate": str(folder / "held_prompts.jsonl"),
        "rewards": [{"use": f"{folder / 'reward.py'}:even"}],
        "rollouts.prompts_per_step": 4,
        "rollouts.max_new_tokens": 4,
        "update.learning_rate": 1e-3,
        "run.evaluate_every": 1,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


KINDS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "sft": lambda folder: {
        **_files(folder, "sft", "examples"),
        "data.mix": [{"use": str(folder / "more_examples.jsonl"), "share": 0.25}],
    },
    "dpo": lambda folder: {
        **_files(folder, "dpo", "pairs"),
        "model.reference": str(folder / "reference"),
    },
    "dpo from its policy": lambda folder: _files(folder, "dpo", "pairs"),
    "reward_model": lambda folder: {
        **_files(folder, "reward_model", "pairs"),
        "data.centering_data": str(folder / "more_examples.jsonl"),
    },
    "kd": lambda folder: {
        **_files(folder, "kd", "examples"),
        "model.teacher": str(folder / "teacher"),
    },
    "a row": lambda folder: _files(folder, f"{folder / 'rows.py'}:MINE", "examples"),
    "grpo": lambda folder: _samples(
        folder,
        "grpo",
        rollouts__group_size=2,
        rewards=[{"use": f"{folder / 'reward.py'}:even", "table": str(folder / "table.txt")}],
    ),
    "ppo": lambda folder: _samples(
        folder,
        "ppo",
        model__reward_model=str(folder / "scored"),
        rewards=[],
        model__critic_from=str(folder / "critic"),
    ),
    "ppo with lora": lambda folder: _samples(
        folder,
        "ppo",
        model__lora=2,
        model__critic_from=str(folder / "critic"),
        model__reference=str(folder / "reference"),
    ),
    "instructgpt": lambda folder: _samples(
        folder,
        "instructgpt",
        model__critic="head",
        update__minibatches=1,
        data__max_tokens=64,
        data__batch_size=2,
        data__pretraining=str(folder / "more_examples.jsonl"),
    ),
    "tools": lambda folder: _samples(
        folder,
        "grpo",
        rollouts__group_size=2,
        env={
            "use": "tools",
            "tools": ["search", f"{folder / 'env.py'}:upper"],
            "corpus": str(folder / "corpus.txt"),
            "role": "user",
        },
    ),
    "an environment": lambda folder: _samples(
        folder, "grpo", rollouts__group_size=2, env={"use": f"{folder / 'env.py'}:Mine"}
    ),
}

# What depends on what: (kind of run, key of the recipe, file that changes).
INPUTS = (
    ("sft", "data.train", "train_examples.jsonl"),
    ("sft", "data.mix[0].use", "more_examples.jsonl"),
    ("sft", "data.evaluate", "held_examples.jsonl"),
    ("dpo", "data.train", "train_pairs.jsonl"),
    ("dpo", "data.evaluate", "held_pairs.jsonl"),
    ("dpo", "model.reference", "reference/model.safetensors"),
    ("dpo", "model.reference", "reference/config.json"),
    ("dpo", "model.reference", "reference/tokenizer.json"),
    ("dpo", "model.reference", "reference/chat_template.jinja"),
    ("dpo from its policy", "model.policy", "policy/model.safetensors"),
    ("reward_model", "data.train", "train_pairs.jsonl"),
    ("reward_model", "data.evaluate", "held_pairs.jsonl"),
    ("reward_model", "data.centering_data", "more_examples.jsonl"),
    ("kd", "model.teacher", "teacher/model.safetensors"),
    ("kd", "data.train", "train_examples.jsonl"),
    ("a row", "algorithm", "rows.py"),
    ("grpo", "data.train", "train_prompts.jsonl"),
    ("grpo", "data.evaluate", "held_prompts.jsonl"),
    ("grpo", "model.policy", "policy/model.safetensors"),
    ("grpo", "rewards[0].use", "reward.py"),
    ("grpo", "rewards[0].use", "helping.py"),
    ("grpo", "rewards[0].table", "table.txt"),
    ("ppo", "data.train", "train_prompts.jsonl"),
    ("ppo", "data.evaluate", "held_prompts.jsonl"),
    ("ppo", "model.reward_model", "scored/model.safetensors"),
    ("ppo", "model.reward_model", "scored/config.json"),
    ("ppo", "model.policy", "policy/model.safetensors"),
    ("ppo with lora", "model.policy", "policy/model.safetensors"),
    ("ppo with lora", "model.critic_from", "critic/model.safetensors"),
    ("ppo with lora", "model.reference", "reference/model.safetensors"),
    ("instructgpt", "data.pretraining", "more_examples.jsonl"),
    ("instructgpt", "data.train", "train_prompts.jsonl"),
    ("tools", "env.tools[1]", "env.py"),
    ("tools", "env.corpus", "corpus.txt"),
    ("an environment", "env.use", "env.py"),
)


def other(path: Path) -> None:
    """The same kind of file with another content, which nothing but its content tells: weights keep their size, rows
    their number."""
    if path.suffix == ".safetensors":
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.write_bytes(content)
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(json.dumps({**row, "prompt": f"other {row['prompt']}"}) + "\n" for row in rows)
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps({**json.loads(path.read_text()), "other": 1}))
    elif path.suffix == ".jinja":
        path.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    else:
        path.write_text(path.read_text() + "\n# other\n")
