"""A real vLLM samples the rollouts of SmolLM2: one that the run starts, and two that are given.

Minutes on a CPU. `ASCENT_VLLM_PYTHON` is the Python of an environment with vLLM (0.32 or later), `ASCENT_SMOLLM2` a
folder with SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import ascent
from ascent.data.render import Renderer
from ascent.engines.fleet import ServerFleet
from ascent.engines.native.engine import NativeEngine
from ascent.engines.server_process import ServerProcess, free_port, vllm_command
from ascent.models import lora
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.records import Completion, Request
from ascent.setup.policy_weights import PolicyWeights, write_weights
from ascent.setup.samplers import SERVER_KEY, Engine, ServedPolicy, fleet_of
from tests.end_to_end.test_overlap import REWARD

NEEDED = {"ASCENT_VLLM_PYTHON", "ASCENT_SMOLLM2"}
SMOLLM2, KEY, LONGEST = os.environ.get("ASCENT_SMOLLM2", ""), "a-key", 128
pytestmark = [
    pytest.mark.skipif(
        not os.environ.keys() >= NEEDED,
        reason=f"{' and '.join(sorted(NEEDED))} name no Python and no folder",
    ),
]
TOLERANCE = 1e-3  # between vLLM's kernels and ours, in float32


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Threads that are bound to cores wait for each other where other processes use these cores.
        settings = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
        }
        for name, value in {**settings, SERVER_KEY: KEY}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def two(
    environment: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ServerProcess]]:
    """Started as a user would start them, with LoRA, from a copy whose output head is not tied to the embeddings."""
    folder = tmp_path_factory.mktemp("vllm")
    write_weights(load(SMOLLM2), folder / "model", own_head=True)
    with ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            port = free_port()
            command = partial(
                vllm_command,
                str(folder / "model"),
                port,
                KEY,
                dtype="float32",
                max_model_len=LONGEST,
                lora_rank=8,
            )
            found.append(ServerProcess(command, port, KEY, folder / f"{name}.log"))
            stack.callback(found[-1].close)
        for each in found:
            each.wait(500)
        yield found


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    url = server.url.removesuffix("/v1") + path
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120
    ) as reply:
        assert reply.status == 200


def policy(kind: str) -> LanguageModel:
    model = load(SMOLLM2)
    return (model if kind == "whole" else lora.attach(model, rank=8)).eval()


def change(model: LanguageModel) -> None:
    """Enough for other answers, and little enough for the likeliest token to be clear."""
    size = 0.003 if model.adapter is None else 0.02
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn(each.shape, generator=generator) * size)


def greedy(sampler: ServerFleet | NativeEngine, model: LanguageModel) -> dict[str, Completion]:
    texts = ("The capital of France is", "def add(a, b):", "Once upon a time")
    asked = [
        Request(text, 0, tuple(model.tokenizer.encode(text)), 12, seed=0, greedy=True)
        for text in texts
    ]
    return {each.prompt_id: each for each in sampler.sample(asked)}


def same(one: dict[str, Completion], other: dict[str, Completion]) -> bool:
    """The same tokens, and then nearly the same log-probs."""
    if {name: each.tokens for name, each in one.items()} != {
        name: each.tokens for name, each in other.items()
    }:
        return False
    gaps = [
        abs(a - b)
        for name in one
        for a, b in zip(one[name].logprobs, other[name].logprobs, strict=True)
    ]
    print(f"{len(gaps)} greedy tokens equal, largest |log-prob difference| {max(gaps):.1e}")
    return max(gaps) < TOLERANCE


@pytest.mark.parametrize("kind", ["whole", "adapter"])
def test_greedy_answers_change_exactly_when_the_weights_do(
    kind: str, two: list[ServerProcess], tmp_path: Path
) -> None:
    model = policy(kind)
    stop_ids = Renderer(model.tokenizer).stop_ids
    native = NativeEngine(model, stop_ids, max_model_len=LONGEST)
    served = ServedPolicy(model.tokenizer, stop_ids, LONGEST, "float32")
    engine = Engine("vllm", (two[0].url,))
    fleet = fleet_of(
        engine, served, tmp_path / "log", policy=PolicyWeights(model, tmp_path / "weights")
    )
    fleet.set_weights(1, {})
    first = greedy(fleet, model)
    assert same(first, greedy(native, model))
    change(model)
    native.set_weights(3, {})
    new = greedy(native, model)
    assert not same(first, new)
    assert same(greedy(fleet, model), first)  # not pushed yet
    fleet.set_weights(3, {})
    assert same(greedy(fleet, model), new)
    fleet.set_weights(4, {})  # the same weights again
    assert same(greedy(fleet, model), new)
    # Somebody else gives it weights, or takes the adapter away, as a restart would.
    if kind == "whole":
        path = str(two[0].log.parent / "model")
        post(
            two[0],
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": path}},
        )
        post(two[0], "/reset_prefix_cache", {})
        post(two[0], "/update_weight_version", {"new_version": "other"})
    else:
        post(two[0], "/v1/unload_lora_adapter", {"lora_name": fleet._servers[0].sampler.model})
    answers = greedy(fleet, model)
    assert same(answers, new) and {each.versions[0] for each in answers.values()} == {4}
    fleet.close()


RUNS: dict[str, dict[str, Any]] = {
    "two given": {},
    "two given, with an adapter": {"model.lora": 8, "update.learning_rate": 2e-4},
    "started": {},
}


@pytest.mark.parametrize("name", RUNS)
def test_ten_steps_teach_digits(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The reward is the share of digits in an answer. Log-probs that vLLM reports are those of the policy in every
    step, though the policy changes in every step."""
    (tmp_path / "reward.py").write_text(REWARD)
    keys: dict[str, Any] = {
        "algorithm": "grpo",
        "model": SMOLLM2,
        "model.dtype": "float32",
        "data": "arithmetic:8",
        "rewards": [{"use": f"{tmp_path}/reward.py:digits"}],
        "rollouts.prompts_per_step": 4,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 12,
        "update.learning_rate": 1.5e-5,
        "run.steps": 10,
        "run.save_every": 10,
        "rollouts.engine": "vllm",
        **RUNS[name],
    }
    if "given" in name:
        keys["rollouts.servers"] = [each.url for each in request.getfixturevalue("two")]
    done = ascent.train(keys, run=tmp_path / "run", progress=False, say=print)
    steps = [each for each in done.metrics if each.get("step", 0) > 0]
    for each in steps:
        print({key: round(each[key], 6) for key in REPORTED if key in each})
    rewards = [each["reward/mean"] for each in steps]
    assert len(steps) == 10 and sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert all(0 < each["sampler/logprob_diff_max"] < TOLERANCE for each in steps)
    assert not (tmp_path / "run" / "weights").exists()


REPORTED = (
    "step",
    "reward/mean",
    "sampler/logprob_diff",
    "sampler/logprob_diff_max",
    "time/sample",
    "time/refresh",
    "time/update",
    "time/step",
)
