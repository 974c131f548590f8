"""TRL's GRPO generation, on random weights in a known shape: what `bench/rollout.py gpu --trl` measures ours against.

The trainer is built as a user would build it (bfloat16, no vLLM) and asked for completions of given prompts, as it asks
itself in every step. Its own default is transformers' generate; with `continuous` its continuous batching.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any


def trl_seconds(
    module: Any, prompts: list[list[int]], new: int, repetitions: int, *, continuous: bool = False
) -> list[float]:
    """Seconds of each repetition, for `new` tokens of every prompt."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from ascent.models.tiny import tiny_tokenizer

    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=len(prompts),
            num_generations=min(8, len(prompts)),
            max_completion_length=new,
            bf16=cuda,
            use_cpu=not cuda,
            report_to=[],
            use_vllm=False,
            beta=0.0,
            use_transformers_continuous_batching=continuous,
            generation_kwargs={"min_new_tokens": new},
        )
        trainer = GRPOTrainer(
            model=module,
            reward_funcs=lambda completions, **others: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * len(prompts)}),
            processing_class=tiny_tokenizer(),
        )
        times = []
        for _ in range(repetitions):
            start = time.perf_counter()
            completions, _ = trainer._generate_single_turn(prompts, None, {}, 8)
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            assert sum(map(len, completions)) == len(prompts) * new
    return times
