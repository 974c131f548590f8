"""Datasets of the package reasoning-gym as tasks: `reasoning:leg_counting` and so on. Imported on use.

The package has the generators and scorers; this module adds items by (split, seed, index) and disjoint splits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ascent.distribution import install_hint
from ascent.records import Example, Message, Prompt
from ascent.tasks.keyed_random import stable_hash
from ascent.tasks.task import MAX_TRIES, SPLITS, Split, split_of

PREFIX = "reasoning:"
SIZE = 1_000_000  # entries are generated on access
MAX_TEXT = 2000  # characters of a scored text, or four times those of the answer


@dataclass(frozen=True)
class Reasoning:
    """A dataset with prompts, demonstrations and a verifier; it has no preferences."""

    dataset: str

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.dataset}"

    def prompts(self, split: Split, count: int, seed: int = 0) -> tuple[Prompt, ...]:
        """Questions; Prompt.info holds the entry for the scorer."""
        if split not in SPLITS:
            raise ValueError(f"split={split!r}, but it must be one of {', '.join(SPLITS)}")
        if count < 1:
            raise ValueError(f"count={count}, but at least 1 item must be asked for")
        entries = self._entries(split, seed)
        return tuple(
            self._prompt(next(entries), f"{self.name}/{split}/{seed}/{n}", split)
            for n in range(count)
        )

    def demonstrations(self, split: Split, count: int, seed: int = 0) -> tuple[Example, ...]:
        """The reference answers."""
        found = []
        for prompt in self.prompts(split, count, seed):
            if prompt.answer is None:
                raise ValueError(
                    f"{self.name} gives no answer to {prompt.id}; there is nothing to imitate"
                )
            found.append(
                Example(prompt.id, (*prompt.messages, Message("assistant", prompt.answer)))
            )
        return tuple(found)

    def verify(self, prompt: Prompt, text: str) -> dict[str, float]:
        """correct: full score; score: that of the package. A long text scores 0, because some scorers take quadratic
        time or worse."""
        if len(text) > max(MAX_TEXT, 4 * len(prompt.answer or "")):
            return {"correct": 0.0, "score": 0.0}
        score = float(self._create(0).score_answer(answer=text.strip(), entry=prompt.info["entry"]))
        return {"correct": float(score >= 1), "score": min(max(score, 0.0), 1.0)}

    def _entries(self, split: Split, seed: int) -> Iterator[dict[str, Any]]:
        dataset = self._create(stable_hash(f"{self.name}/{seed}") % 2**31)
        missed = 0
        for index in range(SIZE):
            entry = dataset[index]
            if split_of(f"{self.name}/{entry['question']}") == split:
                missed = 0
                yield entry
            elif (missed := missed + 1) == MAX_TRIES:
                break
        raise ValueError(
            f"{self.name}: {MAX_TRIES} entries in a row gave no {split} problem; it has too few of them"
        )

    def _prompt(self, entry: dict[str, Any], name: str, split: Split) -> Prompt:
        answer = entry["answer"]
        info = {"task": self.name, "split": split, "entry": entry}
        return Prompt(
            name,
            (Message("user", entry["question"]),),
            None if answer is None else str(answer),
            info,
        )

    def _create(self, seed: int) -> Any:
        try:
            return _dataset(self.dataset, seed)
        except ModuleNotFoundError as error:
            if error.name != "reasoning_gym":
                raise
            raise ValueError(
                f"{self.name} needs the package reasoning-gym; install it with: {install_hint('reasoning')}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


@functools.lru_cache(maxsize=64)
def _dataset(name: str, seed: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=SIZE, seed=seed)
