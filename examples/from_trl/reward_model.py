"""A reward model, as a script of TRL becomes one of Ascent (docs/coming-from/trl.md)."""

from datasets import load_dataset

import ascent

dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
ascent.train(
    "reward_model",
    {"update.learning_rate": 1e-5, "data.batch_size": 16, "run.steps": 200},
    model="Qwen/Qwen2.5-0.5B-Instruct",
    data=dataset,
    run="runs/reward-model",
)
