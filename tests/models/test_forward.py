"""A packed forward equals transformers' own forward of each sequence by itself: log-probs, entropy, gradients."""

from dataclasses import replace

import pytest
import torch

from ascent.maths.segments import Segments
from ascent.models.forward import (
    enable_gradient_checkpointing,
    has_previous,
    hidden_states,
    plan_forward,
    token_outputs,
)
from ascent.models.layer_patching import FAST
from ascent.models.model import output_head
from tests.models.packing import FAMILIES, batch_of, one_by_one, random_model, stock_twin

BOTH = frozenset({"logprobs_T", "entropy_T"})


EAGER = ("gemma2", "gpt_oss")  # transformers' SDPA cannot cap attention scores, and has no sinks


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_one_by_one(family, attention):
    model, batch = random_model(family), batch_of()
    if family in EAGER and attention == "sdpa":
        pytest.skip("transformers' SDPA cannot cap attention scores, and has no sinks")
    ours = model.outputs(batch, BOTH, 0.8)
    logprobs_T, entropy_T = one_by_one(stock_twin(model.module, attention), batch, 0.8)
    torch.testing.assert_close(ours["logprobs_T"], logprobs_T, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours["entropy_T"], entropy_T, rtol=0, atol=1e-5)
    assert float(logprobs_T.detach().std()) > 0.5  # the comparison is about something


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_gradients_equal_one_by_one(family):
    model, batch = random_model(family), batch_of()
    stock = stock_twin(model.module, "eager" if family in EAGER else "sdpa")
    mix_2T = torch.randn(2, 25, generator=torch.Generator().manual_seed(3))
    ours = model.outputs(batch, BOTH)
    (torch.stack([ours["logprobs_T"], ours["entropy_T"]]) * mix_2T).sum().backward()
    (torch.stack(one_by_one(stock, batch)) * mix_2T).sum().backward()
    theirs = dict(stock.named_parameters())
    for name, weight in model.module.named_parameters():
        largest = float(theirs[name].grad.abs().max())
        if (
            "k_proj.bias" not in name
        ):  # a constant added to every key changes nothing: its gradient is 0
            assert largest > 1e-3, name
        torch.testing.assert_close(
            weight.grad, theirs[name].grad, rtol=0, atol=1e-5 * max(1, largest), msg=name
        )


def test_a_window_that_matters_is_in_the_test():
    """Without its window the Mistral above would give other log-probs, so equality there proves the window."""
    model, batch = random_model("mistral"), batch_of()
    wide = stock_twin(model.module)
    wide.config.sliding_window = None
    logprobs_T, _ = one_by_one(wide, batch)
    ours_T = model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"]
    assert float((ours_T - logprobs_T).detach().abs().max()) > 1e-2


def test_packing_order_does_not_matter():
    model = random_model("llama")
    batch = batch_of((5, 2, 4))
    out_T = model.outputs(batch, BOTH)["logprobs_T"]
    pieces = batch["tokens_T"].split([5, 2, 4])
    other = batch_of((4, 5, 2)) | {"tokens_T": torch.cat([pieces[2], pieces[0], pieces[1]])}
    moved_T = model.outputs(other, BOTH)["logprobs_T"]
    torch.testing.assert_close(
        torch.cat([moved_T[4:9], moved_T[9:], moved_T[:4]]), out_T, rtol=0, atol=1e-6
    )


def test_first_tokens_are_zero():
    model, batch = random_model("qwen2"), batch_of()
    out = model.outputs(batch, BOTH)
    first_T = ~has_previous(batch["segments"])
    assert first_T.nonzero()[:, 0].tolist() == [0, 7, 10, 21, 24]
    assert bool((out["logprobs_T"][first_T] == 0).all())
    assert bool((out["entropy_T"][first_T] == 0).all())
    assert bool((out["logprobs_T"][~first_T] < 0).all())


