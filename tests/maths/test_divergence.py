"""Exact entropy, cross-entropy and KL against sums written out, and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.maths.divergence import cross_entropy, entropy, jensen_shannon, kl, log_collision

RNG = torch.Generator().manual_seed(1)
A = torch.randn(3, 5, dtype=torch.float64, generator=RNG)
B = torch.randn(3, 5, dtype=torch.float64, generator=RNG)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_against_sums_written_out(temperature: float) -> None:
    for row in range(3):
        p, q = (
            (A[row] / temperature).softmax(-1).tolist(),
            (B[row] / temperature).softmax(-1).tolist(),
        )
        here = {
            entropy: (A[row : row + 1],),
            cross_entropy: (A[row : row + 1], B[row : row + 1]),
            kl: (A[row : row + 1], B[row : row + 1]),
        }
        expected = {
            entropy: -sum(x * math.log(x) for x in p),
            cross_entropy: -sum(x * math.log(y) for x, y in zip(p, q, strict=True)),
            kl: sum(x * math.log(x / y) for x, y in zip(p, q, strict=True)),
        }
        for function, inputs in here.items():
            assert float(function(*inputs, temperature=temperature)) == pytest.approx(
                expected[function], rel=1e-12
            )


def test_cross_entropy_is_entropy_plus_kl_and_kl_of_itself_is_zero() -> None:
    torch.testing.assert_close(cross_entropy(A, B), entropy(A) + kl(A, B))
    torch.testing.assert_close(kl(A, A), torch.zeros(3, dtype=torch.float64))
    assert bool((kl(A, B) > 0).all())


def test_gradients_by_finite_differences() -> None:
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    assert torch.autograd.gradcheck(entropy, (a,))
    assert torch.autograd.gradcheck(cross_entropy, (a, b))
    assert torch.autograd.gradcheck(kl, (a, b))


def test_impossible_tokens_contribute_nothing() -> None:
    a = torch.tensor([[0.0, 0.0, -float("inf")]], dtype=torch.float64, requires_grad=True)
    assert float(entropy(a).detach()) == pytest.approx(math.log(2))
    assert float(kl(a, torch.zeros(1, 3, dtype=torch.float64)).detach()) == pytest.approx(
        math.log(3 / 2)
    )
    assert float(kl(torch.zeros(1, 3, dtype=torch.float64), a).detach()) == float("inf")
    (grad,) = torch.autograd.grad(entropy(a).sum(), a)
    assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_jensen_shannon_of_words_that_neither_may_say(beta: float) -> None:
    """The same as without those words, and no gradient on them."""
    student = torch.tensor([[0.0, 0.0, -float("inf")]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0, -float("inf")]], dtype=torch.float64)
    found = jensen_shannon(student, teacher, beta=beta)
    short = student.detach()[:, :2].clone().requires_grad_()
    expected = jensen_shannon(short, teacher[:, :2], beta=beta)
    assert float(found.detach()) == pytest.approx(float(expected.detach()))
    (grad,), (clean,) = (
        torch.autograd.grad(found.sum(), student),
        torch.autograd.grad(expected.sum(), short),
    )
    assert grad[0].tolist() == pytest.approx([*clean[0].tolist(), 0.0])
    if beta == 0.5:
        assert float(found.detach()) == pytest.approx(0.0285, abs=1e-4)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_jensen_shannon_of_a_word_that_one_alone_may_say(beta: float) -> None:
    """S = (.5, .5, 0), T = (.25, .25, .5), and the other way round."""
    one = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    other = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64)
    for student, teacher in ((one, other), (other, one)):
        middle = (1 - beta) * student + beta * teacher
        expected = sum(
            share * float(torch.special.xlogy(p, p / middle).sum())
            for share, p in ((beta, teacher), (1 - beta, student))
        )
        found = jensen_shannon(student.log(), teacher.log(), beta=beta)
        assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_jensen_shannon_against_sums_written_out(beta: float) -> None:
    expected = []
    for row in range(3):
        s, t = A[row].softmax(-1).tolist(), B[row].softmax(-1).tolist()
        m = [(1 - beta) * x + beta * y for x, y in zip(s, t, strict=True)]
        if beta in (0.0, 1.0):
            pairs = zip(t, s, strict=True) if beta == 0 else zip(s, t, strict=True)
            expected.append(sum(x * math.log(x / y) for x, y in pairs))
        else:
            mixed = beta * sum(x * math.log(x / y) for x, y in zip(t, m, strict=True))
            expected.append(
                mixed + (1 - beta) * sum(x * math.log(x / y) for x, y in zip(s, m, strict=True))
            )
    assert jensen_shannon(A, B, beta=beta).tolist() == pytest.approx(expected)
    assert torch.autograd.gradcheck(
        lambda x: jensen_shannon(x, B, beta=beta), A.clone().requires_grad_()
    )


def test_log_collision() -> None:
    expected = [math.log(sum(x * x for x in row)) for row in A.softmax(-1).tolist()]
    assert log_collision(A).tolist() == pytest.approx(expected)
