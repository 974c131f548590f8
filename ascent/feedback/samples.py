"""Answers that were sampled once and are asked about many times: a file beside the verdicts.

Its first line says what was asked of whom; a file that says otherwise belongs to other questions and is refused. The
answers to a prompt are one line, so that sampling that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.feedback.comparisons import Answer
from ascent.records import Prompt
from ascent.runs import jsonl

SUFFIX = ".samples.jsonl"


def beside(out: Path) -> Path:
    return out.with_name(out.name.removesuffix(".jsonl") + SUFFIX)


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """A hash of the prompts, their ids and their answers."""
    asked = [[p.id, [[m.role, m.content] for m in p.messages], p.answer] for p in prompts]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


class Samples:
    """The answers of each model (by its place) to each prompt, and the file they are in."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        found = jsonl.read(path)
        self.path, self._lines = path, jsonl.JsonlWriter(path)  # cuts off half a line
        self._found: dict[tuple[int, str], list[Answer]] = {}
        self.wrote: dict[int, str] = {}  # which weights wrote a model's answers
        if not found.records:
            self._lines.append(about)
            return
        said, *rest = found.records
        other = [name for name in about if said.get(name) != about[name]]
        if other:
            self._lines.close()
            raise ValueError(
                f"{path} holds answers to other questions: {other[0]} was {said.get(other[0])!r} and is "
                f"{about[other[0]]!r}; give the same arguments as before, or another --out"
            )
        for row in rest:
            self._keep(row)

    def put(self, place: int, prompt: Prompt, answers: Sequence[Answer], weights: str) -> None:
        row = {"model": place, "weights": weights, "prompt": prompt.id}
        row["answers"] = [{"id": a.id, "model": a.model, "text": a.text, "tokens": a.tokens} for a in answers]
        self._lines.append(row)
        self._keep(row)

    def has(self, place: int, prompt: Prompt) -> bool:
        return (place, prompt.id) in self._found

    def answers(self, prompts: Sequence[Prompt], models: int) -> dict[str, list[Answer]]:
        """For every prompt, the answers of all models, in their order."""
        return {p.id: [answer for place in range(models) for answer in self._found[place, p.id]] for p in prompts}

    def refuse_other_weights(self, place: int, name: str, weights: str) -> None:
        known = self.wrote.get(place)
        if known not in (None, weights):
            raise ValueError(
                f"{name} has changed since the first of its answers in {self.path} were sampled; give the checkpoint "
                "they came from (RUN/checkpoints/STEP/model), or another --out"
            )

    def close(self) -> None:
        self._lines.close()

    def _keep(self, row: Mapping[str, Any]) -> None:
        self._found[row["model"], row["prompt"]] = [Answer(**each) for each in row["answers"]]
        self.wrote[row["model"]] = row["weights"]
