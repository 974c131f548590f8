"""GRPO in one file: a tiny language model learns to sort digits from a verifier.

    python examples/one_file/grpo.py

The whole algorithm is in this file, in plain PyTorch; only a tiny model and the task come from the library. Read it
from top to bottom: the model, sampling, the loss, one update, the loop. `tests/examples/one_file/test_grpo.py` checks
that the library's row `grpo`, which works on packed batches, gives the same loss in every update and the same final
weights.

The idea (arXiv 2402.03300): sample several answers to one question. Answers that score better than the mean of their
group become more likely, the others less likely. The group mean is the baseline, so no critic is needed.

Axes: B rows, one per answer; L positions: the question, left-padded, then the answer, right-padded; V vocabulary;
Q questions; G answers per question.
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
    """Hyperparameters. A real model needs a learning rate of about 1e-6; this one has 110,000 weights."""

    questions: int = 16  # per step
    group: int = 8  # answers per question
    max_new_tokens: int = 8
    epochs: int = 2  # updates on the same answers; the clip has an effect from the second on
    learning_rate: float = 3e-4
    clip: float = 0.2  # a token's gradient is 0 once its ratio has moved this far
    beta: float = 0.04  # weight of the KL to the reference
    max_grad_norm: float = 1.0


# --- the model -------------------------------------------------------------------------------------------------------


def make_model(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Two layers of 64 channels with random weights, and a tokenizer learned from the task's own texts."""
    texts = [m.content for example in TASK.demonstrations("train", 512) for m in example.messages]
    tokenizer = tiny_tokenizer(texts, vocabulary=272)
    return tiny_model("llama", len(tokenizer), intermediate=128, seed=seed), tokenizer


def finetune(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, steps: int, seed: int
) -> None:
    """Supervised fine-tuning first: a policy that is never correct gets no reward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    examples = TASK.demonstrations("train", 64 * steps, seed) if steps else ()
    for step in range(steps):
        rows = []
        for example in examples[64 * step : 64 * (step + 1)]:
            question, answer = (tokenizer(m.content).input_ids for m in example.messages)
            rows.append((question, [*answer, tokenizer.eos_token_id]))
        batch = collate(rows, tokenizer.pad_token_id)
        loss = -(token_logprobs(model, batch) * batch.loss_mask_BL).sum() / batch.loss_mask_BL.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


# --- sampling --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Questions and answers, padded. The end token belongs to the answer, so that stopping is learned."""

    tokens_BL: Tensor
    real_BL: Tensor  # not padding
    loss_mask_BL: Tensor  # sampled by the policy

    def text(self, row: int, tokenizer: PreTrainedTokenizerBase) -> str:
        """The decoded answer of a row."""
        return str(
            tokenizer.decode(self.tokens_BL[row][self.loss_mask_BL[row]], skip_special_tokens=True)
        )


def collate(rows: Sequence[tuple[list[int], list[int]]], pad_id: int) -> Batch:
    """(question, answer) pairs of token ids as one padded batch; answers start in the same column."""
    before, after = (max(len(row[part]) for row in rows) for part in (0, 1))
    tokens, real, loss_mask = [], [], []
    for question, answer in rows:
        left, right = before - len(question), after - len(answer)
        tokens.append([pad_id] * left + question + answer + [pad_id] * right)
        real.append([False] * left + [True] * (len(question) + len(answer)) + [False] * right)
        loss_mask.append([False] * before + [True] * len(answer) + [False] * right)
    return Batch(torch.tensor(tokens), torch.tensor(real), torch.tensor(loss_mask))


