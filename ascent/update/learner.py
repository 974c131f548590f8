"""A learner on one device: one model, one optimizer, one step at a time.

A step is: statistics and denominators over ALL micro-batches, then forward and backward of each, then one optimizer
step. How the batch is split into micro-batches therefore changes only rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ascent.losses.loss import Loss, Terms
from ascent.losses.objective import mismatched_score
from ascent.maths.batch import PackedBatch, concat, split
from ascent.maths.metrics import Accumulator, Mean, Metrics, merge, single
from ascent.models.dropout import disable_dropout
from ascent.progress import add_tokens, track
from ascent.protocols import State, Weights
from ascent.update import microbatch
from ascent.update.device import count_needed_tokens, count_run_tokens, dummy_outputs, to_device
from ascent.update.objective import MISMATCHED, MISMATCHED_SCORE, Objective
from ascent.update.optim import Adam, AdamW
from ascent.update.schedule import Schedule


class Model(Protocol):
    """What a learner needs of a model, such as `ascent.models.LanguageModel`."""

    def outputs(self, batch: PackedBatch, want: frozenset[str], temperature: float) -> dict[str, Tensor]: ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...


class Diverged(RuntimeError):
    """Gradients were not finite for too many steps in a row."""


class LocalLearner:
    """Implements `protocols.Learner`, for a policy, a critic or a reward model.

    It disables the model's dropout. A step whose gradient is not finite changes nothing and is counted (`skipped`);
    `max_skipped` of them in a row raise `Diverged`.
    """

    def __init__(
        self,
        model: Model,
        schedule: Schedule,
        *,
        adam: Adam | None = None,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        max_skipped: int = 5,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={max_grad_norm} would stop training; it must be above 0")
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} has no log-probabilities; it must be above 0")
        if max_skipped < 1:
            raise ValueError(f"max_skipped={max_skipped} steps; it must be at least 1")
        self.model, self.schedule, self.temperature = model, schedule, temperature
        self.max_grad_norm, self.max_skipped = max_grad_norm, max_skipped
        self.optimizer = AdamW(model.named_parameters(), adam)
        self.steps, self.skipped, self.skipped_in_a_row = 0, 0, 0
        self.persistent: dict[str, Tensor] = {}  # statistics that enter their own next value
        first = next(iter(self.optimizer.masters.values()))
        self._device, self._dtype = first.device, first.dtype
        disable_dropout(model.modules())
        model.eval()

    def step(self, batches: Sequence[PackedBatch], objective: Objective) -> dict[str, Accumulator]:
        """One optimizer step over all micro-batches; returns the metrics of the whole step."""
        batches = self._to_device(batches)
        statistics = self._statistics(batches, objective)
        totals = self._denominators(batches, objective, statistics)
        sums = _TermSums(totals, objective.weights)
        routes_changed: list[Tensor] = []  # only where a mixture of experts replays its routes
        self.optimizer.clear()
        self.model.train()
        try:
            for batch, own in track("updating", list(zip(batches, statistics, strict=True)), "micro-batches"):
                add_tokens(len(batch["tokens_T"]))
                outputs = self.model.outputs(batch, objective.want, self.temperature)
                if "policy/routes_changed_frac" in outputs:
                    routes_changed.append(outputs.pop("policy/routes_changed_frac"))
                terms = objective.terms({**batch, **own, **outputs})
                microbatch.scaled(terms, totals, objective.weights).backward()
                sums.add(terms)
            norms = self._train_auxiliary(batches, objective, totals, sums)
        finally:
            self.model.eval()
        sums.check()
        metrics = sums.metrics() | _step_metrics(batches, statistics) | norms
        if routes_changed:
            metrics["policy/routes_changed_frac"] = Mean(*torch.stack(routes_changed).sum(0))
        metrics |= self._apply(metrics)
        if not self.skipped_in_a_row:  # a skipped step leaves no trace
            self.persistent.update({name: statistics[0][name] for name in objective.persistent})
        return metrics

    def _train_auxiliary(
        self, batches: Sequence[PackedBatch], objective: Objective, totals: Mapping[str, Tensor], sums: _TermSums
    ) -> dict[str, Accumulator]:
        """Add the gradient of the auxiliary text. Returns the norms of both gradients, to set its weight by."""
        auxiliary = objective.auxiliary
        texts = [] if auxiliary is None else auxiliary.texts(batches)
        if auxiliary is None or not texts:
            return {}
        own = {name: None if each.grad is None else each.grad.clone() for name, each in self.optimizer.masters.items()}
        norm = self.optimizer.norm()
        for text in texts:
            terms = auxiliary.terms({**text, **self.model.outputs(text, auxiliary.want, 1.0)})
            microbatch.scaled(terms, totals, objective.weights).backward()
            sums.add(terms)
        return {
            "optim/grad_norm_rollouts": single(norm),
            f"optim/grad_norm_{auxiliary.name}": single(self.optimizer.norm(own)),
        }

    def _apply(self, metrics: Metrics) -> dict[str, Accumulator]:
        """Take the optimizer step, or skip it if the gradient is not finite."""
        norm = self.optimizer.norm()
        finite = bool(torch.isfinite(norm))
        learning_rate = self.schedule.at(self.steps)
        self.steps += 1
        if finite:
            self.optimizer.step(learning_rate, norm=norm, max_norm=self.max_grad_norm)
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
            "optim/lr": single(torch.tensor(learning_rate)),
            "optim/skipped": single(torch.tensor(float(not finite))),
        }

    def _divergence_message(self, norm: float, broken: Sequence[str], metrics: Metrics) -> str:
        losses = ", ".join(f"{name}={metrics[name].value():.4g}" for name in metrics if "loss" in name)
        return (
            f"the gradient norm was not finite ({norm}) in {self.skipped_in_a_row} optimizer steps in a row, the last "
            f"being step {self.steps}; {losses}; {len(broken)} of {len(self.optimizer.masters)} weights have a "
            f"non-finite gradient, first {broken[:3]}. No weight was changed by those steps. Resume from the last "
            "checkpoint with a lower update.learning_rate, and look at the last batches' data and rewards"
        )

    def evaluate(self, batches: Sequence[PackedBatch], objective: Objective) -> dict[str, Accumulator]:
        """The loss and the metrics of `step`, without gradient or update."""
        batches = self._to_device(batches)
        statistics = self._statistics(batches, objective)
        for own in statistics:
            own.update(self._persistent(objective))
        sums = _TermSums(self._denominators(batches, objective, statistics), objective.weights)
        for batch, own in track("evaluating", list(zip(batches, statistics, strict=True)), "micro-batches"):
            add_tokens(len(batch["tokens_T"]))
            sums.add(objective.terms({**batch, **own, **self._outputs(batch, objective.want)}))
        sums.check()
        return sums.metrics() | _step_metrics(batches, statistics)

    def logprobs(self, batch: PackedBatch) -> Tensor:
        return self.infer(batch, frozenset({"logprobs_T"}))["logprobs_T"]

    def infer(self, batch: PackedBatch, want: frozenset[str]) -> dict[str, Tensor]:
        """Model outputs for a batch, without gradient: log-probs, entropies, scores or values."""
        return self._outputs(to_device(batch, self._device), want)

    @torch.no_grad()
    def _outputs(self, batch: PackedBatch, want: frozenset[str]) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.model.outputs(batch, want, self.temperature).items()}

    def _to_device(self, batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        if not batches:
            raise ValueError("a step over 0 micro-batches; the source must give at least one")
        return [to_device(batch, self._device) for batch in batches]

    def _statistics(self, batches: Sequence[PackedBatch], objective: Objective) -> list[dict[str, Tensor]]:
        """The step's statistics, for each micro-batch, from forward passes without gradient."""
        found = {MISMATCHED_SCORE: self._mismatched_score(batches)} if objective.wants_mismatched else {}
        if not objective.statistics:
            return [dict(found) for _ in batches]
        want = objective.statistics_want
        outputs = [self._outputs(each, want) if want else {} for each in batches]
        whole = concat([cast(PackedBatch, {**each, **own}) for each, own in zip(batches, outputs, strict=True)])
        statistics = objective.step_statistics({**whole, **self._persistent(objective)})
        return [found | own for own in split(statistics, batches)]

    def _persistent(self, objective: Objective) -> dict[str, Tensor]:
        return {name: self.persistent[name] for name in objective.persistent if name in self.persistent}

    def _mismatched_score(self, batches: Sequence[PackedBatch]) -> Tensor:
        """KTO's reference point, over all micro-batches."""
        sums = []
        for batch in batches:
            if MISMATCHED not in batch:
                raise ValueError(
                    f"{MISMATCHED_SCORE} needs a second packed batch {MISMATCHED!r} in every micro-batch; this one has "
                    f"{', '.join(sorted(batch))}; the source of this algorithm must add it"
                )
            other = batch["mismatched"]
            logprobs_T = self._outputs(other, frozenset({"logprobs_T"}))["logprobs_T"]
            sums.append(mismatched_score(logprobs_T, other["ref_logprobs_T"], other["loss_mask_T"], other["segments"]))
        total = torch.stack(sums).sum(0)
        return total[0] / total[1].clamp(min=1)

    @torch.no_grad()
    def _denominators(
        self, batches: Sequence[PackedBatch], objective: Objective, statistics: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        found = [
            objective.terms({**batch, **own, **dummy_outputs(batch, objective.want, self._dtype)})
            for batch, own in zip(batches, statistics, strict=True)
        ]
        if objective.auxiliary is not None:
            for text in objective.auxiliary.texts(batches):
                outputs = dummy_outputs(text, objective.auxiliary.want, self._dtype)
                found.append(objective.auxiliary.terms({**text, **outputs}))
        return microbatch.denominators(found)

    def weights(self) -> Weights:
        """The live weights under the model's names, without copies."""
        return {name: weight.detach() for name, weight in self.model.named_parameters()}

    def state(self) -> State:
        """Everything but the weights, which are saved with the model; of these, a fingerprint."""
        self._check_finite()
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "persistent": dict(self.persistent),
            "weights": fingerprint(self.optimizer.weights),
            "optimizer": self.optimizer.state(),
        }

    def _check_finite(self) -> None:
        """Raise Diverged instead of saving weights that are not finite."""
        masters = self.optimizer.masters
        broken = [name for name, weight in masters.items() if not bool(torch.isfinite(weight).all())]
        if broken:
            raise Diverged(
                f"after optimizer step {self.steps} {len(broken)} of {len(masters)} weights are not finite, first "
                f"{broken[:3]}; nothing was saved. The last learning rate was {self.schedule.at(self.steps - 1):.3g}: "
                "resume from the last checkpoint, or start again, with a lower update.learning_rate"
            )

    def load_state(self, state: State) -> None:
        """The model must already hold the weights that were saved with this state."""
        self.optimizer.load_state(state["optimizer"])
        here, there = fingerprint(self.optimizer.weights), state["weights"]
        differing = [name for name in here if here[name] != there.get(name)] + [n for n in there if n not in here]
        if differing:
            raise ValueError(
                f"{len(differing)} weights are not those this state was saved with, first {differing[0]!r}; load the "
                "model from the same checkpoint before its learner's state"
            )
        self.steps, self.skipped = state["steps"], state["skipped"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self.persistent = {name: value.to(self._device) for name, value in state["persistent"].items()}

    def close(self) -> None:
        self.optimizer.close()


# Terms that are not logged as loss/<term>.
LOSS_NAMES = {"policy": "policy/loss", "value_loss": "critic/loss"}


class _TermSums:
    """Numerators, denominators and metrics of an optimizer step, summed over its micro-batches."""

    def __init__(self, totals: Mapping[str, Tensor], weights: Mapping[str, float]) -> None:
        self._totals, self._weights = totals, weights
        self._terms: dict[str, Loss] = {}

    def add(self, terms: Terms) -> None:
        for name, loss in terms.items():
            before = self._terms.get(name)
            numerator, denominator = loss.numerator.detach(), loss.denominator.detach()
            if before is None:
                self._terms[name] = Loss(numerator, denominator, loss.metrics)
            else:
                metrics = merge([before.metrics, loss.metrics])
                self._terms[name] = Loss(before.numerator + numerator, before.denominator + denominator, metrics)

    def check(self) -> None:
        """A denominator must not depend on model outputs: it is counted before they are known."""
        for name, loss in self._terms.items():
            counted = self._totals[name].to(loss.denominator)
            close = torch.isclose(loss.denominator, counted, rtol=1e-4)
            assert bool(close), f"term {name}: denominator {loss.denominator} was counted as {counted} beforehand"

    def metrics(self) -> dict[str, Accumulator]:
        """The metrics of the terms, the value of each term, and their weighted sum."""
        found = merge(loss.metrics for loss in self._terms.values())
        values = []
        for name, loss in self._terms.items():
            total = self._totals[name]
            found[LOSS_NAMES.get(name, f"loss/{name}")] = Mean(loss.numerator, total.clamp(min=1))
            found[f"denominator/{name}"] = single(total)
            values.append(self._weights.get(name, 1.0) * loss.numerator / total.clamp(min=1))
        found["loss/total"] = single(torch.stack(values).sum())
        return found


def _step_metrics(batches: Iterable[PackedBatch], statistics: Sequence[Mapping[str, Tensor]]) -> dict[str, Accumulator]:
    """Token counts, and those of the step's statistics that are scalars."""
    batches = list(batches)
    masks = [batch["loss_mask_T"] for batch in batches if "loss_mask_T" in batch]
    counts = {
        "tokens/run": torch.tensor(float(sum(map(count_run_tokens, batches)))),
        "tokens/needed": torch.tensor(float(count_needed_tokens(batches))),
        "tokens/trained": torch.stack([mask_T.sum() for mask_T in masks]).sum() if masks else torch.tensor(0.0),
    }
    scalars = {f"statistic/{name}": value for name, value in statistics[0].items() if value.ndim == 0}
    return {name: single(value) for name, value in {**counts, **scalars}.items()}


def fingerprint(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The sum of each tensor's bits as integers: exact, so the same on any device."""
    views = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: int(weight.detach().reshape(-1).view(views[weight.element_size()]).sum(dtype=torch.int64))
        for name, weight in weights.items()
    }
