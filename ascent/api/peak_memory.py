"""The peak memory of a run: as measured here and for its largest micro-batch, and from the shapes of its models."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from ascent.models.memory import Forecast, with_critic
from ascent.models.model import LanguageModel
from ascent.plan.resolve import Plan
from ascent.rollouts.source import RolloutSource
from ascent.setup.critic import Critic
from ascent.setup.layout import ONE_RANK, Layout, forecast_layout, microbatch_target
from ascent.setup.offline import FrozenOutputSource, Training
from ascent.setup.rl import FrozenModel
from ascent.update.learner import LocalLearner

DRAWING = 24 * 2**20  # bytes, about: matplotlib, which draws the curves when a run ends
POLL = 0.005  # seconds


class PeakMemory(NamedTuple):
    """Bytes: the peak of a run, and what there is."""

    bytes: int
    available: int


class MemoryWatch:
    """The most memory in use: of this process, or of the card, whatever uses it.

    The card is asked again and again, because KV caches lie outside of torch's allocator.
    """

    def __init__(self) -> None:
        self._on_card, self._over = 0, threading.Event()

    @property
    def bytes(self) -> int:
        return self._on_card if torch.cuda.is_available() else _peak_rss()

    def poll(self) -> None:
        while not self._over.wait(POLL):
            free, total = torch.cuda.mem_get_info()
            self._on_card = max(self._on_card, total - free)

    def stop(self) -> None:
        self._over.set()


@contextmanager
def watch_memory() -> Iterator[MemoryWatch]:
    watch = MemoryWatch()
    thread = threading.Thread(target=watch.poll, daemon=True)
    if torch.cuda.is_available():
        thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        if thread.is_alive():
            thread.join()


@contextmanager
def explain_memory(plan: Plan, training: Training) -> Iterator[None]:
    """A GPU without memory as an error of the recipe, with the keys that need less."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        config, tokens = plan.config, largest_microbatch(plan, training)
        less = [
            f"update.tokens_per_microbatch={max(1, tokens // 2)} (a micro-batch has up to {tokens} tokens)"
        ]
        less += ["model.gradient_checkpointing=true"] * (not config.model.gradient_checkpointing)
        less += ["update.optimizer_offload=true"] * (not config.update.optimizer_offload)
        less += ["model.lora=16"] * (config.model.lora is None)
        less += ["a lower rollouts.max_new_tokens"] * plan.row.samples
        raise ValueError(
            f"the GPU is out of memory ({str(error).splitlines()[0]}); one or more of these need less: "
            f"{', '.join(less)}. ascent forecast says what a recipe needs; a run goes on with ascent resume after its "
            "config.yaml was changed"
        ) from error


def forecast_peak(
    plan: Plan, training: Training, watch: MemoryWatch, steps: Sequence[Mapping[str, float]]
) -> PeakMemory:
    """The peak of a run of which some steps were taken while `watch` watched: what was seen, and the activations by
    which the largest micro-batch exceeds theirs."""
    most, larger = largest_microbatch(plan, training), _growth(plan, training, steps)
    on_gpu = torch.cuda.is_available()
    available = torch.cuda.mem_get_info()[1] if on_gpu else _ram()
    growth = int(memory_of(plan, training).activations * larger / most)
    return PeakMemory(watch.bytes + growth + (0 if on_gpu else DRAWING), available)


def _growth(plan: Plan, training: Training, steps: Sequence[Mapping[str, float]]) -> float:
    """Tokens by which a micro-batch may be larger than those of the steps that were taken.

    Completions may get as long as they are allowed to. Records are known: three standard deviations above the mean.
    """
    run = [each["tokens/run"] / each.get("optim/updates", 1) for each in steps]  # of an update
    most = largest_microbatch(plan, training)
    if not run:  # no step had a training signal
        return float(most)
    largest, rollouts = statistics.fmean(run) + 3 * statistics.pstdev(run), plan.config.rollouts
    if (
        plan.row.samples
    ):  # a prompt is run once for its group; turns of an environment are not counted apart
        new = training.longest if plan.config.env is not None else rollouts.max_new_tokens
        largest = rollouts.prompts_per_step * (training.longest - new + rollouts.group_size * new)
    return max(0.0, min(largest, most) - max(run))


def largest_microbatch(
    plan: Plan,
    training: Training,
    layout: Layout = ONE_RANK,
    *,
    cuda: bool | None = None,
    card: int | None = None,
) -> int:
    """Tokens of the largest micro-batch that a step can have; `cuda`: on a GPU, whatever there is here, with as many
    bytes as `card`."""
    rollouts = plan.config.rollouts
    sequences = (
        rollouts.prompts_per_step * rollouts.group_size
        if plan.row.samples
        else plan.config.data.batch_size
    )
    target = microbatch_target(plan, training.model, layout, cuda=cuda, memory=card)
    limit = plan.config.update.max_microbatch_tokens
    return min(limit, max(target, training.longest), sequences * training.longest)


def memory_of(
    plan: Plan,
    training: Training,
    layout: Layout = ONE_RANK,
    *,
    cuda: bool | None = None,
    card: int | None = None,
) -> Forecast:
    """The forecast for the largest micro-batch: its token budget, or a whole step where that is smaller.

    Memory of rewards and samplers is not included. `cuda` and `card` as in `largest_microbatch`.
    """
    tokens = largest_microbatch(plan, training, layout, cuda=cuda, card=card)
    scored = training.objective.want & {"logprobs_T", "entropy_T", "logits_TV"}
    found = forecast_layout(
        plan,
        training.model,
        layout,
        tokens=tokens,
        budget_bytes=training.model.budget_bytes if scored else 0,
        reference=_frozen(training),
        cuda=cuda,
    )
    for each in training.others:
        assert isinstance(each.learner, LocalLearner) and isinstance(each.learner.model, Critic), (
            each.name
        )
        critic = forecast_layout(
            plan, each.learner.model.model, layout, tokens=tokens, budget_bytes=0, cuda=cuda
        )
        found = with_critic(found, critic)
    return found


def _frozen(training: Training) -> int:
    """Parameters of a reference or teacher that stays in memory; LoRA's reference shares the policy's."""
    source = training.source
    models: list[Any] = [source.frozen.model] if isinstance(source, FrozenOutputSource) else []
    if isinstance(source, RolloutSource):
        frozen = (source.models.reference, source.models.teacher)
        models = [each.model for each in frozen if isinstance(each, FrozenModel)]
    return sum(_count(each.module) for each in models if isinstance(each, LanguageModel))


def _count(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _peak_rss() -> int:
    """Of this process; kilobytes on Linux, bytes on macOS."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def _ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