def position_ids(real_BL: Tensor) -> Tensor:
    """Positions that start with 0 at the first token after the padding."""
    return (real_BL.long().cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    max_new_tokens: int,
) -> tuple[Batch, Tensor]:
    """One answer to every question, with the log-prob of every sampled token."""
    batch = collate([(tokenizer(each).input_ids, []) for each in questions], tokenizer.pad_token_id)
    tokens_BL, real_BL, width = batch.tokens_BL, batch.real_BL, batch.tokens_BL.shape[1]
    logprobs_BL = torch.zeros(tokens_BL.shape)
    running_B = torch.ones(len(questions), dtype=torch.bool)
    cache: Any = None
    for _ in range(max_new_tokens):
        input_BL = tokens_BL if cache is None else tokens_BL[:, -1:]  # the rest is in the KV cache
        positions_BL = position_ids(real_BL)[:, -input_BL.shape[1] :]
        out = model(
            input_BL,
            attention_mask=real_BL.long(),
            position_ids=positions_BL,
            past_key_values=cache,
            use_cache=True,
        )
        cache, logprobs_BV = out.past_key_values, out.logits[:, -1].log_softmax(-1)
        next_B = torch.multinomial(logprobs_BV.exp(), 1)[:, 0]
        next_logprobs_B = logprobs_BV.gather(1, next_B[:, None])[:, 0]
        tokens_BL = torch.cat(
            [tokens_BL, torch.where(running_B, next_B, tokenizer.pad_token_id)[:, None]], 1
        )
        logprobs_BL = torch.cat(
            [logprobs_BL, torch.where(running_B, next_logprobs_B, 0)[:, None]], 1
        )
        real_BL = torch.cat([real_BL, running_B[:, None]], 1)
        running_B = running_B & (next_B != tokenizer.eos_token_id)
        if not running_B.any():
            break
    loss_mask_BL = real_BL & (torch.arange(tokens_BL.shape[1]) >= width)
    return Batch(tokens_BL, real_BL, loss_mask_BL), logprobs_BL


def token_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The log-prob of every answer token at its own position; the logits that predict it are one position earlier."""
    out = model(
        batch.tokens_BL,
        attention_mask=batch.real_BL.long(),
        position_ids=position_ids(batch.real_BL),
    )
    logprobs_BLV = out.logits[:, :-1].log_softmax(-1)
    logprobs_BL = pad(logprobs_BLV.gather(2, batch.tokens_BL[:, 1:, None])[..., 0], (1, 0))
    return torch.where(batch.loss_mask_BL, logprobs_BL, 0)


# --- GRPO ------------------------------------------------------------------------------------------------------------


def group_advantages(rewards_B: Tensor, group: int) -> Tensor:
    """Reward minus group mean, divided by the group's standard deviation."""
    rewards_QG = rewards_B.view(-1, group)
    centered_QG = rewards_QG - rewards_QG.mean(1, keepdim=True)
    scaled_QG = centered_QG / (rewards_QG.std(1, keepdim=True) + 1e-4)
    # All correct or all wrong: the advantage is exactly 0, not a rounding error divided by 1e-4.
    equal_Q1 = rewards_QG.amax(1, keepdim=True) - rewards_QG.amin(1, keepdim=True) <= 1e-6
    return torch.where(equal_Q1, 0, scaled_QG).view(-1)


def grpo_loss(
    logprobs_BL: Tensor,
    old_logprobs_BL: Tensor,
    ref_logprobs_BL: Tensor,
    advantages_B: Tensor,
    loss_mask_BL: Tensor,
    *,
    clip: float,
    beta: float,
) -> Tensor:
    """PPO's clipped surrogate plus KL to the reference, averaged over the tokens of an answer, then over answers.

    In the first update on new answers the ratio is 1, but its gradient is not 0.
    """
    advantages_B1 = advantages_B[:, None]
    ratio_BL = (logprobs_BL - old_logprobs_BL).exp()
    unclipped_BL, clipped_BL = (
        ratio_BL * advantages_B1,
        ratio_BL.clamp(1 - clip, 1 + clip) * advantages_B1,
    )
    # The minimum: moving beyond the clip gains nothing, moving back is never clipped.
    objective_BL = torch.minimum(unclipped_BL, clipped_BL)
    # k3, an estimate of KL that is never negative: e^x - x - 1 with x = log reference - log policy.
    x_BL = ref_logprobs_BL - logprobs_BL
    kl_BL = x_BL.exp() - x_BL - 1
    loss_BL = torch.where(loss_mask_BL, -objective_BL + beta * kl_BL, 0)
    return (loss_BL.sum(1) / loss_mask_BL.sum(1)).mean()


