"""Evaluation of the policy by sampling: greedy completions of held-out prompts, scored as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ascent.parallel.ranks import SINGLE, Ranks
from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.batch import pack_rollouts, reward_components
from ascent.rollouts.generate import (
    GREEDY,
    Decode,
    RenderedPrompt,
    RolloutStream,
    SamplingParams,
    generate_stream,
)
from ascent.rollouts.metrics import episode_metrics, reward_metrics


class Evaluation:
    """Greedy completions need no noise, so the same policy always gives the same result."""

    def __init__(
        self,
        prompts: Sequence[RenderedPrompt],
        sampler: Sampler,
        score: Callable[[RolloutStream], list[Rollout]],
        params: SamplingParams,
        decode: Decode,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.prompts, self.sampler, self.score, self.params, self.decode = (
            prompts,
            sampler,
            score,
            params,
            decode,
        )
        self._ranks = ranks
        self.rollouts: list[Rollout] = []

    def __call__(self, step: int) -> dict[str, float]:
        stream = generate_stream(
            self.sampler,
            self.prompts,
            [GREEDY],
            self.params,
            noise_key="evaluate",
            decode=self.decode,
            ranks=self._ranks,
        )
        self.rollouts = self.score(stream)
        metrics = reward_metrics(pack_rollouts(self.rollouts), reward_components(self.rollouts))
        metrics |= episode_metrics(self.rollouts)
        return {f"eval/{name}": metric.value() for name, metric in metrics.items()}
