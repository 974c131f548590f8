"""What a run will cost, before it is started: `ascent.forecast`. And what it will reach: `ascent.forecast_score`."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascent import loop
from ascent.api.peak_memory import (
    PeakMemory,
    explain_memory,
    forecast_peak,
    largest_microbatch,
    memory_of,
    watch_memory,
)
from ascent.api.train import Overrides, Recipe, assemble, plan_of, say_slow
from ascent.checkpoints import rng
from ascent.checkpoints.save import save
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.diagnose.hardware import StepWork, find_gpu, kv_cache_bytes, step_seconds
from ascent.diagnose.score_curve import MIN_POINTS, ScoreForecast, fit_score
from ascent.engines.native.engine import MEMORY_FRACTION
from ascent.engines.native.sizing import cuda_max_num_seqs
from ascent.models.memory import BYTES, shape_of
from ascent.models.quantize import num_parameters
from ascent.plan.resolve import Plan
from ascent.rollouts.source import RolloutSource
from ascent.runs.curves import points
from ascent.runs.folder import CONFIG, STEP_BYTES, read_run
from ascent.runs.jsonl import encode_line
from ascent.setup import evaluation
from ascent.setup.offline import Training

WARM_UP, WARM_UP_CUDA = (
    1,
    2,
)  # steps that are not measured; on a GPU the second one still captures graphs
LEAST, MOST = 2, 12  # steps that are
ENOUGH = 2.0  # seconds of measured steps, after which no more are taken
GPU_DTYPE = "bfloat16"  # where the recipe leaves it to the machine
METRIC_BYTES = 2048  # of a step in metrics.jsonl
PHASES = ("time/sample", "time/score", "time/prepare", "time/update", "time/refresh")
SAVED = "checkpoints"
# What is forecast, the first that was logged often enough.
SCORES = (
    "eval/reward/correct",
    "reward/correct",
    "eval/preference/accuracy",
    "preference/accuracy",
)


@dataclass(frozen=True)
class RunForecast:
    """What a run of `steps` steps takes. `phases` are seconds of one step; an evaluation and a checkpoint have their
    own. `memory` is the peak in bytes, `available` what the device has; `disk` is the run folder's size in the end.

    `limit` says in words what limits the run.
    """

    device: str
    steps: int
    phases: dict[str, float]
    step_seconds: float
    evaluation_seconds: float
    checkpoint_seconds: float
    total_seconds: float
    tokens: int
    memory: int
    available: int
    checkpoint_bytes: int
    disk: int
    limit: str

    @property
    def days(self) -> float:
        return self.total_seconds / 86400


@dataclass(frozen=True)
class StepCost:
    """Of one step, one evaluation, one checkpoint and one centering of a reward model: seconds, tokens, bytes."""

    phases: dict[str, float]
    seconds: float
    tokens: float
    evaluating: float = 0.0
    centering: float = 0.0
    saving: float = 0.0
    checkpoint: int = 0


@dataclass(frozen=True)
class RunScoreForecast:
    """The forecast of one metric at the last of `steps` steps, made at `step`."""

    run: str
    metric: str
    step: int
    steps: int
    forecast: ScoreForecast

    def text(self) -> str:
        return f"{self.metric} at step {self.steps}, seen from step {self.step}: {self.forecast.text()}"


class _StepMetrics:
    """Implements `protocols.Tracker`: the metrics of all steps."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(metrics)

    def close(self) -> None:
        """Nothing to close."""


def forecast(
    recipe: Recipe,
    overrides: Overrides = (),
    *,
    gpu: str | None = None,
    say: Callable[[str], None] = print,
) -> RunForecast:
    """Forecast memory, time by phase, tokens and disk of a run, from a few measured steps; nothing is kept.

    recipe, overrides: as for `ascent.train`.
    gpu: forecast for this card from its data sheet instead of measuring this machine (ascent.diagnose.hardware.GPUS);
        completions then count as long as they may be.
    say: receives warnings, one line each.

    Returns a `RunForecast`.

        found = ascent.forecast("sft", {"model": "tiny:llama", "data": "arithmetic:256"})
        found.memory, found.phases, found.days
    """
    plan = plan_of(recipe, overrides)
    if gpu is None:
        say_slow(plan, say)
    elif plan.origins.get("model.dtype") == "default" and not isinstance(
        recipe, Plan
    ):  # that of this machine
        plan = plan_of(recipe, overrides, given={"model.dtype": GPU_DTYPE})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work = Path(folder)
        training = assemble(plan, work)
        stack.callback(training.close)
        if gpu is not None:
            return _on_gpu(plan, training, gpu)
        watch = stack.enter_context(watch_memory())
        stack.enter_context(explain_memory(plan, training))
        steps = _measure_steps(training)
        seconds, size = _measure_checkpoint(training, work)
        evaluated, centered = _measure_evaluation(training), _measure_centering(training)
        trained = [each for each in steps if "tokens/run" in each]
        peak = forecast_peak(plan, training, watch, trained)
        device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
        cost = StepCost(
            phases={
                name: _mean(steps, name) for name in PHASES if any(name in each for each in steps)
            },
            seconds=_mean(steps, "time/step"),
            tokens=_mean(steps, "tokens/run"),
            evaluating=evaluated,
            centering=centered,
            saving=seconds,
            checkpoint=size,
        )
        return _total(plan, training, device, cost, peak)


