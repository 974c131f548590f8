"""TRL's GRPOTrainer on the work of bench/grpo.py, run by the Python of an environment with TRL; prints one JSON line.

    python bench/peers/grpo.py FOLDER ROWS

ROWS completions go through the model at a time; all of a step make one optimizer step. float32, no vLLM, no reference,
no saving. What is timed runs from the end of one optimizer step to the end of the next: data, generation, rewards,
advantages, forward, backward and optimizer.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)


class EndAt(LogitsProcessor):
    """Row n ends with its lengths[n]-th token and not before."""

    def __init__(self, lengths: list[int], end: int) -> None:
        self.lengths, self.end, self.width = torch.tensor(lengths), end, -1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.width < 0:
            self.width = input_ids.shape[1]
        now = self.lengths == input_ids.shape[1] - self.width + 1
        scores[:, self.end] = float("-inf")
        scores[now] = float("-inf")
        scores[now, self.end] = 0.0
        return scores


class Imposed(GRPOTrainer):
    """Gives every generation the lengths of its step, and keeps what was trained and read."""

    steps: list[list[int]]
    done: int = 0
    rows: list[dict[str, int]]

    def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
        module = self.model
        generate, lengths = module.generate, self.steps[self.done]

        def imposed(*rest: Any, **more: Any) -> Any:
            ends = LogitsProcessorList([EndAt(lengths, self.processing_class.eos_token_id)])
            return generate(*rest, logits_processor=ends, **more)

        module.generate = imposed
        try:
            return super()._generate_single_turn(*given, **named)
        finally:
            del module.generate
            self.done += 1

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        self.rows.append(
            {"tokens": int(found["completion_mask"].sum()), "read": int(found["prompt_mask"].sum())}
        )
        return found


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.mark()

    def mark(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.rows.append(
            {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}
        )
        self.mark()


def spread(completions: list[Any], **_: Any) -> list[float]:
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [float(sum(map(ord, text)) % 7) / 7 for text in texts]


def main(folder: Path, at_once: int) -> None:
    asked = json.loads((folder / "work.json").read_text())
    lines = [
        json.loads(line)["prompt"] for line in (folder / "prompts.jsonl").read_text().splitlines()
    ]
    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    talks = tokenizer.chat_template is not None
    prompts = [[{"role": "user", "content": line}] for line in lines] if talks else lines
    rows, clock = asked["prompts"] * asked["group"], Clock()
    trainer = Imposed(
        model=AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=spread,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            num_generations=asked["group"],
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=rows // at_once,
            max_completion_length=max(map(max, asked["lengths"])),
            max_steps=asked["steps"],
            learning_rate=asked["learning_rate"],
            lr_scheduler_type="constant",
            beta=0.0,
            shuffle_dataset=False,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            use_vllm=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="steps",
            logging_steps=1,
            disable_tqdm=True,
        ),
    )
    trainer.steps, trainer.rows = asked["lengths"], []
    trainer.train()
    found = {
        "steps": [{**one, **other} for one, other in zip(clock.rows, trainer.rows, strict=True)],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "trl")},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