def test_the_head_runs_on_trained_rows_alone():
    model, batch = random_model("llama"), batch_of()
    loss_mask_T = torch.zeros(25, dtype=torch.bool)
    loss_mask_T[[0, 3, 7, 12, 20]] = True  # 0 and 7 are first tokens: nothing to predict them from
    full_T = model.outputs(batch, BOTH)["logprobs_T"]
    rows, head = [], output_head(model.module)

    def counting(a_NK, b_KM):
        rows.append(a_NK.shape[0])
        return FAST.product(a_NK, b_KM)

    masked = {**batch, "loss_mask_T": loss_mask_T}
    plan = plan_forward(masked, model.device)
    hidden_UD = hidden_states(model.module.base_model, masked, plan)
    spied = replace(head, kernels=replace(FAST, product=counting))
    logprobs_T = token_outputs(hidden_UD, masked, plan, spied)["logprobs_T"]
    assert rows == [3]
    kept_T = loss_mask_T & has_previous(batch["segments"])
    torch.testing.assert_close(logprobs_T[kept_T], full_T[kept_T], rtol=0, atol=1e-6)
    assert bool((logprobs_T[~kept_T] == 0).all())


def test_a_batch_that_trains_nothing_keeps_its_graph():
    model = random_model("llama")
    batch = batch_of() | {"loss_mask_T": torch.zeros(25, dtype=torch.bool)}
    model.outputs(batch, BOTH)["logprobs_T"].sum().backward()
    assert all(bool((weight.grad == 0).all()) for weight in model.parameters())


def test_recomputing_changes_no_gradient():
    plain, saving = random_model("qwen3"), random_model("qwen3")
    enable_gradient_checkpointing(saving.module)
    batch = batch_of()
    for model in (plain, saving):
        model.train()
        model.outputs(batch, BOTH)["logprobs_T"].sum().backward()
    for ours, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(ours.grad, other.grad)


def test_recomputing_keeps_fewer_activations():
    kept = {}
    for gradient_checkpointing in (False, True):
        model = random_model("llama", layers=6, hidden=64).train()
        if gradient_checkpointing:
            enable_gradient_checkpointing(model.module)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, s=sizes: (s.append(x.nbytes), x)[1], lambda x: x
        ):
            model.outputs(batch_of((200, 100)), frozenset({"logprobs_T"}))
        kept[gradient_checkpointing] = sum(sizes)
    assert kept[True] < kept[False] / 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_cuda_equals_cpu(family, gradient_checkpointing):
    """Float32 (SDPA) to rounding; bfloat16 (the flash kernel) to what its eight bits allow."""
    exact, batch = (
        random_model(family, hidden=128, initializer_range=0.06),
        batch_of((40, 3, 0, 17, 40)),
    )
    want_T = exact.outputs(batch, BOTH)["logprobs_T"].detach()
    moved = {name: x.cuda() for name, x in batch.items() if name.endswith("_T")}
    moved["segments"] = Segments.from_lengths(batch["segments"].lengths_B.cuda())
    for dtype, slack in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        model = random_model(family, hidden=128, initializer_range=0.06).train()
        model.module.to("cuda", dtype)
        if gradient_checkpointing:
            enable_gradient_checkpointing(model.module)
        out_T = model.outputs(moved, BOTH)["logprobs_T"]
        out_T.sum().backward()
        assert float((out_T.detach().cpu() - want_T).abs().max()) < slack
        assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters())


def test_a_sequence_beyond_the_model_is_refused():
    model = random_model("llama", longest=10)
    with pytest.raises(ValueError, match="a sequence of 11 tokens for a model that holds 10"):
        model.outputs(batch_of(), BOTH)


def test_tensors_that_do_not_cover_the_axis_are_refused():
    batch = batch_of() | {"positions_T": torch.arange(3)}
    with pytest.raises(ValueError, match="mismatched lengths"):
        random_model("llama").outputs(batch, BOTH)
