"""Rollouts that go on in a later step (partial rollouts): a step takes the groups that finish first.

More groups are sampled than a step needs, so it does not wait for its longest rollouts. The others are interrupted,
wait for the step's new weights, and go on with these; every token has the version that sampled it. A group is taken at
the latest in its `last_step`, so no token is older than `max_staleness` when it is trained on. Which groups finish
first follows from their tokens, not from time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ascent.protocols import State
from ascent.records import Completion, Request, Rollout, Turn
from ascent.rollouts.generate import (
    Decode,
    IndexedRollouts,
    RenderedPrompt,
    RolloutStream,
    SamplingParams,
    named_prompt,
    request_for,
)

EXTRA_GROUPS = 0.25  # of a step's prompts: sampled besides, and trained on in a later step


@runtime_checkable
class InterruptibleSampler(Protocol):
    """A sampler whose requests can be interrupted and continued."""

    def add(self, request: Request, begun: Completion | None = None) -> None: ...

    def step(self) -> list[Completion]: ...

    def interrupt(self) -> list[Completion]: ...


@dataclass(eq=False)
class OpenGroup:
    """A prompt (`record`, of those that are trained on) and its completions so far, by sample number."""

    record: int
    name: str
    samples: int
    last_step: int
    completions: dict[int, Completion] = field(default_factory=dict)

    @property
    def unfinished(self) -> list[int]:
        return [sample for sample in range(self.samples) if not self._finished(sample)]

    def _finished(self, sample: int) -> bool:
        return sample in self.completions and self.completions[sample].stop != "abort"


class PartialRollouts:
    """The groups that are begun and not trained on yet."""

    def __init__(
        self,
        sampler: InterruptibleSampler,
        prompts: Sequence[RenderedPrompt],
        params: SamplingParams,
        decode: Decode,
    ) -> None:
        self._sampler, self._prompts, self._params, self._decode = sampler, prompts, params, decode
        self._groups: list[OpenGroup] = []  # in the order in which they were drawn

    def missing(self, prompts_per_step: int) -> int:
        """How many prompts to draw for the next `prompts_per_step` groups."""
        return prompts_per_step + max(1, round(EXTRA_GROUPS * prompts_per_step)) - len(self._groups)

    def begin(
        self, records: Sequence[int], samples: int, *, noise_key: str, last_step: int
    ) -> None:
        for index, record in enumerate(records):
            name = f"{noise_key}/{index}/{self._prompts[record].prompt.id}"
            self._groups.append(OpenGroup(record, name, samples, last_step))

    def finish(self, count: int, step: int) -> tuple[list[RenderedPrompt], RolloutStream]:
        """The `count` groups that finish first, those that are due in `step` among them, and their prompts, which are
        known when the stream ends."""
        prompts: list[RenderedPrompt] = []
        samples = self._groups[0].samples
        return prompts, RolloutStream(self._finish(count, step, prompts), count * samples)

    def _finish(self, count: int, step: int, prompts: list[RenderedPrompt]) -> IndexedRollouts:
        due = [each for each in self._groups if each.last_step <= step]
        places = count - len(due)  # for groups that are not due
        assert places >= 0, f"{len(due)} groups are due in step {step}, which takes {count}"
        by_name = {each.name: each for each in self._groups}
        try:
            for group in self._groups:
                for sample in group.unfinished:
                    request = request_for(
                        self._prompts[group.record], group.name, sample, self._params
                    )
                    self._sampler.add(request, group.completions.get(sample))
            while len(prompts) < count:
                for group in [each for each in self._groups if not each.unfinished]:
                    if group not in due and not places:
                        continue
                    places -= group not in due
                    self._groups.remove(group)
                    yield from enumerate(self._rollouts(group), start=len(prompts) * group.samples)
                    prompts.append(self._prompts[group.record])
                for completion in self._sampler.step() if len(prompts) < count else ():
                    by_name[completion.prompt_id].completions[completion.sample] = completion
        finally:
            for partial in self._sampler.interrupt():
                by_name[partial.prompt_id].completions[partial.sample] = partial

    def _rollouts(self, group: OpenGroup) -> Iterator[Rollout]:
        rendered = self._prompts[group.record]
        for sample, completion in sorted(group.completions.items()):
            turn = Turn(rendered.tokens, completion, self._decode(completion.tokens))
            yield Rollout(named_prompt(rendered, group.name), sample, (turn,))

    def state(self) -> State:
        return {"groups": [_to_plain(each) for each in self._groups]}

    def load_state(self, state: State) -> None:
        self._groups = [_from_plain(each) for each in state["groups"]]


def _to_plain(group: OpenGroup) -> State:
    """Tokens as tensors, which a checkpoint stores faster than lists."""
    found = [
        {
            name: torch.tensor(value) if isinstance(value, tuple) else value
            for name, value in asdict(each).items()
        }
        for each in group.completions.values()
    ]
    return {**asdict(group), "completions": found}


def _from_plain(plain: State) -> OpenGroup:
    found = [
        Completion(**{name: _untensored(each[name]) for name in each})
        for each in plain["completions"]
    ]
    return OpenGroup(**{**plain, "completions": {each.sample: each for each in found}})


def _untensored(value: Any) -> Any:
    return tuple(value.tolist()) if isinstance(value, Tensor) else value
