"""PPO in one file, as RLHF uses it: a policy, a critic, a frozen reference, and a score for every finished answer.

    python examples/one_file/ppo.py

Everything the algorithm does is on this page, in plain PyTorch; from the library come only a tiny model and the task.
Read it from top to bottom. `tests/examples/one_file/test_ppo.py` requires that the library's row `ppo`, written in
another way (packed, in stages), gives the same losses in every update and the same weights of both models in the end.

The idea: every token is an action. The score comes once, at the end of an answer; at every token the policy pays for
leaving the reference (KL). The critic learns to foresee what is still to come; an action was good if things turned out
better than foreseen. Details follow arXiv 2403.17031 (N+). Here the score is a function of the text, 1 for a list in
ascending order and 0 for any other; in RLHF a reward model gives it, and nothing else on this page would change.

Axes: B rows, one for each answer; L places of a row: the question, padded on its left, then the answer, padded on its
right; V tokens of the vocabulary.
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

TASK = TASKS["style"]  # "list 7 3 5 =" may be answered by "3 5 7" or "7 5 3"; the score prefers the first


@dataclass(frozen=True)
class Settings:
    """The numbers of PPO. A real model wants a learning rate of about 3e-6; this one has 110,000 weights."""

    questions: int = 64  # asked in one step, one answer each
    max_new_tokens: int = 8
    epochs: int = 4  # updates on the same answers
    learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    adam_eps: float = 1e-5
    max_grad_norm: float = 1.0
    no_end: float = -1.0  # the score of an answer that ran out of tokens
    beta: float = 0.05  # price of one nat away from the reference, at every token
    gamma: float = 1.0  # no discount: texts are short and the score comes at the end
    lam: float = 0.95  # GAE: 1 trusts what happened, 0 trusts the critic
    clip: float = 0.2  # how far a token's probability may move before its gradient is cut off
    value_clip: float = 0.2  # the same for a value, in units of the score


# --- the models ------------------------------------------------------------------------------------------------------


def make_model(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Two layers of 64 channels with random weights, and a tokenizer learned from the task's own texts."""
    texts = [m.content for example in TASK.demonstrations("train", 512) for m in example.messages]
    tokenizer = tiny_tokenizer(texts, vocabulary=272)
    return tiny_model("llama", len(tokenizer), intermediate=128, seed=seed), tokenizer


class Critic(nn.Module):
    """The policy's layers with weights of their own, and one number where the policy has a distribution."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        size = policy.config.hidden_size
        self.head = nn.Linear(size, 1, bias=False)
        nn.init.normal_(self.head.weight, std=(size + 1) ** -0.5)

    def forward(self, batch: Batch) -> Tensor:
        """The value of the state before every token of the answer: what is read there does not include the token."""
        values_BL = pad(self.head(read(self.trunk, batch).last_hidden_state)[:, :-1, 0], (1, 0))
        return torch.where(batch.trained_BL, values_BL, 0)


def imitate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, steps: int, seed: int) -> None:
    """Supervised fine-tuning first, on demonstrations that show both orders equally often."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    examples = TASK.demonstrations("train", 64 * steps, seed) if steps else ()
    for step in range(steps):
        shown = [[tokenizer(m.content).input_ids for m in e.messages] for e in examples[64 * step : 64 * (step + 1)]]
        batch = padded([(asked, [*said, tokenizer.eos_token_id]) for asked, said in shown], tokenizer.pad_token_id)
        loss = -logprobs_of(model, batch).sum() / batch.trained_BL.sum()
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


def read(model: nn.Module, batch: Batch) -> Any:
    """A forward pass. Positions count from a row's first real token, whatever padding stands before it."""
    positions_BL = (batch.real_BL.long().cumsum(1) - 1).clamp(min=0)
    return model(batch.tokens_BL, attention_mask=batch.real_BL.long(), position_ids=positions_BL)


