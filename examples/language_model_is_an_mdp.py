"""A language model is an MDP: the state is the text so far, an action is the next token, the reward comes at the end.

    python examples/language_model_is_an_mdp.py

1. PPO trains CartPole (`ascent.classic.ppo`) and a tiny recurrent language model with the same four functions:
   `returns.gae`, `ratios.token`, `policy_losses.clip` and `values.mse`. Only the state differs: a pole, or a text.
2. The bandit view (one action: the whole completion) and the MDP view (one action: one token) have the same gradient on
   policy and differ once the policy has moved. Both are measured.

The language model's task: given a digit, continue counting. The answer to "7" is "8 9 0 1 2 3". The score is the share
of tokens that follow their predecessor; it is paid once, on the last token.

Axes: T flat tokens, B completions, L tokens of one completion, V vocabulary.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ascent.advantages import returns
from ascent.advantages.normalize import whiten_token
from ascent.advantages.reward_shaping import on_last_token
from ascent.losses import aggregation, policy_losses, ratios, values
from ascent.maths import divergence
from ascent.maths.logprobs import token_logprobs
from ascent.maths.segments import Segments

DIGITS, LENGTH = 10, 6


class TinyModel(nn.Module):
    """Embedding, one GRU, a head for the next token and a head for the value of the text so far."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(DIGITS, width)
        self.core = nn.GRU(width, width, batch_first=True)
        self.tokens = nn.Linear(width, DIGITS)
        self.value = nn.Linear(width, 1)

    def forward(
        self, texts_BL: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the next token and value of the text after each token, and the hidden state."""
        states_BLH, hidden = self.core(self.embed(texts_BL), hidden)
        return self.tokens(states_BLH), self.value(states_BLH)[..., 0], hidden


class Episodes(NamedTuple):
    """Completions as packed steps: every token is one step of its own episode."""

    prompts_B: Tensor
    completions_BL: Tensor
    rewards_B: Tensor
    segments: Segments

    @property
    def tokens_T(self) -> Tensor:
        return self.completions_BL.reshape(-1)

    @property
    def loss_mask_T(self) -> Tensor:
        return torch.ones(self.segments.total, dtype=torch.bool)

    @property
    def states_BL(self) -> Tensor:
        """The input before each action: the prompt, then all tokens but the last."""
        return torch.cat([self.prompts_B[:, None], self.completions_BL[:, :-1]], dim=1)


@torch.no_grad()
def sample_episodes(model: TinyModel, count: int, generator: torch.Generator) -> Episodes:
    """Sample token after token. The environment only appends the token."""
    prompts_B = torch.randint(DIGITS, (count,), generator=generator)
    last_B1, hidden, tokens = prompts_B[:, None], None, []
    for _ in range(LENGTH):
        logits_B1V, _, hidden = model(last_B1, hidden)
        last_B1 = torch.multinomial(logits_B1V[:, 0].softmax(-1), 1, generator=generator)
        tokens.append(last_B1)
    completions_BL = torch.cat(tokens, dim=1)
    return Episodes(
        prompts_B,
        completions_BL,
        score(prompts_B, completions_BL),
        Segments.from_lengths([LENGTH] * count),
    )


def score(prompts_B: Tensor, completions_BL: Tensor) -> Tensor:
    """Share of tokens that are the successor of the token before; 9 is followed by 0."""
    texts = torch.cat([prompts_B[:, None], completions_BL], dim=1)
    return ((texts[:, :-1] + 1) % DIGITS == texts[:, 1:]).to(torch.get_default_dtype()).mean(1)


def evaluate_actions(model: TinyModel, episodes: Episodes) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of every token, value of the state before it, entropy of its distribution; packed."""
    logits_BLV, values_BL, _ = model(episodes.states_BL)
    logits_TV = logits_BLV.reshape(-1, DIGITS)
    return (
        token_logprobs(logits_TV, episodes.tokens_T),
        values_BL.reshape(-1),
        divergence.entropy(logits_TV),
    )


def token_mean(loss_T: Tensor, episodes: Episodes) -> Tensor:
    """`aggregation.token_mean` as one number, for a batch in one piece."""
    tokens_B = aggregation.tokens_per_sequence(
        episodes.loss_mask_T, episodes.segments, loss_T.dtype
    )
    weights = aggregation.token_mean(tokens_B)
    total = aggregation.numerator(loss_T, episodes.loss_mask_T, weights.weight_B, episodes.segments)
    return total / weights.share_B.sum()


def train_language_model(
    *,
    updates: int = 60,
    batch: int = 64,
    epochs: int = 4,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> tuple[TinyModel, list[float]]:
    """PPO on the token MDP. Returns the model and the mean score of every rollout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TinyModel()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    scores = []
    for _ in range(updates):
        episodes = sample_episodes(model, batch, generator)
        scores.append(float(episodes.rewards_B.mean()))
        with torch.no_grad():
            old_logprobs_T, values_T, _ = evaluate_actions(model, episodes)
        loss_mask_T, segments = episodes.loss_mask_T, episodes.segments
        rewards_T = on_last_token(episodes.rewards_B, loss_mask_T, segments)
        estimate = returns.gae(rewards_T, values_T, loss_mask_T, segments, gamma=1.0, lam=0.95)
        advantages_T = whiten_token(estimate.advantages_T, loss_mask_T)
        assert estimate.returns_T is not None
        for _ in range(epochs):
            logprobs_T, values_T, entropy_T = evaluate_actions(model, episodes)
            clipped = policy_losses.clip(
                ratios.token(logprobs_T, old_logprobs_T, loss_mask_T),
                advantages_T,
                loss_mask_T,
                low=0.2,
                high=0.2,
            )
            critic_T = values.mse(values_T, estimate.returns_T, loss_mask_T)
            loss = token_mean(clipped.loss_T + 0.5 * critic_T - 0.003 * entropy_T, episodes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, scores


def bandit_gradient(
    model: TinyModel, episodes: Episodes, old_logprobs_T: Tensor, baseline: float
) -> Tensor:
    """One action, the whole completion: -(R - b) * ratio of the completion, mean over completions."""
    logprobs_T, _, _ = evaluate_actions(model, episodes)
    log_ratio_T = ratios.sequence_product(
        logprobs_T, old_logprobs_T, episodes.loss_mask_T, episodes.segments
    )
    # The product is repeated on every token of its completion; a bandit has one action, so only the last one counts.
    last_T = episodes.segments.last(episodes.loss_mask_T)
    advantages_T = episodes.segments.broadcast(episodes.rewards_B - baseline)
    loss_T = policy_losses.surrogate(log_ratio_T, advantages_T, last_T).loss_T
    return gradient(loss_T.sum() / episodes.segments.count, model)


def mdp_gradient(
    model: TinyModel, episodes: Episodes, old_logprobs_T: Tensor, baseline: float
) -> Tensor:
    """One action, one token: GAE with gamma 1, lam 1 and a constant critic, a ratio per token, PPO's clip."""
    logprobs_T, _, _ = evaluate_actions(model, episodes)
    loss_mask_T, segments = episodes.loss_mask_T, episodes.segments
    rewards_T = on_last_token(episodes.rewards_B, loss_mask_T, segments)
    constant_T = torch.full_like(rewards_T, baseline)
    advantages_T = returns.gae(
        rewards_T, constant_T, loss_mask_T, segments, gamma=1.0, lam=1.0
    ).advantages_T
    clipped = policy_losses.clip(
        ratios.token(logprobs_T, old_logprobs_T, loss_mask_T),
        advantages_T,
        loss_mask_T,
        low=0.2,
        high=0.2,
    )
    tokens_B = aggregation.tokens_per_sequence(loss_mask_T, segments, clipped.loss_T.dtype)
    weights = aggregation.sequence_mean_token_sum(tokens_B)
    loss = (
        aggregation.numerator(clipped.loss_T, loss_mask_T, weights.weight_B, segments)
        / weights.share_B.sum()
    )
    return gradient(loss, model)


def gradient(loss: Tensor, model: TinyModel) -> Tensor:
    policy = [*model.embed.parameters(), *model.core.parameters(), *model.tokens.parameters()]
    return torch.cat([piece.reshape(-1) for piece in torch.autograd.grad(loss, policy)])


class Views(NamedTuple):
    """Relative difference and cosine of the two views' gradients."""

    difference: float
    cosine: float


def compare_views(*, moved: float, count: int = 256, seed: int = 0) -> Views:
    """Bandit against MDP in float64, `moved` away from the policy that sampled; 0 is on-policy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TinyModel().double()
        direction = [torch.randn_like(weight) for weight in model.parameters()]
    episodes = sample_episodes(model, count, torch.Generator().manual_seed(seed))
    episodes = episodes._replace(rewards_B=episodes.rewards_B.double())
    with torch.no_grad():
        old_logprobs_T, _, _ = evaluate_actions(model, episodes)
        for weight, step in zip(model.parameters(), direction, strict=True):
            weight.add_(step, alpha=moved)
    baseline = float(episodes.rewards_B.mean())
    bandit, mdp = (
        view(model, episodes, old_logprobs_T, baseline) for view in (bandit_gradient, mdp_gradient)
    )
    return Views(
        float((bandit - mdp).norm() / bandit.norm()),
        float(torch.cosine_similarity(bandit, mdp, dim=0)),
    )


def greedy_text(model: TinyModel, digit: int) -> str:
    """The greedy continuation of one digit."""
    text, hidden = [digit], None
    with torch.no_grad():
        for _ in range(LENGTH):
            logits, _, hidden = model(torch.tensor([[text[-1]]]), hidden)
            text.append(int(logits[0, 0].argmax()))
    return " ".join(map(str, text))


def main() -> None:
    parser = argparse.ArgumentParser(description="A language model is an MDP.")
    parser.add_argument("--cartpole-steps", type=int, default=30_000, help="0 leaves CartPole out")
    parser.add_argument("--updates", type=int, default=60, help="PPO updates of the language model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cartpole_steps:
        from ascent.classic import ppo

        settings = ppo.Settings(steps=given.cartpole_steps, gamma=0.98, lam=0.9, lr=1e-3)
        pole = ppo.train("CartPole-v1", settings, seed=0)
        first, last = sum(pole.returns[:20]) / 20, sum(pole.returns[-20:]) / 20
        print(f"CartPole       return {first:6.1f} -> {last:6.1f}  {pole.seconds:.1f} s")
    began = time.perf_counter()
    model, scores = train_language_model(updates=given.updates)
    print(
        f"language model score  {scores[0]:6.2f} -> {scores[-1]:6.2f}  {time.perf_counter() - began:.1f} s"
    )
    print(f"               says   {greedy_text(model, 7)}")
    print("\nbandit against MDP     relative difference   cosine")
    for moved in (0.0, 0.01, 0.03, 0.1):
        views = compare_views(moved=moved)
        print(f"policy moved by {moved:<5g}  {views.difference:19.1e}  {views.cosine:7.4f}")


if __name__ == "__main__":
    main()
