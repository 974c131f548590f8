"""Supervised fine-tuning, as a script of TRL becomes one of Ascent (docs/coming-from/trl.md)."""

from datasets import load_dataset

import ascent

dataset = load_dataset("trl-lib/Capybara", split="train")
ascent.train(
    "sft",
    {"update.learning_rate": 2e-5, "data.batch_size": 16, "run.steps": 200},
    model="Qwen/Qwen2.5-0.5B",
    data=dataset,
    run="runs/sft",
)
