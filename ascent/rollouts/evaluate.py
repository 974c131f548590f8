"""How good the policy is on prompts it is not trained on: its greedy answers, scored as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.advantages import described
from ascent.rollouts.batch import packed, parts_of
from ascent.rollouts.episode_metrics import told
from ascent.rollouts.generate import GREEDY, Arriving, Asked, Settings, ask


class Evaluation:
    """Asked again and again during a run; greedy answers do not depend on noise, so neither does this."""

    def __init__(
        self,
        asked: Sequence[Asked],
        sampler: Sampler,
        score: Callable[[Arriving], list[Rollout]],
        settings: Settings,
        text: Callable[[Sequence[int]], str],
    ) -> None:
        self.asked, self.sampler, self.score, self.settings, self.text = asked, sampler, score, settings, text
        self.rollouts: list[Rollout] = []

    def __call__(self, step: int) -> dict[str, float]:
        found = ask(self.sampler, self.asked, [GREEDY], self.settings, occasion="evaluate", text=self.text)
        self.rollouts = self.score(found)
        figures = {**described(packed(self.rollouts), parts_of(self.rollouts)), **told(self.rollouts)}
        return {f"evaluate/{name}": tally.value() for name, tally in figures.items()}
