"""GRPO in one file: a tiny language model learns to sort digits, told nothing but "right" or "wrong".

    python examples/one_file/grpo.py

Everything the algorithm does is on this page, in plain PyTorch; from the library come only a tiny model and the task.
Read it from top to bottom: the model, sampling, the loss, one update, the loop. `tests/examples/one_file/test_grpo.py`
requires that the library's row `grpo`, which is written in another way (packed, in stages), gives the same loss in
every update and the same weights in the end.

The idea (arXiv 2402.03300): ask one question several times. Answers that did better than the others of their group
become more likely, those that did worse less likely. The group is the baseline, so there is no critic to train.

Axes: B rows, one for each answer; L places of a row: the question, padded on its left, then the answer, padded on its
right; V tokens of the vocabulary; Q questions; G answers of a question.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ascent.models.tiny import tiny_model, tiny_tokenizer
from ascent.records import Prompt
from ascent.tasks import TASKS

TASK = TASKS["sort_digits"]  # "sort 7 3 5 =" is answered by "3 5 7"


@dataclass(frozen=True)
class Settings:
    """The numbers of GRPO. A real model wants a learning rate of about 1e-6; this one has 110,000 weights."""

    questions: int = 16  # asked in one step
    group: int = 8  # answers to each
    max_new_tokens: int = 8
    epochs: int = 2  # updates on the same answers; from the second on, the clip below has something to do
    learning_rate: float = 3e-4
    clip: float = 0.2  # how far a token's probability may move before its gradient is cut off
    beta: float = 0.04  # weight of the KL term that holds the policy near where it started
    max_grad_norm: float = 1.0


# --- the model -------------------------------------------------------------------------------------------------------


def make_model(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Two layers of 64 channels with random weights, and a tokenizer learned from the task's own texts."""
    texts = [m.content for example in TASK.demonstrations("train", 512) for m in example.messages]
    tokenizer = tiny_tokenizer(texts, vocabulary=272)
    return tiny_model("llama", len(tokenizer), intermediate=128, seed=seed), tokenizer


def imitate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, steps: int, seed: int) -> None:
    """Supervised fine-tuning first: a policy that never answers rightly has nothing to be rewarded for."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    examples = TASK.demonstrations("train", 64 * steps, seed) if steps else ()
    for step in range(steps):
        rows = []
        for example in examples[64 * step : 64 * (step + 1)]:
            question, answer = (tokenizer(m.content).input_ids for m in example.messages)
            rows.append((question, [*answer, tokenizer.eos_token_id]))
        batch = padded(rows, tokenizer.pad_token_id)
        loss = -(logprobs_of(model, batch) * batch.trained_BL).sum() / batch.trained_BL.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


# --- sampling --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Rows of questions and answers. The end token belongs to the answer: that is how stopping is learned."""

    tokens_BL: Tensor
    real_BL: Tensor  # not padding
    trained_BL: Tensor  # written by the policy

    def text(self, row: int, tokenizer: PreTrainedTokenizerBase) -> str:
        """The answer of a row, in words."""
        return str(tokenizer.decode(self.tokens_BL[row][self.trained_BL[row]], skip_special_tokens=True))


def padded(rows: Sequence[tuple[list[int], list[int]]], filler: int) -> Batch:
    """(question, answer) pairs of token ids as one rectangle, answers beginning in the same column."""
    before, after = (max(len(row[part]) for row in rows) for part in (0, 1))
    tokens, real, trained = [], [], []
    for question, answer in rows:
        left, right = before - len(question), after - len(answer)
        tokens.append([filler] * left + question + answer + [filler] * right)
        real.append([False] * left + [True] * (len(question) + len(answer)) + [False] * right)
        trained.append([False] * before + [True] * len(answer) + [False] * right)
    return Batch(torch.tensor(tokens), torch.tensor(real), torch.tensor(trained))


