"""`ascent check`: everything that can be known before a run, by really doing one step of it and throwing it away."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ascent.build.plan import Plan
from ascent.build.training import Training, assemble
from ascent.models.memory import Forecast, forecast, shape_of


@dataclass(frozen=True)
class Checked:
    """What one step showed. `sample` is the first sequence of the first batch: its pieces, and which are trained."""

    notes: tuple[str, ...]
    sample: tuple[tuple[str, bool], ...]
    microbatches: int
    tokens: int
    trained: int
    loss: float
    grad_norm: float
    seconds: float
    memory: Forecast


def check(plan: Plan) -> Checked:
    """Parse and render everything, run one forward and backward, forecast memory; nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        training = assemble(plan, Path(folder))
        batches = training.source.next(1)
        start = time.perf_counter()
        stats = training.learner.step(batches, training.objective)
        seconds = time.perf_counter() - start
    return Checked(
        notes=training.notes,
        sample=pieces(training, batches[0]),
        microbatches=len(batches),
        tokens=round(stats["tokens"].value()),
        trained=round(stats["trained_tokens"].value()),
        loss=stats["loss"].value(),
        grad_norm=stats["grad_norm"].value(),
        seconds=seconds,
        memory=memory_of(plan, training),
    )


def memory_of(plan: Plan, training: Training) -> Forecast:
    parameters = sum(each.numel() for each in training.model.module.parameters())
    trained = sum(each.numel() for each in training.model.parameters())
    return forecast(
        shape_of(training.model.module.config, parameters, trained),
        tokens=plan.config.update.tokens_per_microbatch,
        dtype=plan.config.model.dtype,
        recompute=plan.config.model.recompute,
    )


def pieces(training: Training, batch: dict[str, object]) -> tuple[tuple[str, bool], ...]:
    """The first sequence of a batch as runs of text that are, or are not, trained."""
    length = int(batch["segments"].lengths_B[0])  # type: ignore[attr-defined]
    tokens = batch["tokens_T"][:length].tolist()  # type: ignore[index]
    trained = batch["trained_T"][:length].tolist()  # type: ignore[index]
    found: list[tuple[str, bool]] = []
    start = 0
    for place in range(1, length + 1):
        if place == length or trained[place] != trained[start]:
            found.append((str(training.model.tokenizer.decode(tokens[start:place])), trained[start]))
            start = place
    return tuple(found)
