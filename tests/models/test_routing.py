"""Routing replay: routers take what they are given and weigh it by their own scores; everything else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from ascent.maths.segments import Segments
from ascent.models import layer_patching, shared_prefix
from ascent.models.attention import attention_context, packed_context
from ascent.models.forward import enable_gradient_checkpointing, hidden_states, plan_forward
from ascent.models.model import LanguageModel
from ascent.models.probe import check_routing
from ascent.models.routing import RoutingRecorder, RoutingReplay, no_expert, routing
from tests.models.packing import batch_of, random_model

WANT = frozenset({"logprobs_T"})
EXPERTS, NONE = "routed_experts_TLC", no_expert(torch.uint8)


def normed(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


# What a router gives the experts it has chosen, from the scores of all, by the families' papers and configurations.
WEIGHTS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "qwen2_moe": lambda logits, taken, router: logits.softmax(-1).gather(1, taken),
    "qwen3_moe": lambda logits, taken, router: logits.softmax(-1).gather(1, taken),
    "olmoe": lambda logits, taken, router: logits.softmax(-1).gather(1, taken),
    "mixtral": lambda logits, taken, router: normed(logits.softmax(-1).gather(1, taken)),
    "deepseek_v2": lambda logits, taken, router: (
        logits.softmax(-1).gather(1, taken) * router.routed_scaling_factor
    ),
    "deepseek_v3": lambda logits, taken, router: normed(logits.sigmoid().gather(1, taken)) * 2.5,
    "gpt_oss": lambda logits, taken, router: logits.gather(1, taken).softmax(-1),
}


def replayed(family: str, **numbers: Any) -> LanguageModel:
    model = random_model(family, **numbers)
    model.module.eval()
    return replace(model, routes=check_routing(model.module))


def routers(model: LanguageModel) -> list[Any]:
    return [each for each in model.module.modules() if type(each).__name__.endswith("Router")]


@torch.no_grad()
def recorded(model: LanguageModel, batch: dict[str, Any]) -> Tensor:
    """The experts that the batch's tokens take by themselves."""
    noted = RoutingRecorder()
    with routing(noted):
        hidden_states(model.module.base_model, batch, plan_forward(batch, model.device))
    return noted.stacked(torch.uint8)


