"""The sampler of a mixture against an exact softmax of averaged logits, and against samplers of one model alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ascent.engines.geometric_mixture import GeometricMixtureSampler
from ascent.engines.hf import HFSampler, stock_attention
from ascent.models import lora
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Completion, Request

PROMPTS = ((5, 6, 7), (8, 9), (10, 11, 12, 13, 14), (15,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", family="llama", seed=0)


def louder(model: LanguageModel, times: float = 1.6) -> LanguageModel:
    """The same model with other, clearer opinions."""
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(times)
    return model


@pytest.fixture(scope="module")
def two(folder: Path) -> tuple[LanguageModel, LanguageModel]:
    return louder(load(folder)), louder(load(folder), 2.5)


def requests(**changes: object) -> list[Request]:
    return [Request(f"p{n}", 0, p, 8, seed=3, **changes) for n, p in enumerate(PROMPTS)]  # type: ignore[arg-type]


def answers(sampler: HFSampler, **changes: object) -> dict[str, Completion]:
    return {each.prompt_id: each for each in sampler.sample(requests(**changes))}


@torch.no_grad()
def logits(model: LanguageModel, tokens: tuple[int, ...]) -> Tensor:
    """One whole forward without a cache, in float64 from there on."""
    with stock_attention(model):
        return model.module(input_ids=torch.tensor([tokens])).logits[0].double()


def mixed(
    two: tuple[LanguageModel, LanguageModel], tokens: tuple[int, ...], share: float, at: float = 1.0
) -> Tensor:
    policy_LV, reference_LV = (logits(each, tokens) for each in two)
    return (((1 - share) * policy_LV + share * reference_LV) / at).log_softmax(-1)


@pytest.mark.parametrize(("share", "temperature"), [(0.5, 1.0), (0.2, 0.7)])
def test_recorded_log_probs_are_those_of_the_averaged_logits(
    two, share: float, temperature: float
) -> None:
    found = answers(GeometricMixtureSampler(*two, {1}, share=share), temperature=temperature)
    for request in requests():
        done, start = found[request.prompt_id], len(request.tokens) - 1
        exact_LV = mixed(two, request.tokens + done.tokens, share, temperature)[start:-1]
        exact = exact_LV.gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
        assert done.logprobs == pytest.approx(exact.tolist(), abs=1e-5)
        alone = (
            logits(two[0], request.tokens + done.tokens)[start:-1].div(temperature).log_softmax(-1)
        )
        assert not torch.allclose(
            alone.gather(1, torch.tensor(done.tokens)[:, None])[:, 0], exact, atol=1e-2
        )


def test_tokens_are_drawn_as_often_as_the_mixture_says(two) -> None:
    """Chi-square over eight bins of about equal mass, 2000 draws: 24.3 is passed once in a thousand."""
    prompt, draws = (5, 6, 7), 2000
    chance_V = mixed(two, prompt, 0.5)[-1].exp()
    likeliest_V = chance_V.argsort(descending=True)
    bin_V = torch.empty_like(likeliest_V)
    bin_V[likeliest_V] = (chance_V[likeliest_V].cumsum(0) * 8 - 1e-9).long().clamp(max=7)
    asked = [Request("p", n, prompt, 1, seed=11) for n in range(draws)]
    drawn = torch.tensor(
        [each.tokens[0] for each in GeometricMixtureSampler(*two, {1}).sample(asked)]
    )
    seen = torch.bincount(bin_V[drawn], minlength=8).double()

    def distance(chance_V: Tensor) -> float:
        due = draws * torch.zeros(8, dtype=torch.float64).index_add(0, bin_V, chance_V)
        return float(((seen - due) ** 2 / due.clamp(min=1e-9)).sum())

    assert distance(chance_V) < 24.3
    assert (
        min(distance(logits(each, prompt)[-1].softmax(-1)) for each in two) > 24.3
    )  # neither of the two alone


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_mixture_of_one_is_that_one(two, share: float) -> None:
    one = HFSampler(two[int(share)], {1})
    assert {
        name: each.tokens
        for name, each in answers(GeometricMixtureSampler(*two, {1}, share=share)).items()
    } == {name: each.tokens for name, each in answers(one).items()}


def test_composition_does_not_change_what_is_sampled(two) -> None:
    together = {
        name: each.tokens for name, each in answers(GeometricMixtureSampler(*two, {1})).items()
    }
    alone = GeometricMixtureSampler(*two, {1}, batch_size=1).sample(reversed(requests()))
    assert {each.prompt_id: each.tokens for each in alone} == together


def test_the_policy_is_asked_as_it_is_now(folder: Path) -> None:
    policy, reference = louder(load(folder)), load(folder)
    sampler = GeometricMixtureSampler(policy, reference, {1})
    before = answers(sampler)
    louder(policy, 1.3)
    fresh = louder(louder(load(folder)), 1.3)
    assert before != answers(sampler) == answers(GeometricMixtureSampler(fresh, reference, {1}))


def test_without_its_adapter_the_policy_is_its_own_reference(folder: Path) -> None:
    policy = lora.attach(louder(load(folder)), rank=4)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.3)
    shared = answers(GeometricMixtureSampler(policy, lora.WithoutAdapter(policy), {1}))
    apart = answers(GeometricMixtureSampler(policy, louder(load(folder)), {1}))
    assert {name: each.tokens for name, each in shared.items()} == {
        name: each.tokens for name, each in apart.items()
    }
    for name, each in shared.items():
        assert each.logprobs == pytest.approx(apart[name].logprobs, abs=1e-5)
    assert answers(HFSampler(policy, {1})) != shared  # the adapter is back on, and has an opinion


def test_both_models_have_their_own_attention_back_afterwards(two) -> None:
    before = [each.module.config._attn_implementation for each in two]
    answers(GeometricMixtureSampler(*two, {1}))
    assert [each.module.config._attn_implementation for each in two] == before


def test_a_share_is_a_share(two) -> None:
    with pytest.raises(
        ValueError, match=r"share=1\.5, but the reference's share must lie between 0 and 1"
    ):
        GeometricMixtureSampler(*two, {1}, share=1.5)
