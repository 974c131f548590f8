"""How fast completions come and new weights arrive: the native engine here, `ascent serve`, and vLLM, on one machine.

    python bench/samplers.py MODEL [--vllm PYTHON] [--repeat 3] [--out FILE]
    python bench/samplers.py MODEL --device cuda --dtype bfloat16 --prompts 64 --group 8 --tokens 256 --out FILE

Each samples the same prompts in groups (vLLM with its own random numbers). A server is started as a run starts it, with
the cores it finds, and on a GPU beside the native engine. Weights go through a folder in memory (/dev/shm) where there
is one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ascent.data.render import Renderer  # noqa: E402
from ascent.engines.native.engine import NativeEngine  # noqa: E402
from ascent.models import lora  # noqa: E402
from ascent.models.load import load  # noqa: E402
from ascent.models.model import LanguageModel  # noqa: E402
from ascent.protocols import Sampler  # noqa: E402
from ascent.records import Message, Request  # noqa: E402
from ascent.setup.policy_weights import PolicyWeights  # noqa: E402
from ascent.setup.samplers import Engine, ServedPolicy, fleet_of  # noqa: E402
from bench.hardware import hardware  # noqa: E402


def requests_of(renderer: Renderer, given: argparse.Namespace) -> list[Request]:
    texts = [f"Write a sentence about the number {n}." for n in range(given.prompts)]
    prompts = [tuple(renderer.prompt([Message("user", text)])) for text in texts]
    limits: dict[str, Any] = {
        "max_new_tokens": given.tokens,
        "min_new_tokens": given.tokens,
        "seed": 0,
    }
    return [
        Request(str(n), sample, tokens, **limits)
        for n, tokens in enumerate(prompts)
        for sample in range(given.group)
    ]


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(name: str, sampler: Sampler, requests: list[Request], repeat: int) -> dict[str, Any]:
    """The first call starts a server, and compiles; it is not counted."""
    tokens = sum(each.max_new_tokens for each in requests)
    first = timed(lambda: sampler.set_weights(1, {}) or list(sampler.sample(requests)))
    sampling = [timed(lambda: list(sampler.sample(requests))) for _ in range(repeat)]
    pushes = [
        timed(lambda version=version: sampler.set_weights(version, {}))
        for version in range(2, 2 + repeat)
    ]
    sampler.close()
    found = {
        "engine": name,
        "start_s": first,
        "sampling_s": sampling,
        "weights_s": pushes,
        "tokens": tokens,
    }
    found["tokens_per_second"] = tokens / statistics.median(sampling)
    print(
        {
            key: value if key != "weights_s" else statistics.median(pushes)
            for key, value in found.items()
        },
        flush=True,
    )
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the JSON of results")
    return parser.parse_args()


def measure_all(given: argparse.Namespace) -> list[dict[str, Any]]:
    model = load(given.model, device=given.device, dtype=given.dtype).eval()
    renderer = Renderer(model.tokenizer)
    requests = requests_of(renderer, given)
    longest = max(len(each.tokens) for each in requests) + given.tokens
    served = ServedPolicy(model.tokenizer, renderer.stop_ids, longest, given.dtype)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:

        def fleet(engine: str, policy: LanguageModel, name: str) -> Sampler:
            weights = PolicyWeights(policy, Path(place) / name)
            return fleet_of(Engine(engine), served, Path(place) / f"{name}.log", policy=weights)

        rows = [
            measure(
                "native",
                NativeEngine(model, renderer.stop_ids, max_model_len=longest),
                requests,
                given.repeat,
            )
        ]
        adapted = lora.attach(
            load(given.model, device=given.device, dtype=given.dtype), rank=8
        ).eval()
        for engine in ("remote", *(["vllm"] if given.vllm else [])):
            rows.append(measure(engine, fleet(engine, model, engine), requests, given.repeat))
            rows.append(
                measure(
                    f"{engine}, LoRA",
                    fleet(engine, adapted, f"{engine}-lora"),
                    requests,
                    given.repeat,
                )
            )
    return rows


def main() -> None:
    given = arguments()
    if given.vllm:
        os.environ["ASCENT_VLLM_PYTHON"] = given.vllm
    rows = measure_all(given)
    if given.out:
        settings = {
            name: getattr(given, name) for name in ("device", "dtype", "prompts", "group", "tokens")
        }
        gpu = {"gpu": torch.cuda.get_device_name()} if given.device == "cuda" else {}
        report = {
            "date": datetime.date.today().isoformat(),
            "hardware": hardware() | gpu,
            **settings,
            "rows": rows,
        }
        given.out.write_text(
            json.dumps({"command": "python bench/samplers.py MODEL", **report}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
