"""Try a recipe before a run: `ascent.check` trains two steps, saves the model and discards it all."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ascent.api.peak_memory import (
    PeakMemory,
    explain_memory,
    forecast_peak,
    memory_of,
    watch_memory,
)
from ascent.api.train import Overrides, Recipe, assemble, plan_of, say_slow
from ascent.maths.batch import PackedBatch
from ascent.models.memory import Forecast
from ascent.progress import phase
from ascent.runs.terminal import Display
from ascent.setup.early_checks import check_names
from ascent.setup.layout import Layout
from ascent.setup.offline import Training

REPLICATED, SHARDED = "replicated", "sharded"
MOST_STEPS = 5  # rollout steps to try for one with a training signal


@dataclass(frozen=True)
class CheckResult:
    """Numbers of the first step; `seconds` is the time of the second, after all warm-up.

    `sample` is the first sequence of the first batch as pieces of text, each with whether it is trained. `steps` is
    the recipe's run.steps. `peak` is the memory of a run here, `memory` what its models need of it by their shapes;
    `layouts` is that of each of several ranks, by layout.
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
    peak: PeakMemory
    memory: Forecast
    layouts: Mapping[str, Forecast]


def check(
    recipe: Recipe,
    overrides: Overrides = (),
    *,
    processes: int = 1,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> CheckResult:
    """Do all that a run would do, once: load, render, train two steps, save; forecast memory and time; keep nothing.

    recipe, overrides: as for `ascent.train`.
    processes: forecast the memory of each of so many ranks, in both layouts.
    progress: show on standard error what is being done.
    say: receives warnings, one line each.

    Returns a `CheckResult`.

        result = ascent.check("sft", {"model": "tiny:llama", "data": "arithmetic:256"})
        result.memory.total, result.seconds
    """
    if processes < 1:
        raise ValueError(f"processes={processes}; it must be at least 1")
    plan = plan_of(recipe, overrides)
    say_slow(plan, say)
    check_names(plan)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        display = Display() if progress else None
        if display is not None:
            stack.callback(display.close)
        with _stage("reading the data, loading the model", display):
            training = assemble(plan, Path(folder))
        stack.callback(training.close)
        watch = stack.enter_context(watch_memory())
        with _stage("first step", display), explain_memory(plan, training):
            batches, step = _first(training, 1, say)
            stats = training.learner.step(batches, training.objective)
        with _stage("second step", display), explain_memory(plan, training):
            seconds = _seconds_of(training, step + 1, say)
        peak = forecast_peak(
            plan, training, watch, [{name: each.value() for name, each in stats.items()}]
        )
        with _stage("saving the model", display):
            _save(training, Path(folder), say)
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
        peak=peak,
        memory=memory_of(plan, training),
        layouts={
            layout: memory_of(plan, training, Layout(processes, layout == SHARDED))
            for layout in ((REPLICATED, SHARDED) if processes > 1 else ())
        },
    )


@contextmanager
def _stage(name: str, display: Display | None) -> Iterator[None]:
    if display is not None:
        display.print(name)
    with phase(name):
        yield


def _seconds_of(training: Training, step: int, say: Callable[[str], None]) -> float:
    """Take a step; its time."""
    start = time.perf_counter()
    batches, _ = _first(training, step, say)
    for each in training.others:
        each.learner.step(batches, each.objective)
    training.learner.step(batches, training.objective)["loss/total"].value()  # waits for the device
    return time.perf_counter() - start


def _save(training: Training, folder: Path, say: Callable[[str], None]) -> None:
    """Save the models as the first checkpoint of a run will, where the temporary folder has room for them."""
    needed = sum(
        weight.nbytes for each in training.trained for weight in each.learner.weights().values()
    )
    free = shutil.disk_usage(folder).free
    if free < 2 * needed:
        say(
            f"saving was not tried: the models take {needed / 2**30:.1f} GiB, and {folder.parent} has "
            f"{free / 2**30:.1f} GiB free; TMPDIR names another folder"
        )
        return
    for name, save in {"model": training.model.save, **training.saved}.items():
        save(folder / "saved" / name)


def _first(
    training: Training, step: int, say: Callable[[str], None]
) -> tuple[list[PackedBatch], int]:
    """The batches of the first step from `step` on with a training signal, and its number."""
    for tried, each in enumerate(range(step, step + MOST_STEPS), start=1):
        batches = training.source.next(each)
        if batches:
            return batches, each
        if tried < MOST_STEPS:  # a step may take minutes
            say(
                f"no answer was better or worse than another of its group; sampling again ({tried} of {MOST_STEPS})"
            )
    raise ValueError(
        f"no answer of {MOST_STEPS} rollout steps was better or worse than another of its group, so there is nothing "
        "to learn from yet; use easier prompts, more samples of each (rollouts.group_size), or partial credit"
    )


def pieces(training: Training, batch: PackedBatch) -> tuple[tuple[str, bool], ...]:
    """The first sequence of a batch as pieces of text, each with whether it is trained."""
    length = int(batch["segments"].lengths_B[0])
    tokens = batch["tokens_T"][:length].tolist()
    trained = batch["loss_mask_T"][:length].tolist()
    found: list[tuple[str, bool]] = []
    start = 0
    for place in range(1, length + 1):
        if place == length or trained[place] != trained[start]:
            found.append(
                (str(training.model.tokenizer.decode(tokens[start:place])), trained[start])
            )
            start = place
    return tuple(found)
