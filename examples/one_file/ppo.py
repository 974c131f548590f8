"""PPO in one file, as in RLHF: a policy, a critic, a frozen reference, and a score for every answer.

    python examples/one_file/ppo.py

The whole algorithm is in this file, in plain PyTorch; only a tiny model and the task come from the library. Read it
from top to bottom. `tests/examples/one_file/test_ppo.py` checks that the library's row `ppo`, which works on packed
batches, gives the same losses in every update and the same final weights of both models.

The idea: every token is an action. The score is paid at the end of an answer, and a KL penalty at every token. The
critic predicts the return; an action is good if the outcome is better than predicted. Details follow arXiv 2403.17031
(N+). Here the score is 1 for a list in ascending order and 0 otherwise; in RLHF a reward model gives it.

Axes: B rows, one per answer; L positions: the question, left-padded, then the answer, right-padded; V vocabulary.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ascent.models.tiny import tiny_model, tiny_tokenizer
from ascent.records import Prompt
from ascent.tasks import TASKS

TASK = TASKS[
    "style"
]  # "list 7 3 5 =" may be answered by "3 5 7" or "7 5 3"; the score prefers the first


@dataclass(frozen=True)
class Settings:
    """Hyperparameters. A real model needs a learning rate of about 3e-6; this one has 110,000 weights."""

    questions: int = 64  # per step, one answer each
    max_new_tokens: int = 8
    epochs: int = 4  # updates on the same answers
    learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    adam_eps: float = 1e-5
    max_grad_norm: float = 1.0
    missing_eos_score: float = -1.0  # the score of a truncated answer
    beta: float = 0.05  # KL penalty per nat, at every token
    gamma: float = 1.0  # no discount
    lam: float = 0.95  # GAE: 1 uses returns only, 0 trusts the critic
    clip: float = 0.2  # a token's gradient is 0 once its ratio has moved this far
    value_clip: float = 0.2  # the same for a value, in units of the score


# --- the models ------------------------------------------------------------------------------------------------------


def make_model(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Two layers of 64 channels with random weights, and a tokenizer learned from the task's own texts."""
    texts = [m.content for example in TASK.demonstrations("train", 512) for m in example.messages]
    tokenizer = tiny_tokenizer(texts, vocabulary=272)
    return tiny_model("llama", len(tokenizer), intermediate=128, seed=seed), tokenizer


class Critic(nn.Module):
    """A copy of the policy's layers with a scalar head."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        size = policy.config.hidden_size
        self.head = nn.Linear(size, 1, bias=False)
        nn.init.normal_(self.head.weight, std=(size + 1) ** -0.5)

    def forward(self, batch: Batch) -> Tensor:
        """The value of the state before every answer token."""
        values_BL = pad(self.head(forward(self.trunk, batch).last_hidden_state)[:, :-1, 0], (1, 0))
        return torch.where(batch.loss_mask_BL, values_BL, 0)


def finetune(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, steps: int, seed: int
) -> None:
    """Supervised fine-tuning first, on demonstrations that show both orders equally often."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    examples = TASK.demonstrations("train", 64 * steps, seed) if steps else ()
    for step in range(steps):
        pairs = [
            [tokenizer(m.content).input_ids for m in e.messages]
            for e in examples[64 * step : 64 * (step + 1)]
        ]
        rows = [(question, [*answer, tokenizer.eos_token_id]) for question, answer in pairs]
        batch = collate(rows, tokenizer.pad_token_id)
        loss = -token_logprobs(model, batch).sum() / batch.loss_mask_BL.sum()
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


def forward(model: nn.Module, batch: Batch) -> Any:
    """A forward pass. Positions start with 0 at the first token after the padding."""
    positions_BL = (batch.real_BL.long().cumsum(1) - 1).clamp(min=0)
    return model(batch.tokens_BL, attention_mask=batch.real_BL.long(), position_ids=positions_BL)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    max_new_tokens: int,
) -> tuple[Batch, Tensor]:
    """One answer to every question, sampled from the full distribution; and which answers are truncated."""
    pad_id, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    prompts = collate([(tokenizer(each).input_ids, []) for each in questions], pad_id)
    options = {
        "do_sample": True,
        "top_k": 0,
        "max_new_tokens": max_new_tokens,
        "pad_token_id": pad_id,
    }
    tokens_BL = model.generate(
        prompts.tokens_BL, attention_mask=prompts.real_BL.long(), eos_token_id=end, **options
    )
    answer_BL = torch.arange(tokens_BL.shape[1]).expand_as(tokens_BL) >= prompts.tokens_BL.shape[1]
    ended_BL = (tokens_BL == end) & answer_BL
    loss_mask_BL = answer_BL & (
        ended_BL.cumsum(1) - ended_BL.long() == 0
    )  # up to and including the first end token
    width = tokens_BL.shape[1] - prompts.real_BL.shape[1]
    return Batch(
        tokens_BL, pad(prompts.real_BL, (0, width)) | loss_mask_BL, loss_mask_BL
    ), ~ended_BL.any(1)


