"""Small stochastic policies and a critic: MLPs with orthogonal weights, categorical or diagonal-Gaussian heads.

Axes: T flat steps, N environments, O observation entries, A action entries, P outputs of a head (the logits of a
categorical; mean and log-std, side by side, of a Gaussian). All policies have the same
four methods on their outputs_TP: log-probs, entropy, KL, sample. The two Gaussians differ in their noise.

Acting runs in numpy on views of the trained tensors, so a step of 16 environments takes a few tens of microseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ascent.maths import divergence
from ascent.maths.logprobs import token_logprobs

Array = np.ndarray[Any, Any]
OBSERVATION_LIMIT = 10.0
VARIANCE_FLOOR = 1e-6


class Encoder(nn.Module):
    """Raw observations to float rows: one-hot for discrete spaces, else flattened, shifted, scaled and held in +-10."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box | spaces.Discrete):
            raise ValueError(
                f"observation space {space}; only Box and Discrete observations are understood"
            )
        self.start = int(space.start) if isinstance(space, spaces.Discrete) else 0
        self.discrete = isinstance(space, spaces.Discrete)
        self.size = (
            int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape))
        )
        self.shift_O: Tensor
        self.scale_O: Tensor
        self.register_buffer("shift_O", torch.zeros(self.size))
        self.register_buffer("scale_O", torch.ones(self.size))
        self.scaled = False

    def set_scale(self, shift_O: Array, std_O: Array) -> None:
        """From now on rows are (x - shift) / std. Call it between rollouts, never inside one."""
        self.shift_O.copy_(torch.from_numpy(shift_O))
        self.scale_O.copy_(torch.from_numpy(1 / std_O))
        self.scaled = True

    def raw(self, observations: Array) -> Array:
        """Rows of float32 before scaling."""
        if self.discrete:
            return np.eye(self.size, dtype=np.float32)[
                observations.astype(np.int64).reshape(-1) - self.start
            ]
        return observations.reshape(len(observations), self.size).astype(np.float32, copy=False)

    def rescale(self, rows_NO: Array) -> Array:
        if not self.scaled:
            return rows_NO
        rows_NO = (rows_NO - self.shift_O.numpy()) * self.scale_O.numpy()
        return np.clip(rows_NO, -OBSERVATION_LIMIT, OBSERVATION_LIMIT)


class StochasticPolicy(nn.Module):
    """An encoder, an MLP and a head. Subclasses say what the head's outputs mean."""

    def __init__(self, encoder: Encoder, network: nn.Sequential) -> None:
        super().__init__()
        self.encoder, self.network = encoder, network

    def forward(self, observations_TO: Tensor) -> Tensor:
        """The head's outputs_TP for encoded observations."""
        raise NotImplementedError

    def logprobs(self, outputs_TP: Tensor, actions: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self, outputs_TP: Tensor) -> Tensor:
        raise NotImplementedError

    def kl(self, from_TP: Tensor, to_TP: Tensor) -> Tensor:
        """Exact KL(from || to) of each step, over all actions."""
        raise NotImplementedError

    def choose(self, encoded_NO: Array, rng: np.random.Generator | None) -> Array:
        """Actions for encoded observations, in numpy; the mode when `rng` is None."""
        raise NotImplementedError

    def act(self, observations: Array, rng: np.random.Generator | None) -> Array:
        return self.choose(self.encoder.rescale(self.encoder.raw(observations)), rng)


class CategoricalPolicy(StochasticPolicy):
    def __init__(
        self, encoder: Encoder, actions: int, *, hidden: Sequence[int], start: int = 0
    ) -> None:
        super().__init__(encoder, mlp(encoder.size, hidden, actions, gain=0.01))
        self.start = start

    def forward(self, observations_TO: Tensor) -> Tensor:
        return self.network(observations_TO)

    def logprobs(self, outputs_TP: Tensor, actions: Tensor) -> Tensor:
        return token_logprobs(outputs_TP, actions - self.start if self.start else actions)

    def entropy(self, outputs_TP: Tensor) -> Tensor:
        return divergence.entropy(outputs_TP)

    def kl(self, from_TP: Tensor, to_TP: Tensor) -> Tensor:
        return divergence.kl(from_TP, to_TP)

    def choose(self, encoded_NO: Array, rng: np.random.Generator | None) -> Array:
        logits_NV = forward_numpy(self.network, encoded_NO)
        if (
            rng is not None
        ):  # the Gumbel trick: the arg max of logits plus Gumbel noise is a sample of the softmax
            logits_NV = logits_NV - np.log(
                rng.standard_exponential(logits_NV.shape, dtype=np.float32)
            )
        return logits_NV.argmax(1) + self.start


class BoxPolicy(StochasticPolicy):
    """A normal distribution for each action entry, no squashing: the environment clips to its bounds."""

    def logprobs(self, outputs_TP: Tensor, actions: Tensor) -> Tensor:
        means_TA, log_stds_TA = outputs_TP.chunk(2, dim=1)
        z_TA = (actions - means_TA) * torch.exp(-log_stds_TA)
        return (
            -(0.5 * z_TA**2 + log_stds_TA).sum(1) - 0.5 * math.log(2 * math.pi) * means_TA.shape[1]
        )

    def entropy(self, outputs_TP: Tensor) -> Tensor:
        means_TA, log_stds_TA = outputs_TP.chunk(2, dim=1)
        return log_stds_TA.sum(1) + 0.5 * (1 + math.log(2 * math.pi)) * means_TA.shape[1]

    def kl(self, from_TP: Tensor, to_TP: Tensor) -> Tensor:
        means_TA, log_stds_TA = from_TP.chunk(2, dim=1)
        to_means_TA, to_log_stds_TA = to_TP.chunk(2, dim=1)
        # With expm1, two equal policies give an exact 0 and a gradient of exactly 0.
        shrink_TA = 2 * (log_stds_TA - to_log_stds_TA)
        moved_TA = (means_TA - to_means_TA) * torch.exp(-to_log_stds_TA)
        return 0.5 * (torch.expm1(shrink_TA) - shrink_TA + moved_TA**2).sum(1)


