"""DPO in one file: a tiny language model that lists digits in either order learns which order people like better.

    python examples/one_file/dpo.py

Everything the algorithm does is on this page, in plain PyTorch; from the library come only a tiny model and the task.
Read it from top to bottom: the model, the loss, one update, the loop. `tests/examples/one_file/test_dpo.py` requires
that the library's row `dpo`, which is written in another way (packed, in stages), gives the same loss in every update
and the same weights in the end.

The idea (arXiv 2305.18290): RLHF trains a reward model on pairs of answers, then a policy on that reward while KL holds
it near a reference. The best such policy is known in closed form, and turned around it says what reward a policy stands
for: beta * (log policy - log reference). Put that into the reward model's loss and the policy is trained on the pairs
directly: no reward model, no sampling, nothing but a forward pass on two answers.

Axes: B rows, one for each answer; L places of a row: the question, padded on its left, then the answer, padded on its
right; V tokens of the vocabulary; P pairs.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ascent.models.tiny import tiny_model, tiny_tokenizer
from ascent.records import Pair
from ascent.tasks import TASKS

TASK = TASKS["style"]  # "list 7 3 5 =" may be answered by "3 5 7" or "7 5 3"; people prefer the first


@dataclass(frozen=True)
class Settings:
    """The numbers of DPO. A real model wants a learning rate of about 5e-7; this one has 110,000 weights."""

    pairs: int = 32  # in one update
    learning_rate: float = 5e-5
    beta: float = 0.1  # how dear it is to leave the reference: small is free, large is timid
    max_grad_norm: float = 1.0


# --- the model -------------------------------------------------------------------------------------------------------


def make_model(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Two layers of 64 channels with random weights, and a tokenizer learned from the task's own texts."""
    texts = [m.content for example in TASK.demonstrations("train", 512) for m in example.messages]
    tokenizer = tiny_tokenizer(texts, vocabulary=272)
    return tiny_model("llama", len(tokenizer), intermediate=128, seed=seed), tokenizer


def imitate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, steps: int, seed: int) -> None:
    """Supervised fine-tuning first, on demonstrations that show both orders equally often."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    examples = TASK.demonstrations("train", 64 * steps, seed) if steps else ()
    for step in range(steps):
        shown = examples[64 * step : 64 * (step + 1)]
        batch = padded([written(tokenizer, *(m.content for m in each.messages)) for each in shown], tokenizer)
        loss = -logprobs_of(model, batch).sum() / batch.trained_BL.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


class Batch(NamedTuple):
    """Rows of questions and answers. The end token belongs to the answer: that is how stopping is learned."""

    tokens_BL: Tensor
    real_BL: Tensor  # not padding
    trained_BL: Tensor  # of the answer


def written(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> tuple[list[int], list[int]]:
    return tokenizer(question).input_ids, [*tokenizer(answer).input_ids, tokenizer.eos_token_id]


def padded(rows: Sequence[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """(question, answer) pairs of token ids as one rectangle, answers beginning in the same column."""
    filler = tokenizer.pad_token_id
    before, after = (max(len(row[part]) for row in rows) for part in (0, 1))
    tokens, real, trained = [], [], []
    for question, answer in rows:
        left, right = before - len(question), after - len(answer)
        tokens.append([filler] * left + question + answer + [filler] * right)
        real.append([False] * left + [True] * (len(question) + len(answer)) + [False] * right)
        trained.append([False] * before + [True] * len(answer) + [False] * right)
    return Batch(torch.tensor(tokens), torch.tensor(real), torch.tensor(trained))


def logprobs_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The log-prob of every token of an answer, in its own place: the logits before a token are those that chose it."""
    positions_BL = (batch.real_BL.long().cumsum(1) - 1).clamp(min=0)  # 0 at a row's first real token
    out = model(batch.tokens_BL, attention_mask=batch.real_BL.long(), position_ids=positions_BL)
    logprobs_BLV = out.logits[:, :-1].log_softmax(-1)
    found_BL = pad(logprobs_BLV.gather(2, batch.tokens_BL[:, 1:, None])[..., 0], (1, 0))
    return torch.where(batch.trained_BL, found_BL, 0)


# --- DPO -------------------------------------------------------------------------------------------------------------


