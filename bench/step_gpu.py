"""One step of GRPO on a GPU (sample, score, update): ours, ours as PPO with a separate critic, and TRL's GRPOTrainer.

    python bench/step_gpu.py [--sides grpo,exact,ppo,trl] [--works E,R,L] [--size 1.5b] [--steps 3] [--out FILE]

Every measurement is a process of its own, one after the other, on a Qwen2.5 shape with random weights in bfloat16. How
many tokens each completion has is imposed on all sides: E is 512 for all, after prompts of 199 tokens; R is log-normal
with mean 300, at most 2,048; L is 512 after prompts of 999 tokens; M is 1,024 for all. 64 prompts x 8 completions, one
update, no KL, AdamW, entropy logged. `exact` is grpo with model.arithmetic=exact, which is the default there; grpo and
ppo are fast. TRL takes 16 completions at a time. WARM steps come before those that count; the first is reported too.
Peak memory is what torch's allocator had handed out, with our KV cache, which lies outside.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

WARM = 2
PROMPTS, GROUP = 64, 8
SHAPES = {
    "mini": {
        "hidden": 64,
        "layers": 2,
        "heads": 4,
        "key_value_heads": 2,
        "intermediate": 128,
        "vocab_size": 2048,
    },
    "0.5b": {"hidden": 896, "layers": 24, "heads": 14, "key_value_heads": 2, "intermediate": 4864},
    "1.5b": {"hidden": 1536, "layers": 28, "heads": 12, "key_value_heads": 2, "intermediate": 8960},
    "3b": {"hidden": 2048, "layers": 36, "heads": 16, "key_value_heads": 2, "intermediate": 11008},
    "7b": {
        "hidden": 3584,
        "layers": 28,
        "heads": 28,
        "key_value_heads": 4,
        "intermediate": 18944,
        "tie_word_embeddings": False,
    },
}
VOCAB = 151936
WORKS = {
    "E": {"words": 100, "mean": 512},
    "R": {"words": 100, "mean": 300},
    "L": {"words": 500, "mean": 512},
    "M": {"words": 100, "mean": 1024},
}
SIGMA, MAX_TOKENS = 0.9, 2048


def lengths(work: str, count: int, seed: int) -> list[int]:
    """How many tokens each completion of a step has; the same mix in another order for every step."""
    mean = WORKS[work]["mean"]
    if work != "R":
        return [mean] * count
    drawn = random.Random(0)
    middle = math.log(mean) - SIGMA**2 / 2
    sizes = [
        max(2, min(MAX_TOKENS, round(drawn.lognormvariate(middle, SIGMA)))) for _ in range(count)
    ]
    random.Random(seed).shuffle(sizes)
    return sizes


def prepare(folder: Path, given: argparse.Namespace) -> list[str]:
    """The model, which all processes share, and the prompts: digits, each of them two tokens."""
    import torch

    from ascent.models import tiny

    home = Path(tempfile.gettempdir()) / f"step-gpu-{given.size}"
    if not home.exists():
        cuda = torch.cuda.is_available()
        shape: dict[str, Any] = {
            "vocab_size": VOCAB,
            "tie_word_embeddings": True,
            **SHAPES[given.size],
        }
        tokenizer = tiny.tiny_tokenizer()
        with torch.device(
            "cuda" if cuda else "cpu"
        ):  # billions of random numbers take minutes on a CPU
            module = tiny.tiny_model("qwen2", len(tokenizer), longest=4096, seed=0, **shape)
        module.to(torch.bfloat16 if cuda else torch.float32).save_pretrained(home)
        tokenizer.save_pretrained(home)
        del module
        torch.cuda.empty_cache()
    (folder / "model").symlink_to(home)
    rng = random.Random(0)
    words = WORKS[given.work]["words"]
    return [
        " ".join(str(rng.randrange(10)) for _ in range(words))
        for _ in range(given.prompts * (given.steps + 1))
    ]


class Imposed:
    """A sampler whose completions have the lengths that they are to have. It takes the time of the engine."""

    def __init__(self, engine: Any, group: int, steps: list[list[int]]) -> None:
        engine.stop_ids = frozenset({-1})
        self.engine, self.group, self.steps, self.seconds, self.peak_bytes = (
            engine,
            group,
            steps,
            0.0,
            0,
        )

    def sample(self, requests: Iterable[Any]) -> Iterator[Any]:
        asked = list(requests)
        for each in asked:
            self.engine.add(replace(each, max_new_tokens=self._length(each)))
        left, self.seconds = len(asked), 0.0
        while left:
            start = time.perf_counter()
            done = self.engine.step()
            self.seconds += time.perf_counter() - start
            self._measure()
            left -= len(done)
            yield from done

    def _measure(self) -> None:
        """The KV cache lies outside of torch's allocator."""
        import torch

        if torch.cuda.is_available():
            now = torch.cuda.memory_allocated() + self.engine.stats().kv_cache_bytes
            self.peak_bytes = max(self.peak_bytes, now)

    def _length(self, request: Any) -> int:
        occasion, place, _ = request.prompt_id.split("/", 2)
        return self.steps[int(float(occasion)) - 1][int(place) * self.group + request.sample]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def ours(given: argparse.Namespace, side: str) -> dict[str, Any]:
    """Source, learners and objective as `ascent train` builds them; saving and evaluating are left out."""
    import torch
    import yaml

    from ascent.api.train import assemble
    from ascent.config.load import nest_keys
    from ascent.config.validate import validate
    from ascent.plan.resolve import resolve

    folder, algorithm = Path(tempfile.mkdtemp()), "grpo" if side == "exact" else side
    prompts = prepare(folder, given)
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in prompts)
    )
    (folder / "reward.py").write_text(
        "import random\ndef spread(rollout):\n    return random.random()\n"
    )
    imposed = [
        lengths(given.work, given.prompts * given.group, seed) for seed in range(1, given.steps + 2)
    ]
    keys: dict[str, Any] = {
        "algorithm": algorithm,
        "model.policy": str(folder / "model"),
        "model.dtype": "bfloat16" if torch.cuda.is_available() else "float32",
        "data.train": str(folder / "prompts.jsonl"),
        "data.shuffle": False,
        "rewards": [{"use": f"{folder / 'reward.py'}:spread"}],
        "rollouts.prompts_per_step": given.prompts,
        "rollouts.group_size": given.group,
        "rollouts.max_new_tokens": max(map(max, imposed)),
        "update.learning_rate": 1e-6,
        "run.steps": given.steps + 1,
    }
    if algorithm == "grpo":
        keys |= {"cells.kl": False, "cells.kl_controller": False}
    else:
        keys |= {"model.critic": "separate", "update.epochs": 1, "update.minibatches": 1}
    keys["model.arithmetic"] = "exact" if side == "exact" else "fast"
    keys |= {
        key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in given.set)
    }
    training = assemble(resolve(validate(nest_keys(keys))), folder)
    source: Any = training.source
    source.sampler = Imposed(source.sampler, given.group, imposed)
    rows = [_our_step(training, source, step) for step in range(1, given.steps + 1)]
    if given.profile:
        _profile(training, source, given)
    return {"steps": rows, "peak_gb": _peak(source)}


