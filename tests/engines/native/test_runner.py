"""The experts that tokens take while sampling are recorded, and with them training takes the same route."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models.forward import hidden_states, plan_forward
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.routing import RoutingRecorder, routing
from ascent.models.tiny import create
from ascent.records import Completion, Message, Prompt, Request, Rollout, Turn
from ascent.rollouts.batch import pack_rollouts

ENDS = frozenset({1})
WANT = frozenset({"logprobs_T"})
FAMILIES = ("qwen3_moe", "deepseek_v3", "gpt_oss")
# Loud weights: scores of experts lie far apart, so that rounding decides nothing.
LOUD = {"hidden": 32, "layers": 2, "initializer_range": 0.25, "seed": 0}


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LanguageModel:
    folder = create(tmp_path_factory.mktemp("models") / request.param, family=request.param, **LOUD)
    return load(folder, routing_replay=True)


def asked(**changes: Any) -> list[Request]:
    rng = random.Random(0)
    prompts = [
        tuple(rng.randrange(3, 250) for _ in range(length)) for length in (1, 2, 15, 16, 17, 40)
    ]
    every = [(n, sample) for n in range(len(prompts)) for sample in range(3)]
    return [
        replace(Request(f"p{n}", sample, prompts[n], 20, seed=5), **changes) for n, sample in every
    ]


def answered(model: LanguageModel, requests: list[Request], **settings: Any) -> list[Completion]:
    engine = NativeEngine(model, ENDS, **{"max_num_seqs": 8, "max_model_len": 64, **settings})
    done = {(each.prompt_id, each.sample): each for each in engine.sample(requests)}
    assert settings.get("num_blocks") is None or engine.stats().preemptions > 0
    return [done[each.prompt_id, each.sample] for each in requests]


def batch_of(requests: list[Request], answers: list[Completion]) -> dict[str, Any]:
    pairs = zip(requests, answers, strict=True)
    prompt = (Message("user", "?"),)
    return pack_rollouts(
        [Rollout(Prompt(q.prompt_id, prompt), q.sample, (Turn(q.tokens, a),)) for q, a in pairs]
    )


@torch.no_grad()
def routes_of(model: LanguageModel, tokens: tuple[int, ...]) -> Tensor:
    """Where the training forward sends a sequence that runs alone."""
    noted = RoutingRecorder()
    tokens_T, segments = torch.tensor(tokens), Segments.from_lengths([len(tokens)])
    with routing(noted):
        batch = {
            "tokens_T": tokens_T,
            "positions_T": torch.arange(len(tokens)),
            "segments": segments,
        }
        hidden_states(model.module.base_model, batch, plan_forward(batch, tokens_T.device))
    return noted.stacked(torch.uint8)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {}),
        ({"max_num_seqs": 2, "block_size": 4, "steps_per_sync": 1}, {}),
        ({"num_blocks": 16, "block_size": 8}, {}),  # preempted, and read again as longer prompts
        ({}, {"stop": ("a", "e", " ", "t")}),  # cut in the middle of what was drawn
    ],
    ids=["plain", "token by token", "preempted", "stop texts"],
)
def test_every_token_that_was_run_has_its_route(
    model: LanguageModel, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    requests = asked(**changes)
    answers = answered(model, requests, **settings)
    batch = batch_of(requests, answers)
    assert model.routes is not None
    assert batch["routed_experts_TLC"].shape == (batch["segments"].total, *model.routes[:2])
    rows = batch["routed_experts_TLC"].split(batch["segments"].lengths_B.tolist())
    for request, answer, own_TLC in zip(requests, answers, rows, strict=True):
        assert torch.equal(own_TLC[:-1], routes_of(model, request.tokens + answer.tokens)[:-1])
        assert bool((own_TLC[-1] == 255).all())  # the last token was drawn and never run
    found = {
        request.prompt_id: answer.routed_experts
        for request, answer in zip(requests, answers, strict=True)
    }
    if not settings.get("num_blocks"):
        assert all(
            a.routed_experts.prompt is found[a.prompt_id].prompt for a in answers
        )  # one copy for a group


def test_the_ratio_of_a_fresh_rollout_is_1(model: LanguageModel) -> None:
    requests = asked(temperature=0.8)
    batch = batch_of(requests, answered(model, requests))
    with torch.no_grad():
        found = model.outputs(batch, WANT, 0.8)
    off_T = (found["logprobs_T"] - batch["sampler_logprobs_T"])[batch["loss_mask_T"]].abs()
    assert float(off_T.max()) < 1e-5
    assert found["policy/routes_changed_frac"][0] == 0
    assert found["policy/routes_changed_frac"][1] > 0


def test_where_the_last_bits_decide_only_replay_keeps_the_route(model: LanguageModel) -> None:
    """All experts score alike but for the last bits, which differ between sampler and trainer as they do on two
    kernels: without replay the same tokens go to other experts, and the policy is far from itself."""
    rng = torch.Generator().manual_seed(0)
    routers = [each for each in model.module.modules() if type(each).__name__.endswith("Router")]
    before = [(each, each.data.clone()) for router in routers for each in router.parameters()]
    requests = asked()
    with torch.no_grad():
        for weight, _ in before:
            weight[:] = weight[:1].clone()
            weight.add_(1e-6 * torch.randn(weight.shape, generator=rng))
        batch = batch_of(requests, answered(model, requests))
        for weight, _ in before:
            weight.add_(1e-6 * torch.randn(weight.shape, generator=rng))
        kept, lost = model.outputs(batch, WANT), replace(model, routes=None).outputs(batch, WANT)
        for weight, old in before:
            weight.copy_(old)
    off = {
        name: (found["logprobs_T"] - batch["sampler_logprobs_T"])[batch["loss_mask_T"]].abs()
        for name, found in (("kept", kept), ("lost", lost))
    }
    assert float(off["kept"].max()) < 1e-3
    assert float(off["lost"].mean()) > 0.2
    assert (
        float(kept["policy/routes_changed_frac"][0] / kept["policy/routes_changed_frac"][1]) > 0.2
    )


def test_without_replay_nothing_is_recorded(tmp_path: Path) -> None:
    plain = load(create(tmp_path, family="qwen3_moe", **LOUD))
    answers = answered(plain, asked())
    assert all(each.routed_experts is None for each in answers)
    assert "routed_experts_TLC" not in batch_of(asked(), answers)
