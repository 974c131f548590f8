"""Accuracy on the test set with the native engine, for the models of both sides alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reward import is_correct
from settings import Study

import ascent
from ascent.maths.estimates import estimate


def peak_gb() -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0


class Evaluator:
    """One engine for any number of weights: `load` copies them into the modules that it runs."""

    def __init__(self, study: Study, model: Path) -> None:
        settings = study.settings
        rows = [json.loads(line) for line in (study.work / "data/test.jsonl").read_text().splitlines()]
        self.prompts, self.answers = [row["prompt"] for row in rows], [row["answer"] for row in rows]
        self.samples = settings.samples
        self.policy = ascent.Policy(str(model), dtype=settings.dtype, max_new_tokens=settings.max_new_tokens)

    def load(self, weights: Any) -> None:
        """Weights by name, of any dtype; the next sample drops every cached prompt."""
        import torch

        own = self.policy.model.module.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    def greedy(self) -> list[float]:
        rollouts = self.policy.sample(self.prompts, greedy=True)
        return [is_correct(each.text, answer) for each, answer in zip(rollouts, self.answers, strict=True)]

    def test(self) -> dict[str, Any]:
        """greedy and mean@k, each with a 95% interval over questions."""
        drawn = self.policy.sample(self.prompts, n=self.samples)
        answers = [answer for answer in self.answers for _ in range(self.samples)]
        scores = [is_correct(each.text, answer) for each, answer in zip(drawn, answers, strict=True)]
        means = [sum(scores[i : i + self.samples]) / self.samples for i in range(0, len(scores), self.samples)]
        found = {"greedy": estimate(self.greedy(), seed=0), f"mean@{self.samples}": estimate(means, seed=0)}
        shown = {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}
        truncated = sum(each.truncated for each in drawn) / len(drawn)
        tokens = sum(each.length for each in drawn) / len(drawn)
        return {**shown, "questions": len(means), "truncated": truncated, "tokens": tokens}
