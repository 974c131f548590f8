"""Rollouts of the current policy as a source of training batches: sample, score, compare, then one or several updates.

A step takes `prompts` prompts and `samples` completions of each. The passes and minibatches of one step are handed out
one by one; they end early where KL to the policy that sampled them passes `target_kl`. Everything random is keyed by
(seed, step, place), so a step that was cut off by a kill is sampled again to the same bits.

With `staleness` n a step trains on rollouts that were sampled n steps ago; those that wait are part of the state.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from ascent.advantages import normalize, returns
from ascent.algorithms.row import Row
from ascent.cells import cell
from ascent.data.mix import Mixture, Stream
from ascent.data.sources import FileSource
from ascent.maths.batch import PackedBatch
from ascent.maths.metrics import Accumulator, Mean, max_of, mean_of
from ascent.protocols import Sampler, State, Stats, Weights
from ascent.records import Rollout
from ascent.rollouts.advantages import (
    add_advantages,
    add_model_outputs,
    bootstrap_truncated,
    keep_groups,
    rollout_metrics,
    step_rewards,
)
from ascent.rollouts.batch import (
    Batch,
    concat,
    pack_rollouts,
    place_step_rewards,
    reward_components,
    select,
    split_microbatches,
    weighted_components,
)
from ascent.rollouts.buffer import RolloutBuffer
from ascent.rollouts.episode_metrics import episode_metrics
from ascent.rollouts.generate import GREEDY, RenderedPrompt, RolloutStream, SamplingParams, generate_stream
from ascent.rollouts.kl_control import KLController, to_old, to_reference
from ascent.rollouts.update_kl import nothing_to_learn, update_kl

LOGPROBS, VALUES = frozenset({"logprobs_T"}), frozenset({"values_T"})
COLLISION = frozenset({"log_collision_T"})
MOST_IDLE = 20  # steps in a row without any signal
# More than this between the policy and itself, before a step's first update, is a bug and not rounding: of any ratio
# from 1, and in half precision, where two forwards of the same tokens differ, of the mean KL (on an H200 up to 7e-5).
NOT_ONE, NOT_ONE_IN_HALF = 1e-3, 2e-3


class FrozenModel(Protocol):
    """A model that can be asked about a packed batch, without gradient."""

    def infer(self, batch: PackedBatch, want: frozenset[str]) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class RolloutConfig:
    """The numbers of a step."""

    prompts: int
    samples: int
    epochs: int = 1
    minibatches: int = 1
    target_kl: float | None = None
    dynamic_sampling_tries: int = 0
    budget: int = 16384
    bootstrap: bool = False  # the critic's value stands in for what a token budget cut off
    critic_alone: int = 0  # first steps in which the critic learns whole returns and the policy nothing
    staleness: int = 0
    max_ref_kl: float | None = None


@dataclass(frozen=True)
class Models:
    """Who is asked about the rollouts. `trust_sampler_logprobs` says that the sampler's log-probs are the policy's own,
    `half` that the policy computes in half precision."""

    policy: FrozenModel
    reference: FrozenModel | None = None
    critic: FrozenModel | None = None
    trust_sampler_logprobs: bool = False
    teacher: FrozenModel | None = None
    half: bool = False


@dataclass
class _Now:
    """The step under way."""

    updates: Iterator[list[Batch]] = field(default_factory=lambda: iter(()))
    given: int = 0
    kl: float = 0.0
    report: dict[str, Accumulator] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    batch: Batch = field(default_factory=dict)
    advantages: dict[int, list[float]] = field(default_factory=dict)


class RolloutSource:
    """Implements `protocols.Source`. `score` gives rollouts their rewards; `text` decodes what was sampled."""

    def __init__(
        self,
        asked: Sequence[RenderedPrompt],
        sampler: Sampler,
        score: Callable[[RolloutStream], list[Rollout]],
        models: Models,
        row: Row,
        plan: RolloutConfig,
        settings: SamplingParams,
        *,
        text: Callable[[Sequence[int]], str],
        shuffle: bool = True,
        steering: KLController | None = None,
        texts: FileSource | None = None,
    ) -> None:
        self.asked, self.sampler, self.score, self.models = tuple(asked), sampler, score, models
        self.row, self.plan, self.settings, self.text = row, plan, settings, text
        self._mixture = Mixture([Stream("prompts", len(self.asked))], seed=settings.seed, shuffle=shuffle)
        self.steering, self._texts = steering or KLController(row), texts
        self._step, self._idle, self._mixed = 0, 0, 0
        self._drift: float | None = None
        self._last_update: tuple[int, float] | None = None  # the step, and how far it moved the policy
        self._waiting = RolloutBuffer()
        self._parts: set[str] = set()  # of the rewards, so far: each has a place of its own for rows that read them
        self._now = _Now()

    @property
    def halted(self) -> str:
        """Why the run should end here; empty while it should not."""
        limit, drift = self.plan.max_ref_kl, self._drift
        if limit is None or drift is None or drift <= limit:
            return ""
        return (
            f"the policy is {drift:.4g} nats a token from its reference, more than run.max_ref_kl={limit:g}; raise it "
            "to train further, or hold the policy closer (cells.reward_shaping.kl_penalty.beta)"
        )

    @property
    def rollouts(self) -> list[Rollout]:
        """Those of the last step, scored, dropped ones included."""
        return self._now.rollouts

    @property
    def advantages(self) -> list[list[float] | None]:
        """One for every sampled token of each of `rollouts`; None for those that nothing is learnt from."""
        return [self._now.advantages.get(place) for place in range(len(self._now.rollouts))]

    def next(self, step: int) -> list[Batch]:
        """Sample this step's rollouts; the micro-batches of its first update, or none where no group had a signal."""
        if step != self._step + 1:
            raise ValueError(f"step {step} after step {self._step}; rollouts follow the policy step by step")
        self._step, self._now = step, _Now()
        began = time.perf_counter()
        while self._waiting.drawn < step + self.plan.staleness:
            self._waiting.add(self._gathered(self._waiting.drawn + 1))
        whole = self._waiting.pop()
        solved = self._now.report["reward/correct"].value() == 1  # then a run has come to its end in peace
        self._idle = self._idle + 1 if whole is None and not solved else 0
        if self._idle >= MOST_IDLE:
            raise ValueError(nothing_to_learn(MOST_IDLE, self._now.report, self._last_update))
        if self.steering.moves:
            self._now.report["policy/kl_coef"] = _one(self.steering.value)
        if whole is not None:
            if self.plan.staleness:
                lag_T = step - 1 - whole["versions_T"]
                self._now.report["sampler/staleness"] = mean_of(lag_T, whole["loss_mask_T"])
                self._now.report["sampler/staleness_max"] = max_of(lag_T.double(), whole["loss_mask_T"])
            self._now.batch = self._finished(whole)
            self._now.updates = self._updates(self._now.batch, step)
        batches = self._pop()
        self._now.seconds["time/prepare"] = time.perf_counter() - began - sum(self._now.seconds.values())
        return batches

    def _gathered(self, number: int) -> Batch | None:
        """The rollouts of one step as the policy is now; None where no group had a signal."""
        begun = len(self._now.rollouts)
        whole, tries = self._sampled(number), 0
        self._now.report = self._described(whole, reward_components(self._now.rollouts[begun:]))
        rows = self._kept(whole)
        while self.plan.dynamic_sampling_tries > tries and self._groups(whole, rows) < self.plan.prompts:
            tries += 1
            more = self._sampled(number, tries)
            found = self._kept(more)
            if found:
                whole = concat(select(whole, rows), select(more, found)) if rows else select(more, found)
                rows = self._first_groups(whole)
        self._now.report["sampler/dynamic_sampling_tries"] = _one(tries)
        self._now.report |= episode_metrics(self._now.rollouts)
        if not rows:
            return None
        whole = select(whole, rows)
        if "reward_parts" in self.row.needs:
            self._parts |= {name for each in self._now.rollouts[begun:] for name in each.weights}
            taken = [self._now.rollouts[place] for place in whole["places_B"].tolist()]
            whole |= weighted_components(taken, sorted(self._parts))
        if self.plan.staleness:  # the policy that samples will be gone when these are trained on
            whole["places_B"] = torch.full_like(whole["places_B"], -1)
            if not self.models.trust_sampler_logprobs:
                whole["old_logprobs_T"] = add_model_outputs(
                    whole, self.models.policy.infer, LOGPROBS, self.plan.budget
                )["logprobs_T"]
            whole |= self._collisions(whole)
        return whole

    def _described(self, whole: Batch, parts: Mapping[str, Tensor]) -> dict[str, Accumulator]:
        return rollout_metrics(whole, parts)

    def _kept(self, whole: Batch) -> list[int]:
        """The rows that something can be learnt from."""
        return keep_groups(whole, self.row)

    def _collisions(self, whole: Batch) -> Batch:
        """How concentrated the policy's distributions are that these were drawn from, for rows that weigh by it."""
        if "collision" not in self.row.needs or "log_collision_T" in whole:
            return {}
        return add_model_outputs(whole, self.models.policy.infer, COLLISION, self.plan.budget)

    def more(self, stats: Stats) -> list[Batch]:
        """The next update of the same step; none once all passes are done, or the policy has moved far enough."""
        if self._now.given == 1 and not self.plan.staleness:
            self._refuse_another_policy(stats)
        if "policy/approx_kl" in stats:
            self._now.kl = stats["policy/approx_kl"].value()
        if self.plan.target_kl is not None and self._now.kl > self.plan.target_kl:
            return []
        return self._pop()

    def _refuse_another_policy(self, stats: Stats) -> None:
        """Before a step's first update the policy is the one that sampled."""
        if self.row.rollout_correction is not None and self.row.rollout_correction.name == "bypass":
            return  # its ratio is to the sampler
        names = ("policy/approx_kl",) if self.models.half else ("policy/ratio_max", "policy/ratio_min")
        off = max((abs(stats[name].value() - (not self.models.half)) for name in names if name in stats), default=0.0)
        if math.isfinite(off) and off > (NOT_ONE_IN_HALF if self.models.half else NOT_ONE):
            what = "KL" if self.models.half else "ratio"
            how = "recorded while sampling" if self.models.trust_sampler_logprobs else "computed after sampling"
            raise RuntimeError(  # a minibatch of unscored completions has neither
                f"before its first update the policy's {what} to itself was off by {off:.2g}: the log-probs that were "
                f"{how} are not the trainer's; for a mixture of experts set model.routing_replay=true, otherwise this "
                "is a bug, please report it"
            )

    def report(self) -> Stats:
        """What there is to say about the step's rollouts."""
        times = {name: _one(seconds) for name, seconds in self._now.seconds.items()}
        return {**self._now.report, **times, "optim/updates": _one(self._now.given)}

    def refresh(self, weights: Weights) -> None:
        if self._now.batch and self._step > self.plan.critic_alone:
            self.steering.after(self._measured)
            self._last_update = self._step, update_kl(self._now.batch, self.models.policy.infer)
            self._now.report["policy/update_kl"] = _one(self._last_update[1])
        self._now.batch = {}
        self.sampler.set_weights(self._step, weights)

    def state(self) -> State:
        texts = None if self._texts is None else {"given": self._mixed, "source": self._texts.state()}
        return {
            "mixture": self._mixture.state(), "step": self._step, "idle": self._idle, "drift": self._drift,
            "coefficient": self.steering.value, "waiting": self._waiting.state(), "texts": texts,
            "parts": sorted(self._parts), "last_update": self._last_update,
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        self._mixture.load_state(state["mixture"])
        self._step, self._idle, self._drift = state["step"], state["idle"], state["drift"]
        if self.steering.moves:  # else it is the recipe's, which may have changed
            self.steering.set(state["coefficient"])
        self._waiting.load_state(state["waiting"])
        self._parts = set(state["parts"])
        self._last_update = state["last_update"] and tuple(state["last_update"])
        if self._texts is not None:
            self._mixed = state["texts"]["given"]
            self._texts.load_state(state["texts"]["source"])
        self.sampler.set_weights(self._step, {})

    def _pop(self) -> list[Batch]:
        batches = next(self._now.updates, [])
        self._now.given += bool(batches)
        return batches

    def _sampled(self, step: int, attempt: int = 0) -> Batch:
        """New prompts, their completions with rewards, as one packed batch."""
        asked = [self.asked[draw.record] for draw in self._mixture.take(self.plan.prompts)]
        occasion = f"{step}.{attempt}"
        rollouts = self._answered(asked, occasion)
        batch = pack_rollouts(rollouts)
        if "step_rewards" in self.row.needs:
            batch |= step_rewards(batch, rollouts)
        elif self.row.places_rewards:
            batch |= place_step_rewards(rollouts, batch)
        batch["places_B"] = torch.arange(len(rollouts)) + len(self._now.rollouts)
        self._now.rollouts += rollouts
        if "optimal_values" in self.row.needs:
            best_G = torch.tensor([each.optimum for each in asked])
            batch["optimal_values_B"] = best_G.repeat_interleave(self.plan.samples)
        if "greedy" in self.row.needs:
            greedy = self._scored(asked, [GREEDY], occasion)
            best_G = pack_rollouts(greedy)["rewards_B"]
            batch["greedy_rewards_B"] = best_G.repeat_interleave(self.plan.samples)
        return batch

    def _answered(self, asked: Sequence[RenderedPrompt], occasion: str) -> list[Rollout]:
        """Scored answers to every prompt, prompt by prompt."""
        return self._scored(asked, range(self.plan.samples), occasion)

    def _scored(self, asked: Sequence[RenderedPrompt], samples: Sequence[int], occasion: str) -> list[Rollout]:
        began = time.perf_counter()
        stream = generate_stream(self.sampler, asked, samples, self.settings, occasion=occasion, text=self.text)
        rollouts = self.score(stream)
        ended = time.perf_counter()
        sampled = ended if stream.sampled_at is None else stream.sampled_at
        for name, seconds in (("time/sample", sampled - began), ("time/score", ended - sampled)):
            self._now.seconds[name] = self._now.seconds.get(name, 0.0) + seconds
        return rollouts

    def _finished(self, whole: Batch) -> Batch:
        """With what the models say about it, and with advantages."""
        models, budget = self.models, self.plan.budget
        several = self.plan.epochs * self.plan.minibatches > 1
        watched = self.steering.moves or self.plan.max_ref_kl is not None
        before = (
            *self.row.reward_shaping,
            self.row.advantage,
            self.row.advantage_norm,
        )  # they read the batch before any loss does
        read = {name for each in before if each is not None for name in each.required}
        if models.trust_sampler_logprobs:
            whole["old_logprobs_T"] = whole["sampler_logprobs_T"]
        elif "old_logprobs_T" in whole:
            pass  # computed when it was sampled
        elif (
            several
            or watched
            or "old_logprobs_T" in read
            or self.row.rollout_correction is None
            or self.row.rollout_correction.name != "none"
        ):
            whole["old_logprobs_T"] = add_model_outputs(whole, models.policy.infer, LOGPROBS, budget)["logprobs_T"]
        if "reference" in self.row.needs:
            assert models.reference is not None, f"row {self.row.name} needs a reference"
            whole["ref_logprobs_T"] = add_model_outputs(whole, models.reference.infer, LOGPROBS, budget)["logprobs_T"]
            if "old_logprobs_T" in whole:
                self._drift = to_reference(whole)["kl_k3_per_token"]
        whole |= self._collisions(whole)
        if "teacher" in self.row.needs:
            assert models.teacher is not None, f"row {self.row.name} needs a teacher"
            whole["teacher_logprobs_T"] = add_model_outputs(whole, models.teacher.infer, LOGPROBS, budget)["logprobs_T"]
        if "critic" in self.row.needs:
            assert models.critic is not None, f"row {self.row.name} needs a critic"
            want = VALUES | {"scores_B"} if self.plan.bootstrap else VALUES  # a score is the value after the last token
            whole |= add_model_outputs(whole, models.critic.infer, want, budget)
            if self.plan.bootstrap:
                whole = bootstrap_truncated(whole)
        places = whole.pop("places_B").tolist()
        batch, said = add_advantages(whole, self._row())
        lengths = batch["segments"].lengths_B.tolist()
        pieces = zip(places, *(batch[name].split(lengths) for name in ("advantages_T", "loss_mask_T")), strict=True)
        self._now.advantages = {
            at: own_T[loss_mask_T].tolist() for at, own_T, loss_mask_T in pieces if loss_mask_T.any()
        }
        self._now.report |= {name: each for name, each in said.items() if name not in self._now.report}
        return batch

    def _row(self) -> Row:
        """The row with its KL coefficient of now. A critic that learns alone learns whole returns."""
        row = self.steering.row
        if self._step > self.plan.critic_alone:
            return row
        assert row.advantage is not None, f"row {row.name} has no credit"
        whole_returns = cell(returns.monte_carlo, gamma=row.advantage.numbers.get("gamma", 1.0))
        return replace(row, advantage=whole_returns, advantage_norm=cell(normalize.none))

    def _measured(self) -> dict[str, float]:
        """KL as the controller wants it: after the updates from the policy that sampled, or to the reference."""
        batch = self._now.batch
        if not self.steering.looks_back:
            return to_reference(batch)
        return to_old(
            batch, add_model_outputs(batch, self.models.policy.infer, LOGPROBS, self.plan.budget)["logprobs_T"]
        )

    def _updates(self, batch: Batch, step: int) -> Iterator[list[Batch]]:
        """Every pass in its own order, cut into minibatches of units that stay together."""
        units = self._units(batch)
        count = len(units)
        for epoch in range(self.plan.epochs):
            order = sorted(range(count), key=lambda unit: _hash(self.settings.seed, step, epoch, unit))
            for part in range(self.plan.minibatches):
                own = order[part * count // self.plan.minibatches : (part + 1) * count // self.plan.minibatches]
                if own:
                    yield self._with_text(self._cut(batch, [units[unit] for unit in own]))

    def _units(self, batch: Batch) -> list[list[int]]:
        """The rows that one update must hold together: each is alone, unless the loss compares those of a group."""
        rows = range(batch["segments"].count)
        if not self.row.trains_groups:
            return [[row] for row in rows]
        ids = batch["groups"].ids_B.tolist()
        return [[row for row in rows if ids[row] == group] for group in range(batch["groups"].count)]

    def _cut(self, batch: Batch, units: Sequence[Sequence[int]]) -> list[Batch]:
        # What couples a group is known before any micro-batch is trained, so these may cut through it.
        return split_microbatches(batch, [[row] for unit in units for row in unit], self.plan.budget)

    def _with_text(self, batches: list[Batch]) -> list[Batch]:
        """An update's micro-batches with the pretraining text that is mixed into it."""
        if self._texts is not None:
            self._mixed += 1
            batches[0]["pretraining"] = tuple(self._texts.next(self._mixed))
        return batches

    def _groups(self, whole: Batch, rows: Sequence[int]) -> int:
        return len({int(whole["groups"].ids_B[row]) for row in rows})

    def _first_groups(self, whole: Batch) -> list[int]:
        """The rows of as many groups as a step has, those that came first."""
        ids = whole["groups"].ids_B.tolist()
        kept = set(sorted(set(ids))[: self.plan.prompts])
        return [row for row, group in enumerate(ids) if group in kept]


def _one(number: float) -> Mean:
    return Mean(torch.tensor(number, dtype=torch.float64), torch.ones(()))


def _hash(*key: int) -> bytes:
    return hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
