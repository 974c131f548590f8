"""Accuracy on the test set with the native engine, for the models of both sides alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reward import is_correct
from settings import RL, VARIANTS, Study

import ascent
from ascent.maths.estimates import estimate


def peak_gb() -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0


class Evaluator:
    """One engine for any number of weights: `load` copies them into the modules that it runs."""

    def __init__(
        self, study: Study, model: Path, data: str = "test.jsonl", dtype: str | None = None
    ) -> None:
        settings = study.settings
        rows = [json.loads(line) for line in (study.work / "data" / data).read_text().splitlines()]
        self.prompts, self.answers = (
            [row["prompt"] for row in rows],
            [row["answer"] for row in rows],
        )
        self.samples = settings.samples
        dtype = dtype or settings.dtype
        self.policy = ascent.Policy(str(model), dtype=dtype, max_new_tokens=settings.max_new_tokens)

    def load(self, weights: Any) -> None:
        """Weights by name, of any dtype; the next sample drops every cached prompt."""
        import torch

        own = self.policy.model.module.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    def scores(self, samples: int, **options: Any) -> list[float]:
        """The mean of every question's samples."""
        drawn = self.policy.sample(self.prompts, n=samples, **options)
        found = [
            is_correct(each.text, self.answers[place // samples])
            for place, each in enumerate(drawn)
        ]
        self.drawn = drawn
        return [sum(found[i : i + samples]) / samples for i in range(0, len(found), samples)]

    def test(self) -> dict[str, Any]:
        """greedy and mean@k, each with a 95% interval over questions."""
        found = {
            "greedy": self.scores(1, greedy=True),
            f"mean@{self.samples}": self.scores(self.samples),
        }
        estimates = {name: estimate(each, seed=0) for name, each in found.items()}
        shown = {
            name: {"value": each.value, "low": each.low, "high": each.high}
            for name, each in estimates.items()
        }
        truncated = sum(each.truncated for each in self.drawn) / len(self.drawn)
        tokens = sum(each.length for each in self.drawn) / len(self.drawn)
        return {**shown, "questions": len(self.prompts), "truncated": truncated, "tokens": tokens}


def test_points(study: Study, stage: str, seed: int | None) -> list[dict[str, Any]]:
    """The tests of every model that the stage saved, by dtype and step. The files of both sides are float32. A bfloat16
    model has their roundings for weights, and after training from bfloat16 files it can be quite another model. Every
    test is kept at once, for a stage that is stopped; the models of the last step that is compared come first."""
    from safetensors.torch import load_file

    folders = sorted(study.points(stage, seed).iterdir(), key=lambda each: int(each.name))
    if stage in (*RL[1:], *VARIANTS):
        folders = [each for each in folders if int(each.name) >= study.settings.trl_steps]
    path = study.result(f"test_{stage}", seed).with_suffix(".jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for dtype in ("bfloat16", "float32"):
        done = [each["step"] for each in found if each["dtype"] == dtype]
        if len(done) < len(folders):
            evaluator = Evaluator(
                study, study.model, dtype=dtype
            )  # TRL's models have no tokenizer beside them
        last_first = sorted(
            enumerate(folders), key=lambda each: int(each[1].name) != study.settings.trl_steps
        )
        for place, folder in last_first:
            if int(folder.name) not in done:
                evaluator.load(load_file(folder / "model.safetensors"))
                evaluator.policy.calls = place  # its noise is that of a stage that was not stopped
                found.append({"step": int(folder.name), "dtype": dtype, **evaluator.test()})
                path.write_text("".join(json.dumps(each) + "\n" for each in found))
    return sorted(found, key=lambda each: (each["dtype"], each["step"]))