def _peak(source: Any) -> float:
    import torch

    if not torch.cuda.is_available():
        return 0.0
    return max(torch.cuda.max_memory_allocated(), source.sampler.peak_bytes) / 2**30


def _our_step(training: Any, source: Any, step: int) -> dict[str, float]:
    start = _now()
    batches = source.next(step)
    sampled, counts = _now(), {"tokens/trained": 0.0, "tokens/run": 0.0, "tokens/needed": 0.0}
    while batches:
        for other in training.others:
            other.learner.step(batches, other.objective)
        stats = training.learner.step(batches, training.objective)
        counts = {name: value + stats[name].value() for name, value in counts.items()}
        batches = source.more(stats)
    updated = _now()
    source.refresh(training.learner.weights())
    row = {
        "step": _now() - start,
        "engine": source.sampler.seconds,
        "prepare": sampled - start - source.sampler.seconds,
        "update": updated - sampled,
        **counts,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _profile(training: Any, source: Any, given: argparse.Namespace) -> None:
    from torch.profiler import ProfilerActivity, profile

    batches = source.next(given.steps + 1)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        training.learner.step(batches[:4], training.objective)
        _now()
    print(
        found.key_averages().table(
            sort_by="cuda_time_total", row_limit=35, max_name_column_width=70
        ),
        flush=True,
    )


def _now() -> float:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def trl(given: argparse.Namespace) -> dict[str, Any]:
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

    folder = Path(tempfile.mkdtemp())
    prompts = prepare(folder, given)
    count = given.prompts * given.group
    imposed = [lengths(given.work, count, seed) for seed in range(1, given.steps + 2)]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    class EndAt(LogitsProcessor):  # type: ignore[misc]
        """Forces the end token where a completion is to end, and forbids it before."""

        def __init__(self, ends: list[int]) -> None:
            self.ends, self.width = torch.tensor(ends, device="cuda"), -1

        def __call__(self, ids: Any, scores: Any) -> Any:
            self.width = ids.shape[1] if self.width < 0 else self.width
            ends = self.ends == ids.shape[1] - self.width + 1
            scores[:, tokenizer.eos_token_id] = float("-inf")
            scores[ends] = float("-inf")
            scores[ends, tokenizer.eos_token_id] = 0.0
            return scores

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        generated, seconds = 0, 0.0

        def _generate_single_turn(self, *args: Any, **options: Any) -> Any:
            generate = self.model.generate
            ends = LogitsProcessorList([EndAt(imposed[self.generated])])
            self.model.generate = lambda *a, **o: generate(*a, logits_processor=ends, **o)
            start = _now()
            try:
                return super()._generate_single_turn(*args, **options)
            finally:
                del self.model.generate
                self.generated += 1
                self.seconds += _now() - start

    marks: list[tuple[float, float]] = []

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **options: Any) -> None:
            marks.append((_now(), trainer.seconds))

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=count // 16,
        num_generations=given.group,
        max_completion_length=max(map(max, imposed)),
        max_steps=given.steps,
        bf16=True,
        gradient_checkpointing=False,
        beta=0.0,
        learning_rate=1e-6,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        temperature=1.0,
        shuffle_dataset=False,
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    trainer = Trainer(
        model=model,
        args=settings,
        processing_class=tokenizer,
        callbacks=[Marks()],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        reward_funcs=lambda completions, **_: [random.random() for _ in completions],
    )
    marks.append((_now(), 0.0))
    trainer.train()
    rows = [{"step": b[0] - a[0], "engine": b[1] - a[1]} for a, b in itertools.pairwise(marks)]
    return {"steps": rows, "peak_gb": torch.cuda.max_memory_allocated() / 2**30}