@torch.no_grad()
def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], max_new_tokens: int
) -> tuple[Batch, Tensor]:
    """An answer to every question, drawn from the whole distribution; and which of them did not come to an end."""
    filler, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    asked = padded([(tokenizer(each).input_ids, []) for each in questions], filler)
    drawn = {"do_sample": True, "top_k": 0, "max_new_tokens": max_new_tokens, "pad_token_id": filler}
    tokens_BL = model.generate(asked.tokens_BL, attention_mask=asked.real_BL.long(), eos_token_id=end, **drawn)
    answer_BL = torch.arange(tokens_BL.shape[1]).expand_as(tokens_BL) >= asked.tokens_BL.shape[1]
    ended_BL = (tokens_BL == end) & answer_BL
    trained_BL = answer_BL & (ended_BL.cumsum(1) - ended_BL.long() == 0)  # up to the first end token, and that one
    width = tokens_BL.shape[1] - asked.real_BL.shape[1]
    return Batch(tokens_BL, pad(asked.real_BL, (0, width)) | trained_BL, trained_BL), ~ended_BL.any(1)


def logprobs_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The log-prob of every token of an answer, in its own place: the logits before a token are those that chose it."""
    logprobs_BLV = read(model, batch).logits[:, :-1].log_softmax(-1)
    found_BL = pad(logprobs_BLV.gather(2, batch.tokens_BL[:, 1:, None])[..., 0], (1, 0))
    return torch.where(batch.trained_BL, found_BL, 0)


# --- rewards, advantages, losses -------------------------------------------------------------------------------------


class Rollouts(NamedTuple):
    """Answers and all that stays fixed about them while they are learned from."""

    batch: Batch
    old_BL: Tensor  # log-probs of the policy that sampled
    values_BL: Tensor  # what the critic foresaw then
    advantages_BL: Tensor
    returns_BL: Tensor  # what the critic should have foreseen


def rewards_of(
    scores_B: Tensor, cut_B: Tensor, old_BL: Tensor, reference_BL: Tensor, trained_BL: Tensor, settings: Settings
) -> Tensor:
    """At every token the price of leaving the reference; at the last one the score, or what having no end is worth."""
    rewards_BL = -settings.beta * (old_BL - reference_BL)
    last_BL = trained_BL & ~pad(trained_BL[:, 1:], (0, 1))
    final_B = torch.where(cut_B, settings.no_end, scores_B)
    return torch.where(trained_BL, rewards_BL, 0) + torch.where(last_BL, final_B[:, None], 0)


def gae(rewards_BL: Tensor, values_BL: Tensor, trained_BL: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimation, from the last column to the first; after an answer's end nothing is to come.

    A surprise is reward + value of the next state - value of this one; the advantage is this surprise and all later
    ones, each worth less by gamma * lam.
    """
    advantages_BL = torch.zeros_like(rewards_BL)
    ahead_B = next_value_B = torch.zeros(len(rewards_BL))
    for place in range(rewards_BL.shape[1] - 1, -1, -1):
        surprise_B = rewards_BL[:, place] + gamma * next_value_B - values_BL[:, place]
        ahead_B = torch.where(trained_BL[:, place], surprise_B + gamma * lam * ahead_B, 0)
        next_value_B = torch.where(trained_BL[:, place], values_BL[:, place], 0)
        advantages_BL[:, place] = ahead_B
    return advantages_BL