def token_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The log-prob of every answer token at its own position; the logits that predict it are one position earlier."""
    logprobs_BLV = forward(model, batch).logits[:, :-1].log_softmax(-1)
    logprobs_BL = pad(logprobs_BLV.gather(2, batch.tokens_BL[:, 1:, None])[..., 0], (1, 0))
    return torch.where(batch.loss_mask_BL, logprobs_BL, 0)


# --- rewards, advantages, losses -------------------------------------------------------------------------------------


class Rollouts(NamedTuple):
    """Answers and what stays fixed during the updates on them."""

    batch: Batch
    old_logprobs_BL: Tensor  # log-probs of the policy that sampled
    values_BL: Tensor  # the critic's predictions at that time
    advantages_BL: Tensor
    returns_BL: Tensor  # the critic's targets


def token_rewards(
    scores_B: Tensor, truncated_B: Tensor, kl_BL: Tensor, loss_mask_BL: Tensor, settings: Settings
) -> Tensor:
    """The KL penalty at every token, plus the score (or the score of a truncated answer) at the last one."""
    rewards_BL = -settings.beta * kl_BL
    last_BL = loss_mask_BL & ~pad(loss_mask_BL[:, 1:], (0, 1))
    final_B = torch.where(truncated_B, settings.missing_eos_score, scores_B)
    return torch.where(loss_mask_BL, rewards_BL, 0) + torch.where(last_BL, final_B[:, None], 0)


def gae(
    rewards_BL: Tensor, values_BL: Tensor, loss_mask_BL: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Generalized advantage estimation, from the last column to the first. The value after an answer's end is 0.

    delta is the TD error: reward + value of the next state - value of this one. The advantage is the sum of this and
    all later ones, discounted by gamma * lam.
    """
    advantages_BL = torch.zeros_like(rewards_BL)
    advantage_B = next_value_B = torch.zeros(len(rewards_BL))
    for position in range(rewards_BL.shape[1] - 1, -1, -1):
        delta_B = rewards_BL[:, position] + gamma * next_value_B - values_BL[:, position]
        advantage_B = torch.where(loss_mask_BL[:, position], delta_B + gamma * lam * advantage_B, 0)
        next_value_B = torch.where(loss_mask_BL[:, position], values_BL[:, position], 0)
        advantages_BL[:, position] = advantage_B
    return advantages_BL


