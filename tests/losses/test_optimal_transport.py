"""AOT: the worked example, agreement with sorting written out, gradients through the permutation, empty members."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ascent.cells import cell
from ascent.losses import optimal_transport, preferences
from ascent.losses.loss import summed
from ascent.losses.objective import step_statistics

CHOSEN, REJECTED = torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])


def known_of(
    logprobs: Tensor, reference: Tensor, lengths: Tensor | None = None
) -> dict[str, Tensor]:
    lengths = torch.ones(logprobs.numel(), dtype=torch.int64) if lengths is None else lengths
    pairs = logprobs.numel() // 2
    return {
        "logprobs_B": logprobs,
        "ref_logprobs_B": reference,
        "lengths_B": lengths,
        "chosen_P": CHOSEN[:pairs],
        "rejected_P": REJECTED[:pairs],
    }


def loss_of(name: str, known: dict[str, Tensor], **numbers: float) -> Tensor:
    made = cell(getattr(optimal_transport, name), **numbers)
    loss = summed(made({**known, **step_statistics(known, [made])}))
    return loss.numerator / loss.denominator


def test_worked_example() -> None:
    logprobs = torch.tensor([4.0, 0.0, -1.0, 0.0], dtype=torch.float64)
    reference = torch.tensor([1.0, 0.0, 2.0, 0.0], dtype=torch.float64)
    known = known_of(logprobs, reference)
    assert optimal_transport.matched_margins(**known).tolist() == [2.0, 0.0, 1.0, 0.0]
    assert float(loss_of("aot", known)) == pytest.approx(0.698139, abs=1e-6)


def random_known(seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return known_of(*torch.randn(2, 6, generator=rng, dtype=torch.float64))


def written_out(name: str, known: dict[str, Tensor], beta: float) -> Tensor:
    """The definition, with autograd through the sorting of the whole batch."""
    w, x = known["chosen_P"], known["rejected_P"]
    ours, theirs = known["logprobs_B"], known["ref_logprobs_B"]
    if name == "aot":
        z = (ours[w] - ours[x]).sort().values - (theirs[w] - theirs[x]).sort().values
    else:
        z = (ours[w] - theirs[w]).sort().values - (ours[x] - theirs[x]).sort().values
    return -logsigmoid(beta * z).mean()


@pytest.mark.parametrize("name", ["aot", "aot_unpaired"])
@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_those_of_sorting_the_whole_step(name: str, seed: int) -> None:
    known = random_known(seed)
    known["logprobs_B"].requires_grad_()
    ours, theirs = loss_of(name, known, beta=0.7), written_out(name, known, 0.7)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    slopes = [torch.autograd.grad(loss, known["logprobs_B"])[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-12)


def test_with_one_pair_aot_is_dpo() -> None:
    known = {name: x[:2] if name.endswith("_B") else x[:1] for name, x in random_known(1).items()}
    dpo = summed(preferences.dpo(**known, label_smoothing=0.1))
    assert float(loss_of("aot", known, label_smoothing=0.1)) == pytest.approx(float(dpo.numerator))


@pytest.mark.parametrize("name", ["aot", "aot_unpaired"])
def test_a_pair_with_an_empty_member_takes_no_rank(name: str) -> None:
    known = random_known(2)
    whole = {n: x[:4] if n.endswith("_B") else x[:2] for n, x in known.items()}
    known["lengths_B"] = torch.tensor([1, 1, 1, 1, 1, 0])
    assert float(loss_of(name, known)) == pytest.approx(float(loss_of(name, whole)))
