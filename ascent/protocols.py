"""The verbs each part of the pipeline must supply. Anything with these methods fits; nothing inherits from here.

`Batch`, `Objective` and `State` are opaque at this level: a batch is packed tensors, an objective maps model outputs to
(numerator, denominator, metrics), a state is whatever its owner needs to continue exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ascent.records import Completion, Prompt, Reply, Request, Rollout, StepReward

if TYPE_CHECKING:
    from torch import Tensor

Batch: TypeAlias = Any
Objective: TypeAlias = Any
State: TypeAlias = dict[str, Any]
Weights: TypeAlias = "Mapping[str, Tensor]"

# One score; named parts (each may be unscored); rewards at step or token ends; or None for "could not be scored".
Score: TypeAlias = float | Mapping[str, float | None] | Sequence[StepReward] | None


class Metric(Protocol):
    """A (sum, count) pair or an extreme: it merges over micro-batches and ranks, and only whoever shows it divides."""

    def value(self) -> float: ...

    def merge(self, other: Any) -> Any: ...


Stats: TypeAlias = Mapping[str, Metric]


class Sampler(Protocol):
    """Turns requests into completions, in any order; each carries its request's prompt id and sample number."""

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]: ...

    def set_weights(self, version: int, tensors: Weights) -> None:
        """Use these weights from now on; a no-op where the learner's tensors are shared."""

    def close(self) -> None: ...


class Learner(Protocol):
    """Owns one model and its optimizer."""

    def logprobs(self, batch: Batch) -> Tensor:
        """The log-probability of every token of a packed batch, without gradient."""

    def step(self, batches: Sequence[Batch], objective: Objective) -> Stats:
        """One optimizer step over all micro-batches, with denominators counted over all of them first."""

    def weights(self) -> Weights: ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...

    def close(self) -> None: ...


class Scorer(Protocol):
    """Scores rollouts with a model (a reward model, a judge); None where it cannot."""

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[float | None]: ...


class Env(Protocol):
    """What one rollout talks to, in text. Made for a single use; many run at once."""

    def first(self) -> Prompt:
        """What the policy reads first; the same for every environment made from one prompt."""

    def reply(self, text: str) -> Reply:
        """What it says to the policy's turn; may take its time, since others go on meanwhile."""


class Reward(Protocol):
    """Any function from a rollout to a score; the same signature everywhere."""

    def __call__(self, rollout: Rollout) -> Score: ...


class Source(Protocol):
    """Where training batches come from: files, or rollouts of the current policy."""

    def next(self, step: int) -> Batch:
        """The micro-batches of this step's first optimizer step; none where there is nothing to learn from."""

    def more(self, stats: Stats) -> Batch:
        """Those of its next one, after the last one reported `stats`; none when the step is over."""

    def report(self) -> Stats:
        """What there is to say about the step's data."""

    def refresh(self, weights: Weights) -> None: ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
