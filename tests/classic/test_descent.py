import numpy as np
import pytest
import torch
from torch import nn

from ascent.classic.descent import FlatAdam
from ascent.classic.policies import forward_numpy, mlp


def twins():
    torch.manual_seed(0)
    first = mlp(3, (8, 8), 2, gain=1.0)
    second = mlp(3, (8, 8), 2, gain=1.0)
    second.load_state_dict(first.state_dict())
    return first, second


@pytest.mark.parametrize("norm", [None, 0.05])
def test_the_steps_equal_those_of_torch_adam_with_clipping(norm):
    ours, theirs = twins()
    flat = FlatAdam(ours.parameters(), lr=0.01, eps=1e-5, norm=norm)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    for step in range(20):
        rows = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        flat.descend((ours(rows) ** 2).mean())
        adam.zero_grad()
        (theirs(rows) ** 2).mean().backward()
        if norm is not None:
            assert float(nn.utils.clip_grad_norm_(theirs.parameters(), norm)) > norm
        adam.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_the_network_itself_moves_and_numpy_sees_it():
    network, frozen = twins()
    flat = FlatAdam(network.parameters(), lr=0.1)
    rows = torch.randn(5, 3)
    length = flat.descend(network(rows).sum())
    assert length > 0
    assert float((network(rows) - frozen(rows)).abs().max().detach()) > 0.1
    np.testing.assert_allclose(
        forward_numpy(network, rows.numpy()), network(rows).detach().numpy(), atol=1e-5
    )


def test_gradients_of_one_step_do_not_leak_into_the_next():
    network, _ = twins()
    flat, rows = FlatAdam(network.parameters(), lr=1e-12), torch.randn(5, 3)
    assert flat.descend(network(rows).sum()) == pytest.approx(
        flat.descend(network(rows).sum()), rel=1e-5
    )