def shake(model: LanguageModel, by: float = 1.0, seed: int = 0) -> None:
    """Other routers: most tokens would go elsewhere."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in routers(model):
            each.weight.add_(by * torch.randn(each.weight.shape, generator=rng).to(each.weight))


@pytest.mark.parametrize("family", WEIGHTS)
def test_a_router_takes_what_it_is_given_and_weighs_it_by_its_scores(family: str) -> None:
    """Also experts that lie in groups which the scores of now would leave out."""
    model = replayed(family)
    router = routers(model)[-1]
    experts = 8 if "deepseek" in family else 4
    x_TD = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    pairs_P2 = torch.combinations(torch.arange(experts))
    given_TC = pairs_P2[torch.arange(64) % len(pairs_P2)]
    given_TC[::2] = given_TC[::2].flip(1)
    spread_TLC = torch.zeros(64, router.router_index + 1, 2, dtype=torch.uint8)
    spread_TLC[:, router.router_index] = given_TC.byte()
    replay = RoutingReplay(spread_TLC)
    with torch.no_grad():
        own_TC = router(x_TD)[2]
        with routing(replay):
            logits_TE, weights_TC, taken_TC = router(x_TD)
    assert torch.equal(taken_TC, given_TC)
    bias = getattr(router, "bias", None)
    exact_TE = x_TD.double() @ router.weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(logits_TE.double(), exact_TE, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        weights_TC.double(), WEIGHTS[family](exact_TE, given_TC, router), rtol=0, atol=1e-5
    )
    differ = sum(
        len(set(a) - set(b)) for a, b in zip(given_TC.tolist(), own_TC.tolist(), strict=True)
    )
    assert replay.changed_2.tolist() == [differ, 128]
    assert differ > 40


@pytest.mark.parametrize("family", WEIGHTS)
def test_with_the_same_weights_nothing_changes_and_with_other_routers_the_route_stays(
    family: str,
) -> None:
    model, batch = replayed(family), batch_of()
    plain_T = model.outputs(batch, WANT)["logprobs_T"]
    experts_TLC = recorded(model, batch)
    kept = model.outputs({**batch, EXPERTS: experts_TLC}, WANT)
    assert torch.equal(kept["logprobs_T"], plain_T)
    assert kept["policy/routes_changed_frac"].tolist() == [0, experts_TLC.numel()]
    shake(model)
    assert not torch.equal(recorded(model, batch), experts_TLC)
    replay = RoutingReplay(experts_TLC)
    with torch.no_grad():
        hidden_states(
            model.module.base_model, batch, plan_forward(batch, model.device), replay=replay
        )
    assert torch.equal(replay.stacked(torch.uint8), experts_TLC)
    assert 0.1 < float(replay.changed_2[0] / replay.changed_2[1]) < 1


def test_tokens_without_a_route_go_where_they_would() -> None:
    model, batch = replayed("qwen3_moe"), batch_of()
    experts_TLC = (recorded(model, batch) + 1) % 4
    nobody_TLC = torch.full_like(experts_TLC, NONE)
    found = model.outputs({**batch, EXPERTS: nobody_TLC}, WANT)
    assert torch.equal(found["logprobs_T"], model.outputs(batch, WANT)["logprobs_T"])
    assert found["policy/routes_changed_frac"].tolist() == [0, 0]
    first_TLC = experts_TLC.clone()
    first_TLC[7:] = NONE  # the first sequence has 7 tokens
    found_T = model.outputs({**batch, EXPERTS: first_TLC}, WANT)["logprobs_T"]
    alone_T = model.outputs(batch, WANT)["logprobs_T"]
    torch.testing.assert_close(found_T[7:], alone_T[7:], rtol=0, atol=1e-5)
    assert float((found_T - alone_T)[:7].detach().abs().max()) > 0.1


def test_a_model_that_replays_nothing_leaves_the_experts_of_a_batch_alone() -> None:
    model, batch = random_model("qwen3_moe"), batch_of()
    other_TLC = (recorded(model, batch) + 1) % 4
    found = model.outputs({**batch, EXPERTS: other_TLC}, WANT)
    assert list(found) == ["logprobs_T"]
    assert torch.equal(found["logprobs_T"], model.outputs(batch, WANT)["logprobs_T"])


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_gradients_are_those_of_a_function_whose_routes_stand_still(family: str) -> None:
    """Against central differences, where the routers' scores tie: without replay every step to the side goes over a
    cliff. Everything is float64 but norms and some routers' softmax."""
    model, batch = replayed(family), batch_of()
    model.module.double()
    model.module.set_experts_implementation("eager")  # the grouped product takes no float64
    for router in routers(model):
        router.weight.data[:] = router.weight[:1].clone()
        if family == "gpt_oss":
            router.bias.data[:] = 0
    shake(model, 1e-4)
    with_routes = {**batch, EXPERTS: recorded(model, batch)}
    mix_T = torch.randn(25, generator=torch.Generator().manual_seed(3)).double()

    def loss(given: dict[str, Any]) -> Tensor:
        return (model.outputs(given, WANT)["logprobs_T"] * mix_T).sum()

    loss(with_routes).backward()
    weights = list(model.module.parameters())
    gradients = [each.grad for each in weights]
    assert all(float(router.weight.grad.abs().max()) > 1e-4 for router in routers(model))
    rng = torch.Generator().manual_seed(4)
    directions = [torch.randn(each.shape, generator=rng).double() for each in weights]
    slope = float(sum((a * b).sum() for a, b in zip(gradients, directions, strict=True)))

    @torch.no_grad()
    def measured(given: dict[str, Any], step: float) -> float:
        sides = []
        for by in (step, -2 * step):
            for weight, direction in zip(weights, directions, strict=True):
                weight.add_(by * direction)
            sides.append(float(loss(given)))
        for weight, direction in zip(weights, directions, strict=True):
            weight.add_(step * direction)
        return (sides[0] - sides[1]) / (2 * step)

    assert measured(with_routes, 1e-4) == pytest.approx(slope, rel=2e-2)
    assert measured(batch, 1e-4) != pytest.approx(slope, rel=10)


def test_recomputed_activations_take_the_same_route() -> None:
    batch = batch_of()
    plain, saving = (replayed("mixtral").train() for _ in range(2))
    enable_gradient_checkpointing(saving.module)
    routes = {EXPERTS: (recorded(plain, batch) + 1) % 4}
    for model in (plain, saving):
        model.outputs({**batch, **routes}, WANT)["logprobs_T"].sum().backward()
    for ours, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(ours.grad, other.grad)


def group(experts_TLC: Callable[[Tensor], Tensor]) -> tuple[dict[str, Any], list[int]]:
    """Three answers to a prompt of 20 tokens, and the experts of all tokens."""
    lengths = [26, 24, 30]
    batch = batch_of(tuple(lengths))
    tokens = list(batch["tokens_T"].split(lengths))
    tokens[1:] = [torch.cat([tokens[0][:20], each[20:]]) for each in tokens[1:]]
    batch["tokens_T"] = torch.cat(tokens)
    return {**batch, EXPERTS: experts_TLC(batch["tokens_T"])}, lengths