def positions_of(real_BL: Tensor) -> Tensor:
    """0 at a row's first real token, whatever padding stands before it."""
    return (real_BL.long().cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], max_new_tokens: int
) -> tuple[Batch, Tensor]:
    """An answer to every question, and the log-prob of every token of it: the policy that sampled is now on record."""
    batch = padded([(tokenizer(each).input_ids, []) for each in questions], tokenizer.pad_token_id)
    tokens_BL, real_BL, width = batch.tokens_BL, batch.real_BL, batch.tokens_BL.shape[1]
    logprobs_BL = torch.zeros(tokens_BL.shape)
    going_B = torch.ones(len(questions), dtype=torch.bool)
    memory: Any = None
    for _ in range(max_new_tokens):
        seen_BL = tokens_BL if memory is None else tokens_BL[:, -1:]  # what was read before is in the model's memory
        positions_BL = positions_of(real_BL)[:, -seen_BL.shape[1] :]
        out = model(
            seen_BL, attention_mask=real_BL.long(), position_ids=positions_BL, past_key_values=memory, use_cache=True
        )
        memory, choice_BV = out.past_key_values, out.logits[:, -1].log_softmax(-1)
        next_B = torch.multinomial(choice_BV.exp(), 1)[:, 0]
        said_B = choice_BV.gather(1, next_B[:, None])[:, 0]
        tokens_BL = torch.cat([tokens_BL, torch.where(going_B, next_B, tokenizer.pad_token_id)[:, None]], 1)
        logprobs_BL = torch.cat([logprobs_BL, torch.where(going_B, said_B, 0)[:, None]], 1)
        real_BL = torch.cat([real_BL, going_B[:, None]], 1)
        going_B = going_B & (next_B != tokenizer.eos_token_id)
        if not going_B.any():
            break
    trained_BL = real_BL & (torch.arange(tokens_BL.shape[1]) >= width)
    return Batch(tokens_BL, real_BL, trained_BL), logprobs_BL


