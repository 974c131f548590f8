"""Rollouts of the current policy as a source of training batches: collect, prepare, then one or several updates.

A step takes `prompts_per_step` prompts and `group_size` completions of each. Its updates (epochs times minibatches) are
handed out one by one, and end early when the KL from the policy that sampled passes `target_kl`. With `max_staleness` n
a step trains on rollouts that were sampled n steps before; rollouts that wait are part of the state. With `overlap` the
last of them are sampled and scored in another thread while the learner updates. Which version samples what stays the
same, and at the end of a step nothing is under way: results, checkpoints and resumed runs are those without overlap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import pairwise
from random import Random
from threading import Thread
from typing import cast

import torch
from torch import Tensor

from ascent.advantages import normalize, returns
from ascent.algorithms.row import Row
from ascent.cells import cell
from ascent.data.sources import FileSource
from ascent.maths.batch import PackedBatch, select
from ascent.maths.metrics import single
from ascent.protocols import Sampler, State, Stats, Weights
from ascent.records import Rollout
from ascent.rollouts.buffer import RolloutBuffer
from ascent.rollouts.collector import RolloutCollector, StepState
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.experience import (
    MODEL_INPUTS,
    add_advantages,
    add_model_outputs,
    logprobs_under,
    needs_old_logprobs,
)
from ascent.rollouts.generate import Decode, RenderedPrompt, RolloutStream, SamplingParams
from ascent.rollouts.kl_control import KLController, KLValues, kl_from_old, kl_to_reference
from ascent.rollouts.metrics import staleness_metrics
from ascent.rollouts.microbatches import (
    Unit,
    minibatches,
    split_microbatches,
    token_budget,
    units_of,
)
from ascent.rollouts.token_stats import TokenProbe, TokenStats
from ascent.rollouts.update_kl import no_signal_error, update_kl, update_kl_rows

MAX_STEPS_WITHOUT_SIGNAL = 20
CLOSE_SECONDS = 10.0
# Before a step's first update the policy is the one that sampled. A larger difference than this is a bug, not rounding:
# of any ratio from 1, or, in half precision, of the mean KL from 0 (up to 7e-5 on an H200).
RATIO_TOLERANCE, HALF_PRECISION_KL_TOLERANCE = 1e-3, 2e-3


class RolloutSource(RolloutCollector):
    """Implements `protocols.Source`. `pretraining` is text that is mixed into every update."""

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
        kl_controller: KLController | None = None,
        pretraining: FileSource | None = None,
    ) -> None:
        super().__init__(
            prompts, sampler, score, models, row, config, params, decode=decode, shuffle=shuffle
        )
        self.kl_controller, self._pretraining = kl_controller or KLController(row), pretraining
        self._pretraining_draws = 0
        self._buffer = RolloutBuffer()
        self._producing: Future[PackedBatch | None] | None = None
        self._step, self._steps_without_signal = 0, 0
        self._ref_kl: float | None = None
        self._last_update: tuple[int, float] | None = None  # the step, and its update KL

    @property
    def stop_reason(self) -> str:
        """Why the run should end now; empty while it should not."""
        limit, ref_kl = self.config.max_ref_kl, self._ref_kl
        if limit is None or ref_kl is None or ref_kl <= limit:
            return ""
        return (
            f"the policy is {ref_kl:.4g} nats per token from its reference, more than run.max_ref_kl={limit:g}; raise "
            "it to train further, or hold the policy closer (cells.reward_shaping.kl_penalty.beta)"
        )

    @property
    def rollouts(self) -> list[Rollout]:
        """The scored rollouts of the last step, dropped ones included."""
        return self.current.rollouts

    @property
    def advantages(self) -> list[list[float] | None]:
        """The advantages of the sampled tokens of each of `rollouts`; None for rollouts that are not trained on."""
        return [self.current.advantages.get(index) for index in range(len(self.current.rollouts))]

    @property
    def token_stats(self) -> dict[int, TokenStats]:
        """Per-token numbers of some of `rollouts`, by index."""
        return self.current.token_stats

    def next(self, step: int) -> list[PackedBatch]:
        """Sample a step's rollouts; the micro-batches of its first update, or none if no group has a signal."""
        if step != self._step + 1:
            raise ValueError(
                f"step {step} after step {self._step}; rollouts follow the policy step by step"
            )
        self._step, self.current = step, StepState()
        self.collected = self.current
        while self._buffer.added < step + self.config.lookahead - self.config.overlap:
            self._buffer.add(self.collect(self._buffer.added + 1))
        batch = self._buffer.pop()
        self.current.has_signal = batch is not None
        if self.config.overlap:
            self._start_producing(self._buffer.added + 1)
        else:
            self._count_steps_without_signal()
        if self.kl_controller.adapts:
            self.current.metrics["policy/kl_coef"] = single(self.kl_controller.value)
        if batch is not None:
            if self.config.max_staleness:
                self.current.metrics |= staleness_metrics(batch, step)
            self.current.batch = self.prepare(batch)
            self.current.updates = self._updates(self.current.batch)
        return self._next_update()

    def more(self, stats: Stats) -> list[PackedBatch]:
        """The micro-batches of the step's next update; none after the last one, or past `target_kl`."""
        if self.current.update_count == 1 and not self.config.max_staleness:
            self._check_on_policy(stats)
        if "policy/approx_kl" in stats:
            self.current.approx_kl = stats["policy/approx_kl"].value()
        if self.config.target_kl is not None and self.current.approx_kl > self.config.target_kl:
            return []
        return self._next_update()

    def report(self) -> Stats:
        times = {name: single(seconds) for name, seconds in self.current.seconds.items()}
        return {**self.current.metrics, **times, "optim/updates": single(self.current.update_count)}

    def refresh(self, weights: Weights) -> None:
        if self.current.batch is not None:
            self._measure_update(self.current.batch, self.current.token_probe)
        self.current.batch = self.current.token_probe = None
        self._finish_producing()
        self.sampler.set_weights(self._step, weights)

    def state(self) -> State:
        text = self._pretraining
        return {
            "mixture": self.mixture.state(),
            "step": self._step,
            "steps_without_signal": self._steps_without_signal,
            "ref_kl": self._ref_kl,
            "kl_coef": self.kl_controller.value,
            "buffer": self._buffer.state(),
            "partial": None if self.partial is None else self.partial.state(),
            "pretraining": None
            if text is None
            else {"draws": self._pretraining_draws, "source": text.state()},
            "component_names": sorted(self.component_names),
            "last_update": self._last_update,
        }

    def load_state(self, state: State) -> None:
        self.mixture.load_state(state["mixture"])
        self._step, self._ref_kl = state["step"], state["ref_kl"]
        self._steps_without_signal = state["steps_without_signal"]
        if self.kl_controller.adapts:  # a fixed one is the recipe's, which may have changed
            self.kl_controller.set(state["kl_coef"])
        self._buffer.load_state(state["buffer"])
        if self.partial is not None:
            self.partial.load_state(state["partial"])
        self.component_names = set(state["component_names"])
        self._last_update = state["last_update"] and tuple(state["last_update"])
        if self._pretraining is not None:
            self._pretraining_draws = state["pretraining"]["draws"]
            self._pretraining.load_state(state["pretraining"]["source"])
        self.sampler.set_weights(self._step, {})

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Add model outputs and advantages."""
        old_logprobs = self.kl_controller.adapts or needs_old_logprobs(self.row, self.config)
        batch = add_model_outputs(
            batch, self.models, self.row, self.config, old_logprobs=old_logprobs
        )
        if "ref_logprobs_T" in batch and "old_logprobs_T" in batch:
            self._ref_kl = kl_to_reference(batch)["kl_k3_per_token"]
        indices = batch.pop("rollout_index_B").tolist()
        batch, metrics = add_advantages(batch, self._row_of_step())
        values = batch["advantages_T"][batch["loss_mask_T"]].tolist()
        ends = batch["segments"].sum(batch["loss_mask_T"]).cumsum(0).tolist()
        pieces = zip(indices, pairwise([0, *ends]), strict=True)
        self.current.advantages = {
            index: values[start:end] for index, (start, end) in pieces if end > start
        }
        self.current.metrics = metrics | self.current.metrics
        if self.row.reads("noise_T"):
            # By place in the step: neither rounding nor the number of ranks changes which tokens are chosen.
            rng = torch.Generator().manual_seed(
                Random(f"{self.params.seed}/{self._step}").getrandbits(63)
            )
            batch["noise_T"] = torch.rand(batch["segments"].total, generator=rng)
        if self.config.token_stats:
            self.current.token_probe = TokenProbe(
                batch, indices, self.models.policy, self.models.ranks
            )
        return batch

    def units(self, batch: PackedBatch) -> list[Unit]:
        """The rows that one update must hold together: whole groups where the loss compares their members."""
        return units_of(batch, whole_groups=self.row.trains_groups)

    def microbatches(self, batch: PackedBatch, units: Sequence[Unit]) -> list[PackedBatch]:
        # Step statistics come first, so a micro-batch may split a unit.
        budget = token_budget(
            batch, self.config.tokens_per_microbatch, self.config.microbatch_target
        )
        return split_microbatches(
            batch, units, budget, divisible=True, ranks=self.models.ranks.count
        )

    def _updates(self, batch: PackedBatch) -> Iterator[list[PackedBatch]]:
        trained = (batch["segments"].sum(batch["loss_mask_T"]) > 0).tolist()
        for units in minibatches(
            self.units(batch), self.config, seed=self.params.seed, step=self._step
        ):
            if self._pretraining is None and not any(
                trained[row] for unit in units for row in unit
            ):
                continue  # without a gradient, the optimizer's momentum would still move the weights
            batches = self.microbatches(batch, units)
            if self._pretraining is not None:
                self._pretraining_draws += 1
                batches[0]["pretraining"] = tuple(self._pretraining.next(self._pretraining_draws))
            yield batches

    def _next_update(self) -> list[PackedBatch]:
        batches = next(self.current.updates, [])
        self.current.update_count += bool(batches)
        return batches

    def _row_of_step(self) -> Row:
        """The row with the current KL coefficient; during the critic's warm-up, with Monte Carlo returns."""
        row = self.kl_controller.row
        if self._step > self.config.critic_warmup_steps:
            return row
        assert row.advantage is not None, f"row {row.name} has no advantage"
        whole_returns = cell(returns.monte_carlo, gamma=row.advantage.numbers.get("gamma", 1.0))
        return replace(row, advantage=whole_returns, advantage_norm=cell(normalize.none))

    def _measure_kl(self, batch: PackedBatch) -> KLValues:
        if not self.kl_controller.reads_update_kl:
            return kl_to_reference(batch)
        return kl_from_old(batch, self._policy_logprobs(batch))

    def _measure_update(self, batch: PackedBatch, probe: TokenProbe | None) -> None:
        """Run the updated policy on a few rollouts, once for all that is read of it."""
        moved: list[int] = []
        if self._step > self.config.critic_warmup_steps:
            if bool(batch["loss_mask_T"].any()):
                self.kl_controller.update(lambda: self._measure_kl(batch))
            moved = update_kl_rows(batch)
        probed = [] if probe is None else probe.rows
        rows = sorted({*moved, *probed})
        if not rows:
            return
        read = (*MODEL_INPUTS, "old_logprobs_T", "sampler_logprobs_T")
        some = select(
            cast(PackedBatch, {name: batch.get(name) for name in read if name in batch}), rows
        )
        some["logprobs_T"] = logprobs_under(
            self.models.policy, some, some["segments"].total, self.models.ranks
        )
        places = {row: place for place, row in enumerate(rows)}
        if moved:
            first = select(some, [places[row] for row in moved])
            kl = update_kl(first, first["logprobs_T"])
            self._last_update = self._step, kl
            self.current.metrics["policy/update_kl"] = single(kl)
        if probe is not None and probed:
            own = select(some, [places[row] for row in probed])
            self.current.token_stats = probe.finish(own["logprobs_T"])

    def _policy_logprobs(self, batch: PackedBatch) -> Tensor:
        return logprobs_under(
            self.models.policy, batch, self.config.tokens_per_microbatch, self.models.ranks
        )

    def _start_producing(self, step: int) -> None:
        """Sample and score the rollouts of a later step in a thread, with the weights that the sampler has now."""
        self.collected, self._producing = StepState(rollouts=list(self.current.rollouts)), Future()
        self.current.metrics = {}  # a step reports the rollouts that it sampled last

        def produce(done: Future[PackedBatch | None]) -> None:
            try:
                done.set_result(self.collect(step))
            except BaseException as error:  # raised again where it is waited for
                done.set_exception(error)

        Thread(target=produce, args=(self._producing,), name="producer", daemon=True).start()

    def _finish_producing(self) -> None:
        """Wait for the thread; its rollouts join the buffer, its metrics those of the step."""
        if self._producing is None:
            return
        started = time.perf_counter()
        self._buffer.add(self._producing.result())
        self._producing = None
        own, new = self.current, self.collected
        own.rollouts, own.metrics = new.rollouts, own.metrics | new.metrics
        own.metrics["time/wait"] = single(time.perf_counter() - started)
        own.metrics["time/overlap"] = single(sum(new.seconds.values()))
        own.seconds = {
            name: own.seconds.get(name, 0.0) + seconds for name, seconds in new.seconds.items()
        }
        self._count_steps_without_signal()

    def close(self) -> None:
        """Wait for what is under way, whose rollouts are dropped, but not for a reward that takes its time."""
        if self._producing is not None:
            wait([self._producing], timeout=CLOSE_SECONDS)
            self._producing = None

    def _count_steps_without_signal(self) -> None:
        """End a run that learns nothing, unless every answer is right."""
        solved = self.current.metrics["reward/correct"].value() == 1
        self._steps_without_signal = (
            0 if self.current.has_signal or solved else self._steps_without_signal + 1
        )
        if self._steps_without_signal >= MAX_STEPS_WITHOUT_SIGNAL:
            raise no_signal_error(MAX_STEPS_WITHOUT_SIGNAL, self.current.metrics, self._last_update)

    def _check_on_policy(self, stats: Stats) -> None:
        """RuntimeError if the policy of the first update is not the one that sampled."""
        if self.row.rollout_correction is not None and self.row.rollout_correction.name == "bypass":
            return  # its ratio is to the sampler's log-probs
        exact = self.models.exact
        half = self.models.half_precision and not exact
        names, expected = (
            (("policy/approx_kl",), 0) if half else (("policy/ratio_max", "policy/ratio_min"), 1)
        )
        found = [abs(stats[name].value() - expected) for name in names if name in stats]
        off = max(
            (each for each in found if not math.isnan(each)), default=0.0
        )  # NaN: all completions are unscored
        tolerance = 0 if exact else HALF_PRECISION_KL_TOLERANCE if half else RATIO_TOLERANCE
        if off > tolerance:
            how = (
                "recorded while sampling"
                if self.models.trust_sampler_logprobs
                else "computed after sampling"
            )
            raise RuntimeError(
                f"before its first update the policy's {'KL' if half else 'ratio'} to itself was off by {off:.2g}: the "
                f"log-probs that were {how} are not the trainer's; for a mixture of experts set "
                "model.routing_replay=true, otherwise this is a bug, please report it"
            )
