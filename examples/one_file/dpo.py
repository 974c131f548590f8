"""DPO in one file: a tiny language model that lists digits in either order learns which order is preferred.

    python examples/one_file/dpo.py

The whole algorithm is in this file, in plain PyTorch; only a tiny model and the task come from the library. Read it
from top to bottom: the model, the loss, one update, the loop. `tests/examples/one_file/test_dpo.py` checks that the
library's row `dpo`, which works on packed batches, gives the same loss in every update and the same final weights.

The idea (arXiv 2305.18290): RLHF trains a reward model on pairs of answers, then a policy on that reward with a KL
penalty to a reference. The optimal policy is known in closed form; solved for the reward, it gives the implicit reward
of a policy: beta * (log policy - log reference). With this in the reward model's loss, the policy is trained on the
pairs directly, without a reward model and without sampling.

Axes: B rows, one per answer; L positions: the question, left-padded, then the answer, right-padded; V vocabulary;
P pairs.
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

TASK = TASKS[
    "style"
]  # "list 7 3 5 =" may be answered by "3 5 7" or "7 5 3"; the first is preferred


@dataclass(frozen=True)
class Settings:
    """Hyperparameters. A real model needs a learning rate of about 5e-7; this one has 110,000 weights."""

    pairs: int = 32  # per update
    learning_rate: float = 5e-5
    beta: float = 0.1  # strength of the implicit KL penalty: larger stays closer to the reference
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
    """Supervised fine-tuning first, on demonstrations that show both orders equally often."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    examples = TASK.demonstrations("train", 64 * steps, seed) if steps else ()
    for step in range(steps):
        rows = examples[64 * step : 64 * (step + 1)]
        batch = collate(
            [encode(tokenizer, *(m.content for m in each.messages)) for each in rows], tokenizer
        )
        loss = -token_logprobs(model, batch).sum() / batch.loss_mask_BL.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


class Batch(NamedTuple):
    """Questions and answers, padded. The end token belongs to the answer, so that stopping is learned."""

    tokens_BL: Tensor
    real_BL: Tensor  # not padding
    loss_mask_BL: Tensor  # of the answer


def encode(
    tokenizer: PreTrainedTokenizerBase, question: str, answer: str
) -> tuple[list[int], list[int]]:
    return tokenizer(question).input_ids, [*tokenizer(answer).input_ids, tokenizer.eos_token_id]


