"""How fast completions come and new weights arrive: the native engine here, `ascent serve`, and vLLM, on one machine.

    python bench/samplers.py MODEL [--vllm PYTHON] [--repeat 3] [--write]

Each samples the same prompts in groups (vLLM with its own random numbers), in float32 on a CPU. A server is started as
a run starts it, with the cores it finds. Weights go through a folder in memory (/dev/shm) where there is one. `--write`
writes dated JSON to bench/results/.
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
from bench.learning import hardware  # noqa: E402

PROMPTS, GROUP, NEW_TOKENS = 8, 4, 32


def requests_of(renderer: Renderer) -> list[Request]:
    texts = [f"Write a sentence about the number {n}." for n in range(PROMPTS)]
    prompts = [tuple(renderer.prompt([Message("user", text)])) for text in texts]
    limits: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "seed": 0}
    return [
        Request(str(n), sample, tokens, **limits) for n, tokens in enumerate(prompts) for sample in range(GROUP)
    ]  # fmt: skip


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(name: str, sampler: Sampler, requests: list[Request], repeat: int) -> dict[str, Any]:
    """The first call starts a server, and compiles; it is not counted."""
    tokens = len(requests) * NEW_TOKENS
    first = timed(lambda: sampler.set_weights(1, {}) or list(sampler.sample(requests[:GROUP])))
    sampling = [timed(lambda: list(sampler.sample(requests))) for _ in range(repeat)]
    pushes = [timed(lambda version=version: sampler.set_weights(version, {})) for version in range(2, 2 + repeat)]
    sampler.close()
    found = {"engine": name, "start_s": first, "sampling_s": sampling, "weights_s": pushes, "tokens": tokens}
    found["tokens_per_second"] = tokens / statistics.median(sampling)
    print({key: value if key != "weights_s" else statistics.median(pushes) for key, value in found.items()}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.vllm:
        os.environ["ASCENT_VLLM_PYTHON"] = options.vllm
    model = load(options.model).eval()
    renderer = Renderer(model.tokenizer)
    requests = requests_of(renderer)
    longest = max(len(each.tokens) for each in requests) + NEW_TOKENS
    served = ServedPolicy(model.tokenizer, renderer.stop_ids, longest, "float32")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:

        def fleet(engine: str, policy: LanguageModel, name: str) -> Sampler:
            weights = PolicyWeights(policy, Path(place) / name)
            return fleet_of(Engine(engine), served, Path(place) / f"{name}.log", policy=weights)

        rows = [
            measure("native", NativeEngine(model, renderer.stop_ids, max_model_len=longest), requests, options.repeat)
        ]
        adapted = lora.attach(load(options.model), rank=8).eval()
        for engine in ("remote", *(["vllm"] if options.vllm else [])):
            rows.append(measure(engine, fleet(engine, model, engine), requests, options.repeat))
            rows.append(measure(f"{engine}, LoRA", fleet(engine, adapted, f"{engine}-lora"), requests, options.repeat))
    if options.write:
        date, command = (
            datetime.date.today().isoformat(),
            f"python bench/samplers.py MODEL{' --vllm PYTHON' * bool(options.vllm)}",
        )
        report = {"date": date, "hardware": hardware(), "prompts": PROMPTS, "group_size": GROUP, "rows": rows}
        file = ROOT / "bench" / "results" / f"{date}-samplers-cpu.json"
        file.write_text(json.dumps({"command": command, **report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