def forecast_score(run: str | Path, *, metric: str | None = None) -> RunScoreForecast:
    """Forecast the score that a run will have at its last step, with an interval, or say that it cannot be known yet.

    run: the folder of a run that is going on.
    metric: what to forecast, between 0 and 1; by default the held-out score where it has enough values, else that of
        the training prompts.

    Returns a `RunScoreForecast`.

        ascent.forecast_score("runs/mine").text()
    """
    source = read_run(Path(run))
    steps = validate(read_yaml(source.config, str(source.path / CONFIG))).run.steps
    names = SCORES if metric is None else (metric,)
    curves = {
        name: [each for each in points(source.metrics, name) if each[0] >= 1] for name in names
    }
    known = [name for name in names if curves[name]]
    if not known:
        logged = sorted(
            {name for record in source.metrics for name in record} - {"step", "timestamp"}
        )
        raise ValueError(
            f"{' or '.join(names)} was not logged by {run}; it has {', '.join(logged)}"
        )
    name = next((name for name in known if len(curves[name]) >= MIN_POINTS), known[0])
    values = [value for _, value in curves[name]]
    if min(values) < 0 or max(values) > 1:
        raise ValueError(
            f"{name} is between {min(values):.3g} and {max(values):.3g}; scores between 0 and 1 can be forecast: a "
            "share of right answers, or an accuracy"
        )
    step = int(curves[name][-1][0])
    return RunScoreForecast(str(run), name, step, steps, fit_score(curves[name], float(steps)))


def _measure_steps(training: Training) -> list[Mapping[str, float]]:
    """The metrics of the steps after the warm-up: at least two, and more where they are short."""
    tracker, warm_up = (
        _StepMetrics(),
        WARM_UP_CUDA if training.model.device.type == "cuda" else WARM_UP,
    )
    parts = loop.LoopParts(training.source, training.trained, tracker, lambda step, state: None)

    def enough() -> bool:
        seconds = [
            each["time/step"] for each in tracker.steps[warm_up:]
        ]  # without the step that is going on
        return len(seconds) + 1 >= LEAST and sum(seconds) > ENOUGH

    loop.run(
        parts,
        loop.Schedule(warm_up + max(LEAST, min(MOST, training.steps)), 10**9, 10**9),
        stop=enough,
    )
    return tracker.steps[warm_up:]


def _measure_checkpoint(training: Training, work: Path) -> tuple[float, int]:
    """Seconds and bytes."""
    parts = loop.LoopParts(
        training.source, training.trained, _StepMetrics(), lambda step, state: None
    )
    begun = time.perf_counter()
    state = {**loop.state_of(parts), "rng": rng.capture()}
    saved = save(work / SAVED, 0, state, {"model": training.model.save, **training.saved})
    seconds = time.perf_counter() - begun
    return seconds, sum(each.stat().st_size for each in saved.folder.rglob("*") if each.is_file())


def _measure_evaluation(training: Training) -> float:
    if training.evaluate is None and not training.heldout:
        return 0.0
    begun = time.perf_counter()
    if training.evaluate is not None:
        training.evaluate(0)
    else:
        evaluation.evaluated(training.learner, training.heldout, training.objective)
    return time.perf_counter() - begun


def _measure_centering(training: Training) -> float:
    """A reward model's scores of the data that it is centered on."""
    begun = time.perf_counter()
    if training.demonstrations:
        evaluation.normalization(training.learner, training.demonstrations)
    return time.perf_counter() - begun


