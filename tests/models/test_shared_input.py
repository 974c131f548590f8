"""Layers with a common input as one product: values, gradients, and when they must run one by one."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ascent.models.shared_input import SharedInput, adjacent, find_groups, recomputable


class Attention(nn.Module):
    def __init__(self, *, bias: bool = True, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj = nn.Linear(6, 8, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(6, 4, bias=bias, dtype=dtype)
        self.v_proj = nn.Linear(6, 4, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(8, 6, dtype=dtype)


def is_linear(part: nn.Module) -> bool:
    return type(part) is nn.Linear


def shared(module: nn.Module, *, copies: bool = False) -> SharedInput:
    (group,) = find_groups(module, is_linear, copies=copies)
    if not copies:
        group.store_adjacent()
    return group


def outputs(group: SharedInput, x: Tensor) -> list[Tensor]:
    found = [group.output(index, x) for index in range(len(group.layers))]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_single_layers(bias: bool, copies: bool) -> None:
    module = Attention(bias=bias)
    plain = copy.deepcopy(module)
    group = shared(module, copies=copies)
    assert (adjacent(group.weights) is None) is copies
    torch.manual_seed(1)
    x = torch.randn(1, 5, 6, dtype=torch.float64, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    expected = [plain.q_proj(other), plain.k_proj(other), plain.v_proj(other)]
    found = outputs(group, x)
    ups = [torch.randn_like(each) for each in expected]
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-14, atol=1e-14)
    torch.autograd.backward(found, ups)
    torch.autograd.backward(expected, ups)
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-12, atol=1e-12)
    for (name, one), two in zip(module.named_parameters(), plain.parameters(), strict=True):
        if not name.startswith("o_proj"):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-12, atol=1e-12, msg=name)


def test_parameters_stay_their_own_and_are_updated_in_place() -> None:
    module = Attention()
    before = {name: each.detach().clone() for name, each in module.named_parameters()}
    group = shared(module)
    assert all(torch.equal(each, before[name]) for name, each in module.named_parameters())
    assert all(isinstance(each, nn.Parameter) for each in group.weights)
    x = torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        module.k_proj.weight.zero_()
        module.k_proj.bias.fill_(2)
        assert bool((outputs(group, x)[1] == 2).all())


def test_frozen_weights_get_no_gradient() -> None:
    module = Attention().requires_grad_(False)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    sum(each.sum() for each in outputs(shared(module), x)).backward()  # type: ignore[union-attr]
    assert x.grad is not None and all(each.grad is None for each in module.parameters())


def test_an_output_is_never_that_of_another_input() -> None:
    group = shared(Attention())
    one, two = torch.randn(2, 3, 6, dtype=torch.float64)
    with torch.no_grad():
        expected = [each(two) for each in group.layers]
        group.output(0, one)
        assert torch.equal(group.output(1, two), expected[1])  # type: ignore[arg-type]
        group.output(0, one)
        one.copy_(two)  # the same tensor with other values
        torch.testing.assert_close(group.output(1, one), expected[1])
    first = group.output(0, two)  # a pass with gradients does not take outputs of one without
    with torch.no_grad():
        group.output(1, two)
    third = group.output(2, two)
    assert first is not None and first.requires_grad and third is not None and third.requires_grad


def test_copies_have_the_bits_of_weights_stored_together_and_are_not_kept() -> None:
    one, two, kept = Attention(dtype=torch.float32), Attention(dtype=torch.float32), list[int]()
    x = torch.randn(7, 6)
    found = []
    for module, copies in ((one, False), (two, True)):
        own = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each: kept.append(each.numel()) or each, lambda each: each
        ):
            parts = outputs(shared(module, copies=copies), own)
        torch.autograd.backward(parts, [each.detach().sin() for each in parts])
        found.append([*parts, own.grad, module.k_proj.weight.grad, module.v_proj.bias.grad])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert kept == [
        16 * 6,
        7 * 6,
        8 * 6,
        4 * 6,
        4 * 6,
        7 * 6,
    ]  # the joined weights, or each of them, and the input


@pytest.mark.parametrize("copies", [False, True])
def test_a_recomputed_layer_has_the_same_gradients(copies: bool) -> None:
    module = Attention()
    group = shared(module, copies=copies)
    found = []
    for run in (lambda f, x: f(x), partial(checkpoint, use_reentrant=False)):
        module.zero_grad()
        x = torch.linspace(-1, 1, 18, dtype=torch.float64).view(3, 6).requires_grad_()
        run(lambda each: torch.cat(outputs(group, each.sin()), -1).square(), x).sum().backward()
        found.append([x.grad, *(layer.weight.grad for layer in group.layers)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_after_a_weight_is_replaced_layers_run_one_by_one() -> None:
    module = Attention()
    group = shared(module)
    module.k_proj.weight.data = module.k_proj.weight.data.clone()
    assert group.output(0, torch.randn(3, 6, dtype=torch.float64)) is None


def test_a_copied_module_has_its_own_weights() -> None:
    module = Attention()
    module.q_proj.shared_input = (shared(module), 0)  # type: ignore[assignment]
    copied = copy.deepcopy(module)
    group = copied.q_proj.shared_input[0]  # type: ignore[index]
    assert group.layers[1] is copied.k_proj
    x = torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        module.q_proj.weight.zero_()
        torch.testing.assert_close(
            group.output(0, x) if adjacent(group.weights) is not None else copied.q_proj(x),
            x @ copied.q_proj.weight.T + copied.q_proj.bias,
        )


def test_neighbors_by_chance_are_not_one_tensor() -> None:
    memory = torch.zeros(12)
    assert adjacent([memory[:4], memory[4:8]]) is not None
    assert adjacent([memory[:4], memory[8:]]) is None
    assert adjacent([memory[4:8], memory[:4]]) is None
    assert adjacent([torch.zeros(4), torch.zeros(4)]) is None


def test_layers_that_differ_are_no_group() -> None:
    module = Attention()
    module.v_proj = nn.Linear(6, 4, bias=False, dtype=torch.float64)
    assert find_groups(module, is_linear) == []
    module.v_proj = nn.Linear(6, 4, dtype=torch.float32)
    assert find_groups(module, is_linear) == []
    module.v_proj = nn.Linear(6, 4, dtype=torch.float64)
    assert len(find_groups(module, is_linear)) == 1
    assert find_groups(module, lambda part: False) == []


def test_a_recomputable_input_is_not_kept() -> None:
    """Its function runs in the backward pass, and the gradient is the same."""
    module, calls = Attention(), []
    group = shared(module)
    source = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)

    def double(x: Tensor) -> Tensor:
        calls.append(1)
        return 2 * x

    x = recomputable(2 * source, (source,), double)
    sum(each.sum() for each in outputs(group, x)).backward()  # type: ignore[union-attr]
    found = module.q_proj.weight.grad
    assert calls == [1] and found is not None
    expected = torch.ones(3, 8, dtype=torch.float64).T @ (2 * source.detach())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