def collate(
    rows: Sequence[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerBase
) -> Batch:
    """(question, answer) pairs of token ids as one padded batch; answers start in the same column."""
    pad_id = tokenizer.pad_token_id
    before, after = (max(len(row[part]) for row in rows) for part in (0, 1))
    tokens, real, loss_mask = [], [], []
    for question, answer in rows:
        left, right = before - len(question), after - len(answer)
        tokens.append([pad_id] * left + question + answer + [pad_id] * right)
        real.append([False] * left + [True] * (len(question) + len(answer)) + [False] * right)
        loss_mask.append([False] * before + [True] * len(answer) + [False] * right)
    return Batch(torch.tensor(tokens), torch.tensor(real), torch.tensor(loss_mask))


def token_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The log-prob of every answer token at its own position; the logits that predict it are one position earlier."""
    positions_BL = (batch.real_BL.long().cumsum(1) - 1).clamp(
        min=0
    )  # 0 at the first token after the padding
    out = model(batch.tokens_BL, attention_mask=batch.real_BL.long(), position_ids=positions_BL)
    logprobs_BLV = out.logits[:, :-1].log_softmax(-1)
    logprobs_BL = pad(logprobs_BLV.gather(2, batch.tokens_BL[:, 1:, None])[..., 0], (1, 0))
    return torch.where(batch.loss_mask_BL, logprobs_BL, 0)


# --- DPO -------------------------------------------------------------------------------------------------------------


def collate_pairs(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """Two rows for every pair: the chosen answers first, then the rejected ones in the same order."""
    sides = [[pair.chosen for pair in pairs], [pair.rejected for pair in pairs]]
    return collate(
        [
            encode(tokenizer, pair.prompt.messages[-1].content, answer[-1].content)
            for side in sides
            for pair, answer in zip(pairs, side, strict=True)
        ],
        tokenizer,
    )


def dpo_loss(logprobs_B: Tensor, ref_logprobs_B: Tensor, *, beta: float) -> Tensor:
    """-log sigmoid(reward of the chosen answer - reward of the rejected one), the reward being beta * log-ratio.

    At the start policy and reference are equal, every reward is 0 and the loss is log 2. The gradient is largest where
    the policy ranks the pair wrongly.
    """
    rewards_B = beta * (logprobs_B - ref_logprobs_B)
    chosen_P, rejected_P = rewards_B.chunk(2)
    return -logsigmoid(chosen_P - rejected_P).mean()


def update(
    policy: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    ref_logprobs_B: Tensor,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """One optimizer step; returns the loss and the implicit rewards before it."""
    logprobs_B = token_logprobs(policy, batch).sum(1)  # sums over tokens, not means
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
    """One answer to every question, sampled from the full distribution."""
    torch.manual_seed(seed)
    batch = collate([(tokenizer(question).input_ids, []) for question in questions], tokenizer)
    answers_BL = model.generate(
        batch.tokens_BL,
        attention_mask=batch.real_BL.long(),
        do_sample=True,
        top_k=0,
        max_new_tokens=16,
        pad_token_id=tokenizer.pad_token_id,
    )[:, batch.tokens_BL.shape[1] :]
    return [str(text) for text in tokenizer.batch_decode(answers_BL, skip_special_tokens=True)]


def evaluate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 256
) -> dict[str, float]:
    """Share of held-out answers that are correct in either order, and share in the preferred order."""
    prompts = TASK.prompts("heldout", count)
    answers = sample(model, tokenizer, [prompt.messages[-1].content for prompt in prompts], seed=1)
    scores = [TASK.verify(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return {name: sum(score[name] for score in scores) / count for name in ("correct", "ascending")}


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
    pairs = TASK.pairs(
        "train", settings.pairs * steps, seed
    )  # noisy labels: the preferred order wins 49 times of 50
    for step in range(steps):
        began = time.perf_counter()
        batch = collate_pairs(pairs[settings.pairs * step : settings.pairs * (step + 1)], tokenizer)
        with torch.no_grad():
            ref_logprobs_B = token_logprobs(reference, batch).sum(1)
        loss, rewards_B = update(policy, optimizer, batch, ref_logprobs_B, settings)
        chosen_P, rejected_P = rewards_B.chunk(2)
        print(
            f"step {step + 1:3d}  loss {loss:.4f}  accuracy {(chosen_P > rejected_P).float().mean():.2f}  "
            f"margin {(chosen_P - rejected_P).mean():+.3f}  chosen {chosen_P.mean():+.3f}  "
            f"{time.perf_counter() - began:.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> tuple[dict[str, float], dict[str, float]]:
    parser = argparse.ArgumentParser(description="DPO in one file.")
    parser.add_argument("--steps", type=int, default=60, help="steps of DPO")
    parser.add_argument(
        "--sft-steps", type=int, default=300, help="steps of supervised fine-tuning before it"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    policy, tokenizer = make_model(given.seed)
    finetune(policy, tokenizer, steps=given.sft_steps, seed=given.seed)
    before = evaluate(policy, tokenizer)
    print(
        f"after {given.sft_steps} SFT steps: {before['correct']:.0%} correct, {before['ascending']:.0%} ascending"
    )
    train(policy, tokenizer, Settings(), steps=given.steps, seed=given.seed)
    after = evaluate(policy, tokenizer)
    print(
        f"before: {before['correct']:.0%} correct, {before['ascending']:.0%} in the preferred order"
    )
    print(
        f"after:  {after['correct']:.0%} correct, {after['ascending']:.0%} in the preferred order"
    )
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
