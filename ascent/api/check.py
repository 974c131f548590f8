"""`ascent check`: everything that can be known before a run, by really doing two steps of it and throwing them away."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ascent.api.train import assemble
from ascent.models.memory import Forecast, forecast, shape_of, with_critic
from ascent.models.model import LanguageModel
from ascent.plan.resolve import Plan
from ascent.rollouts.source import RolloutSource
from ascent.setup.critic import Critic
from ascent.setup.offline import FrozenOutputSource, Training
from ascent.setup.rl import FrozenModel
from ascent.update.learner import LocalLearner

MOST_STEPS = 5  # looked at for a signal


@dataclass(frozen=True)
class CheckResult:
    """What two steps showed: all but `seconds` is of the first, which also pays for what happens only once.

    `sample` is the first sequence of the first batch: its pieces, and which are trained.
    """

    notes: tuple[str, ...]
    sample: tuple[tuple[str, bool], ...]
    microbatches: int
    tokens: int
    trained: int
    loss: float
    grad_norm: float
    seconds: float
    memory: Forecast


def check(plan: Plan) -> CheckResult:
    """Parse and render everything, run forward and backward, forecast memory, time a step; nothing is kept."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        training = assemble(plan, Path(folder))
        ending.callback(training.close)
        batches, step = _first(training, 1)
        stats = training.learner.step(batches, training.objective)
        start = time.perf_counter()
        more, step = _first(training, step + 1)
        for each in training.others:
            each.learner.step(more, each.objective)
        training.learner.step(more, training.objective)["loss/total"].value()  # waits for the device
        seconds = time.perf_counter() - start
    return CheckResult(
        notes=training.notes,
        sample=pieces(training, batches[0]),
        microbatches=len(batches),
        tokens=round(stats["tokens/run"].value()),
        trained=round(stats["tokens/trained"].value()),
        loss=stats["loss/total"].value(),
        grad_norm=stats["optim/grad_norm"].value(),
        seconds=seconds,
        memory=memory_of(plan, training),
    )


def _first(training: Training, step: int) -> tuple[list[dict[str, Any]], int]:
    """The first step from `step` on that has something to learn from: rollouts of a weak policy may have nothing."""
    for each in range(step, step + MOST_STEPS):
        batches = training.source.next(each)
        if batches:
            return batches, each
    raise ValueError(
        f"no answer of {MOST_STEPS} rollout steps was better or worse than another of its group, so there is nothing "
        "to learn from yet; use easier prompts, more samples of each (rollouts.group_size), or partial credit"
    )


def memory_of(plan: Plan, training: Training) -> Forecast:
    """Of the largest micro-batch there can be: its budget of tokens, or all of a step where that is less.

    What rewards and samplers hold is not in it.
    """
    rollouts = plan.config.rollouts
    sequences = rollouts.prompts_per_step * rollouts.group_size if plan.row.samples else plan.config.data.batch_size
    tokens = min(plan.config.update.tokens_per_microbatch, sequences * training.longest)
    scored = training.objective.want & {"logprobs_T", "entropy_T", "logits_TV"}
    found = _forecast(plan, training.model, tokens, training.model.budget_bytes if scored else 0, _frozen(training))
    for each in training.others:
        assert isinstance(each.learner, LocalLearner) and isinstance(each.learner.model, Critic), each.name
        found = with_critic(found, _forecast(plan, each.learner.model.model, tokens, 0))
    return found


def _forecast(plan: Plan, model: LanguageModel, tokens: int, budget_bytes: int, reference: int = 0) -> Forecast:
    return forecast(
        shape_of(model.module.config, _count(model.module), sum(each.numel() for each in model.parameters())),
        tokens=tokens,
        dtype=plan.config.model.dtype,
        gradient_checkpointing=plan.config.model.gradient_checkpointing,
        budget_bytes=budget_bytes,
        reference=reference,
    )


def _frozen(training: Training) -> int:
    """Weights of a reference or a teacher that stays during training; LoRA's reference shares the policy's."""
    source = training.source
    models: list[Any] = [source.frozen.model] if isinstance(source, FrozenOutputSource) else []
    if isinstance(source, RolloutSource):
        asked = (source.models.reference, source.models.teacher)
        models = [each.model for each in asked if isinstance(each, FrozenModel)]
    return sum(_count(each.module) for each in models if isinstance(each, LanguageModel))


def _count(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def pieces(training: Training, batch: dict[str, object]) -> tuple[tuple[str, bool], ...]:
    """The first sequence of a batch as runs of text that are, or are not, trained."""
    length = int(batch["segments"].lengths_B[0])  # type: ignore[attr-defined]
    tokens = batch["tokens_T"][:length].tolist()  # type: ignore[index]
    trained = batch["loss_mask_T"][:length].tolist()  # type: ignore[index]
    found: list[tuple[str, bool]] = []
    start = 0
    for place in range(1, length + 1):
        if place == length or trained[place] != trained[start]:
            found.append((str(training.model.tokenizer.decode(tokens[start:place])), trained[start]))
            start = place
    return tuple(found)