def update(
    policy: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    old_logprobs_BL: Tensor,
    ref_logprobs_BL: Tensor,
    advantages_B: Tensor,
    settings: Settings,
) -> Tensor:
    """One optimizer step; returns the loss before it."""
    logprobs_BL = token_logprobs(policy, batch)
    loss = grpo_loss(
        *(logprobs_BL, old_logprobs_BL, ref_logprobs_BL, advantages_B, batch.loss_mask_BL),
        clip=settings.clip,
        beta=settings.beta,
    )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
    optimizer.step()
    return loss.detach()


# --- the loop --------------------------------------------------------------------------------------------------------


def question_of(prompt: Prompt) -> str:
    return prompt.messages[-1].content


def verify(prompts: Sequence[Prompt], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The reward: 1 for a correct answer, 0 for a wrong one."""
    return torch.tensor(
        [
            TASK.verify(prompt, batch.text(row, tokenizer))["correct"]
            for row, prompt in enumerate(prompts)
        ]
    )


def accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 512
) -> tuple[float, list[str]]:
    """Share of held-out questions answered correctly, one sample each; and the answers."""
    prompts = TASK.prompts("heldout", count)
    batch, _ = sample(model, tokenizer, [question_of(p) for p in prompts], 8)
    answers = [batch.text(row, tokenizer) for row in range(count)]
    return float(verify(prompts, batch, tokenizer).mean()), answers


def train(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    steps: int,
    seed: int,
) -> None:
    reference = copy.deepcopy(policy)  # frozen
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    all_prompts = TASK.prompts("train", settings.questions * steps, seed + 1)
    for step in range(steps):
        began = time.perf_counter()
        new = all_prompts[settings.questions * step : settings.questions * (step + 1)]
        prompts = [prompt for prompt in new for _ in range(settings.group)]
        batch, old_logprobs_BL = sample(
            policy, tokenizer, [question_of(p) for p in prompts], settings.max_new_tokens
        )
        rewards_B = verify(prompts, batch, tokenizer)
        advantages_B = group_advantages(rewards_B, settings.group)
        with torch.no_grad():
            ref_logprobs_BL = token_logprobs(reference, batch)
        for _ in range(settings.epochs):
            loss = update(
                policy, optimizer, batch, old_logprobs_BL, ref_logprobs_BL, advantages_B, settings
            )
        kl = float((old_logprobs_BL - ref_logprobs_BL).sum() / batch.loss_mask_BL.sum())
        print(
            f"step {step + 1:3d}  correct {rewards_B.mean():.2f}  loss {loss:+.4f}  KL to the reference {kl:.4f}  "
            f"{time.perf_counter() - began:.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description="GRPO in one file.")
    parser.add_argument("--steps", type=int, default=80, help="steps of GRPO")
    parser.add_argument(
        "--sft-steps", type=int, default=150, help="steps of supervised fine-tuning before it"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    policy, tokenizer = make_model(given.seed)
    finetune(policy, tokenizer, steps=given.sft_steps, seed=given.seed)
    before, answers_before = accuracy(policy, tokenizer)
    print(f"after {given.sft_steps} SFT steps: {before:.0%} of held-out questions correct")
    train(policy, tokenizer, Settings(), steps=given.steps, seed=given.seed)
    after, answers_after = accuracy(policy, tokenizer)
    print(f"before {before:.0%}, after {given.steps} steps of GRPO {after:.0%}; for example")
    prompts = TASK.prompts("heldout", 512)
    changed = [
        each
        for each in zip(prompts, answers_before, answers_after, strict=True)
        if each[1] != each[2]
    ]
    for prompt, first, last in changed[:5]:
        print(f"  {question_of(prompt):22} {first:12} -> {last}")
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
