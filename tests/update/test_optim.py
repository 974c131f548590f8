"""AdamW against torch's own, against a float64 one written out, and over bfloat16 weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ascent.update.optim import Adam, AdamW, decays

LOOSE = {"norm": torch.tensor(1.0), "max_norm": math.inf}  # nothing is clipped


def layers(dtype: torch.dtype, *, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).to(dtype)


def gradients(module: nn.Module, steps: int) -> list[list[Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [
        [
            torch.randn(weight.shape, generator=rng, dtype=torch.float64)
            for weight in module.parameters()
        ]
        for _ in range(steps)
    ]


def train(optimizer: AdamW, grads: list[list[Tensor]], learning_rate: float) -> None:
    for given in grads:
        for weight, grad in zip(optimizer.weights.values(), given, strict=True):
            (weight * grad.to(weight.dtype)).sum().backward()
        optimizer.step(learning_rate, **LOOSE)
        optimizer.clear()


def by_hand(
    weight: Tensor, grads: list[Tensor], learning_rate: float, adam: Adam, decay: float
) -> Tensor:
    """Decoupled weight decay, arXiv 1711.05101, in float64."""
    x, mean, square = (
        weight.double(),
        torch.zeros_like(weight.double()),
        torch.zeros_like(weight.double()),
    )
    for count, grad in enumerate(grads, start=1):
        mean = adam.beta1 * mean + (1 - adam.beta1) * grad
        square = adam.beta2 * square + (1 - adam.beta2) * grad**2
        x = x * (1 - learning_rate * decay)
        corrected = mean / (1 - adam.beta1**count)
        x = x - learning_rate * corrected / ((square / (1 - adam.beta2**count)).sqrt() + adam.eps)
    return x


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_it_is_adamw(dtype: torch.dtype, tolerance: float) -> None:
    adam = Adam(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.3)
    module = layers(dtype)
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    grads = gradients(module, 50)
    train(AdamW(module.named_parameters(), adam), grads, 3e-3)
    for place, (name, weight) in enumerate(module.named_parameters()):
        decay = 0.3 if weight.ndim == 2 else 0.0
        expected = by_hand(
            before[name], [g[place].to(dtype).double() for g in grads], 3e-3, adam, decay
        )
        assert float((weight.detach().double() - expected).abs().max()) < tolerance, name
        assert float((expected - before[name].double()).abs().max()) > 1e-2  # it did move


def test_it_equals_torchs_own_adamw() -> None:
    ours, theirs = layers(torch.float32), layers(torch.float32)
    grads = gradients(ours, 50)
    train(AdamW(ours.named_parameters(), Adam()), grads, 1e-3)
    reference = torch.optim.AdamW(
        theirs.parameters(), lr=1e-3, weight_decay=0.0, foreach=False, fused=False
    )
    for given in grads:
        for weight, grad in zip(theirs.parameters(), given, strict=True):
            weight.grad = grad.float()
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=5e-7)


def test_biases_and_norms_do_not_decay() -> None:
    module = layers(torch.float32)
    assert [name for name, weight in module.named_parameters() if decays(name, weight)] == [
        "0.weight",
        "2.weight",
    ]
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    zeros = [[torch.zeros(weight.shape) for weight in module.parameters()]]
    train(AdamW(module.named_parameters(), Adam(weight_decay=0.5)), zeros, 0.1)
    for name, weight in module.named_parameters():
        torch.testing.assert_close(
            weight.detach(), before[name] * (0.95 if weight.ndim == 2 else 1.0)
        )


def quadratic(dtype: torch.dtype, seed: int = 3) -> tuple[nn.Parameter, Tensor]:
    """Weights of the size a language model has (0.02 to 0.1), exact in bfloat16, and a target away from them."""
    rng = torch.Generator().manual_seed(seed)
    size = torch.rand(400, generator=rng) * 0.08 + 0.02
    start = (size * torch.where(torch.rand(400, generator=rng) < 0.5, 1.0, -1.0)).bfloat16()
    target = start.float() + 0.01 * torch.randn(400, generator=rng)
    return nn.Parameter(start.to(dtype)), target


def test_bfloat16_weights_follow_the_float32_trajectory_where_naive_bfloat16_does_not_move() -> (
    None
):
    learning_rate, steps = 1e-6, 1000
    ends = {}
    for dtype in (torch.float32, torch.bfloat16):
        weight, target = quadratic(dtype)
        optimizer = AdamW([("w", weight)], Adam())
        for _ in range(steps):
            (weight * (weight.detach().float() - target).to(dtype)).sum().backward()
            optimizer.step(learning_rate, **LOOSE)
            optimizer.clear()
        ends[dtype] = (optimizer.masters["w"].detach().clone(), weight.detach())
    start, target = quadratic(torch.float32)
    naive, _ = quadratic(torch.bfloat16)
    plain = torch.optim.AdamW([naive], lr=learning_rate, weight_decay=0.0)
    for _ in range(steps):
        naive.grad = (naive.detach().float() - target).bfloat16()
        plain.step()
    assert torch.equal(
        naive.detach(), start.detach().bfloat16()
    )  # not one of 400 weights moved in 1000 steps

    full, (master, weight_16) = ends[torch.float32][0], ends[torch.bfloat16]
    moved = float((full - start.detach()).abs().mean())
    assert moved == pytest.approx(1e-3, rel=0.1)
    assert float((master - full).abs().mean()) < 0.01 * moved
    assert torch.equal(weight_16, master.bfloat16())
    assert float((weight_16 != start.detach().bfloat16()).float().mean()) > 0.95


def test_a_float32_weight_is_its_own_master_and_a_bfloat16_one_is_written_in_place() -> None:
    full, half = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = AdamW([("full", full), ("half", half)], Adam())
    assert optimizer.masters["full"] is full
    assert optimizer.masters["half"].dtype == torch.float32
    addresses = full.data_ptr(), half.data_ptr()
    train(optimizer, [[torch.ones(3, dtype=torch.float64)] * 2], 0.25)
    assert (full.data_ptr(), half.data_ptr()) == addresses
    assert half.tolist() == [0.75] * 3
    assert set(optimizer.state()) == {
        *(
            "mean.full",
            "square.full",
            "count.full",
            "master.half",
            "mean.half",
            "square.half",
            "count.half",
        )
    }


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256: sixteen small gradients after a large one would vanish."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = AdamW([("w", weight)], Adam())
    for grad in (256.0, *[1.0] * 16):
        (weight * grad).sum().backward()
        assert weight.grad is None
    assert float(optimizer.norm()) == 272.0
    optimizer.clear()
    assert float(optimizer.norm()) == 0.0
    optimizer.close()
    (weight * 2.0).sum().backward()
    assert (
        weight.grad is not None and weight.grad.tolist() == [2.0] and float(optimizer.norm()) == 0.0
    )


def test_the_gradient_is_scaled_down_to_the_largest_norm_as_a_whole() -> None:
    weights = {name: nn.Parameter(torch.zeros(1, dtype=torch.float64)) for name in "ab"}
    optimizer = AdamW(weights.items(), Adam(beta1=0.0))
    for name, grad in zip("ab", (30.0, 40.0), strict=True):
        weights[name].grad = torch.tensor([grad], dtype=torch.float64)
    norm = optimizer.norm()
    assert float(norm) == 50.0
    optimizer.step(0.1, norm=norm, max_norm=5.0)
    assert [float(optimizer.state()[f"mean.{name}"]) for name in "ab"] == pytest.approx(
        [3.0, 4.0], rel=1e-6
    )
    weights["a"].grad, weights["b"].grad = (
        torch.tensor([3.0]).double(),
        torch.tensor([0.0]).double(),
    )
    optimizer.step(0.1, norm=optimizer.norm(), max_norm=5.0)
    assert float(optimizer.state()["mean.a"]) == 3.0  # below the bound: untouched


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_put_back_continues_with_the_same_bits(dtype: torch.dtype) -> None:
    adam = Adam(weight_decay=0.1)
    whole, first = layers(dtype), layers(dtype)
    grads = gradients(whole, 20)
    train(AdamW(whole.named_parameters(), adam), grads, 1e-3)
    before = AdamW(first.named_parameters(), adam)
    train(before, grads[:10], 1e-3)
    state = before.state()
    second = layers(dtype, seed=9)
    second.load_state_dict(first.state_dict())
    after = AdamW(second.named_parameters(), adam)
    train(after, grads[:3], 1e-2)  # whatever it remembers must be gone
    second.load_state_dict(first.state_dict())
    after.load_state(state)
    train(after, grads[10:], 1e-3)
    for expected, found in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_a_state_is_a_copy() -> None:
    module = layers(torch.bfloat16)
    optimizer = AdamW(module.named_parameters(), Adam())
    grads = gradients(module, 2)
    train(optimizer, grads[:1], 0.1)
    state = optimizer.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    train(optimizer, grads[1:], 0.1)
    assert all(torch.equal(kept[name], state[name]) for name in kept)
    assert not torch.equal(optimizer.state()["master.0.weight"], kept["master.0.weight"])


def test_weights_that_got_no_gradient_yet_have_no_moments_and_that_is_kept() -> None:
    used, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = AdamW([("used", used), ("idle", idle)], Adam(weight_decay=0.1))
    used.grad = torch.ones(2)
    optimizer.step(0.1, **LOOSE)
    state = optimizer.state()
    assert "count.idle" not in state
    assert idle.tolist() == [1.0, 1.0]
    optimizer.load_state(state)
    assert set(optimizer.state()) == set(state)


def test_a_state_of_another_model_is_refused() -> None:
    module = layers(torch.float32)
    optimizer = AdamW(module.named_parameters(), Adam())
    train(optimizer, gradients(module, 1), 0.1)
    state = optimizer.state()
    with pytest.raises(ValueError, match=r"no trained weight is called '9.weight'"):
        optimizer.load_state({**state, "mean.9.weight": torch.zeros(1)})
    with pytest.raises(
        ValueError, match=r"mean.0.weight' as torch.float32 \(2,\), but the weight is .* \(7, 5\)"
    ):
        optimizer.load_state({**state, "mean.0.weight": torch.zeros(2)})
    with pytest.raises(
        ValueError, match=r"no float32 master of '0.weight', a torch.bfloat16 weight"
    ):
        AdamW(layers(torch.bfloat16).named_parameters(), Adam()).load_state(state)


def test_nothing_to_train_is_an_error_and_frozen_weights_are_left_out() -> None:
    module = layers(torch.float32)
    module[0].requires_grad_(False)
    assert "0.weight" not in AdamW(module.named_parameters()).masters
    module.requires_grad_(False)
    with pytest.raises(ValueError, match="no weight to train"):
        AdamW(module.named_parameters())


def test_the_weights_with_a_broken_gradient_are_named() -> None:
    module = layers(torch.float32)
    for weight in module.parameters():
        weight.grad = torch.zeros_like(weight)
    assert module[1].weight.grad is not None
    module[1].weight.grad[2] = math.inf
    optimizer = AdamW(module.named_parameters())
    assert optimizer.non_finite_gradients() == ["1.weight"]
    assert not math.isfinite(float(optimizer.norm()))


def test_the_norm_of_what_was_added_since() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = AdamW([("weight", weight)])
    weight.grad = torch.tensor([3.0, 4.0])
    before = {"weight": weight.grad.clone()}
    weight.grad += torch.tensor([0.0, 2.0])
    assert float(optimizer.norm()) == pytest.approx(45**0.5)
    assert float(optimizer.norm(before)) == 2.0
    assert float(optimizer.norm({"weight": None})) == pytest.approx(45**0.5)
