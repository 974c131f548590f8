"""A learner on one device: one model, one optimizer, one step at a time.

A step is: statistics and denominators over ALL micro-batches, then forward and backward of each, then one optimizer
step. How the batch was cut therefore changes nothing but the rounding of a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ascent.losses.loss import Loss, Terms
from ascent.maths.metrics import Accumulator, Mean, Metrics, merge
from ascent.models.dropout import disable_dropout
from ascent.protocols import State, Weights
from ascent.update import microbatch, step_batch
from ascent.update.device import Batch, count_tokens, dummy_outputs, to_device
from ascent.update.objective import Objective
from ascent.update.optim import Adam, AdamW
from ascent.update.schedule import Schedule


class Model(Protocol):
    """What a learner needs of a model; `ascent.models.LanguageModel` has it, and so may any module."""

    def outputs(self, batch: dict[str, Any], want: frozenset[str], temperature: float) -> dict[str, Tensor]: ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def modules(self) -> Iterator[torch.nn.Module]: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...


class Diverged(RuntimeError):
    """Gradients were not finite for too many steps in a row."""


class LocalLearner:
    """Implements `protocols.Learner`. Several may exist side by side: a policy, a critic, a reward model.

    Dropout is switched off in the model for good. A step whose gradient is not finite changes nothing and is counted
    (`skipped`); `patience` of them in a row raise `Diverged`.
    """

    def __init__(
        self,
        model: Model,
        schedule: Schedule,
        *,
        adam: Adam | None = None,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        patience: int = 5,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={max_grad_norm} would stop training; it must be above 0")
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} has no log-probabilities; it must be above 0")
        if patience < 1:
            raise ValueError(f"patience={patience} steps; at least 1 non-finite step must pass before giving up")
        self.model, self.schedule, self.temperature = model, schedule, temperature
        self.max_grad_norm, self.patience = max_grad_norm, patience
        self.optimizer = AdamW(model.named_parameters(), adam)
        self.steps, self.skipped, self.skipped_in_a_row = 0, 0, 0
        self.carried: dict[str, Tensor] = {}  # what an objective hands from one step to the next
        first = next(iter(self.optimizer.masters.values()))
        self._device, self._dtype = first.device, first.dtype
        disable_dropout(model.modules())
        model.eval()

    def step(self, batches: Sequence[Batch], objective: Objective) -> dict[str, Accumulator]:
        """One optimizer step over all micro-batches; the metrics of the whole of it."""
        batches = self._placed(batches)
        known = self._statistics(batches, objective)
        totals = self._denominators(batches, objective, known)
        tally = _Accumulated(totals, objective.weights)
        changed: list[Tensor] = []  # routes, where a mixture of experts replays them
        self.optimizer.clear()
        self.model.train()
        try:
            for batch, about in zip(batches, known, strict=True):
                outputs = self.model.outputs(batch, objective.want, self.temperature)
                if "policy/routes_changed_frac" in outputs:
                    changed.append(outputs.pop("policy/routes_changed_frac"))
                terms = objective.terms({**batch, **about, **outputs})
                microbatch.scaled(terms, totals, objective.weights).backward()
                self.optimizer.collect()
                tally.add(terms)
            beside = self._beside(batches, objective, totals, tally)
        finally:
            self.model.eval()
        tally.check()
        metrics = tally.metrics() | _reported(batches, known) | beside
        if changed:
            metrics["policy/routes_changed_frac"] = Mean(*torch.stack(changed).sum(0))
        metrics |= self._apply(metrics)
        if not self.skipped_in_a_row:  # a step that was refused is not remembered either
            self.carried.update({name: known[0][name] for name in objective.carried})
        return metrics

    def _beside(
        self, batches: Sequence[dict[str, Any]], objective: Objective, totals: Mapping[str, Tensor], tally: _Accumulated
    ) -> dict[str, Accumulator]:
        """Add the gradient of the text that is mixed in; both gradients' norms, by which to judge its weight."""
        extra = objective.beside
        texts = [] if extra is None else extra.texts(batches)
        if extra is None or not texts:
            return {}
        own = {name: None if each.grad is None else each.grad.clone() for name, each in self.optimizer.masters.items()}
        policy = self.optimizer.norm()
        for text in texts:
            terms = extra.terms({**text, **self.model.outputs(text, extra.want, 1.0)})
            microbatch.scaled(terms, totals, objective.weights).backward()
            self.optimizer.collect()
            tally.add(terms)
        return {
            "optim/grad_norm_rollouts": _one(policy),
            f"optim/grad_norm_{extra.companion}": _one(self.optimizer.norm(own)),
        }

    def _apply(self, metrics: Metrics) -> dict[str, Accumulator]:
        """The optimizer step itself, or its refusal."""
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
        broken = [] if finite else self.optimizer.broken()
        self.optimizer.clear()
        if self.skipped_in_a_row >= self.patience:
            raise Diverged(self._verdict(float(norm), broken, metrics))
        return {
            "optim/grad_norm": _one(norm) if finite else Mean(torch.zeros(()), torch.zeros(())),
            "optim/lr": _one(torch.tensor(learning_rate)),
            "optim/skipped": _one(torch.tensor(float(not finite))),
        }

    def _verdict(self, norm: float, broken: Sequence[str], metrics: Metrics) -> str:
        losses = ", ".join(f"{name}={metrics[name].value():.4g}" for name in metrics if "loss" in name)
        return (
            f"the gradient norm was not finite ({norm}) in {self.skipped_in_a_row} optimizer steps in a row, the last "
            f"being step {self.steps}; {losses}; {len(broken)} of {len(self.optimizer.masters)} weights have a "
            f"non-finite gradient, first {broken[:3]}. No weight was changed by those steps. Resume from the last "
            "checkpoint with a lower update.learning_rate, and look at the last batches' data and rewards"
        )

    def evaluate(self, batches: Sequence[Batch], objective: Objective) -> dict[str, Accumulator]:
        """The loss and the metrics of `step`, without a gradient; nothing changes."""
        batches = self._placed(batches)
        known = self._statistics(batches, objective)
        for about in known:  # what is carried stays as training left it
            about.update({name: self.carried[name] for name in objective.carried if name in self.carried})
        tally = _Accumulated(self._denominators(batches, objective, known), objective.weights)
        for batch, about in zip(batches, known, strict=True):
            tally.add(objective.terms({**batch, **about, **self._outputs(batch, objective.want)}))
        tally.check()
        return tally.metrics() | _reported(batches, known)

    def logprobs(self, batch: Batch) -> Tensor:
        return self.infer(batch, frozenset({"logprobs_T"}))["logprobs_T"]

    def infer(self, batch: Batch, want: frozenset[str]) -> dict[str, Tensor]:
        """What the model says about a batch, without gradient: log-probs, entropies, scores or values."""
        return self._outputs(to_device(batch, self._device), want)

    @torch.no_grad()
    def _outputs(self, batch: dict[str, Any], want: frozenset[str]) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.model.outputs(batch, want, self.temperature).items()}

    def _placed(self, batches: Sequence[Batch]) -> list[dict[str, Any]]:
        if not batches:
            raise ValueError("a step over 0 micro-batches; the source must give at least one")
        return [to_device(batch, self._device) for batch in batches]

    def _statistics(self, batches: Sequence[dict[str, Any]], objective: Objective) -> list[dict[str, Tensor]]:
        """What couples the step, from forwards without gradient, for each micro-batch: one quotient of sums over all of
        them, and what was computed on all of them put together."""
        found: dict[str, Tensor] = {}
        for each in objective.statistics:
            pairs = []
            for batch in batches:
                if each.companion not in batch:
                    raise ValueError(
                        f"{each.name} needs a second packed batch {each.companion!r} in every micro-batch; this one "
                        f"has {', '.join(sorted(batch))}; the source of this algorithm must add it"
                    )
                companion = batch[each.companion]
                pairs.append(each.pair({**companion, **self._outputs(companion, each.want)}))
            total = torch.stack(pairs).sum(0)
            found[each.name] = total[0] / total[1].clamp(min=1)
        return [found | own for own in self._couplings(batches, objective)]

    def _couplings(self, batches: Sequence[dict[str, Any]], objective: Objective) -> list[dict[str, Tensor]]:
        if objective.coupling is None:
            return [{} for _ in batches]
        want = objective.coupling_want
        seen = [{**batch, **(self._outputs(batch, want) if want else {})} for batch in batches]
        carried = {name: self.carried[name] for name in objective.carried if name in self.carried}
        return step_batch.split(objective.coupling({**step_batch.concat(seen), **carried}), batches)

    @torch.no_grad()
    def _denominators(
        self, batches: Sequence[dict[str, Any]], objective: Objective, known: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        found = [
            objective.terms({**batch, **about, **dummy_outputs(batch, objective.want, self._dtype)})
            for batch, about in zip(batches, known, strict=True)
        ]
        extra = objective.beside
        for text in [] if extra is None else extra.texts(batches):
            assert extra is not None
            found.append(extra.terms({**text, **dummy_outputs(text, extra.want, self._dtype)}))
        return microbatch.denominators(found)

    def weights(self) -> Weights:
        """The live weights, as the model names them: no copies, and they change with every step."""
        return {name: weight.detach() for name, weight in self.model.named_parameters()}

    def state(self) -> State:
        """All but the weights themselves, which are saved with the model, and a mark by which to know them again."""
        self._refuse_non_finite()
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "carried": dict(self.carried),
            "weights": fingerprint(self.optimizer.weights),
            "optimizer": self.optimizer.state(),
        }

    def _refuse_non_finite(self) -> None:
        """Weights that are no numbers are not worth saving: the checkpoint before them is."""
        masters = self.optimizer.masters
        broken = [name for name, weight in masters.items() if not bool(torch.isfinite(weight).all())]
        if broken:
            raise Diverged(
                f"after optimizer step {self.steps} {len(broken)} of {len(masters)} weights are not finite, first "
                f"{broken[:3]}; nothing was saved. The last learning rate was {self.schedule.at(self.steps - 1):.3g}: "
                "resume from the last checkpoint, or start again, with a lower update.learning_rate"
            )

    def load_state(self, state: State) -> None:
        """Continue exactly; the model must already hold the weights that were saved with this state."""
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
        self.carried = {name: value.to(self._device) for name, value in state.get("carried", {}).items()}

    def close(self) -> None:
        self.optimizer.clear()


