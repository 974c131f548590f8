"""Try a recipe before a run: `ascent.check` trains two steps and discards them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ascent.api.train import Overrides, Recipe, assemble, plan_of, say_slow
from ascent.maths.batch import PackedBatch
from ascent.models.memory import Forecast, forecast, shape_of, with_critic
from ascent.models.model import LanguageModel
from ascent.models.quantize import num_parameters
from ascent.plan.resolve import Plan
from ascent.progress import phase
from ascent.rollouts.source import RolloutSource
from ascent.runs.terminal import Display
from ascent.setup.critic import Critic
from ascent.setup.offline import FrozenOutputSource, Training
from ascent.setup.rl import FrozenModel
from ascent.update.learner import LocalLearner

MOST_STEPS = 5  # rollout steps to try for one with a training signal


@dataclass(frozen=True)
class CheckResult:
    """Numbers of the first step; `seconds` is the time of the second, after all warm-up.

    `sample` is the first sequence of the first batch as pieces of text, each with whether it is trained. `steps` is
    the recipe's run.steps.
    """

    steps: int
    notes: tuple[str, ...]
    sample: tuple[tuple[str, bool], ...]
    microbatches: int
    tokens: int
    trained: int
    loss: float
    grad_norm: float
    seconds: float
    memory: Forecast


def check(
    recipe: Recipe, overrides: Overrides = (), *, progress: bool = True, say: Callable[[str], None] = print
) -> CheckResult:
    """Do all that a run would do, once: load, render, train two steps, forecast memory and time; keep nothing.

    recipe, overrides: as for `ascent.train`.
    progress: show on standard error what is being done.
    say: receives warnings, one line each.

    Returns a `CheckResult`.

        result = ascent.check("sft", {"model": "tiny:llama", "data": "arithmetic:256"})
        result.memory.total, result.seconds
    """
    plan = plan_of(recipe, overrides)
    say_slow(plan, say)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        display = Display() if progress else None
        if display is not None:
            stack.callback(display.close)
        with _stage("reading the data, loading the model", display):
            training = assemble(plan, Path(folder))
        stack.callback(training.close)
        with _stage("first step", display):
            batches, step = _first(training, 1)
            stats = training.learner.step(batches, training.objective)
        with _stage("second step", display):
            start = time.perf_counter()
            more, step = _first(training, step + 1)
            for each in training.others:
                each.learner.step(more, each.objective)
            training.learner.step(more, training.objective)["loss/total"].value()  # waits for the device
            seconds = time.perf_counter() - start
    return CheckResult(
        steps=training.steps,
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


@contextmanager
def _stage(name: str, display: Display | None) -> Iterator[None]:
    if display is not None:
        display.print(name)
    with phase(name):
        yield


def _first(training: Training, step: int) -> tuple[list[PackedBatch], int]:
    """The batches of the first step from `step` on with a training signal, and its number."""
    for each in range(step, step + MOST_STEPS):
        batches = training.source.next(each)
        if batches:
            return batches, each
    raise ValueError(
        f"no answer of {MOST_STEPS} rollout steps was better or worse than another of its group, so there is nothing "
        "to learn from yet; use easier prompts, more samples of each (rollouts.group_size), or partial credit"
    )


def memory_of(plan: Plan, training: Training) -> Forecast:
    """The forecast for the largest micro-batch: its token budget, or a whole step where that is smaller.

    Memory of rewards and samplers is not included.
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
    parameters, quantized = num_parameters(model.module)
    return forecast(
        shape_of(model.module.config, parameters, sum(each.numel() for each in model.parameters()), quantized),
        tokens=tokens,
        dtype=plan.config.model.dtype,
        gradient_checkpointing=plan.config.model.gradient_checkpointing,
        budget_bytes=budget_bytes,
        reference=reference,
    )


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


def pieces(training: Training, batch: PackedBatch) -> tuple[tuple[str, bool], ...]:
    """The first sequence of a batch as pieces of text, each with whether it is trained."""
    length = int(batch["segments"].lengths_B[0])
    tokens = batch["tokens_T"][:length].tolist()
    trained = batch["loss_mask_T"][:length].tolist()
    found: list[tuple[str, bool]] = []
    start = 0
    for place in range(1, length + 1):
        if place == length or trained[place] != trained[start]:
            found.append((str(training.model.tokenizer.decode(tokens[start:place])), trained[start]))
            start = place
    return tuple(found)
