"""The attention function: who sees whom, at what price, and what it refuses."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ascent.maths.segments import Segments
from ascent.models.attention import (
    NAME,
    attention_context,
    attention_forward,
    current_context,
    packed_context,
)
from tests.models.packing import Meter, batch_of, random_model

CPU = torch.device("cpu")


def queries(tokens, *, heads=4, key_value_heads=2, size=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = [(1, count, tokens, size) for count in (heads, key_value_heads, key_value_heads)]
    return [
        torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_() for shape in shapes
    ]


def by_hand(query, key, value, lengths, *, scaling, window=None, softcap=None, sinks=None):
    """Attention as a formula, over the full T x T square."""
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    places = torch.arange(ids.numel())
    gap = places[:, None] - places[None, :]
    seen = (ids[:, None] == ids[None, :]) & (gap >= 0)
    seen = seen if window is None else seen & (gap < window)
    repeats = query.shape[1] // key.shape[1]
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key.repeat_interleave(repeats, 1)) * scaling
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen.to(scores.device), -torch.inf)
    if sinks is not None:  # they take their share of the weight, and nothing comes of it
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : ids.numel()]
    return torch.einsum("bhqk,bhkd->bqhd", weights, value.repeat_interleave(repeats, 1))


@pytest.mark.parametrize("lengths", [(5, 3, 0, 5, 1), (1, 2, 2, 9), (6,)])
@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("window", "softcap"), [(None, None), (2, None), (1, None), (50, None), (None, 0.7), (3, 0.7)]
)
def test_attention_is_the_formula(lengths, key_value_heads, window, softcap):
    tensors = queries(sum(lengths), key_value_heads=key_value_heads)
    with attention_context(packed_context(Segments.from_lengths(lengths), CPU)):
        out, none = attention_forward(
            nn.Module(), *tensors, None, scaling=0.4, sliding_window=window, softcap=softcap
        )
    wanted = by_hand(*tensors, lengths, scaling=0.4, window=window, softcap=softcap)
    assert none is None
    # The cap's softmax runs in float32, as in transformers.
    slack = 1e-12 if softcap is None else 1e-6
    torch.testing.assert_close(out, wanted, rtol=0, atol=slack)
    mix = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((x * mix).sum(), tensors) for x in (out, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=10 * slack)


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 2, 50])
def test_sinks_take_weight_and_give_nothing(key_value_heads, window):
    lengths = (5, 3, 0, 5, 1)
    tensors = queries(sum(lengths), key_value_heads=key_value_heads)
    sinks = torch.tensor([-3.0, 0.0, 0.5, 4.0], dtype=torch.float64).requires_grad_()
    with attention_context(packed_context(Segments.from_lengths(lengths), CPU)):
        out, _ = attention_forward(
            nn.Module(), *tensors, None, scaling=0.4, sliding_window=window, s_aux=sinks
        )
    wanted = by_hand(*tensors, lengths, scaling=0.4, window=window, sinks=sinks)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    mix = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((x * mix).sum(), (*tensors, sinks)) for x in (out, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_without_a_scale_it_is_one_over_the_root_of_the_head_size():
    tensors = queries(4)
    with attention_context(packed_context(Segments.from_lengths([4]), CPU)):
        out, _ = attention_forward(nn.Module(), *tensors, None)
    torch.testing.assert_close(out, by_hand(*tensors, (4,), scaling=8**-0.5))


def test_dropout_is_honoured():
    tensors = queries(6)
    for softcap in (None, 5.0):
        with attention_context(packed_context(Segments.from_lengths([6]), CPU)):
            outs = [
                attention_forward(nn.Module(), *tensors, None, dropout=0.5, softcap=softcap)[0]
                for _ in range(2)
            ]
        assert not torch.equal(*outs)


def test_a_forward_without_a_context_is_an_error():
    model = random_model("llama")
    with pytest.raises(RuntimeError, match="without an attention context"):
        model.module(torch.tensor([[3, 4]]))
    context = packed_context(Segments.from_lengths([2]), CPU)
    with attention_context(context):
        assert current_context() is context
        with attention_context(packed_context(Segments.from_lengths([1]), CPU)):
            assert current_context() is not context
        assert current_context() is context
    with pytest.raises(RuntimeError, match="without an attention context"):
        current_context()


def test_the_context_is_restored_after_an_error_and_may_be_entered_again():
    context = attention_context(packed_context(Segments.from_lengths([2]), CPU))
    for _ in range(2):
        with pytest.raises(KeyError), context:
            raise KeyError
        with pytest.raises(RuntimeError, match="without an attention context"):
            current_context()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"s_aux": torch.ones(4), "softcap": 2.0}, "sinks and a soft cap at once"),
        ({"is_causal": False}, "both directions"),
        ({"position_bias": torch.ones(1)}, "asks attention for position_bias"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(change, words):
    with (
        attention_context(packed_context(Segments.from_lengths([3]), CPU)),
        pytest.raises(ValueError, match=words),
    ):
        attention_forward(nn.Module(), *queries(3), None, **change)


def test_masks_and_other_shapes_are_refused():
    with attention_context(packed_context(Segments.from_lengths([3]), CPU)):
        with pytest.raises(ValueError, match=r"an attention mask of shape \(3, 3\)"):
            attention_forward(nn.Module(), *queries(3), torch.ones(3, 3))
        with pytest.raises(ValueError, match="a context of 3 tokens"):
            attention_forward(nn.Module(), *queries(4), None)
        with pytest.raises(ValueError, match="2 query heads over 4 key/value heads"):
            attention_forward(nn.Module(), *queries(3, heads=2, key_value_heads=4), None)
    with pytest.raises(ValueError, match="a packed batch of 0 tokens"):
        packed_context(Segments.from_lengths([0, 0]), CPU)


def test_arguments_without_meaning_are_let_through():
    with attention_context(packed_context(Segments.from_lengths([3]), CPU)):
        attention_forward(
            nn.Module(),
            *queries(3),
            None,
            position_ids=torch.arange(3),
            use_cache=False,
            s_aux=None,
        )


def test_nothing_of_size_tokens_squared_is_allocated():
    """1,024 tokens in 64 sequences: a mask of the square would take 1 MiB even in booleans."""
    model = random_model("mistral", sliding_window=8)
    with Meter() as meter, torch.no_grad():
        model.outputs(batch_of((16,) * 64), frozenset({"logprobs_T"}))
    assert 0 < meter.largest < 1024 * 1024
    # The stock model with the same sequences in one row builds the square.
    stock = copy.deepcopy(model.module)
    stock.set_attn_implementation("sdpa")
    with Meter() as meter, torch.no_grad():
        batch = batch_of((16,) * 64)
        stock(batch["tokens_T"][None], position_ids=batch["positions_T"][None], use_cache=False)
    assert meter.largest >= 1024 * 1024


def test_stock_models_are_left_alone():
    """The name alone selects the function; other models in the same process keep their own attention."""
    config = AutoConfig.for_model(
        "llama", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8
    )
    stock = AutoModelForCausalLM.from_config(config)
    assert stock.config._attn_implementation != NAME
    stock(torch.tensor([[1, 2, 3]]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("key_value_heads", [2, 8])
def test_flash_equals_sdpa_on_cuda(window, key_value_heads):
    lengths = (100, 3, 0, 257, 64)
    tensors = [
        x.detach().cuda().bfloat16().requires_grad_()
        for x in queries(sum(lengths), heads=8, key_value_heads=key_value_heads, size=64)
    ]
    wide = [x.detach().double().requires_grad_() for x in tensors]
    segments = Segments.from_lengths(lengths)
    with attention_context(packed_context(segments, torch.device("cuda"))):
        out, _ = attention_forward(nn.Module(), *tensors, None, scaling=0.1, sliding_window=window)
    wanted = by_hand(*wide, lengths, scaling=0.1, window=window)
    assert float((out.double() - wanted).detach().abs().max()) < 0.03
    ours, theirs = (
        torch.autograd.grad(x.sum(), leaves) for x, leaves in ((out, tensors), (wanted, wide))
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine.double() - other).abs().max()) < 0.03 * float(other.abs().max())
