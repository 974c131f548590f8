"""Replays: the modules' numbers for every family and number of tokens, and the modules themselves where that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ascent.engines.native.cpu_graph import TOLERANCE, capture, eager_forward
from ascent.models.attention import AttentionCall, attention_context
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.models.model import LanguageModel
from ascent.models.tiny import FAMILIES, create


class Values:
    """A context in which every token sees itself alone."""

    def __init__(self, total: int) -> None:
        self.total = total

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall) -> Tensor:
        return v_TKD.repeat_interleave(q_THD.shape[1] // v_TKD.shape[1], 1)


@torch.no_grad()
def both(model: LanguageModel, size: int, count: int) -> tuple[Tensor, Tensor]:
    eager = eager_forward(model.eval())
    graph = capture(eager, size)
    assert graph is not eager
    tokens_T, positions_T = torch.arange(count) * 7 % 250, torch.arange(count) * 3 % 40
    with attention_context(Values(count)):
        return eager(tokens_T, positions_T), graph(tokens_T, positions_T).clone()


WITH_EXPERTS = (
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
)


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_who_goes_to_which_expert_depends_on_numbers_and_is_not_replayed(
    tmp_path: Path, family: str
) -> None:
    eager = eager_forward(load(create(tmp_path / family, family=family, seed=0)).eval())
    with torch.no_grad():
        assert capture(eager, 8) is eager


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in WITH_EXPERTS])
def test_every_other_family_is_replayed(tmp_path: Path, family: str) -> None:
    eager_TD, graph_TD = both(load(create(tmp_path / family, family=family, seed=0)), 8, 8)
    assert torch.allclose(eager_TD, graph_TD, rtol=TOLERANCE, atol=TOLERANCE)


def test_fewer_tokens_than_recorded_and_other_sizes_give_the_same_bits(tmp_path: Path) -> None:
    model = load(create(tmp_path / "tiny", family="qwen3", seed=0))
    whole_TD = both(model, 16, 16)[1]
    assert torch.equal(both(model, 16, 5)[1], whole_TD[:5])
    assert torch.equal(both(model, 64, 5)[1], whole_TD[:5])


def test_weights_are_read_where_they_lie(tmp_path: Path) -> None:
    model = attach(load(create(tmp_path / "tiny", family="gemma", seed=0)), rank=4, seed=0)
    eager = eager_forward(model.eval())
    with torch.no_grad():
        graph = capture(eager, 8)
        for weight in model.module.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        tokens_T = torch.arange(8)
        with attention_context(Values(8)):
            assert torch.allclose(
                graph(tokens_T, tokens_T), eager(tokens_T, tokens_T), rtol=1e-4, atol=1e-4
            )


def test_a_forward_that_follows_its_own_numbers_is_not_replayed() -> None:
    weight = torch.randn(250, 4)

    def branches(tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        hidden_TD = weight[tokens_T]
        return hidden_TD * 2 if float(hidden_TD.sum()) > 0 else hidden_TD

    def remembers(tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        return weight[tokens_T] * max(positions_T.tolist())

    assert capture(branches, 4) is branches
    assert capture(remembers, 4) is remembers


def test_infinities_pass_through(tmp_path: Path) -> None:
    model = load(create(tmp_path / "tiny", seed=0))
    with torch.no_grad():
        model.module.get_input_embeddings().weight[7] = torch.inf
    eager_TD, graph_TD = both(model, 4, 4)
    assert torch.equal(eager_TD.isnan(), graph_TD.isnan())
    assert bool(eager_TD.isnan().any())
