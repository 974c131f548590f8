"""A language of eight words and a policy whose values are known: every sentence it can say is enumerated.

A completion has at most `BUDGET` words, so that a prompt has a few hundred states. `Truth` holds, for every state (the
words said so far), its exact value and how often the policy comes there. Axes: T flat tokens, S states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models.hf_logging import quiet_transformers
from ascent.models.model import LanguageModel
from ascent.models.tiny import tiny_model
from ascent.records import Message, Prompt, Rollout
from ascent.rollouts.generate import RenderedPrompt, SamplingParams

WORDS = ("<pad>", "<eos>", "a", "b", "c", "d", "e", "f")
END, BUDGET = 1, 4
PROMPTS = ((2, 3), (4, 5), (6,), (7, 7, 7))
Said = tuple[int, ...]


def create(folder: Path, *, hidden: int = 32, seed: int = 0) -> Path:
    """A model with opinions: the output head of a fresh one is too small to prefer any word."""
    module = tiny_model("llama", len(WORDS), hidden=hidden, seed=seed)
    with torch.no_grad():
        module.get_output_embeddings().weight.mul_(10)
    with quiet_transformers():
        module.save_pretrained(folder)
    words = Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


def worth(said: Said) -> float:
    """The reward of a completion: half a point for every `a`, minus half for every `b`, one for an end after a `c`."""
    return 0.5 * said.count(2) - 0.5 * said.count(3) + float(said[-1] == END and 4 in said)


def scored(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(each, reward=worth(each.turns[0].completion.tokens)) for each in rollouts]


def asked() -> list[RenderedPrompt]:
    return [
        RenderedPrompt(Prompt(f"p{n}", (Message("user", "?"),)), tokens)
        for n, tokens in enumerate(PROMPTS)
    ]


def settings(seed: int = 0) -> SamplingParams:
    return SamplingParams(max_new_tokens=BUDGET, seed=seed)


def engine(model: LanguageModel) -> NativeEngine:
    return NativeEngine(model, {END}, max_num_seqs=256, max_model_len=16)


def text(tokens: Sequence[int]) -> str:
    return " ".join(WORDS[token] for token in tokens)


def packed(sequences: Sequence[Said]) -> dict[str, Any]:
    segments = Segments.from_lengths([len(each) for each in sequences])
    return {
        "segments": segments,
        "tokens_T": torch.tensor([token for each in sequences for token in each]),
        "positions_T": torch.arange(segments.total) - segments.broadcast(segments.offsets[:-1]),
    }


class Truth:
    """Exact values of a policy at every state it can come to, by (prompt, what was said)."""

    def __init__(self, model: LanguageModel) -> None:
        self.values: dict[tuple[Said, Said], float] = {}
        self.chances: dict[tuple[Said, Said], float] = {}
        self.policy: dict[tuple[Said, Said], list[float]] = {}
        for prompt in PROMPTS:
            self._enumerate(model, prompt)

    def _enumerate(self, model: LanguageModel, prompt: Said) -> None:
        layers: list[list[Said]] = [[()]]
        self.chances[prompt, ()] = 1 / len(PROMPTS)
        for _ in range(BUDGET):
            tried = [(*said, word) for said in layers[-1] for word in range(len(WORDS))]
            chances = _last_probabilities(model, [(*prompt, *said) for said in tried])
            for said, chance in zip(tried, chances, strict=True):
                self.policy.setdefault((prompt, said[:-1]), []).append(chance)
            layers.append([said for said in tried if said[-1] != END])
            for said in layers[-1]:
                before = (prompt, said[:-1])
                self.chances[prompt, said] = self.chances[before] * self.policy[before][said[-1]]
        for said in layers.pop():
            del self.chances[prompt, said]  # the budget ends there: no state to be valued
        for layer in reversed(layers):
            for said in layer:
                self.values[prompt, said] = math.fsum(
                    chance * self.after(prompt, (*said, word))
                    for word, chance in enumerate(self.policy[prompt, said])
                )

    def after(self, prompt: Said, said: Said) -> float:
        """What a state is worth, or what a completion that is over earned."""
        over = said[-1:] == (END,) or len(said) == BUDGET
        return worth(said) if over else self.values[prompt, said]

    def judged(self, model: Any) -> tuple[float, float]:
        """Explained variance and root mean square error of a critic, over the states as the policy comes to them."""
        states = list(self.values)
        # The value of a state is read at its last token, and given at the token after it: any will do.
        batch = packed([(*prompt, *said, 0) for prompt, said in states])
        with torch.no_grad():
            values_T = model.outputs(batch, frozenset({"values_T"}), 1.0)["values_T"].double()
        critic_S = values_T[batch["segments"].offsets[1:] - 1]
        truth_S = torch.tensor([self.values[state] for state in states], dtype=torch.float64)
        often_S = torch.tensor([self.chances[state] for state in states], dtype=torch.float64)
        often_S = often_S / often_S.sum()
        error_S = critic_S - truth_S
        spread = _variance(truth_S, often_S)
        return float(1 - _variance(error_S, often_S) / spread), float(
            (often_S * error_S**2).sum().sqrt()
        )


class Oracle:
    """A critic at the truth."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def infer(self, batch: Mapping[str, Any], want: frozenset[str]) -> dict[str, Tensor]:
        found: list[float] = []
        for tokens_T in batch["tokens_T"].split(batch["segments"].lengths_B.tolist()):
            whole = tuple(tokens_T.tolist())
            prompt = next(each for each in PROMPTS if whole[: len(each)] == each)
            said = whole[len(prompt) :]
            found += [0.0] * len(prompt) + [
                self.truth.values[prompt, said[:n]] for n in range(len(said))
            ]
        return {"values_T": torch.tensor(found, dtype=torch.float64)}


def _last_probabilities(model: LanguageModel, sequences: Sequence[Said]) -> list[float]:
    batch = packed(sequences)
    with torch.no_grad():
        logprobs_T = model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"]
    found: list[float] = logprobs_T[batch["segments"].offsets[1:] - 1].double().exp().tolist()
    return found


def _variance(x_S: Tensor, often_S: Tensor) -> Tensor:
    return (often_S * (x_S - (often_S * x_S).sum()) ** 2).sum()