class GaussianPolicy(BoxPolicy):
    """Mean from the network, one free log-std per action entry, fresh noise at every step."""

    def __init__(
        self, encoder: Encoder, actions: int, *, hidden: Sequence[int], log_std: float = 0.0
    ) -> None:
        super().__init__(encoder, mlp(encoder.size, hidden, actions, gain=0.01))
        self.log_std_A = nn.Parameter(torch.full((actions,), log_std))

    def forward(self, observations_TO: Tensor) -> Tensor:
        means_TA = self.network(observations_TO)
        return torch.cat([means_TA, self.log_std_A.expand_as(means_TA)], dim=1)

    def choose(self, encoded_NO: Array, rng: np.random.Generator | None) -> Array:
        means_NA = forward_numpy(self.network, encoded_NO)
        if rng is None:
            return means_NA
        stds_A = np.exp(self.log_std_A.detach().numpy())
        return means_NA + stds_A * rng.standard_normal(means_NA.shape, dtype=np.float32)


class StateNoisePolicy(BoxPolicy):
    """State-dependent exploration noise that is held for several steps (gSDE, arXiv 2005.05719).

    H are the features: the last hidden layer, or the observation if there is none. action = mean + features_H @ W_HA,
    where the entries of W are normal with deviation exp(log_std_HA); each environment has its own W, drawn anew every
    `hold` steps. Given the state alone the action is Gaussian with variance sum_h features_h^2 exp(2 log_std_ha), and
    that is what log-probabilities are taken of. The features are not trained through the variance: they serve the mean.
    """

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        *,
        hidden: Sequence[int],
        log_std: float = 0.0,
        hold: int = 4,
    ) -> None:
        super().__init__(encoder, mlp(encoder.size, hidden, actions, gain=0.01))
        self.log_std_HA = nn.Parameter(torch.full(([encoder.size, *hidden][-1], actions), log_std))
        self.hold, self.age = hold, 0
        self.unit_NHA: Array = np.empty(0)

    def forward(self, observations_TO: Tensor) -> Tensor:
        features_TH = self.network[:-1](observations_TO)
        variances_TA = features_TH.detach() ** 2 @ torch.exp(2 * self.log_std_HA) + VARIANCE_FLOOR
        return torch.cat([self.network[-1](features_TH), 0.5 * torch.log(variances_TA)], dim=1)

    def choose(self, encoded_NO: Array, rng: np.random.Generator | None) -> Array:
        *body, head = self.network
        features_NH = forward_numpy(body, encoded_NO)
        means_NA = forward_numpy([head], features_NH)
        if rng is None:
            return means_NA
        shape = (len(encoded_NO), *self.log_std_HA.shape)
        if self.age % self.hold == 0 or self.unit_NHA.shape != shape:
            self.unit_NHA = rng.standard_normal(shape, dtype=np.float32)
        self.age += 1
        weights_NHA = self.unit_NHA * np.exp(self.log_std_HA.detach().numpy())
        return means_NA + (features_NH[:, None, :] @ weights_NHA)[:, 0]


def build_policy(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    hidden: Sequence[int] = (64, 64),
    log_std: float = 0.0,
    hold: int = 0,
) -> CategoricalPolicy | BoxPolicy:
    """The policy that fits an environment's spaces: categorical for Discrete actions, Gaussian for flat Box ones.

    `hold` above 0: state-dependent noise, held for this many steps.
    """
    encoder = Encoder(observation_space)
    if hold and not isinstance(action_space, spaces.Box):
        raise ValueError(
            f"hold={hold} on the actions {action_space}; only Box actions have noise to keep, so leave it 0"
        )
    if isinstance(action_space, spaces.Discrete):
        return CategoricalPolicy(
            encoder, int(action_space.n), hidden=hidden, start=int(action_space.start)
        )
    if isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
        if hold:
            return StateNoisePolicy(
                encoder, action_space.shape[0], hidden=hidden, log_std=log_std, hold=hold
            )
        return GaussianPolicy(encoder, action_space.shape[0], hidden=hidden, log_std=log_std)
    raise ValueError(
        f"action space {action_space}; only Discrete and one-dimensional Box actions are understood"
    )


class Critic(nn.Module):
    """V(s): its own MLP on the policy's encoding."""

    def __init__(self, size: int, *, hidden: Sequence[int]) -> None:
        super().__init__()
        self.network = mlp(size, hidden, 1, gain=1.0)

    def forward(self, observations_TO: Tensor) -> Tensor:
        return self.network(observations_TO).squeeze(-1)


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, gain: float) -> nn.Sequential:
    """Linear layers with tanh between; orthogonal weights (sqrt 2 inside, `gain` at the end), zero biases."""
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for i, (width, following) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        linear = nn.Linear(width, following)
        nn.init.orthogonal_(linear.weight, gain if last else math.sqrt(2))
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)


def forward_numpy(network: Iterable[nn.Module], rows_NO: Array) -> Array:
    """The same MLP in numpy. `.numpy()` is a view of the parameter, so trained weights are seen at once."""
    for layer in network:
        if isinstance(layer, nn.Linear):
            rows_NO = rows_NO @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        else:
            rows_NO = np.tanh(rows_NO)
    return rows_NO
