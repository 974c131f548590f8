"""A learner: one model, one optimizer, one step at a time, on one device or on one device of every rank.

A step is: statistics and denominators over ALL micro-batches, then forward and backward of each, then one optimizer
step. How the batch is split into micro-batches, and these over ranks, therefore changes only rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from ascent.losses.objective import mismatched_score
from ascent.maths.batch import PackedBatch, concat, split
from ascent.maths.metrics import Accumulator, Mean, Metrics, Sum, single
from ascent.models.dropout import disable_dropout
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.progress import add_tokens, track
from ascent.protocols import State, Weights
from ascent.update import microbatch
from ascent.update.device import (
    TokenCounts,
    count_tokens,
    dummy_outputs,
    plan_ahead,
    to_device,
    token_metrics,
)
from ascent.update.fingerprint import add_fingerprints, fingerprint
from ascent.update.objective import MISMATCHED, MISMATCHED_SCORE, Objective
from ascent.update.optim import Adam, Unrounded, master_dtype
from ascent.update.schedule import Schedule
from ascent.update.sharded_optim import ShardedAdamW, make_optimizer
from ascent.update.term_sums import TermSums


class Model(Protocol):
    """What a learner needs of a model, such as `ascent.models.LanguageModel`."""

    def outputs(
        self, batch: PackedBatch, want: frozenset[str], temperature: float
    ) -> dict[str, Tensor]: ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...


T = TypeVar("T")
Share = tuple[
    PackedBatch, bool
]  # a micro-batch, and whether it counts or only fills up a rank's share


class Diverged(RuntimeError):
    """Gradients were not finite for too many steps in a row."""


class LocalLearner:
    """Implements `protocols.Learner`, for a policy, a critic or a reward model.

    Every rank is given all micro-batches and runs its share of them. A model that is divided over ranks
    (`update.fsdp`) comes with the same model as a `whole`, which gets the new weights when a state is saved, and after
    every step where it `samples`. The model's dropout is disabled. A step whose gradient is not finite changes nothing
    and is counted (`skipped`); `max_skipped` of them in a row raise `Diverged`. A step of the run has at most `updates`
    of the learner's, by which the schedule counts: those that are left out are passed over.
    """

    def __init__(
        self,
        model: Model,
        schedule: Schedule,
        *,
        updates: int = 1,
        adam: Adam | None = None,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        max_skipped: int = 5,
        ranks: Ranks = SINGLE,
        whole: Model | None = None,
        samples: bool = False,
        unrounded: Unrounded | None = None,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError(
                f"max_grad_norm={max_grad_norm} would stop training; it must be above 0"
            )
        if not temperature > 0:
            raise ValueError(
                f"temperature={temperature} has no log-probabilities; it must be above 0"
            )
        if max_skipped < 1:
            raise ValueError(f"max_skipped={max_skipped} steps; it must be at least 1")
        self.model, self.schedule, self.temperature = model, schedule, temperature
        self.max_grad_norm, self.max_skipped, self.ranks = max_grad_norm, max_skipped, ranks
        self.whole, self._samples = whole, samples
        dtype = None if whole is None else next(whole.named_parameters())[1].dtype
        self.optimizer = make_optimizer(model.named_parameters(), adam, ranks, dtype)
        if unrounded:
            self.optimizer.start_from(unrounded)
        self.steps, self.skipped, self.skipped_in_a_row = 0, 0, 0
        self._updates, self._position, self._learning_rate = (
            updates,
            0,
            0.0,
        )  # the next in the schedule, and the last
        self.persistent: dict[str, Tensor] = {}  # statistics that enter their own next value
        first = next(iter(self.optimizer.weights.values()))
        self._device, self._dtype = first.device, master_dtype(first)
        disable_dropout(model.modules())
        model.eval()

    def begin_step(self, step: int) -> None:
        self._position = step * self._updates

    def step(self, batches: Sequence[PackedBatch], objective: Objective) -> dict[str, Accumulator]:
        """One optimizer step over all micro-batches; returns the metrics of the whole step."""
        share, statistics, totals = self.prepare(batches, objective)
        sums = TermSums(totals, objective.weights)
        routes_changed: list[Tensor] = []  # only where a mixture of experts replays its routes
        self.optimizer.clear()
        self.model.train()
        try:
            for (batch, counts), own in track(
                "updating", list(zip(share, statistics, strict=True)), "micro-batches"
            ):
                add_tokens(len(batch["tokens_T"]))
                with self.ranks.exchanging("a micro-batch"):
                    outputs = self.model.outputs(batch, objective.want, self.temperature)
                    if "policy/routes_changed_frac" in outputs:
                        routes_changed.append(outputs.pop("policy/routes_changed_frac") * counts)
                    terms = objective.terms({**batch, **own, **outputs})
                    loss = microbatch.scaled(terms, totals, objective.weights)
                    (loss if counts else 0 * loss).backward()
                sums.add(terms, counts=counts)
            tokens = self._reduce(sums, self._count_tokens(batches, share))
            norms = self._train_auxiliary(batches, objective, totals, sums)
        finally:
            self.model.eval()
        sums.check()
        metrics = sums.metrics() | self._step_metrics(tokens, statistics) | norms
        if routes_changed:
            changed = self.ranks.sum(torch.stack(routes_changed).sum(0), "the experts")
            metrics["policy/routes_changed_frac"] = Mean(*changed)
        metrics |= self._apply(metrics)
        if not self.skipped_in_a_row:  # a skipped step leaves no trace
            self.persistent.update({name: statistics[0][name] for name in objective.persistent})
        return metrics

    def prepare(
        self, batches: Sequence[PackedBatch], objective: Objective
    ) -> tuple[list[Share], list[dict[str, Tensor]], dict[str, Tensor]]:
        """This rank's micro-batches on its device, the step's statistics for each, and the denominators of all."""
        share = self._share(batches)
        plan_ahead([batch for batch, _ in share])
        statistics = self._statistics(batches, share, objective)
        return share, statistics, self._denominators(share, objective, statistics)

    def _train_auxiliary(
        self,
        batches: Sequence[PackedBatch],
        objective: Objective,
        totals: Mapping[str, Tensor],
        sums: TermSums,
    ) -> dict[str, Accumulator]:
        """Add the gradient of the auxiliary text. Returns the norms of both gradients, to set its weight by."""
        auxiliary = objective.auxiliary
        texts = [] if auxiliary is None else auxiliary.texts(batches)
        if auxiliary is None or not texts:
            return {}
        own = {name: grad.clone() for name, grad in self.optimizer.gradients().items()}
        norm, extra = self.optimizer.norm(), TermSums(totals, objective.weights)
        for text, counts in self._share(texts):
            with self.ranks.exchanging("a micro-batch"):
                terms = auxiliary.terms({**text, **self.model.outputs(text, auxiliary.want, 1.0)})
                loss = microbatch.scaled(terms, totals, objective.weights)
                (loss if counts else 0 * loss).backward()
            extra.add(terms, counts=counts)
        self._reduce(extra, None)
        sums.merge(extra)
        return {
            "optim/grad_norm_rollouts": single(norm),
            f"optim/grad_norm_{auxiliary.name}": single(self.optimizer.norm(own)),
        }

    def _reduce(self, sums: TermSums, beside: T) -> list[T]:
        """Sum losses and gradients over all ranks. Returns what every rank sends `beside` them."""
        gathered = sums.gather(self.ranks, (self.optimizer.unreduced(), beside))
        self.optimizer.reduce({name for names, _ in gathered for name in names})
        return [each for _, each in gathered]

    def _apply(self, metrics: Metrics) -> dict[str, Accumulator]:
        """Take the optimizer step, or skip it if the gradient is not finite."""
        norm = self.optimizer.norm()
        finite = bool(torch.isfinite(norm))
        self._learning_rate = self.schedule.at(self._position)
        self.steps += 1
        self._position += 1
        if finite:
            self.optimizer.step(self._learning_rate, norm=norm, max_norm=self.max_grad_norm)
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
        broken = [] if finite else self.optimizer.non_finite_gradients()
        self.optimizer.clear()
        if self.skipped_in_a_row >= self.max_skipped:
            raise Diverged(self._divergence_message(float(norm), broken, metrics))
        return {
            "optim/grad_norm": single(norm) if finite else Mean(torch.zeros(()), torch.zeros(())),
            "optim/lr": single(torch.tensor(self._learning_rate)),
            "optim/skipped": Sum(torch.tensor(float(not finite))),
        }

    def _divergence_message(self, norm: float, broken: Sequence[str], metrics: Metrics) -> str:
        losses = ", ".join(
            f"{name}={metrics[name].value():.4g}" for name in metrics if "loss" in name
        )
        return (
            f"the gradient norm was not finite ({norm}) in {self.skipped_in_a_row} optimizer steps in a row, the last "
            f"being step {self.steps}; {losses}; {len(broken)} of {len(self.optimizer.masters)} weights have a "
            f"non-finite gradient, first {broken[:3]}. No weight was changed by those steps. Resume from the last "
            "checkpoint with a lower update.learning_rate, and look at the last batches' data and rewards"
        )

    def evaluate(
        self, batches: Sequence[PackedBatch], objective: Objective
    ) -> dict[str, Accumulator]:
        """The loss and the metrics of `step`, without gradient or update."""
        share = self._share(batches)
        statistics = self._statistics(batches, share, objective)
        for own in statistics:
            own.update(self._persistent(objective))
        sums = TermSums(self._denominators(share, objective, statistics), objective.weights)
        for (batch, counts), own in track(
            "evaluating", list(zip(share, statistics, strict=True)), "micro-batches"
        ):
            add_tokens(len(batch["tokens_T"]))
            terms = objective.terms({**batch, **own, **self._outputs(batch, objective.want)})
            sums.add(terms, counts=counts)
        tokens = sums.gather(self.ranks, self._count_tokens(batches, share))
        sums.check()
        return sums.metrics() | self._step_metrics(tokens, statistics)

    def logprobs(self, batch: PackedBatch) -> Tensor:
        return self.infer(batch, frozenset({"logprobs_T"}))["logprobs_T"]

    def infer(self, batch: PackedBatch, want: frozenset[str]) -> dict[str, Tensor]:
        """Model outputs for a batch, without gradient: log-probs, entropies, scores or values."""
        return self._outputs(to_device(batch, self._device), want)

    @torch.no_grad()
    def _outputs(self, batch: PackedBatch, want: frozenset[str]) -> dict[str, Tensor]:
        with self.ranks.exchanging("a forward pass"):
            outputs = self.model.outputs(batch, want, self.temperature)
        return {name: value.detach() for name, value in outputs.items()}

    def _share(self, batches: Sequence[PackedBatch]) -> list[Share]:
        """The micro-batches that this rank runs, on its device, and whether each counts."""
        if not batches:
            raise ValueError("a step over 0 micro-batches; the source must give at least one")
        return [
            (to_device(batch, self._device), counts) for batch, counts in self.ranks.share(batches)
        ]

    def _statistics(
        self, batches: Sequence[PackedBatch], share: Sequence[Share], objective: Objective
    ) -> list[dict[str, Tensor]]:
        """The step's statistics, for each of this rank's micro-batches, from forward passes without gradient."""
        found = (
            {MISMATCHED_SCORE: self._mismatched_score(share)} if objective.wants_mismatched else {}
        )
        if not objective.statistics:
            return [dict(found) for _ in share]
        want = objective.statistics_want
        own = [self._outputs(batch, want) if want else {} for batch, _ in share]
        outputs = self.ranks.unshare(own, len(batches), "the step's statistics")
        batches = [batch for batch, _ in share] if self.ranks.count == 1 else batches
        whole = [
            to_device(cast(PackedBatch, {**each, **output}), self._device)
            for each, output in zip(batches, outputs, strict=True)
        ]
        statistics = objective.step_statistics({**concat(whole), **self._persistent(objective)})
        parts = split(statistics, whole)
        return [found | parts[place] for place in self.ranks.places(len(batches))]

    def _persistent(self, objective: Objective) -> dict[str, Tensor]:
        return {
            name: self.persistent[name] for name in objective.persistent if name in self.persistent
        }

    def _mismatched_score(self, share: Sequence[Share]) -> Tensor:
        """KTO's reference point, over all micro-batches."""
        sums = []
        for batch, counts in share:
            if MISMATCHED not in batch:
                raise ValueError(
                    f"{MISMATCHED_SCORE} needs a second packed batch {MISMATCHED!r} in every micro-batch; this one has "
                    f"{', '.join(sorted(batch))}; the source of this algorithm must add it"
                )
            other = batch["mismatched"]
            logprobs_T = self._outputs(other, frozenset({"logprobs_T"}))["logprobs_T"]
            score = mismatched_score(
                logprobs_T, other["ref_logprobs_T"], other["loss_mask_T"], other["segments"]
            )
            sums.append(score if counts else torch.zeros_like(score))
        total = self.ranks.sum(torch.stack(sums).sum(0), "the reference point")
        return total[0] / total[1].clamp(min=1)

    @torch.no_grad()
    def _denominators(
        self,
        share: Sequence[Share],
        objective: Objective,
        statistics: Sequence[Mapping[str, Tensor]],
    ) -> dict[str, Tensor]:
        found = [
            objective.terms({**batch, **own, **dummy_outputs(batch, objective.want, self._dtype)})
            for (batch, counts), own in zip(share, statistics, strict=True)
            if counts
        ]
        if objective.auxiliary is not None:
            for text in objective.auxiliary.texts([batch for batch, counts in share if counts]):
                outputs = dummy_outputs(text, objective.auxiliary.want, self._dtype)
                found.append(objective.auxiliary.terms({**text, **outputs}))
        return microbatch.total(
            self.ranks.gather(microbatch.denominators(found), "the denominators"), self._device
        )

    def _count_tokens(self, batches: Sequence[PackedBatch], share: Sequence[Share]) -> TokenCounts:
        """Those of this rank's micro-batches."""
        on_host = [batch for batch, counts in self.ranks.share(batches) if counts]
        return count_tokens([batch for batch, counts in share if counts], on_host)

    def _step_metrics(
        self, tokens: Sequence[TokenCounts], statistics: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Accumulator]:
        """The token counts of all ranks, and those of the step's statistics that are scalars."""
        scalars = {
            f"statistic/{name}": value for name, value in statistics[0].items() if value.ndim == 0
        }
        counts = {name: Sum(value) for name, value in token_metrics(tokens).items()}
        return {**counts, **{name: single(value) for name, value in scalars.items()}}

    def weights(self) -> Weights:
        """The live weights under the model's names, without copies. Of a divided model that samples, the whole's."""
        model = self._gather() if self._samples and self.whole is not None else self.model
        return {name: weight.detach() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def _gather(self) -> Model:
        """The whole model, with the weights of now. All ranks call it together."""
        assert self.whole is not None and isinstance(self.optimizer, ShardedAdamW)
        whole = dict(self.whole.named_parameters())
        with self.ranks.exchanging("the whole weights"):
            for name, weight in self.optimizer.gather():
                whole[name].copy_(weight)
        return self.whole

    def _fingerprint(self) -> dict[str, int]:
        if not isinstance(self.optimizer, ShardedAdamW):
            return fingerprint(self.optimizer.weights)
        shards = self.ranks.gather(fingerprint(self.optimizer.compute_shards()), "the fingerprints")
        return add_fingerprints(shards)

    def state(self) -> State:
        """Everything but the weights, which are saved with the model; of these, a fingerprint."""
        self._check_finite()
        if self.whole is not None:
            self._gather()  # it is saved next
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "persistent": dict(self.persistent),
            "weights": self._fingerprint(),
            "optimizer": self.optimizer.state(),
        }

    def _check_finite(self) -> None:
        """Raise Diverged instead of saving weights that are not finite."""
        weights = self.optimizer.weights if self.whole is None else self.optimizer.masters
        broken = [
            name for name, weight in weights.items() if not bool(torch.isfinite(weight).all())
        ]
        if broken:
            raise Diverged(
                f"after optimizer step {self.steps} {len(broken)} of {len(weights)} weights are not finite, first "
                f"{broken[:3]}; nothing was saved. The last learning rate was {self._learning_rate:.3g}: "
                "resume from the last checkpoint, or start again, with a lower update.learning_rate"
            )

    def load_state(self, state: State) -> None:
        """The model must already hold the weights that were saved with this state."""
        self.optimizer.load_state(state["optimizer"])
        here, there = self._fingerprint(), state["weights"]
        differing = [name for name in here if here[name] != there.get(name)] + [
            n for n in there if n not in here
        ]
        if differing:
            raise ValueError(
                f"{len(differing)} weights are not those this state was saved with, first {differing[0]!r}; load the "
                "model from the same checkpoint before its learner's state"
            )
        self.steps, self.skipped = state["steps"], state["skipped"]
        self._position = self.steps
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self.persistent = {
            name: value.to(self._device) for name, value in state["persistent"].items()
        }
        if self.whole is not None:
            self._gather()

    def close(self) -> None:
        self.optimizer.close()
