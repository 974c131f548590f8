"""One GRPO step of QLoRA (a 4-bit base) against LoRA on a bfloat16 base: memory and time by phase.

    python bench/qlora_gpu.py [RESULT.json] [--shape 7b|tiny] [--prompts 8] [--samples 8] [--new 512] [--work FOLDER]

A Llama with random weights is written to FOLDER (13.5 GB for 7b; a temporary folder by default) and loaded by each side
in a process of its own, as `ascent train` loads it. Prompts have 128 tokens; nothing stops a completion before `--new`
tokens. Rank 16 on every linear layer, gradient checkpointing, no KL. One step warms up, the next one is measured.
Memory is what torch has allocated at the peak of a phase, in GiB; on a CPU (to try the script) it is the largest
resident set so far. The KV cache is sized for one step and is listed by itself, because both sides need the same.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

NEVER = frozenset({-1})
PROMPT_TOKENS, RANK = 128, 16
SHAPES: dict[str, dict[str, int]] = {
    "7b": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": 4096,
    },
}
SIDES = {"lora": None, "qlora": "nf4"}
CUDA = torch.cuda.is_available()


def make(folder: Path, shape: str, prompts: int) -> None:
    """The model, the prompts of two steps, and a reward that is never the same for a whole group."""
    from ascent.models.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        **SHAPES[shape], pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    torch.manual_seed(0)
    with torch.device("cuda" if CUDA else "cpu"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    module.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rng = random.Random(0)
    texts = [
        "".join(str(rng.randrange(10)) for _ in range(PROMPT_TOKENS)) for _ in range(2 * prompts)
    ]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    )
    (folder / "reward.py").write_text(
        "import random\n\n\ndef spread(rollout):\n    return random.random()\n"
    )


class Phases:
    """Seconds and peak memory of each phase, in order."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    def measure(self, name: str, work: Any) -> Any:
        gc.collect()
        if CUDA:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        result = work()
        if CUDA:
            torch.cuda.synchronize()
        self.found[name] = {
            "seconds": time.perf_counter() - start,
            "peak_gib": _peak() / 2**30,
            "gib": _held() / 2**30,
        }
        return result


def _peak() -> int:
    return (
        torch.cuda.max_memory_allocated()
        if CUDA
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )


def _held() -> int:
    return torch.cuda.memory_allocated() if CUDA else _peak()


def measure_side(folder: Path, side: str, given: argparse.Namespace) -> dict[str, Any]:
    from ascent.api.train import assemble
    from ascent.config.load import nest_keys
    from ascent.config.validate import validate
    from ascent.engines.native.engine import NativeEngine
    from ascent.plan.resolve import resolve

    keys = {
        "algorithm": "grpo",
        "cells.kl": False,
        "cells.kl_controller": False,
        "model.policy": str(folder / "model"),
        "model.dtype": "bfloat16" if CUDA else "float32",
        "model.lora": RANK,
        "model.gradient_checkpointing": True,
        "model.quantize": SIDES[side],
        "data.train": str(folder / "prompts.jsonl"),
        "data.shuffle": False,
        "rewards": [{"use": f"{folder / 'reward.py'}:spread"}],
        "rollouts.prompts_per_step": given.prompts,
        "rollouts.group_size": given.samples,
        "rollouts.max_new_tokens": given.new,
        "update.learning_rate": 1e-5,
        "update.tokens_per_microbatch": given.tokens_per_microbatch,
        "run.steps": 2,
    }
    phases = Phases()
    training = phases.measure(
        "load", lambda: assemble(resolve(validate(nest_keys(keys))), folder / side)
    )
    source: Any = training.source
    limits = {
        "max_num_seqs": given.prompts * given.samples,
        "max_model_len": PROMPT_TOKENS + given.new + 8,
    }
    source.sampler.close()
    source.sampler = NativeEngine(training.model, NEVER, **limits)
    tokens = 0
    for step, name in ((1, "warm-up"), (2, "step")):
        batches = phases.measure(f"{name}: sample", lambda step=step: source.next(step))
        tokens = sum(int(batch["loss_mask_T"].sum()) for batch in batches)
        stats = phases.measure(
            f"{name}: update",
            lambda batches=batches: training.learner.step(batches, training.objective),
        )
        assert not source.more(stats)
        source.refresh(training.learner.weights())
    expected = given.prompts * given.samples * given.new
    if tokens != expected:
        raise RuntimeError(f"{tokens} tokens were trained, {expected} were asked for")
    weights = sum(each.numel() * each.element_size() for each in training.model.module.parameters())
    shape = SHAPES[given.shape]
    cache = (
        2
        * 2
        * shape["hidden_size"]
        * shape["num_hidden_layers"]
        * limits["max_num_seqs"]
        * limits["max_model_len"]
    )
    return {
        "phases": phases.found,
        "tokens": tokens,
        "notes": list(training.notes),
        "parameter_gib": weights / 2**30,
        "kv_cache_gib": (cache if CUDA else 2 * cache) / 2**30,
        "loss": stats["loss/total"].value(),
        "grad_norm": stats["optim/grad_norm"].value(),
    }


def table(sides: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"{'phase':<18}"
        + "".join(f"{side + ' s':>10}{'peak GiB':>10}{'after':>8}" for side in sides)
    ]
    for name in next(iter(sides.values()))["phases"]:
        cells = [each["phases"][name] for each in sides.values()]
        lines.append(
            f"{name:<18}"
            + "".join(f"{c['seconds']:>10.2f}{c['peak_gib']:>10.2f}{c['gib']:>8.2f}" for c in cells)
        )
    lines += [
        f"{key:<18}" + "".join(f"{each[key]:>28.2f}" for each in sides.values())
        for key in ("parameter_gib", "kv_cache_gib")
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "result", type=Path, metavar="RESULT.json", nargs="?", default=Path("qlora.json")
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="7b")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--tokens-per-microbatch", type=int, default=8192)
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="reused if it holds the model already"
    )
    parser.add_argument("--do", choices=["make", *SIDES], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.shape == "7b" and not CUDA:
        print("bench/qlora_gpu.py needs a GPU; --shape tiny tries the script on a CPU")
        return
    if given.do == "make":
        make(given.work, given.shape, given.prompts)
    elif given.do is not None:
        given.result.write_text(json.dumps(measure_side(given.work, given.do, given)))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            study(given, given.work or Path(temporary))


def study(given: argparse.Namespace, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    words = [
        word
        for key in ("shape", "prompts", "samples", "new", "tokens_per_microbatch")
        for word in (f"--{key.replace('_', '-')}", str(getattr(given, key)))
    ]
    sides: dict[str, dict[str, Any]] = {}
    for do in (() if (work / "prompts.jsonl").exists() else ("make",)) + tuple(SIDES):
        start = time.perf_counter()
        file = work / f"{do}.json"
        subprocess.run(
            [sys.executable, __file__, str(file), *words, "--work", str(work), "--do", do],
            check=True,
        )
        print(f"{do}: {time.perf_counter() - start:.0f} s", flush=True)
        if do in SIDES:
            sides[do] = json.loads(file.read_text())
    print(table(sides))
    record = {
        "study": "qlora",
        "device": torch.cuda.get_device_name() if CUDA else "cpu",
        "shape": SHAPES[given.shape],
        "prompts": given.prompts,
        "samples": given.samples,
        "new_tokens": given.new,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens_per_microbatch": given.tokens_per_microbatch,
        "rank": RANK,
        "sides": sides,
        "versions": {
            name: metadata.version(name)
            for name in ("torch", "transformers", "peft", "bitsandbytes")
        },
    }
    given.result.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