# The two terms that the field logs under names of their own.
LOSS_NAMES = {"policy": "policy/loss", "value_loss": "critic/loss"}


class _Accumulated:
    """A step's numerators, denominators and metrics, added up as its micro-batches pass."""

    def __init__(self, totals: Mapping[str, Tensor], weights: Mapping[str, float]) -> None:
        self._totals, self._weights = totals, weights
        self._seen: dict[str, Loss] = {}

    def add(self, terms: Terms) -> None:
        for name, loss in terms.items():
            before = self._seen.get(name)
            numerator, denominator = loss.numerator.detach(), loss.denominator.detach()
            if before is None:
                self._seen[name] = Loss(numerator, denominator, loss.metrics)
            else:
                metrics = merge([before.metrics, loss.metrics])
                self._seen[name] = Loss(before.numerator + numerator, before.denominator + denominator, metrics)

    def check(self) -> None:
        """A denominator that depends on the model's outputs would have been counted wrongly beforehand."""
        for name, loss in self._seen.items():
            counted = self._totals[name].to(loss.denominator)
            close = torch.isclose(loss.denominator, counted, rtol=1e-4)
            assert bool(close), f"term {name}: denominator {loss.denominator} was counted as {counted} beforehand"

    def metrics(self) -> dict[str, Accumulator]:
        """Every term, their weighted sum, and what the terms reported."""
        found = merge(loss.metrics for loss in self._seen.values())
        values = {}
        for name, loss in self._seen.items():
            found[LOSS_NAMES.get(name, f"loss/{name}")] = Mean(loss.numerator, self._totals[name].clamp(min=1))
            found[f"denominator/{name}"] = _one(self._totals[name])
            values[name] = self._weights.get(name, 1.0) * loss.numerator / self._totals[name].clamp(min=1)
        found["loss/total"] = _one(torch.stack(list(values.values())).sum())
        return found


def _one(value: Tensor) -> Mean:
    return Mean(value.detach(), torch.ones((), device=value.device))


def _reported(batches: Iterable[Batch], known: Sequence[Mapping[str, Tensor]]) -> dict[str, Accumulator]:
    """How much was computed and trained, and the step's statistics that are one number."""
    computed, trained = zip(*(count_tokens(batch) for batch in batches), strict=True)
    counts = {"tokens/run": torch.tensor(float(sum(computed))), "tokens/trained": torch.stack(trained).sum()}
    single = {f"statistic/{name}": value for name, value in known[0].items() if value.ndim == 0}
    return {name: _one(value) for name, value in {**counts, **single}.items()}


def fingerprint(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The sum of each tensor's bits, as integers: exact, so it is the same on any device, in any order of summing."""
    views = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: int(weight.detach().reshape(-1).view(views[weight.element_size()]).sum(dtype=torch.int64))
        for name, weight in weights.items()
    }