def whiten(x_BL: Tensor, keep_BL: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the tokens of the mask."""
    kept = x_BL[keep_BL]
    return torch.where(keep_BL, (x_BL - kept.mean()) / (kept.var() + 1e-8).sqrt(), 0)


def token_mean(x_BL: Tensor, keep_BL: Tensor) -> Tensor:
    return torch.where(keep_BL, x_BL, 0).sum() / keep_BL.sum()


def policy_loss(logprobs_BL: Tensor, rollouts: Rollouts, *, clip: float) -> Tensor:
    """PPO's clipped surrogate: the minimum of the unclipped and the clipped objective."""
    ratio_BL = (logprobs_BL - rollouts.old_logprobs_BL).exp()
    unclipped_BL = ratio_BL * rollouts.advantages_BL
    clipped_BL = ratio_BL.clamp(1 - clip, 1 + clip) * rollouts.advantages_BL
    return token_mean(-torch.minimum(unclipped_BL, clipped_BL), rollouts.batch.loss_mask_BL)


def value_loss(values_BL: Tensor, rollouts: Rollouts, *, clip: float) -> Tensor:
    """Half the squared error: the maximum over the value and the value clipped near its old prediction."""
    clipped_BL = rollouts.values_BL + (values_BL - rollouts.values_BL).clamp(-clip, clip)
    error_BL = torch.maximum(
        (values_BL - rollouts.returns_BL) ** 2, (clipped_BL - rollouts.returns_BL) ** 2
    )
    return token_mean(error_BL / 2, rollouts.batch.loss_mask_BL)


def step(
    loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float
) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()


# --- the loop --------------------------------------------------------------------------------------------------------


class PPO:
    """Three models and two optimizers."""

    def __init__(
        self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Settings
    ) -> None:
        self.policy, self.tokenizer, self.settings = policy, tokenizer, settings
        self.reference = copy.deepcopy(policy)  # frozen
        self.critic = Critic(policy)
        shared = {"eps": settings.adam_eps, "weight_decay": 0.0}
        self.optimizer = torch.optim.AdamW(policy.parameters(), settings.learning_rate, **shared)
        self.critic_optimizer = torch.optim.AdamW(
            self.critic.parameters(), settings.critic_learning_rate, **shared
        )

    @torch.no_grad()
    def compute_advantages(self, batch: Batch, truncated_B: Tensor, scores_B: Tensor) -> Rollouts:
        """From scored answers to what the losses need, without gradient."""
        settings, loss_mask_BL = self.settings, batch.loss_mask_BL
        # The policy has not changed since sampling, so these are the old log-probs.
        old_logprobs_BL, ref_logprobs_BL = (
            token_logprobs(self.policy, batch),
            token_logprobs(self.reference, batch),
        )
        values_BL = self.critic(batch)
        kl_BL = old_logprobs_BL - ref_logprobs_BL  # k1, an estimate of the KL to the reference
        rewards_BL = token_rewards(scores_B, truncated_B, kl_BL, loss_mask_BL, settings)
        advantages_BL = gae(
            rewards_BL, values_BL, loss_mask_BL, gamma=settings.gamma, lam=settings.lam
        )
        whitened_BL, returns_BL = whiten(advantages_BL, loss_mask_BL), advantages_BL + values_BL
        return Rollouts(batch, old_logprobs_BL, values_BL, whitened_BL, returns_BL)

    def update(self, rollouts: Rollouts) -> tuple[float, float]:
        """One step of both optimizers; returns the two losses before it."""
        settings, batch = self.settings, rollouts.batch
        loss = policy_loss(token_logprobs(self.policy, batch), rollouts, clip=settings.clip)
        error = value_loss(self.critic(batch), rollouts, clip=settings.value_clip)
        step(loss, self.policy, self.optimizer, settings.max_grad_norm)
        step(error, self.critic, self.critic_optimizer, settings.max_grad_norm)
        return float(loss.detach()), float(error.detach())

    def sample_and_score(self, prompts: Sequence[Prompt]) -> tuple[Batch, Tensor, Tensor]:
        """Sampled answers, which of them are truncated, and their scores."""
        questions = [prompt.messages[-1].content for prompt in prompts]
        batch, truncated_B = sample(
            self.policy, self.tokenizer, questions, self.settings.max_new_tokens
        )
        answers = [
            tokens[mask] for tokens, mask in zip(batch.tokens_BL, batch.loss_mask_BL, strict=True)
        ]
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        scores = [
            TASK.verify(prompt, text)["ascending"]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        return batch, truncated_B, torch.tensor(scores)


def train(ppo: PPO, *, steps: int, seed: int) -> None:
    settings = ppo.settings
    prompts = TASK.prompts("train", settings.questions * steps, seed + 1)
    for number in range(steps):
        began = time.perf_counter()
        chunk = prompts[settings.questions * number :][: settings.questions]
        batch, truncated_B, scores_B = ppo.sample_and_score(chunk)
        rollouts = ppo.compute_advantages(batch, truncated_B, scores_B)
        for _ in range(settings.epochs):
            loss, error = ppo.update(rollouts)
        took = time.perf_counter() - began
        print(
            f"step {number + 1:3d}  score {scores_B.mean():.2f}  loss {loss:+.4f}  critic {error:.4f}  {took:.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description="PPO in one file.")
    parser.add_argument("--steps", type=int, default=40, help="steps of PPO")
    parser.add_argument(
        "--sft-steps", type=int, default=200, help="steps of supervised fine-tuning before it"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    policy, tokenizer = make_model(given.seed)
    finetune(policy, tokenizer, steps=given.sft_steps, seed=given.seed)
    ppo, heldout = PPO(policy, tokenizer, Settings()), TASK.prompts("heldout", 256)
    before = float(ppo.sample_and_score(heldout)[2].mean())
    train(ppo, steps=given.steps, seed=given.seed)
    after = float(ppo.sample_and_score(heldout)[2].mean())
    print(
        f"mean score of 256 held-out questions: {before:.2f} before, {after:.2f} after {given.steps} steps of PPO"
    )
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
