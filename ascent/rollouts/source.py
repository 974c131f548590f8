"""Rollouts of the current policy as a source of training batches: sample, score, compare, then one or several updates.

A step takes `prompts` prompts and `samples` completions of each. The passes and minibatches of one step are handed out
one by one; they end early where KL to the policy that sampled them passes `target_kl`. Everything random is keyed by
(seed, step, place), so a step that was cut off by a kill is sampled again to the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ascent.algorithms.row import Row
from ascent.data.mix import Mixture, Stream
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.maths.tally import Mean, Tally
from ascent.protocols import Sampler, State, Stats, Weights
from ascent.records import Rollout
from ascent.rollouts.batch import Batch, cut, packed, pick
from ascent.rollouts.collect import GREEDY, Asked, Settings, collect
from ascent.rollouts.credit import credited, described, informative, outputs

LOGPROBS, VALUES = frozenset({"logprobs_T"}), frozenset({"values_T"})
MOST_IDLE = 20  # steps in a row without any signal
NOT_ONE = 1e-3  # a first ratio further from 1 than this is a bug, not rounding


class Inferring(Protocol):
    """A model that can be asked about a packed batch, without gradient."""

    def infer(self, batch: Mapping[str, Any], want: frozenset[str]) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Plan:
    """The numbers of a step."""

    prompts: int
    samples: int
    epochs: int = 1
    minibatches: int = 1
    target_kl: float | None = None
    refill_tries: int = 0
    budget: int = 16384


@dataclass(frozen=True)
class Models:
    """Who is asked about the rollouts. `recorded` says that the sampler's log-probs are the policy's own."""

    policy: Inferring
    reference: Inferring | None = None
    critic: Inferring | None = None
    recorded: bool = False


@dataclass
class _Now:
    """The step under way."""

    updates: Iterator[list[Batch]] = field(default_factory=lambda: iter(()))
    given: int = 0
    kl: float = 0.0
    report: dict[str, Tally] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)


class RolloutSource:
    """Implements `protocols.Source`. `score` gives rollouts their rewards; `text` decodes what was sampled."""

    def __init__(
        self,
        asked: Sequence[Asked],
        sampler: Sampler,
        score: Callable[[Sequence[Rollout]], list[Rollout]],
        models: Models,
        row: Row,
        plan: Plan,
        settings: Settings,
        *,
        text: Callable[[Sequence[int]], str],
        shuffle: bool = True,
    ) -> None:
        self.asked, self.sampler, self.score, self.models = tuple(asked), sampler, score, models
        self.row, self.plan, self.settings, self.text = row, plan, settings, text
        self._mixture = Mixture([Stream("prompts", len(self.asked))], seed=settings.seed, shuffle=shuffle)
        self._step, self._idle = 0, 0
        self._now = _Now()

    @property
    def rollouts(self) -> list[Rollout]:
        """Those of the last step, scored, dropped ones included."""
        return self._now.rollouts

    def next(self, step: int) -> list[Batch]:
        """Sample this step's rollouts; the micro-batches of its first update, or none where no group had a signal."""
        if step != self._step + 1:
            raise ValueError(f"step {step} after step {self._step}; rollouts follow the policy step by step")
        self._step, self._now = step, _Now()
        whole, tries = self._sampled(step), 0
        names = sorted({name for each in self._now.rollouts for name in each.parts})
        self._now.report = described(whole, names)
        rows = informative(whole, self.row)
        while self.plan.refill_tries > tries and self._groups(whole, rows) < self.plan.prompts:
            tries += 1
            more = self._sampled(step, tries)
            found = informative(more, self.row)
            if found:
                whole = _joined(pick(whole, rows), pick(more, found)) if rows else pick(more, found)
                rows = self._first_groups(whole)
        self._now.report["refills"] = Mean(torch.tensor(float(tries)), torch.ones(()))
        self._idle = 0 if rows else self._idle + 1
        if self._idle >= MOST_IDLE:
            raise ValueError(
                f"no group of {MOST_IDLE} steps in a row had answers of different quality, so there was nothing to "
                "learn from: all are right or all are wrong. Use easier or harder prompts, more samples of each "
                "(rollouts.group_size), or a reward with partial credit"
            )
        if rows:
            self._now.updates = self._updates(self._finished(pick(whole, rows)), step)
        return self._pop()

    def more(self, stats: Stats) -> list[Batch]:
        """The next update of the same step; none once all passes are done, or the policy has moved far enough."""
        if self._now.given == 1 and self.models.recorded and "ratio_largest" in stats:
            off = max(abs(stats["ratio_largest"].value() - 1), abs(stats["ratio_smallest"].value() - 1))
            if off > NOT_ONE:
                raise RuntimeError(
                    f"before its first update the policy's ratio to itself was off by {off:.2g}: the log-probs that "
                    "were recorded while sampling are not the trainer's; this is a bug, please report it"
                )
        if "kl_to_old" in stats:
            self._now.kl = stats["kl_to_old"].value()
        if self.plan.target_kl is not None and self._now.kl > self.plan.target_kl:
            return []
        return self._pop()

    def report(self) -> Stats:
        """What there is to say about the step's rollouts."""
        return {**self._now.report, "updates": Mean(torch.tensor(float(self._now.given)), torch.ones(()))}

    def refresh(self, weights: Weights) -> None:
        self.sampler.set_weights(self._step, weights)

    def state(self) -> State:
        return {"mixture": self._mixture.state(), "step": self._step, "idle": self._idle}

    def load_state(self, state: State) -> None:
        self._mixture.load_state(state["mixture"])
        self._step, self._idle = state["step"], state["idle"]
        self.sampler.set_weights(self._step, {})

    def _pop(self) -> list[Batch]:
        batches = next(self._now.updates, [])
        self._now.given += bool(batches)
        return batches

    def _sampled(self, step: int, attempt: int = 0) -> Batch:
        """New prompts, their completions with rewards, as one packed batch."""
        asked = [self.asked[drawn.place] for drawn in self._mixture.take(self.plan.prompts)]
        occasion = f"{step}.{attempt}"
        rollouts = self._scored(asked, range(self.plan.samples), occasion)
        self._now.rollouts += rollouts
        batch = packed(rollouts)
        if "greedy" in self.row.needs:
            greedy = self._scored(asked, [GREEDY], occasion)
            best_G = packed(greedy)["rewards_B"]
            batch["greedy_rewards_B"] = best_G.repeat_interleave(self.plan.samples)
        return batch

    def _scored(self, asked: Sequence[Asked], samples: Sequence[int], occasion: str) -> list[Rollout]:
        found = collect(self.sampler, asked, samples, self.settings, occasion=occasion, text=self.text)
        return self.score(found)

    def _finished(self, whole: Batch) -> Batch:
        """With what the models say about it, and with advantages."""
        models, budget = self.models, self.plan.budget
        several = self.plan.epochs * self.plan.minibatches > 1
        shapes = {name for each in self.row.shape for name in each.inputs}
        if models.recorded:
            whole["old_T"] = whole["rollout_T"]
        elif several or "old_T" in shapes or self.row.mismatch is None or self.row.mismatch.name != "none":
            whole["old_T"] = outputs(whole, models.policy.infer, LOGPROBS, budget)["logprobs_T"]
        if "reference" in self.row.needs:
            assert models.reference is not None, f"row {self.row.name} needs a reference"
            whole["reference_T"] = outputs(whole, models.reference.infer, LOGPROBS, budget)["logprobs_T"]
        if "critic" in self.row.needs:
            assert models.critic is not None, f"row {self.row.name} needs a critic"
            whole["values_T"] = outputs(whole, models.critic.infer, VALUES, budget)["values_T"]
        batch, said = credited(whole, self.row)
        self._now.report |= {name: each for name, each in said.items() if name not in self._now.report}
        return batch

    def _updates(self, batch: Batch, step: int) -> Iterator[list[Batch]]:
        """Every pass in its own order, cut into minibatches of whole sequences."""
        count = batch["segments"].count
        for epoch in range(self.plan.epochs):
            order = sorted(range(count), key=lambda row: _hash(self.settings.seed, step, epoch, row))
            for part in range(self.plan.minibatches):
                rows = order[part * count // self.plan.minibatches : (part + 1) * count // self.plan.minibatches]
                if rows:
                    yield cut(batch, rows, self.plan.budget)

    def _groups(self, whole: Batch, rows: Sequence[int]) -> int:
        return len({int(whole["groups"].ids_B[row]) for row in rows})

    def _first_groups(self, whole: Batch) -> list[int]:
        """The rows of as many groups as a step has, those that came first."""
        ids = whole["groups"].ids_B.tolist()
        kept = set(sorted(set(ids))[: self.plan.prompts])
        return [row for row, group in enumerate(ids) if group in kept]


def _hash(*key: int) -> bytes:
    return hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()


def _joined(first: Batch, second: Batch) -> Batch:
    """Two batches as one; groups of the second come after those of the first."""
    lengths = torch.cat([first["segments"].lengths_B, second["segments"].lengths_B])
    ids = torch.cat([first["groups"].ids_B, second["groups"].ids_B + first["groups"].count])
    joined: Batch = {"segments": Segments.from_lengths(lengths), "groups": Groups.from_ids(ids)}
    return joined | {name: torch.cat([first[name], second[name]]) for name in first if name not in joined}
