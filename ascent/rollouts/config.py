"""The numbers of a rollout step, and the models that it asks for log-probs and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ascent.maths.batch import PackedBatch
from ascent.parallel.ranks import SINGLE, Ranks


class FrozenModel(Protocol):
    """Model outputs for a packed batch, without gradient."""

    def infer(self, batch: PackedBatch, want: frozenset[str]) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class RolloutConfig:
    """The numbers of a rollout step, by their recipe keys."""

    prompts_per_step: int
    group_size: int
    epochs: int = 1
    minibatches: int = 1
    target_kl: float | None = None
    dynamic_sampling_tries: int = 0
    tokens_per_microbatch: int = 16384
    microbatch_target: int | None = (
        None  # in training, where no sequence is longer; None: tokens_per_microbatch
    )
    bootstrap_truncated: bool = (
        False  # the critic's value replaces the reward of truncated completions
    )
    critic_warmup_steps: int = 0
    max_staleness: int = 0
    overlap: bool = False  # with a staleness: sample and score the next rollouts during the update
    partial_rollouts: bool = (
        False  # with a staleness: unfinished rollouts go on in the next step, with its weights
    )
    max_ref_kl: float | None = None
    token_stats: bool = False  # per-token numbers of a few rollouts of every step

    @property
    def lookahead(self) -> int:
        """How many steps before it is trained on a batch is complete. The rest of the staleness is for partial ones."""
        return int(self.overlap) if self.partial_rollouts else self.max_staleness


@dataclass(frozen=True)
class Models:
    """`trust_sampler_logprobs`: the sampler's log-probs equal the policy's. `half_precision`: of the policy. `ranks`
    divide the work of sampling and inference. `exact`: the first ratio of a step must be 1, to the last bit."""

    policy: FrozenModel
    reference: FrozenModel | None = None
    critic: FrozenModel | None = None
    trust_sampler_logprobs: bool = False
    teacher: FrozenModel | None = None
    half_precision: bool = False
    ranks: Ranks = SINGLE
    exact: bool = False
