"""The file of sampled answers next to the file of verdicts.

The first line holds the arguments; a file with other arguments is refused. The answers to a prompt are one line, so
interrupted sampling continues where it stopped.
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


def samples_path(out: Path) -> Path:
    return out.with_name(out.name.removesuffix(".jsonl") + SUFFIX)


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """A hash of the prompts, their ids and their answers."""
    asked = [[p.id, [[m.role, m.content] for m in p.messages], p.answer] for p in prompts]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


class Samples:
    """The answers of each model (by its index) to each prompt, and their file."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        found = jsonl.read(path)
        self.path, self._lines = path, jsonl.JsonlWriter(path)
        self._found: dict[tuple[int, str], list[Answer]] = {}
        self.weights: dict[int, str] = {}  # model -> hash of the weights that sampled
        if not found.records:
            self._lines.append(about)
            return
        header, *rest = found.records
        changed = [name for name in about if header.get(name) != about[name]]
        if changed:
            self._lines.close()
            raise ValueError(
                f"{path} was sampled with other arguments: {changed[0]} was {header.get(changed[0])!r} and is "
                f"{about[changed[0]]!r}; give the same arguments as before, or another --out"
            )
        for row in rest:
            self._remember(row)

    def put(self, index: int, prompt: Prompt, answers: Sequence[Answer], weights: str) -> None:
        row = {"model": index, "weights": weights, "prompt": prompt.id}
        row["answers"] = [
            {"id": a.id, "model": a.model, "text": a.text, "tokens": a.tokens} for a in answers
        ]
        self._lines.append(row)
        self._remember(row)

    def has(self, index: int, prompt: Prompt) -> bool:
        return (index, prompt.id) in self._found

    def answers(self, prompts: Sequence[Prompt], models: int) -> dict[str, list[Answer]]:
        """For every prompt, the answers of all models, in their order."""
        return {
            p.id: [answer for index in range(models) for answer in self._found[index, p.id]]
            for p in prompts
        }

    def check_weights(self, index: int, name: str, weights: str) -> None:
        known = self.weights.get(index)
        if known not in (None, weights):
            raise ValueError(
                f"{name} has changed since the first of its answers in {self.path} were sampled; give the checkpoint "
                "they came from (RUN/checkpoints/STEP/model), or another --out"
            )

    def close(self) -> None:
        self._lines.close()

    def _remember(self, row: Mapping[str, Any]) -> None:
        self._found[row["model"], row["prompt"]] = [Answer(**each) for each in row["answers"]]
        self.weights[row["model"]] = row["weights"]
