"""Small runs of every row, trained by any number of ranks, and how far two such runs are apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import ascent.runs.folder
from ascent.algorithms import TABLE
from ascent.api.train import resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.hf_logging import quiet_transformers
from ascent.models.tiny import tiny_model, tiny_tokenizer
from ascent.parallel.distributed import process_group
from ascent.parallel.ranks import Layout
from ascent.plan.resolve import Plan, resolve
from tests.setup.runs import tiny_plan

REWARDED = Path(__file__).with_name("rewarded.py")
STEPS = 2
# With so large an epsilon Adam is gradient descent with momentum. At its default its first steps have the size of the
# learning rate even where the gradient is nothing but rounding, so that no two ways of adding it up agree.
GRADIENT_DESCENT = {"update.adam_eps": 1.0, "update.learning_rate": 0.1}
# Shared prefixes run once in a micro-batch, so the tokens that run, of the policy and of the critic, depend on these.
OF_THE_SPLIT = {"tokens/run", "critic/tokens_run"}
# Differences of log-probs times a coefficient (margins, rewards of preferences), exponentials of them (ratios), and
# sums that cancel (losses) are off by up to 3.6e-6 on several ranks, and as much in one process with smaller
# micro-batches.
METRICS_TOLERANCE = 5e-6
TURNS = {"env": {"use": f"{REWARDED}:again", "max_turns": 2}, "update.tokens_per_microbatch": 512}
# What a row cannot do without, beyond a reward.
EXTRA: dict[str, dict[str, Any]] = {
    "instructgpt": {"data.pretraining": "arithmetic:20", "data.batch_size": 3},
    "gdpo": {
        "rewards": [{"use": f"{REWARDED}:drawn"}, {"use": f"{REWARDED}:ended", "weight": 0.5}]
    },
    "clip_cov": {  # large advantages, so that some tokens are dropped
        "rewards": [{"use": f"{REWARDED}:drawn", "weight": 30.0}],
        "cells.advantage_norm.use": "none",
        "cells.policy_loss": {"use": "clip_cov", "share": 0.1},
    },
    "grpo_process": {"rewards": [{"use": f"{REWARDED}:halves"}]},
}


def create_policy(folder: Path, family: str = "llama") -> Path:
    """A policy that ends about every sixth token: completions of an untrained one would all be equally long, and a
    mean of means would then be a mean."""
    tokenizer = tiny_tokenizer()
    module = tiny_model(family, len(tokenizer), seed=0)
    module.config.pad_token_id, module.config.eos_token_id = (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    with torch.no_grad():  # one dimension is high everywhere, and the end of a text reads it
        module.get_input_embeddings().weight[:, 0] += 0.1
        module.get_output_embeddings().weight[tokenizer.eos_token_id, 0] += 1.0
    with quiet_transformers():
        module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plan_of(row: str, changes: Mapping[str, Any] | None = None) -> Plan:
    """Two steps of a tiny model, with held-out data; prompts and records are no multiples of 2 or 4."""
    common = {
        "run.steps": STEPS,
        "run.save_every": 1,
        "run.evaluate_every": 1,
        "update.learning_rate": 1e-3,
    }
    common |= {"update.adam_eps": 1e-5}
    if not TABLE[row].samples:
        more = {"data.batch_size": 11, "update.tokens_per_microbatch": 128, **common}
        return tiny_plan(algorithm=row, **nest_keys({**more, **(changes or {})}))
    settings: dict[str, Any] = {
        "algorithm": row,
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:10",
        "data.evaluate": "sort_digits@heldout:3",
        "rewards": [{"use": f"{REWARDED}:drawn"}],
        "rollouts.prompts_per_step": 5,
        "rollouts.max_new_tokens": 6,
        "update.tokens_per_microbatch": 96,
        **common,
    }
    if TABLE[row].source == "rollouts" and TABLE[row].defaults.get("rollouts.group_size") != 1:
        settings["rollouts.group_size"] = 4
    for key, most in (("update.minibatches", 2), ("update.epochs", 2)):
        if TABLE[row].defaults.get(key, 1) > most:
            settings[key] = most
    if "teacher" in TABLE[row].needs:
        settings["model.teacher"] = "tiny:qwen2"
    if any(each.name == "soft_overlong" for each in TABLE[row].reward_shaping):
        settings["cells.reward_shaping.soft_overlong"] = {"max_length": 6, "cache": 1}
    return resolve(validate(nest_keys({**settings, **EXTRA.get(row, {}), **(changes or {})})))


def train_all(plans: Mapping[str, Plan], folder: Path, layout: Layout = "auto") -> None:
    """Train every plan, in one process group."""
    ascent.runs.folder.draw = lambda *_, **__: None  # the picture takes longer than the training
    with process_group(timeout=120, layout=layout) as ranks:
        for name, plan in plans.items():
            train_plan(plan, folder / name, progress=False, ranks=ranks)


def resume_one(folder: Path, layout: Layout = "auto") -> None:
    resume_all([folder], layout)


def resume_all(folders: Sequence[Path], layout: Layout = "auto") -> None:
    """One after the other, each in a process group of its own."""
    ascent.runs.folder.draw = lambda *_, **__: None
    for folder in folders:
        resume_run(folder, layout=layout, progress=False)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if not k.startswith("time") and k not in OF_THE_SPLIT}
        for line in lines
    ]


def differences(
    one: Path,
    other: Path,
    *,
    step: int = STEPS,
    tolerance: float = 1e-6,
    metrics: float = METRICS_TOLERANCE,
) -> list[str]:
    """In words, what differs between two runs: metrics by more than `metrics`, weights by more than the tolerance."""
    found = []
    for line, (a, b) in enumerate(zip(metrics_of(one), metrics_of(other), strict=True)):
        found += [f"line {line}: only one has {name}" for name in a.keys() ^ b.keys()]
        for name in a.keys() & b.keys():
            if not _close(a[name], b[name], metrics):
                found.append(f"line {line}: {name} {a[name]} {b[name]}")
    return found + weight_differences(one, other, step=step, tolerance=tolerance)


def weight_differences(
    one: Path, other: Path, *, step: int = STEPS, tolerance: float = 1e-6, elements: float = 1.0
) -> list[str]:
    """Weights that differ by more than the tolerance relative to their norm, or in one element by more than `elements`
    times that, relative to the largest."""
    found = []
    for path in (one / f"checkpoints/{step}").rglob("*model*.safetensors"):
        ours, theirs = load_file(path), load_file(other / path.relative_to(one))
        for name, weight in ours.items():
            off = (weight - theirs[name]).double()
            norm = float(off.norm() / weight.double().norm())
            element = float(off.abs().max() / weight.abs().max())
            # What starts at 0 is nothing but updates: its rounding is that of gradients.
            limit = 10 * tolerance if "lora_B" in name else tolerance
            if norm > limit or element > elements * limit:
                found.append(f"{path.parent.name} {name}: {norm:.2g}, an element {element:.2g}")
    return found


def _close(a: Any, b: Any, tolerance: float) -> bool:
    """Relative to the larger; what is left where large numbers cancel is compared with 1."""
    if not isinstance(a, float) or not isinstance(b, float) or math.isnan(a) or math.isnan(b):
        return bool(a == b) or (math.isnan(a) and math.isnan(b))
    return abs(a - b) <= tolerance * max(abs(a), abs(b), 1.0)


def tokens_of(run: Path) -> list[Any]:
    lines: Iterable[str] = (run / "samples.jsonl").read_text().splitlines()
    return [json.loads(line)["tokens"] for line in lines]