def measure(side: str, work: str, given: argparse.Namespace) -> dict[str, Any]:
    """One process; means over the steps after the warm ones."""
    words = ["--side", side, "--work", work, "--size", given.size, "--steps", str(given.steps)]
    words += ["--prompts", str(given.prompts), "--group", str(given.group)]
    words += ["--set", *given.set] if side != "trl" else []
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:], "stderr": done.stderr[-3000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    timed = found["steps"][WARM:] or found["steps"][-1:]
    means = {name: statistics.mean(row[name] for row in timed) for name in timed[0]}
    return {
        **means,
        "first": found["steps"][0]["step"],
        "peak_gb": found["peak_gb"],
        "steps": found["steps"],
    }


def torch_has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", default="grpo,ppo,trl")
    parser.add_argument("--works", default="E,R,L")
    parser.add_argument("--size", default="1.5b", choices=SHAPES)
    parser.add_argument("--steps", type=int, default=WARM + 3)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--group", type=int, default=GROUP)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of our recipe")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true", help="of four micro-batches, with --side")
    parser.add_argument("--side", help="measure in this process")
    parser.add_argument("--work", default="E")
    given = parser.parse_args()
    if given.size != "mini" and not torch_has_cuda():
        print(
            "bench/step_gpu.py needs a GPU; --size mini --sides grpo --prompts 2 tries the script on a CPU"
        )
        return
    if given.side:
        print(json.dumps(trl(given) if given.side == "trl" else ours(given, given.side)))
        return
    found = {}
    for work in given.works.split(","):
        for side in given.sides.split(","):
            row = found[f"{work} {side}"] = measure(side, work, given)
            print(
                work,
                side,
                {
                    k: round(v, 2) if isinstance(v, float) else v
                    for k, v in row.items()
                    if k != "steps"
                },
            )
            sys.stdout.flush()
    if given.out:
        import torch

        record = {
            "study": "step_gpu",
            "date": datetime.date.today().isoformat(),
            "size": given.size,
            "warm": WARM,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "torch": torch.__version__,
            "settings": given.set,
            "results": found,
        }
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