def paired(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """Two rows for every pair: the chosen answers first, then the rejected ones in the same order."""
    sides = [[pair.chosen for pair in pairs], [pair.rejected for pair in pairs]]
    return padded(
        [
            written(tokenizer, pair.prompt.messages[-1].content, answer[-1].content)
            for side in sides
            for pair, answer in zip(pairs, side, strict=True)
        ],
        tokenizer,
    )


def dpo_loss(logprobs_B: Tensor, ref_logprobs_B: Tensor, *, beta: float) -> Tensor:
    """-log sigmoid(reward of the chosen answer - reward of the rejected one), the reward being beta * log-ratio.

    At the start policy and reference are one, every reward is 0 and the loss is log 2. Its gradient pushes the two
    answers apart; it is largest where the policy has the pair the wrong way round.
    """
    rewards_B = beta * (logprobs_B - ref_logprobs_B)
    chosen_P, rejected_P = rewards_B.chunk(2)
    return -logsigmoid(chosen_P - rejected_P).mean()


def update(
    policy: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Batch, ref_logprobs_B: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """One step of the optimizer; the loss before it, and the rewards that the policy stood for."""
    logprobs_B = logprobs_of(policy, batch).sum(1)  # of whole answers: not divided by their length
    loss = dpo_loss(logprobs_B, ref_logprobs_B, beta=settings.beta)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
    optimizer.step()
    return loss.detach(), settings.beta * (logprobs_B - ref_logprobs_B).detach()


# --- the loop --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], seed: int
) -> list[str]:
    """An answer to each, drawn token by token from the whole distribution."""
    torch.manual_seed(seed)
    batch = padded([(tokenizer(question).input_ids, []) for question in questions], tokenizer)
    said_BL = model.generate(
        batch.tokens_BL,
        attention_mask=batch.real_BL.long(),
        do_sample=True,
        top_k=0,
        max_new_tokens=16,
        pad_token_id=tokenizer.pad_token_id,
    )[:, batch.tokens_BL.shape[1] :]
    return [str(text) for text in tokenizer.batch_decode(said_BL, skip_special_tokens=True)]


def judged(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 256) -> dict[str, float]:
    """Of answers to held-out questions: the share that is right in either order, and the share in the liked one."""
    prompts = TASK.prompts("heldout", count)
    answers = sample(model, tokenizer, [prompt.messages[-1].content for prompt in prompts], seed=1)
    scores = [TASK.verify(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return {name: sum(score[name] for score in scores) / count for name in ("correct", "ascending")}


def train(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Settings, *, steps: int, seed: int
) -> None:
    reference = copy.deepcopy(policy)  # stays as it is: where the policy came from
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    pairs = TASK.pairs("train", settings.pairs * steps, seed)  # labels are noisy: the liked order wins 49 times of 50
    for step in range(steps):
        began = time.perf_counter()
        batch = paired(pairs[settings.pairs * step : settings.pairs * (step + 1)], tokenizer)
        with torch.no_grad():
            ref_logprobs_B = logprobs_of(reference, batch).sum(1)
        loss, rewards_B = update(policy, optimizer, batch, ref_logprobs_B, settings)
        chosen_P, rejected_P = rewards_B.chunk(2)
        print(
            f"step {step + 1:3d}  loss {loss:.4f}  pairs ranked rightly {(chosen_P > rejected_P).float().mean():.2f}  "
            f"margin {(chosen_P - rejected_P).mean():+.3f}  chosen {chosen_P.mean():+.3f}  "
            f"{time.perf_counter() - began:.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> tuple[dict[str, float], dict[str, float]]:
    parser = argparse.ArgumentParser(description="DPO in one file.")
    parser.add_argument("--steps", type=int, default=60, help="steps of DPO")
    parser.add_argument("--sft-steps", type=int, default=300, help="steps of supervised fine-tuning before it")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    policy, tokenizer = make_model(given.seed)
    imitate(policy, tokenizer, steps=given.sft_steps, seed=given.seed)
    before = judged(policy, tokenizer)
    print(f"after {given.sft_steps} steps of imitation: {before['correct']:.0%} right, {before['ascending']:.0%} liked")
    train(policy, tokenizer, Settings(), steps=given.steps, seed=given.seed)
    after = judged(policy, tokenizer)
    print(f"before: {before['correct']:.0%} right, {before['ascending']:.0%} in the order that is liked")
    print(f"after:  {after['correct']:.0%} right, {after['ascending']:.0%} in the order that is liked")
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
