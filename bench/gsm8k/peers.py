"""TRL's side: SFTTrainer, GRPOTrainer, DPOTrainer on the same rows in the same order with the same settings.

Both sides have float32 master weights: TRL's model is float32 under bfloat16 autocast, which is TRL's own default.
Seconds are from the end of one optimizer step to the end of the next; saving a model is not in them.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from evaluate import peak_gb, test_points
from reward import trl_correct
from settings import DPO_CELLS, Study
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import ascent


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Clock(TrainerCallback):  # type: ignore[misc]
    """Seconds of every step. Every so many steps and at the end the model is saved, with the clock stopped."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.steps: list[float] = []
        self.logs: list[dict[str, float]] = []
        shutil.rmtree(folder, ignore_errors=True)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = now()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.steps.append(now() - self.start)
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            model.save_pretrained(self.folder / str(state.global_step))
        self.start = now()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append({"step": state.global_step, **(logs or {})})

    def curve(self) -> dict[str, Any]:
        seconds = list(itertools.accumulate(self.steps))
        kept = {
            "loss": "loss/total",
            "reward": "reward/mean",
            "completions/mean_length": "completion/length_mean",
            "entropy": "policy/entropy",
            "grad_norm": "optim/grad_norm",
        }
        rows: list[dict[str, float]] = [
            {"step": i + 1, "seconds": each} for i, each in enumerate(seconds)
        ]
        for log in self.logs:
            if 1 <= log["step"] <= len(rows):
                rows[int(log["step"]) - 1] |= {
                    ours: log[name] for name, ours in kept.items() if name in log
                }
        return {"steps": rows, "seconds": seconds[-1], "peak_gb": peak_gb()}


def load(folder: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model, AutoTokenizer.from_pretrained(folder)


def common(study: Study, stage: str, seed: int) -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(study.folder(stage, seed)),
        "seed": seed,
        "bf16": cuda,
        "use_cpu": not cuda,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
    }


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sft(study: Study) -> dict[str, Any]:
    """It gets our tokens and masks, so that losses can be compared digit by digit."""
    from trl import SFTConfig, SFTTrainer

    settings = study.settings
    model, tokenizer = load(study.model)
    reader = ascent.Policy(str(study.model), dtype=settings.dtype)
    batch = reader.pack(ascent.load_data(str(study.work / "data/sft.jsonl"), "examples"))
    sizes = batch["segments"].lengths_B.tolist()
    names = {"input_ids": "tokens_T", "completion_mask": "loss_mask_T"}
    split = {
        name: [each.long().tolist() for each in batch[field].split(sizes)]
        for name, field in names.items()
    }
    del reader
    clock = Clock(study.points("trl_sft"), settings.sft_steps)
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict(split),
        callbacks=[clock],
        args=SFTConfig(
            **common(study, "trl_sft", 0),
            max_length=settings.max_tokens,
            completion_only_loss=True,
            per_device_train_batch_size=settings.sft_batch,
            max_steps=settings.sft_steps,
            packing=False,
            learning_rate=settings.sft_learning_rate,
            lr_scheduler_type="linear",
            train_sampling_strategy="sequential",
        ),
    )
    trainer.train()
    return clock.curve()


def grpo(study: Study, seed: int) -> dict[str, Any]:
    from trl import GRPOConfig, GRPOTrainer

    settings = study.settings
    model, tokenizer = load(study.sft)
    rows = settings.prompts * settings.group
    clock = Clock(study.points("trl_grpo", seed), settings.save_every)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=trl_correct,
        callbacks=[clock],
        train_dataset=Dataset.from_list(rows_of(study.work / f"data/prompts-{seed}.jsonl")),
        args=GRPOConfig(
            **common(study, "trl_grpo", seed),
            num_generations=settings.group,
            shuffle_dataset=False,
            per_device_train_batch_size=settings.trl_rows,
            gradient_accumulation_steps=rows // settings.trl_rows,
            max_completion_length=settings.max_new_tokens,
            max_steps=settings.trl_steps,
            temperature=1.0,
            top_p=1.0,
            learning_rate=study.learning_rate,
            lr_scheduler_type="constant",
            beta=0.0,
            epsilon=0.2,
            loss_type="grpo",
            scale_rewards="group",
        ),
    )
    trainer.train()
    return clock.curve()


def as_text(row: dict[str, Any], tokenizer: Any) -> dict[str, str]:
    """A pair without its roles. Of a conversation TRL also trains what the template puts after the end token, which is
    never sampled; to a text it adds the end token alone, as ours does."""
    prompt = tokenizer.apply_chat_template(
        row["prompt"], add_generation_prompt=True, tokenize=False
    )
    return {"prompt": prompt, **{name: row[name][0]["content"] for name in ("chosen", "rejected")}}


def dpo(study: Study, cell: int) -> dict[str, Any]:
    from trl import DPOConfig, DPOTrainer

    settings, (dtype, start), folder = study.settings, DPO_CELLS[cell], study.dpo_start(cell)
    model, tokenizer = load(folder)
    clock = Clock(study.points("trl_dpo", cell), 10**6)
    options = common(study, "trl_dpo", cell)
    trainer = DPOTrainer(
        model=model,
        ref_model=load(folder)[0],
        processing_class=tokenizer,
        callbacks=[clock],
        train_dataset=Dataset.from_list(
            [as_text(row, tokenizer) for row in rows_of(study.work / "data/pairs.jsonl")]
        ),
        args=DPOConfig(
            **options | {"bf16": options["bf16"] and dtype == "bfloat16"},
            beta=settings.dpo_beta,
            per_device_train_batch_size=settings.dpo_batch // 2,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            learning_rate=settings.dpo_learning_rate,
            lr_scheduler_type="constant",
            max_length=settings.max_tokens,
            train_sampling_strategy="sequential",
        ),
    )
    trainer.train()
    return {
        "dtype": dtype,
        "start": start,
        **clock.curve(),
        "points": test_points(study, "trl_dpo", cell),
    }
