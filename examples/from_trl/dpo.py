"""DPO, as a script of TRL becomes one of Ascent (docs/coming-from/trl.md)."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import ascent

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
ascent.train(
    "dpo",
    {"cells.loss.beta": 0.1, "update.learning_rate": 5e-7, "data.batch_size": 16, "run.steps": 200},
    model=model,
    tokenizer=tokenizer,
    data=dataset,
    run="runs/dpo",
)