def logprobs_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The log-prob of every token of an answer, in its own place: the logits before a token are those that chose it."""
    out = model(batch.tokens_BL, attention_mask=batch.real_BL.long(), position_ids=positions_of(batch.real_BL))
    logprobs_BLV = out.logits[:, :-1].log_softmax(-1)
    found_BL = pad(logprobs_BLV.gather(2, batch.tokens_BL[:, 1:, None])[..., 0], (1, 0))
    return torch.where(batch.trained_BL, found_BL, 0)


# --- GRPO ------------------------------------------------------------------------------------------------------------


def advantages_of(rewards_B: Tensor, group: int) -> Tensor:
    """How much better than the other answers to the same question, in standard deviations of that group."""
    rewards_QG = rewards_B.view(-1, group)
    above_QG = rewards_QG - rewards_QG.mean(1, keepdim=True)
    scaled_QG = above_QG / (rewards_QG.std(1, keepdim=True) + 1e-4)
    # All right or all wrong: nothing to compare. Rounding must not be divided by 1e-4 and taken for a signal.
    flat_Q1 = rewards_QG.amax(1, keepdim=True) - rewards_QG.amin(1, keepdim=True) <= 1e-6
    return torch.where(flat_Q1, 0, scaled_QG).view(-1)


def grpo_loss(
    logprobs_BL: Tensor,
    old_BL: Tensor,
    reference_BL: Tensor,
    advantages_B: Tensor,
    trained_BL: Tensor,
    *,
    clip: float,
    beta: float,
) -> Tensor:
    """The clipped surrogate of PPO plus KL to the reference, averaged over the tokens of an answer, then over answers.

    The ratio is 1 in the first update on fresh answers; its gradient is that of the log-prob all the same.
    """
    advantages_B1 = advantages_B[:, None]
    ratio_BL = (logprobs_BL - old_BL).exp()
    free_BL, held_BL = ratio_BL * advantages_B1, ratio_BL.clamp(1 - clip, 1 + clip) * advantages_B1
    # The smaller one: moving further than the clip earns nothing, moving back is never hindered.
    gain_BL = torch.minimum(free_BL, held_BL)
    # k3, an estimate of KL that is never negative: e^x - x - 1 with x = log reference - log policy.
    x_BL = reference_BL - logprobs_BL
    kl_BL = x_BL.exp() - x_BL - 1
    loss_BL = torch.where(trained_BL, -gain_BL + beta * kl_BL, 0)
    return (loss_BL.sum(1) / trained_BL.sum(1)).mean()


def update(
    policy: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    old_BL: Tensor,
    reference_BL: Tensor,
    advantages_B: Tensor,
    settings: Settings,
) -> Tensor:
    """One step of the optimizer; the loss before it."""
    logprobs_BL = logprobs_of(policy, batch)
    loss = grpo_loss(
        *(logprobs_BL, old_BL, reference_BL, advantages_B, batch.trained_BL), clip=settings.clip, beta=settings.beta
    )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
    optimizer.step()
    return loss.detach()


# --- the loop --------------------------------------------------------------------------------------------------------


def question_of(prompt: Prompt) -> str:
    return prompt.messages[-1].content


def rewards_of(prompts: Sequence[Prompt], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """1 for a right answer, 0 for a wrong one: all that the policy is ever told."""
    return torch.tensor(
        [TASK.verify(prompt, batch.text(row, tokenizer))["correct"] for row, prompt in enumerate(prompts)]
    )


def accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 512) -> tuple[float, list[str]]:
    """The share of held-out questions that are answered rightly, one sample each; and the answers."""
    prompts = TASK.prompts("heldout", count)
    batch, _ = sample(model, tokenizer, [question_of(p) for p in prompts], 8)
    answers = [batch.text(row, tokenizer) for row in range(count)]
    return float(rewards_of(prompts, batch, tokenizer).mean()), answers


def train(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Settings, *, steps: int, seed: int
) -> None:
    reference = copy.deepcopy(policy)  # stays as it is: where the policy came from
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    asked = TASK.prompts("train", settings.questions * steps, seed + 1)
    for step in range(steps):
        began = time.perf_counter()
        fresh = asked[settings.questions * step : settings.questions * (step + 1)]
        prompts = [prompt for prompt in fresh for _ in range(settings.group)]
        batch, old_BL = sample(policy, tokenizer, [question_of(p) for p in prompts], settings.max_new_tokens)
        rewards_B = rewards_of(prompts, batch, tokenizer)
        advantages_B = advantages_of(rewards_B, settings.group)
        with torch.no_grad():
            reference_BL = logprobs_of(reference, batch)
        for _ in range(settings.epochs):
            loss = update(policy, optimizer, batch, old_BL, reference_BL, advantages_B, settings)
        kl = float((old_BL - reference_BL).sum() / batch.trained_BL.sum())
        print(
            f"step {step + 1:3d}  right {rewards_B.mean():.2f}  loss {loss:+.4f}  KL to the start {kl:.4f}  "
            f"{time.perf_counter() - began:.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description="GRPO in one file.")
    parser.add_argument("--steps", type=int, default=80, help="steps of GRPO")
    parser.add_argument("--sft-steps", type=int, default=150, help="steps of supervised fine-tuning before it")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    policy, tokenizer = make_model(given.seed)
    imitate(policy, tokenizer, steps=given.sft_steps, seed=given.seed)
    before, said_before = accuracy(policy, tokenizer)
    print(f"after {given.sft_steps} steps of imitation: {before:.0%} of held-out questions right")
    train(policy, tokenizer, Settings(), steps=given.steps, seed=given.seed)
    after, said_after = accuracy(policy, tokenizer)
    print(f"before {before:.0%}, after {given.steps} steps of GRPO {after:.0%}; for example")
    prompts = TASK.prompts("heldout", 512)
    changed = [each for each in zip(prompts, said_before, said_after, strict=True) if each[1] != each[2]]
    for prompt, first, last in changed[:5]:
        print(f"  {question_of(prompt):22} {first:12} -> {last}")
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
