"""The protocols of the pipeline's parts. Nothing inherits from them.

`Batch`, `Objective` and `State` are opaque here: a batch is a `maths.batch.PackedBatch`, an objective an
`update.objective.Objective`, a state what its owner needs to continue exactly.
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
    """An accumulator, such as a (sum, count) pair, that merges over micro-batches and ranks."""

    def value(self) -> float: ...

    def merge(self, other: Any) -> Any: ...


Stats: TypeAlias = Mapping[str, Metric]


class Sampler(Protocol):
    """Turns requests into completions, in any order, each with its request's prompt id and sample number."""

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]: ...

    def set_weights(self, version: int, tensors: Weights) -> None:
        """Sample with these weights; a no-op where the tensors are the learner's."""

    def close(self) -> None: ...


class Learner(Protocol):
    """Owns one model and its optimizer."""

    def logprobs(self, batch: Batch) -> Tensor:
        """The log-probability of every token of a packed batch, without gradient."""

    def begin_step(self, step: int) -> None:
        """This learner's step of the run, from 0. The learning rate goes by it, however many updates were taken."""

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
    """The environment of one rollout, in text. Many run at once; each is used once."""

    def first(self) -> Prompt:
        """What the policy reads first; the same for every environment made from one prompt."""

    def reply(self, text: str) -> Reply:
        """The reply to the policy's turn. It may be slow: other episodes go on meanwhile."""


class Reward(Protocol):
    """Any function from a rollout to a score; the same signature everywhere."""

    def __call__(self, rollout: Rollout) -> Score: ...


class Source(Protocol):
    """Where training batches come from: files, or rollouts of the current policy."""

    def next(self, step: int) -> Batch:
        """The micro-batches of this step's first update; none if there is no signal."""

    def more(self, stats: Stats) -> Batch:
        """Those of its next update, given the last update's metrics; none when the step is over."""

    def report(self) -> Stats:
        """Metrics of the step's data."""

    def refresh(self, weights: Weights) -> None: ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
