"""Samples and scores the rollouts of a step: draw prompts, generate, score, pack, drop groups without signal.

Everything random is keyed by (seed, step, index), so a step that was interrupted is sampled again to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ascent.advantages.estimate import shaped_rewards
from ascent.algorithms.row import Row
from ascent.data.mix import Mixture, Stream
from ascent.maths.batch import PackedBatch, select
from ascent.maths.metrics import Accumulator, single
from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.batch import (
    check_step_rewards,
    concat_draws,
    pack_over_ranks,
    pack_rollouts,
    place_step_rewards,
    reward_components,
    weighted_components,
)
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.experience import add_collision, logprobs_under, rows_with_signal
from ascent.rollouts.generate import (
    GREEDY,
    Decode,
    RenderedPrompt,
    RolloutStream,
    SamplingParams,
    generate_stream,
)
from ascent.rollouts.metrics import episode_metrics, reward_metrics
from ascent.rollouts.partial import InterruptibleSampler, PartialRollouts
from ascent.rollouts.token_stats import TokenProbe, TokenStats


@dataclass
class StepState:
    """The current step: its rollouts, its batch, and the updates that are left."""

    rollouts: list[Rollout] = field(default_factory=list)
    advantages: dict[int, list[float]] = field(
        default_factory=dict
    )  # of trained rollouts, by index
    token_probe: TokenProbe | None = None
    token_stats: dict[int, TokenStats] = field(
        default_factory=dict
    )  # of a few trained rollouts, by index
    batch: PackedBatch | None = None
    has_signal: bool = False
    updates: Iterator[list[PackedBatch]] = field(default_factory=lambda: iter(()))
    update_count: int = 0
    approx_kl: float = 0.0
    metrics: dict[str, Accumulator] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class RolloutCollector:
    """`score` gives rollouts their rewards; `decode` turns sampled tokens into text."""

    def __init__(
        self,
        prompts: Sequence[RenderedPrompt],
        sampler: Sampler,
        score: Callable[[RolloutStream], list[Rollout]],
        models: Models,
        row: Row,
        config: RolloutConfig,
        params: SamplingParams,
        *,
        decode: Decode,
        shuffle: bool = True,
    ) -> None:
        self.prompts, self.sampler, self.score, self.models = tuple(prompts), sampler, score, models
        self.row, self.config, self.params, self.decode = row, config, params, decode
        self.mixture = Mixture(
            [Stream("prompts", len(self.prompts))], seed=params.seed, shuffle=shuffle
        )
        self.component_names: set[str] = (
            set()
        )  # reward components seen so far; each keeps its column
        self.current = self.collected = StepState()  # what is trained on, and what is being sampled
        self.partial: PartialRollouts | None = None
        if config.partial_rollouts:
            assert isinstance(sampler, InterruptibleSampler), (
                f"{type(sampler).__name__} cannot interrupt requests"
            )
            self.partial = PartialRollouts(sampler, self.prompts, params, decode)

    def collect(self, step: int) -> PackedBatch | None:
        """The rollouts of one step, sampled by the policy as it is now; None if no group has a signal."""
        first = len(self.collected.rollouts)
        batch, tries = self.sample_batch(step), 0
        self.collected.metrics = self.metrics_of(
            batch, reward_components(self.collected.rollouts[first:])
        )
        rows = self.rows_with_signal(batch)
        while (
            tries < self.config.dynamic_sampling_tries
            and _count_groups(batch, rows) < self.config.prompts_per_step
        ):
            tries += 1
            more = self.sample_batch(step, tries)
            more_rows = self.rows_with_signal(more)
            if more_rows:
                more = select(more, more_rows)
                batch = concat_draws(select(batch, rows), more) if rows else more
                rows = _first_groups(batch, self.config.prompts_per_step)
        self.collected.metrics["sampler/dynamic_sampling_tries"] = single(tries)
        self.collected.metrics |= episode_metrics(self.collected.rollouts)
        if not rows:
            return None
        batch = select(batch, rows)
        if "reward_parts" in self.row.needs:
            self.component_names |= {
                name for each in self.collected.rollouts[first:] for name in each.weights
            }
            trained = [
                self.collected.rollouts[index] for index in batch["rollout_index_B"].tolist()
            ]
            batch |= weighted_components(trained, sorted(self.component_names))
        if self.config.max_staleness:
            self._prepare_to_wait(batch)
        return batch

    def _prepare_to_wait(self, batch: PackedBatch) -> None:
        """Add what only the policy that sampled can compute: it is gone when a stale batch is trained on."""
        max_tokens = self.config.tokens_per_microbatch
        batch["rollout_index_B"] = torch.full_like(batch["rollout_index_B"], -1)
        if self.config.overlap:
            return  # the learner is at work: a recorded log-prob is trusted, or a correction reads it
        if not self.models.trust_sampler_logprobs and not self.row.corrects_rollouts:
            batch["old_logprobs_T"] = logprobs_under(
                self.models.policy, batch, max_tokens, self.models.ranks
            )
        add_collision(batch, self.models, self.row, max_tokens)

    def sample_batch(self, step: int, attempt: int = 0) -> PackedBatch:
        """New prompts and their scored completions, as one packed batch."""
        noise_key = f"{step}.{attempt}"
        if self.partial is not None:
            prompts, rollouts = self._finish_groups(self.partial, step, noise_key)
        else:
            prompts = [
                self.prompts[draw.record]
                for draw in self.mixture.take(self.config.prompts_per_step)
            ]
            rollouts = self.sample_rollouts(prompts, noise_key)
        batch = pack_over_ranks(rollouts, self.models.ranks)
        if "step_rewards" in self.row.needs:
            check_step_rewards(rollouts)
        if "step_rewards" in self.row.needs or self.row.places_rewards:
            batch |= place_step_rewards(rollouts, batch)
        batch["rollout_index_B"] = torch.arange(len(rollouts)) + len(self.collected.rollouts)
        self.collected.rollouts += rollouts
        if "optimal_values" in self.row.needs:
            values_G = torch.tensor([each.optimal_value for each in prompts])
            batch["optimal_values_B"] = values_G.repeat_interleave(self.config.group_size)
        if "greedy" in self.row.needs:
            greedy = pack_rollouts(self.generate_and_score(prompts, [GREEDY], noise_key))
            greedy_G = shaped_rewards(
                greedy, self.row.reward_shaping
            )  # a baseline under the rules of what it is for
            batch["greedy_rewards_B"] = greedy_G.repeat_interleave(self.config.group_size)
        return batch

    def sample_rollouts(self, prompts: Sequence[RenderedPrompt], noise_key: str) -> list[Rollout]:
        """Scored rollouts of every prompt, prompt by prompt."""
        return self.generate_and_score(prompts, range(self.config.group_size), noise_key)

    def _finish_groups(
        self, partial: PartialRollouts, step: int, noise_key: str
    ) -> tuple[list[RenderedPrompt], list[Rollout]]:
        """Begin new groups; take those that finish first."""
        config = self.config
        records = [
            draw.record for draw in self.mixture.take(partial.missing(config.prompts_per_step))
        ]
        last_step = step + config.max_staleness - config.lookahead
        partial.begin(records, config.group_size, noise_key=noise_key, last_step=last_step)
        prompts, stream = partial.finish(config.prompts_per_step, step)
        return prompts, self._score(stream)

    def generate_and_score(
        self,
        prompts: Sequence[RenderedPrompt],
        samples: Sequence[int],
        noise_key: str,
        sampler: Sampler | None = None,
    ) -> list[Rollout]:
        """Scored rollouts of the policy, or of another `sampler`."""
        stream = generate_stream(
            sampler or self.sampler,
            prompts,
            samples,
            self.params,
            noise_key=noise_key,
            decode=self.decode,
            ranks=self.models.ranks,
        )
        return self._score(stream)

    def _score(self, stream: RolloutStream) -> list[Rollout]:
        """Sampling runs as the stream is read."""
        started = time.perf_counter()
        rollouts = self.score(stream)
        ended = time.perf_counter()
        sampled = ended if stream.sampled_at is None else stream.sampled_at
        for name, seconds in (("time/sample", sampled - started), ("time/score", ended - sampled)):
            self.collected.seconds[name] = self.collected.seconds.get(name, 0.0) + seconds
        return rollouts

    def metrics_of(
        self, batch: PackedBatch, components: Mapping[str, Tensor]
    ) -> dict[str, Accumulator]:
        return reward_metrics(batch, components)

    def rows_with_signal(self, batch: PackedBatch) -> list[int]:
        return rows_with_signal(batch, self.row)


def _count_groups(batch: PackedBatch, rows: Sequence[int]) -> int:
    return len({int(batch["groups"].ids_B[row]) for row in rows})


def _first_groups(batch: PackedBatch, count: int) -> list[int]:
    """The rows of the first `count` groups."""
    ids = batch["groups"].ids_B.tolist()
    kept = set(sorted(set(ids))[:count])
    return [row for row, group in enumerate(ids) if group in kept]