def test_what_is_shared_is_shared_only_where_the_experts_are_too() -> None:
    """The experts of a token follow from its number here, except in the second answer from its fifth token on."""
    model = replayed("qwen3_moe")

    def experts(tokens_T: Tensor) -> Tensor:
        found_TLC = (
            torch.stack([tokens_T % 4, (tokens_T + 1) % 4], 1)[:, None]
            .expand(-1, 2, -1)
            .byte()
            .clone()
        )
        found_TLC[26 + 4 : 26 + 24] = (found_TLC[26 + 4 : 26 + 24] + 1) % 4
        return found_TLC

    batch, lengths = group(experts)
    find = shared_prefix.find_shared_prefixes(batch["tokens_T"], batch["segments"])
    assert find is not None and find.shared_lens == [0, 20, 20]
    assert (
        shared_prefix.find_shared_prefixes(batch["tokens_T"], batch["segments"], batch[EXPERTS])
        is None
    )  # 4 tokens are not worth it
    found_T = model.outputs(batch, WANT)["logprobs_T"]
    alone = []
    for place, length in enumerate(lengths):
        start = sum(lengths[:place])
        own = {
            name: batch[name][start : start + length]
            for name in ("tokens_T", "positions_T", EXPERTS)
        }
        alone.append(
            model.outputs({**own, "segments": Segments.from_lengths([length])}, WANT)["logprobs_T"]
        )
    torch.testing.assert_close(found_T, torch.cat(alone), rtol=0, atol=1e-5)


def test_shared_prompts_keep_their_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = group(
        lambda tokens_T: (
            torch.stack([tokens_T % 4, (tokens_T + 1) % 4], 1)[:, None].expand(-1, 2, -1).byte()
        )
    )
    model = replayed("qwen3_moe")
    shared = model.outputs(batch, WANT)
    monkeypatch.setattr(shared_prefix, "MIN_SAVED_FRAC", 2.0)
    alone = model.outputs(batch, WANT)
    # The prompt was run once, and counts for every sequence that it begins.
    assert (
        shared["policy/routes_changed_frac"].tolist()
        == alone["policy/routes_changed_frac"].tolist()
    )
    assert (
        alone["policy/routes_changed_frac"][1] == 80 * 4
        and alone["policy/routes_changed_frac"][0] > 0
    )
    torch.testing.assert_close(shared["logprobs_T"], alone["logprobs_T"], rtol=0, atol=1e-5)


SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("llama", "routing_replay=true, but LlamaForCausalLM has no known router of experts"),
        ("granitemoe", "GraniteMoeTopKRouter does not return"),
        ("phimoe", "the routers of PhimoeForCausalLM do not choose the experts they are given"),
    ],
)
def test_families_that_cannot_be_replayed_are_refused_by_name(model_type: str, words: str) -> None:
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SMALL)).eval()
    layer_patching.patch_layers(module)
    with pytest.raises(ValueError, match=words):
        check_routing(module)


def test_more_experts_than_a_byte_can_name_take_two() -> None:
    assert replayed("qwen3_moe", num_experts=255).routes == (2, 2, torch.uint8)
    assert replayed("qwen3_moe", num_experts=256).routes == (2, 2, torch.int16)


def test_experts_of_another_model_are_refused() -> None:
    model, batch = replayed("qwen3_moe"), batch_of()
    for wrong in (
        torch.zeros(25, 3, 2, dtype=torch.uint8),
        torch.zeros(25, 2, 2, dtype=torch.int16),
    ):
        with pytest.raises(ValueError, match="were recorded with another model"):
            model.outputs({**batch, EXPERTS: wrong}, WANT)


def test_other_topks_are_left_alone() -> None:
    class Thing(nn.Module):
        place = 0

        def forward(self, x: Tensor) -> Any:
            assert x.view(2, 4, 2).topk(1).indices.shape == (2, 4, 1)
            assert torch.topk(x[:, :5], 2).values.shape == (2, 2)
            return x, *x.topk(3)

    thing, x_TE = Thing(), torch.arange(16.0).view(2, 8)
    with (
        torch.no_grad(),
        attention_context(packed_context(Segments.from_lengths([2]), torch.device("cpu"))),
    ):
        replay = RoutingReplay(torch.tensor([[[0, 1, 2]], [[7, 1, 3]]], dtype=torch.uint8))
        found = replay.route(lambda: thing(x_TE), 0, "Thing")
    assert found[2].tolist() == [[0, 1, 2], [7, 1, 3]]
    assert found[1].tolist() == [[0, 1, 2], [15, 9, 11]]
