"""The reference sampler against transformers' own generate and against the packed training forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascent.engines.hf import HFSampler
from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Request

PROMPTS = ((5, 6, 7), (8, 9), (10, 11, 12, 13, 14), (15,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", family="llama", seed=0)


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load(folder)


def requests(**changes: object) -> list[Request]:
    return [Request(f"p{n}", 0, p, 8, seed=3, **changes) for n, p in enumerate(PROMPTS)]  # type: ignore[arg-type]


def test_greedy_equals_transformers_generate(folder: Path, model: LanguageModel) -> None:
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    sampler = HFSampler(model, {1})
    for request, completion in zip(requests(), sampler.sample(requests(greedy=True)), strict=True):
        prompt = torch.tensor([request.tokens])
        out = stock.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=1,
            pad_token_id=0,
        )
        assert completion.tokens == tuple(out[0, prompt.shape[1] :].tolist())


def test_recorded_log_probs_equal_the_packed_training_forward(model: LanguageModel) -> None:
    for completion, request in zip(
        HFSampler(model, {1}).sample(requests(temperature=0.7)), requests(), strict=True
    ):
        tokens = torch.tensor(request.tokens + completion.tokens)
        batch = {
            "tokens_T": tokens,
            "positions_T": torch.arange(tokens.numel()),
            "segments": Segments.from_lengths([tokens.numel()]),
            "loss_mask_T": torch.ones(tokens.numel(), dtype=torch.bool),
        }
        with torch.no_grad():
            trained = model.outputs(batch, frozenset({"logprobs_T"}), 0.7)["logprobs_T"]
        assert completion.logprobs == pytest.approx(
            trained[len(request.tokens) :].tolist(), abs=1e-5
        )


@pytest.mark.parametrize(
    ("family", "numbers"),
    [("gemma2", {"attn_logit_softcapping": 0.5}), ("gpt_oss", {"sliding_window": 4})],
)
def test_what_transformers_own_sdpa_leaves_out_is_honoured(
    tmp_path: Path, family: str, numbers: dict[str, Any]
) -> None:
    """Soft caps and sinks: log-probs are those of the packed forward, which a test compares with eager attention."""
    model = load(
        create(
            tmp_path / family, family=family, hidden=32, initializer_range=0.25, seed=0, **numbers
        )
    )
    test_recorded_log_probs_equal_the_packed_training_forward(model)


def test_composition_does_not_change_what_is_sampled(model: LanguageModel) -> None:
    together = {c.prompt_id: c.tokens for c in HFSampler(model, {1}).sample(requests())}
    alone = {
        c.prompt_id: c.tokens
        for c in HFSampler(model, {1}, batch_size=1).sample(reversed(requests()))
    }
    assert together == alone


def test_samples_of_one_prompt_differ(model: LanguageModel) -> None:
    asked = [Request("p", n, (5, 6), 8, seed=0) for n in range(6)]
    assert len({c.tokens for c in HFSampler(model, {1}).sample(asked)}) > 1


def test_the_models_own_attention_is_back_afterwards(model: LanguageModel) -> None:
    before = model.module.config._attn_implementation
    list(HFSampler(model, {1}).sample(requests()))
    assert model.module.config._attn_implementation == before


def test_stops_and_budgets(model: LanguageModel) -> None:
    everything = range(model.module.config.vocab_size)
    assert all(
        c.stop == "eos" and len(c.tokens) == 1
        for c in HFSampler(model, everything).sample(requests())
    )
    assert all(
        c.truncated and len(c.tokens) == 8 for c in HFSampler(model, {-1}).sample(requests())
    )
    with pytest.raises(ValueError, match="without stop ids"):
        HFSampler(model, ())
    unsupported: dict[str, Any] = {
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "min_new_tokens": 2,
        "stop": ("a",),
    }
    for name, value in unsupported.items():
        with pytest.raises(ValueError, match=f"{name}=.*use the native engine"):
            list(HFSampler(model, {1}).sample(requests(**{name: value})))


def test_stop_ids_of_a_request_end_it_as_in_the_native_engine(model: LanguageModel) -> None:
    free = {each.prompt_id: each.tokens for each in HFSampler(model, {1}).sample(requests())}
    end = max(free.values(), key=len)[1]
    wanted = requests(stop_ids=(end,))
    found = list(HFSampler(model, {1}).sample(wanted))
    assert {each.stop for each in found} >= {"stop"}
    for each in found:
        same = free[each.prompt_id]
        cut = same[: same.index(end) + 1] if end in same else same
        assert each.tokens == cut and (each.stop == "stop") == (end in same)
    native = {
        each.prompt_id: (each.tokens, each.stop) for each in NativeEngine(model, {1}).sample(wanted)
    }
    assert native == {each.prompt_id: (each.tokens, each.stop) for each in found}