def whiten(x_BL: Tensor, keep_BL: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the tokens that count, so that the scale of rewards does not matter."""
    kept = x_BL[keep_BL]
    return torch.where(keep_BL, (x_BL - kept.mean()) / (kept.var() + 1e-8).sqrt(), 0)


def token_mean(x_BL: Tensor, keep_BL: Tensor) -> Tensor:
    return torch.where(keep_BL, x_BL, 0).sum() / keep_BL.sum()


def policy_loss(logprobs_BL: Tensor, rollouts: Rollouts, *, clip: float) -> Tensor:
    """PPO's clipped surrogate: the smaller of the free and the held gain, so that moving too far earns nothing."""
    ratio_BL = (logprobs_BL - rollouts.old_BL).exp()
    free_BL = ratio_BL * rollouts.advantages_BL
    held_BL = ratio_BL.clamp(1 - clip, 1 + clip) * rollouts.advantages_BL
    return token_mean(-torch.minimum(free_BL, held_BL), rollouts.batch.trained_BL)


def value_loss(values_BL: Tensor, rollouts: Rollouts, *, clip: float) -> Tensor:
    """Half the squared error; the larger of that of the value and that of the value held near what it was."""
    held_BL = rollouts.values_BL + (values_BL - rollouts.values_BL).clamp(-clip, clip)
    error_BL = torch.maximum((values_BL - rollouts.returns_BL) ** 2, (held_BL - rollouts.returns_BL) ** 2)
    return token_mean(error_BL / 2, rollouts.batch.trained_BL)


def step(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()


# --- the loop --------------------------------------------------------------------------------------------------------


class PPO:
    """The three models and the two optimizers."""

    def __init__(self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> None:
        self.policy, self.tokenizer, self.settings = policy, tokenizer, settings
        self.reference = copy.deepcopy(policy)  # stays as it is: where the policy came from
        self.critic = Critic(policy)
        shared = {"eps": settings.adam_eps, "weight_decay": 0.0}
        self.optimizer = torch.optim.AdamW(policy.parameters(), settings.learning_rate, **shared)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), settings.critic_learning_rate, **shared)

    @torch.no_grad()
    def credit(self, batch: Batch, cut_B: Tensor, scores_B: Tensor) -> Rollouts:
        """From finished, scored answers to what the losses need. Nothing here carries a gradient."""
        settings, trained_BL = self.settings, batch.trained_BL
        # The policy has not moved since it sampled, so these are the log-probs of the sampling policy.
        old_BL, reference_BL = logprobs_of(self.policy, batch), logprobs_of(self.reference, batch)
        values_BL = self.critic(batch)
        rewards_BL = rewards_of(scores_B, cut_B, old_BL, reference_BL, trained_BL, settings)
        advantages_BL = gae(rewards_BL, values_BL, trained_BL, gamma=settings.gamma, lam=settings.lam)
        return Rollouts(batch, old_BL, values_BL, whiten(advantages_BL, trained_BL), advantages_BL + values_BL)

    def update(self, rollouts: Rollouts) -> tuple[float, float]:
        """One step of both optimizers; the two losses before it."""
        settings, batch = self.settings, rollouts.batch
        loss = policy_loss(logprobs_of(self.policy, batch), rollouts, clip=settings.clip)
        error = value_loss(self.critic(batch), rollouts, clip=settings.value_clip)
        step(loss, self.policy, self.optimizer, settings.max_grad_norm)
        step(error, self.critic, self.critic_optimizer, settings.max_grad_norm)
        return float(loss.detach()), float(error.detach())

    def answers(self, prompts: Sequence[Prompt]) -> tuple[Batch, Tensor, Tensor]:
        """Answers to prompts, which of them were cut off, and the score of each."""
        questions = [prompt.messages[-1].content for prompt in prompts]
        batch, cut_B = sample(self.policy, self.tokenizer, questions, self.settings.max_new_tokens)
        said = [tokens[trained] for tokens, trained in zip(batch.tokens_BL, batch.trained_BL, strict=True)]
        texts = self.tokenizer.batch_decode(said, skip_special_tokens=True)
        liked = [TASK.verify(prompt, text)["ascending"] for prompt, text in zip(prompts, texts, strict=True)]
        return batch, cut_B, torch.tensor(liked)


def train(ppo: PPO, *, steps: int, seed: int) -> None:
    settings = ppo.settings
    asked = TASK.prompts("train", settings.questions * steps, seed + 1)
    for number in range(steps):
        began = time.perf_counter()
        batch, cut_B, scores_B = ppo.answers(asked[settings.questions * number :][: settings.questions])
        rollouts = ppo.credit(batch, cut_B, scores_B)
        for _ in range(settings.epochs):
            loss, error = ppo.update(rollouts)
        took = time.perf_counter() - began
        print(f"step {number + 1:3d}  score {scores_B.mean():.2f}  loss {loss:+.4f}  critic {error:.4f}  {took:.2f} s")


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description="PPO in one file.")
    parser.add_argument("--steps", type=int, default=40, help="steps of PPO")
    parser.add_argument("--sft-steps", type=int, default=200, help="steps of supervised fine-tuning before it")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.manual_seed(given.seed)
    policy, tokenizer = make_model(given.seed)
    imitate(policy, tokenizer, steps=given.sft_steps, seed=given.seed)
    ppo, heldout = PPO(policy, tokenizer, Settings()), TASK.prompts("heldout", 256)
    before = float(ppo.answers(heldout)[2].mean())
    train(ppo, steps=given.steps, seed=given.seed)
    after = float(ppo.answers(heldout)[2].mean())
    print(f"mean score of 256 held-out questions: {before:.2f} before, {after:.2f} after {given.steps} steps of PPO")
    return before, after


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
