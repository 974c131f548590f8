"""TRL's SFTTrainer on the work of bench/sft.py, run by the Python of an environment that has TRL; prints one JSON line.

    python bench/peers/sft.py '{"folder": ..., "packing": false, "rows": 16, "accumulate": 1, "steps": 7, ...}'

float32, no gradient checkpointing, no saving, no logging: what is timed is data, forward, backward and optimizer.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

torch.set_num_threads(1)


class Counting(SFTTrainer):
    """Counts what reaches the model, and keeps the loss of every optimizer step."""

    counts: ClassVar[dict[str, float]] = {"real": 0, "computed": 0, "loss": 0.0}

    def training_step(
        self, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any
    ) -> torch.Tensor:
        mask = inputs.get("attention_mask")
        computed = inputs["input_ids"].numel()
        self.counts["computed"] += computed
        self.counts["real"] += computed if mask is None else int(mask.sum())
        loss = super().training_step(model, inputs, *rest, **named)
        self.counts["loss"] += float(loss)
        return loss


class Clock(TrainerCallback):
    """A row for every optimizer step: from the end of the one before (its data included) to its own end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.mark()

    def mark(self) -> None:
        self.wall, self.cpu, self.before = (
            time.perf_counter(),
            time.process_time(),
            dict(Counting.counts),
        )

    def on_step_end(self, *_: Any, **__: Any) -> None:
        row = {name: Counting.counts[name] - self.before[name] for name in self.before}
        row |= {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}
        self.rows.append(row)
        self.mark()


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    lines = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    clock = Clock()
    trainer = Counting(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        train_dataset=Dataset.from_list(lines),
        callbacks=[clock],
        args=SFTConfig(
            output_dir=str(folder / "trl"),
            packing=given["packing"],
            max_length=given["longest"],
            per_device_train_batch_size=given["rows"],
            gradient_accumulation_steps=given["accumulate"],
            max_steps=given["steps"],
            learning_rate=given["learning_rate"],
            lr_scheduler_type="constant",
            train_sampling_strategy="sequential",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    versions = {
        name: metadata.version(name) for name in ("torch", "transformers", "trl", "accelerate")
    }
    print(json.dumps({"steps": clock.rows, "versions": versions}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
