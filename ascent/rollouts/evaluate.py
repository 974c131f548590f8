"""How good the policy is on prompts it is not trained on: its greedy answers, scored as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.advantages import rollout_metrics
from ascent.rollouts.batch import pack_rollouts, reward_components
from ascent.rollouts.episode_metrics import episode_metrics
from ascent.rollouts.generate import GREEDY, RenderedPrompt, RolloutStream, SamplingParams, generate_stream


class Evaluation:
    """Asked again and again during a run; greedy answers do not depend on noise, so neither does this."""

    def __init__(
        self,
        asked: Sequence[RenderedPrompt],
        sampler: Sampler,
        score: Callable[[RolloutStream], list[Rollout]],
        settings: SamplingParams,
        text: Callable[[Sequence[int]], str],
    ) -> None:
        self.asked, self.sampler, self.score, self.settings, self.text = asked, sampler, score, settings, text
        self.rollouts: list[Rollout] = []

    def __call__(self, step: int) -> dict[str, float]:
        found = generate_stream(self.sampler, self.asked, [GREEDY], self.settings, occasion="evaluate", text=self.text)
        self.rollouts = self.score(found)
        figures = {
            **rollout_metrics(pack_rollouts(self.rollouts), reward_components(self.rollouts)),
            **episode_metrics(self.rollouts),
        }
        return {f"eval/{name}": tally.value() for name, tally in figures.items()}
