"""Drawing: what may be drawn is what transformers would keep, frequencies are the softmax's, logs are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ascent.engines.counter_rng import exponentials, request_key
from ascent.engines.native import sampling
from ascent.engines.native.batch_state import BatchState
from ascent.engines.native.sampling import SamplerOutput, gumbel_argmax, sample, sample_full_vocab
from ascent.records import Request

VOCABULARY = 23
ENDS = frozenset({1})


def logits(rows: int = 4) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 2


def sample_tokens(
    logits_BV: Tensor, requests: list[Request], *, output_len: int = 0, truncates: bool = True
) -> SamplerOutput:
    state = BatchState(len(requests), 1, torch.device("cpu"))
    for row, request in enumerate(requests):
        state.start(
            row,
            request,
            ENDS,
            request_key(request.seed, request.prompt_id, request.sample),
            output_len,
        )
    return sample(logits_BV.clone(), state.sampling(slice(len(requests))), truncates=truncates)


def many(count: int, **changes: object) -> list[Request]:
    return [Request("p", n, (5,), 8, seed=0, **changes) for n in range(count)]  # type: ignore[arg-type]


def chi_square(tokens: Tensor, expected_V: Tensor) -> float:
    """The statistic over tokens expected at least five times, in units of its own spread: about normal."""
    counts_V = torch.bincount(tokens, minlength=VOCABULARY).double()
    expected_V = expected_V.double() * tokens.numel()
    likely_V = expected_V >= 5
    assert float(counts_V[expected_V == 0].sum()) == 0
    statistic = ((counts_V - expected_V)[likely_V] ** 2 / expected_V[likely_V]).sum()
    freedom = int(likely_V.sum()) - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    z_V = logits(1)
    out = sample_tokens(
        z_V.expand(40000, -1), many(40000, temperature=temperature), truncates=False
    )
    assert chi_square(out.tokens_B, (z_V[0] / temperature).softmax(-1)) < 4


def test_frequencies_under_top_p_are_those_of_what_is_left() -> None:
    z_V = logits(1)
    out = sample_tokens(z_V.expand(40000, -1), many(40000, top_p=0.7))
    p_V = z_V[0].softmax(-1)
    kept_V = TopPLogitsWarper(0.7)(torch.zeros(1, 1), z_V)[0].isfinite()
    assert chi_square(out.tokens_B, torch.where(kept_V, p_V, 0) / p_V[kept_V].sum()) < 4
    assert out.log_mass_B is not None
    assert out.log_mass_B.tolist() == pytest.approx(
        [math.log(float(p_V[kept_V].sum()))] * 40000, abs=1e-6
    )


def test_neighbouring_samples_and_positions_are_independent() -> None:
    """Two draws of the same row, of neighbouring samples and of neighbouring positions: a joint chi-square test."""
    z_V = torch.tensor([0.5, 0.3, 0.2]).log()
    first = sample_tokens(z_V.expand(20000, -1), many(20000), truncates=False).tokens_B
    second = sample_tokens(
        z_V.expand(20000, -1), many(20000), output_len=1, truncates=False
    ).tokens_B
    p_V = z_V.exp().double()
    for one, other in ((first[0::2], first[1::2]), (first, second)):
        counts = torch.bincount(one * 3 + other, minlength=9).double()
        expected = torch.outer(p_V, p_V).flatten() * one.numel()
        assert float(((counts - expected) ** 2 / expected).sum()) < 8 + 4 * math.sqrt(16)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 4},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 6, "top_p": 0.5},
        {"top_k": 9, "min_p": 0.15},
        {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.05},
        {"top_p": 1e-6},
        {"top_k": 1},
    ],
)
def test_what_may_be_drawn_is_what_transformers_keeps(changes: dict[str, float]) -> None:
    z_BV = logits(1)
    warpers: list[object] = [TemperatureLogitsWarper(float(changes.get("temperature", 1.0)))]
    if "top_k" in changes:
        warpers.append(TopKLogitsWarper(int(changes["top_k"])))
    if "top_p" in changes:
        warpers.append(TopPLogitsWarper(float(changes["top_p"])))
    if "min_p" in changes:
        warpers.append(MinPLogitsWarper(float(changes["min_p"])))
    kept_V = LogitsProcessorList(warpers)(torch.zeros(1, 1), z_BV.clone())[0].isfinite()
    out = sample_tokens(z_BV.expand(3000, -1), many(3000, **changes))
    assert set(out.tokens_B.tolist()) <= set(kept_V.nonzero()[:, 0].tolist())
    p_V = (z_BV[0] / changes.get("temperature", 1.0)).softmax(-1)
    assert out.log_mass_B is not None
    assert float(out.log_mass_B[0]) == pytest.approx(math.log(float(p_V[kept_V].sum())), abs=1e-5)


def test_log_probs_are_those_of_the_whole_tempered_distribution() -> None:
    z_BV = logits()
    requests = [
        Request("p", n, (5,), 8, seed=1, temperature=t) for n, t in enumerate((0.5, 1.0, 1.3, 2.0))
    ]
    out = sample_tokens(z_BV, requests, truncates=False)
    wide = (z_BV.double() / torch.tensor([0.5, 1.0, 1.3, 2.0])[:, None].double()).log_softmax(-1)
    assert out.logprobs_B.tolist() == pytest.approx(
        wide.gather(1, out.tokens_B[:, None])[:, 0].tolist(), abs=1e-6
    )


def test_a_plain_row_does_not_notice_a_neighbour_that_is_cut() -> None:
    z_BV = logits()
    plain = many(4)
    mixed = [plain[0], many(4, top_p=0.5)[1], plain[2], many(4, top_k=2)[3]]
    alone, beside = sample_tokens(z_BV, plain, truncates=False), sample_tokens(z_BV, mixed)
    assert torch.equal(alone.tokens_B[::2], beside.tokens_B[::2])
    assert torch.equal(alone.logprobs_B[::2], beside.logprobs_B[::2])
    assert beside.log_mass_B is not None
    assert beside.log_mass_B[::2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperatures", [(1.0, 1.0, 1.0, 1.0), (0.5, 1.0, 1.3, 2.0)])
def test_drawing_plainly_gives_the_same_bits(temperatures: tuple[float, ...]) -> None:
    requests = [Request("p", n, (5,), 8, seed=1, temperature=t) for n, t in enumerate(temperatures)]
    out = sample_tokens(logits(), requests, output_len=3, truncates=False)
    keys = np.array([request_key(1, "p", n) for n in range(4)], dtype=np.uint32)
    warm = np.array(temperatures, dtype=np.float32) if set(temperatures) != {1.0} else None
    tokens, logprobs = sample_full_vocab(logits(), keys, np.full(4, 3, dtype=np.int32), warm)
    assert tokens.tolist() == out.tokens_B.tolist()
    assert logprobs.tolist() == out.logprobs_B.tolist()


def test_greedy_takes_the_likeliest_even_of_logits_that_the_exponential_cannot_tell_apart() -> None:
    z_BV = torch.full((1, VOCABULARY), -5.0)
    z_BV[0, 3], z_BV[0, 7] = 0.01, torch.nextafter(torch.tensor(0.01), torch.tensor(1.0))
    assert sample_tokens(z_BV, many(1, greedy=True), truncates=False).tokens_B.tolist() == [7]


def test_no_end_token_is_drawn_before_the_least_length() -> None:
    z_BV = torch.zeros(1, VOCABULARY)
    z_BV[0, 1] = 8.0
    share = float(z_BV.softmax(-1)[0, 1])
    early = sample_tokens(z_BV.expand(500, -1), many(500, min_new_tokens=3), output_len=2)
    late = sample_tokens(z_BV.expand(500, -1), many(500, min_new_tokens=3), output_len=3)
    assert 1 not in early.tokens_B.tolist()
    assert early.log_mass_B is not None
    assert float(early.log_mass_B[0]) == pytest.approx(math.log(1 - share), abs=1e-4)
    assert 1 in late.tokens_B.tolist()
    sorting = [
        *many(499, min_new_tokens=3),
        *many(1, top_p=0.5),
    ]  # one row more sorts the vocabulary: the same
    beside = sample_tokens(z_BV.expand(500, -1), sorting, output_len=2)
    assert all(torch.equal(one[:499], two[:499]) for one, two in zip(early, beside, strict=True))
    greedy = sample_tokens(z_BV, many(1, min_new_tokens=3, greedy=True), output_len=0)
    assert greedy.tokens_B.tolist() != [1]


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.01}])
def test_an_end_token_that_is_far_likelier_leaves_the_others_their_shares(
    changes: dict[str, float],
) -> None:
    """At temperature .1 the end token is 200 nats above the others: beside it each of them would be 0 in float32."""
    z_BV = logits(1).expand(2000, -1).clone()
    z_BV[:, 1] = z_BV.max() + 20
    without_BV = z_BV.clone()
    without_BV[:, 1] = -1e4
    options = {"temperature": 0.1, **changes}
    late = sample_tokens(z_BV, many(2000, min_new_tokens=3, **options), output_len=2)
    never = sample_tokens(without_BV, many(2000, **options), output_len=2)
    assert torch.equal(late.tokens_B, never.tokens_B)
    assert late.log_mass_B is not None and never.log_mass_B is not None
    shares_V = (z_BV[0].double() / 0.1).log_softmax(-1)
    assert torch.allclose(late.logprobs_B.double(), shares_V[late.tokens_B], atol=1e-3)
    left_V = (without_BV[0].double() / 0.1).log_softmax(-1)
    expected_B = never.log_mass_B.double() + shares_V[0] - left_V[0]
    assert torch.allclose(late.log_mass_B.double(), expected_B, atol=1e-3)
    greedy = sample_tokens(
        z_BV[:1], many(1, min_new_tokens=3, greedy=True, **options), output_len=0
    )
    assert greedy.tokens_B.tolist() == [int(without_BV[0].argmax())]


class TestRace:
    @pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 258, 5000])
    @pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
    def test_the_winner_is_the_largest_of_all(self, size: int, spread: float) -> None:
        rng = np.random.default_rng(size)
        for _ in range(20):
            keys_B2 = rng.integers(0, 2**32, (32, 2), dtype=np.uint32)
            position_B = rng.integers(0, 2**31, 32, dtype=np.int32)
            p_BV = np.exp(rng.normal(0, spread, (32, size)) - 4 * spread).astype(np.float32)
            p_BV[:, ::3] = 0
            p_BV[:, -1] = 1
            ratio_BV = p_BV / exponentials(keys_B2, position_B, size).numpy()
            assert np.array_equal(gumbel_argmax(p_BV, keys_B2, position_B), ratio_BV.argmax(1))

    def test_without_a_compiler_it_is_numpys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        keys_B2, position_B = (
            rng.integers(0, 2**32, (64, 2), dtype=np.uint32),
            np.arange(64, dtype=np.int32),
        )
        p_BV = rng.random((64, 258), dtype=np.float32)
        compiled_B = gumbel_argmax(p_BV, keys_B2, position_B)
        assert sampling.library() is not None
        monkeypatch.setattr(sampling, "library", lambda: None)
        assert np.array_equal(gumbel_argmax(p_BV, keys_B2, position_B), compiled_B)

    def test_rows_may_lie_apart_and_what_is_not_a_number_wins(self) -> None:
        rng = np.random.default_rng(0)
        keys_B2, position_B = (
            rng.integers(0, 2**32, (8, 2), dtype=np.uint32),
            np.arange(8, dtype=np.int32),
        )
        p_BV = rng.random((8, 300), dtype=np.float32)
        apart_BV = np.asfortranarray(p_BV)
        assert np.array_equal(
            gumbel_argmax(apart_BV, keys_B2, position_B), gumbel_argmax(p_BV, keys_B2, position_B)
        )
        p_BV[3, 7:9] = np.nan
        assert gumbel_argmax(p_BV, keys_B2, position_B)[3] == 7  # as numpy's argmax has it

    def test_other_kinds_of_numbers_are_read_as_what_they_are(self) -> None:
        rng = np.random.default_rng(0)
        keys_B2, position_B = (
            rng.integers(0, 2**32, (64, 2), dtype=np.uint32),
            np.arange(64, dtype=np.int32),
        )
        p_BV = rng.random((64, 258), dtype=np.float32)
        wide = gumbel_argmax(
            p_BV.astype(np.float64), keys_B2.astype(np.int64), position_B.astype(np.int64)
        )  # type: ignore[arg-type]
        assert np.array_equal(wide, gumbel_argmax(p_BV, keys_B2, position_B))