def _on_gpu(plan: Plan, training: Training, name: str) -> RunForecast:
    card, config, sampled = find_gpu(name), plan.config, plan.row.samples
    on_card: dict[str, Any] = {"cuda": True, "card": int(card.memory)}
    memory, microbatch = (
        memory_of(plan, training, **on_card),
        largest_microbatch(plan, training, **on_card),
    )
    rollouts, module = config.rollouts, training.model.module
    parameters = num_parameters(module)[0]
    trained = sum(each.numel() for each in training.model.parameters())
    shape = shape_of(module.config, parameters, trained)
    sequences = rollouts.prompts_per_step * rollouts.group_size if sampled else 0
    prompt, longest = 0.0, 0
    if isinstance(training.source, RolloutSource):
        lengths = [len(each.tokens) for each in training.source.prompts]
        prompt, longest = statistics.fmean(lengths), max(lengths) + rollouts.max_new_tokens
        tokens = sequences * rollouts.max_new_tokens + rollouts.prompts_per_step * prompt
    else:
        tokens = float(sum(len(each["tokens_T"]) for each in training.source.next(1)))
    kv_bytes = (
        2 * shape.layers * shape.key_value_heads * shape.head_size * BYTES[config.model.dtype]
    )
    work = StepWork(
        parameters=parameters,
        tokens=tokens,
        trained=trained,
        passes=config.update.epochs if sampled else 1,
        updates=config.update.epochs * config.update.minibatches if sampled else 1,
        forwards=1 + len({"reference", "teacher", "critic"} & set(plan.row.needs))
        if sampled
        else 0,
        trained_models=1 + len(training.others),
        recomputes=config.model.gradient_checkpointing,
        offloaded=config.update.optimizer_offload,
        layers=shape.layers,
        microbatches=max(
            config.update.minibatches if sampled else 1, math.ceil(tokens / microbatch)
        ),
        sequences=sequences,
        prompt_tokens=rollouts.prompts_per_step * prompt,
        new_tokens=rollouts.max_new_tokens,
        kv_bytes=kv_bytes,
        max_num_seqs=cuda_max_num_seqs(longest * kv_bytes, int(card.memory)),
    )
    # While it is sampled nothing but what persists is in memory, and the KV cache is given back before the update.
    persistent = memory.persistent + memory.reference + memory.critic
    room = max(0.0, MEMORY_FRACTION * (card.memory - persistent))
    peak = PeakMemory(
        max(memory.total, persistent + int(min(room, kv_cache_bytes(work)))), int(card.memory)
    )
    phases = step_seconds(card, work, free_memory=room)
    saved = (
        memory.weights if trained == parameters else trained * BYTES[config.model.dtype]
    )  # an adapter alone
    checkpoint = saved + memory.masters + memory.moments + memory.host + memory.critic
    cost = StepCost(phases, sum(phases.values()), tokens, checkpoint=checkpoint)
    return _total(plan, training, name, cost, peak)


def _total(
    plan: Plan, training: Training, device: str, cost: StepCost, peak: PeakMemory
) -> RunForecast:
    """From one step to the whole run."""
    run, steps = plan.config.run, training.steps
    evaluates = training.evaluate is not None or bool(training.heldout)
    evaluations = (
        (-(-steps // run.evaluate_every) + (training.evaluate is not None)) if evaluates else 0
    )
    checkpoints = -(-steps // run.save_every)
    centering = cost.centering * (checkpoints if run.keep_best else 1)
    logged = _sample_bytes(training) + METRIC_BYTES
    slowest = max(cost.phases, key=lambda name: cost.phases[name])
    limit = f"{slowest.removeprefix('time/')}, {cost.phases[slowest] / max(cost.seconds, 1e-9):.0%} of a step"
    if peak.bytes > peak.available:
        limit = f"memory: it needs {peak.bytes / 2**30:.1f} GiB of {peak.available / 2**30:.1f} GiB"
    return RunForecast(
        device=device,
        steps=steps,
        phases=cost.phases,
        step_seconds=cost.seconds,
        evaluation_seconds=cost.evaluating,
        checkpoint_seconds=cost.saving,
        total_seconds=steps * cost.seconds
        + evaluations * cost.evaluating
        + checkpoints * cost.saving
        + centering,
        tokens=round(steps * cost.tokens),
        memory=peak.bytes,
        available=peak.available,
        checkpoint_bytes=cost.checkpoint,
        disk=(min(checkpoints, run.keep) + run.keep_best) * cost.checkpoint + steps * logged,
        limit=limit,
    )


def _sample_bytes(training: Training) -> int:
    """What a step adds to samples.jsonl; nothing is known of a run that has not sampled yet."""
    if training.samples is None:
        return 0
    size = sum(len(encode_line(each, compact=True)) for each in training.samples().records)
    return min(size, STEP_BYTES)


def _mean(steps: list[Mapping[str, float]], name: str) -> float:
    """The mean of the middle half: one step that waited for something else says nothing about the others."""
    values = sorted(each[name] for each in steps if name in each)
    cut = len(values) // 4
    return statistics.fmean(values[cut : len(values) - cut]) if values else 0.0
