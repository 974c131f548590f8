"""Problems of the package reasoning-gym, under the names `reasoning:leg_counting` and so on. Imported when named.

Its datasets bring their own generators and scorers. Here they get what the built-in families have: items by (split,
seed, index), and splits that share no question.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ascent.records import Example, Message, Prompt
from ascent.tasks.noise import hashed
from ascent.tasks.task import MOST_TRIES, SPLITS, Split, split_of

PREFIX = "reasoning:"
# Entries are made when they are asked for; this only bounds how far one may look.
SIZE = 1_000_000
# Characters of a text that is scored, where four times the answer's are not more.
LONGEST = 2000


@dataclass(frozen=True)
class Reasoning:
    """One dataset of reasoning-gym as a task with prompts, demonstrations and a verifier; it has no preferences."""

    dataset: str

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.dataset}"

    def prompts(self, split: Split, count: int, seed: int = 0) -> tuple[Prompt, ...]:
        """Questions; the whole entry travels in Prompt.info, because its scorer may need it."""
        if split not in SPLITS:
            raise ValueError(f"split={split!r}, but it must be one of {', '.join(SPLITS)}")
        if count < 1:
            raise ValueError(f"count={count}, but at least 1 item must be asked for")
        entries = self._entries(split, seed)
        return tuple(self._prompt(next(entries), f"{self.name}/{split}/{seed}/{n}", split) for n in range(count))

    def demonstrations(self, split: Split, count: int, seed: int = 0) -> tuple[Example, ...]:
        """The answers that the package gives."""
        found = []
        for prompt in self.prompts(split, count, seed):
            if prompt.answer is None:
                raise ValueError(f"{self.name} gives no answer to {prompt.id}; there is nothing to imitate")
            found.append(Example(prompt.id, (*prompt.messages, Message("assistant", prompt.answer))))
        return tuple(found)

    def verify(self, prompt: Prompt, text: str) -> dict[str, float]:
        """correct: full marks; score: what the package's own scorer says, and 0 for a text of which it is not asked.

        Its scorers run in this process, and some take time quadratic in the text or worse.
        """
        if len(text) > max(LONGEST, 4 * len(prompt.answer or "")):
            return {"correct": 0.0, "score": 0.0}
        score = float(self._made(0).score_answer(answer=text.strip(), entry=prompt.info["entry"]))
        return {"correct": float(score >= 1), "score": min(max(score, 0.0), 1.0)}

    def _entries(self, split: Split, seed: int) -> Iterator[dict[str, Any]]:
        made = self._made(hashed(f"{self.name}/{seed}") % 2**31)
        missed = 0
        for place in range(SIZE):
            entry = made[place]
            if split_of(f"{self.name}/{entry['question']}") == split:
                missed = 0
                yield entry
            elif (missed := missed + 1) == MOST_TRIES:
                break
        raise ValueError(f"{self.name}: {MOST_TRIES} entries in a row gave no {split} problem; it has too few of them")

    def _prompt(self, entry: dict[str, Any], name: str, split: Split) -> Prompt:
        answer = entry["answer"]
        info = {"task": self.name, "split": split, "entry": entry}
        return Prompt(name, (Message("user", entry["question"]),), None if answer is None else str(answer), info)

    def _made(self, seed: int) -> Any:
        try:
            return _dataset(self.dataset, seed)
        except ModuleNotFoundError as error:
            if error.name != "reasoning_gym":
                raise
            raise ValueError(
                f"{self.name} needs the package reasoning-gym; install it with: pip install 'ascent[reasoning]'"
            ) from None
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


@functools.lru_cache(maxsize=64)
def _dataset(name: str, seed: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=SIZE, seed=seed)
