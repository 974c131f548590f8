"""What differs between runs, and which is better: `ascent.compare_runs`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascent.api.input_changes import read as read_inputs
from ascent.config.changes import flatten_mapping
from ascent.config.yaml_text import read as read_yaml
from ascent.feedback.win_rate import wilson
from ascent.maths.estimates import estimate, student_interval
from ascent.metrics import EVAL, larger_is_better
from ascent.runs.curves import (
    FORMATS,
    MAIN,
    MAX_PANELS,
    Point,
    best_point,
    draw_comparison,
    merge_curves,
    points,
)
from ascent.runs.folder import CONFIG, INPUTS, Run, list_runs, read_run
from ascent.tasks.named import is_task

MAX_METRICS = 2  # compared where none is named
SEED, CONTENT = "seed", " (content)"


@dataclass(frozen=True)
class RunScore:
    """A value with its 95% interval, None where that is unknown, and the step it was logged at."""

    value: float
    low: float | None
    high: float | None
    step: int


@dataclass(frozen=True)
class MetricScores:
    """The last and the best value of a metric, and its curve as (step, value).

    The best is among values that were measured as the last one was: another held-out set or reward since a resume
    leaves out those before it.
    """

    last: RunScore
    best: RunScore
    curve: list[Point]


@dataclass(frozen=True)
class ScoredRuns:
    """One run, or several that differ in their seed only: their means, with intervals over seeds.

    `settings` holds the keys that differ between the compared runs; of several seeds, without `seed`.
    """

    runs: list[str]
    state: str
    settings: Mapping[str, Any]
    scores: Mapping[str, MetricScores]

    @property
    def label(self) -> str:
        """The settings in words, or the run's name where none differs."""
        found = ", ".join(
            f"{name}={format_setting(each)}" for name, each in short_keys(self.settings).items()
        )
        return found or Path(self.runs[0]).name


@dataclass(frozen=True)
class RunComparison:
    """`settings` are the keys that differ, each with one value per run. `groups` joins runs that differ in seed only.

    `larger_is_better` says for each compared metric which value is the best.
    """

    runs: list[ScoredRuns]
    groups: list[ScoredRuns]
    settings: Mapping[str, list[Any]]
    larger_is_better: Mapping[str, bool]
    plot: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(
    runs: Sequence[str | Path], *, metrics: Sequence[str] = (), plot: str | Path | None = None
) -> RunComparison:
    """Compare runs: settings that differ, curves, last and best held-out scores with 95% intervals.

    runs: run folders, or folders that hold some; at least two runs.
    metrics: what to compare, by the names in metrics.jsonl; by default the two main held-out metrics.
    plot: draw the curves into this .png, .svg or .pdf file.

    Returns a `RunComparison`. The interval of one run is over its held-out prompts, where their answers were logged.
    Runs that differ in their seed only are also summarized as a group, with an interval over seeds.

        found = ascent.compare_runs(["runs/a", "runs/b"], plot="curves.png")
        found.settings, found.runs[0].scores["eval/reward/mean"].last
    """
    if plot is not None and Path(plot).suffix not in FORMATS:
        raise ValueError(f"plot={plot} cannot be drawn; its name must end in {', '.join(FORMATS)}")
    found = [read_run(path) for path in expand_runs(runs)]
    if len(found) < 2:
        raise ValueError(
            f"compare-runs needs at least two runs; there are {len(found)} in {', '.join(map(str, runs))}"
        )
    names = _metric_names(found, metrics)
    settings = differing_settings([settings_of(run) for run in found])
    scored = [
        ScoredRuns(
            [str(run.path)],
            run.state,
            {key: each[place] for key, each in settings.items()},
            _scores(run, names),
        )
        for place, run in enumerate(found)
    ]
    groups = _group_seeds(scored)
    if plot is not None:
        metrics_of = {str(run.path): run.metrics for run in found}
        lines = {each.label: [metrics_of[path] for path in each.runs] for each in groups}
        draw_comparison(lines, _panels(found, names), Path(plot))
    better = {name: larger_is_better(name) for name in names}
    return RunComparison(scored, groups, settings, better, None if plot is None else str(plot))


def settings_of(run: Run) -> dict[str, Any]:
    """Every key of the recipe, and the content of each data file, which may have changed under its name."""
    keys = dict(flatten_mapping(read_yaml(run.config, str(run.path / CONFIG))))
    inputs = read_inputs(run.path, sys.maxsize).inputs if (run.path / INPUTS).is_file() else {}
    files = {
        key: each
        for key, each in inputs.items()
        if key.startswith("data.") and not is_task(each.name)
    }
    return {**keys, **{key + CONTENT: each.fingerprint[:12] for key, each in files.items()}}


def differing_settings(flat: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The keys whose values differ, with one value per run, None where a run has no such key."""
    keys = dict.fromkeys(key for each in flat for key in each)
    values = {key: [each.get(key) for each in flat] for key in keys}
    found = {key: each for key, each in values.items() if any(value != each[0] for value in each)}
    # Another name has another content: that is one difference.
    return {
        key: each
        for key, each in found.items()
        if key.removesuffix(CONTENT) not in found or CONTENT not in key
    }


def short_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by their last name, where it is unique."""
    last = [key.rpartition(".")[2] for key in settings]
    return {
        name if last.count(name) == 1 else key: settings[key]
        for name, key in zip(last, settings, strict=True)
    }


def format_setting(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def expand_runs(runs: Sequence[str | Path]) -> list[Path]:
    """Each run once, in the order given; a folder that is no run stands for the runs in it."""
    found: list[Path] = []
    for each in map(Path, runs):
        found += [each] if (each / CONFIG).is_file() else [run.path for run in list_runs(each)]
    return list(dict.fromkeys(found))


def _metric_names(runs: Sequence[Run], wanted: Sequence[str]) -> list[str]:
    logged = dict.fromkeys(name for run in runs for record in run.metrics for name in record)
    unknown = [name for name in wanted if name not in logged]
    if unknown:
        raise ValueError(
            f"metric {unknown[0]!r} was logged by none of the runs; they have {', '.join(sorted(logged))}"
        )
    heldout = [name for name in MAIN if name.startswith(EVAL) and name in logged]
    names = list(wanted) or heldout or [name for name in MAIN if name in logged]
    curves = {name: [points(run.metrics, name) for run in runs] for name in names}
    known = [name for name in names if any(curves[name])]
    if not known:
        raise ValueError("the runs logged no finite value to compare; did they finish a step?")
    # reward/mean equals reward/correct where the reward is 0 or 1.
    differing = [
        name
        for place, name in enumerate(known)
        if curves[name] not in [curves[n] for n in known[:place]]
    ]
    return known if wanted else differing[:MAX_METRICS]


def _panels(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """The compared metrics, their training values, then other main metrics."""
    logged = {
        name for run in runs for record in run.metrics for name in record if points([record], name)
    }
    wanted = [*names, *(name.removeprefix(EVAL) for name in names), *MAIN]
    return list(dict.fromkeys(name for name in wanted if name in logged))[:MAX_PANELS]


def _scores(run: Run, names: Sequence[str]) -> dict[str, MetricScores]:
    found, recipe = {}, settings_of(run)
    for name in names:
        curve = points(run.metrics, name)
        if curve:
            best = best_point(name, curve, run.changes, recipe)
            found[name] = MetricScores(
                score_at(run, name, curve[-1]), score_at(run, name, best), curve
            )
    return found


def score_at(run: Run, name: str, point: Point) -> RunScore:
    step, value = int(point[0]), point[1]
    low, high = _answer_interval(run, name, step, value) or (None, None)
    return RunScore(value, low, high, step)


def _answer_interval(
    run: Run, name: str, step: int, value: float
) -> tuple[float | None, float | None] | None:
    """The interval over held-out prompts, from answers.jsonl; None where it does not hold this metric.

    Wilson's for right and wrong, which also holds where answers beyond the file's budget were not logged.
    """
    answers = [each for each in run.answers if each["step"] == step]
    field = name.removeprefix(f"{EVAL}reward/")
    values = [
        {"correct": each["correct"], "mean": each["reward"]}.get(field, each["parts"].get(field))
        for each in answers
    ]
    scored = [each for each in values if each is not None]
    complete = bool(answers) and len(answers) == answers[0]["of"]
    if not name.startswith(f"{EVAL}reward/") or not scored:
        return None
    if set(scored) <= {0.0, 1.0} and (complete or len(scored) == len(values)):
        count = len(scored) if complete else answers[0]["of"]
        return wilson(value * count, count)[1:3]
    found = estimate(scored) if complete else None
    return None if found is None else (found.low, found.high)


def _group_seeds(runs: Sequence[ScoredRuns]) -> list[ScoredRuns]:
    """Runs whose settings differ in their seed only, as one; equal runs and runs without a partner as they are."""
    groups: dict[str, dict[Any, ScoredRuns]] = {}
    for place, each in enumerate(runs):
        rest = repr({key: value for key, value in each.settings.items() if key != SEED})
        seed = each.settings.get(SEED)
        if seed is None or seed in groups.get(rest, {}):
            rest = f"{rest} {place}"
        groups.setdefault(rest, {})[seed] = each
    members = [list(group.values()) for group in groups.values()]
    return [_merge(group) if len(group) > 1 else group[0] for group in members]


def _merge(runs: Sequence[ScoredRuns]) -> ScoredRuns:
    settings = {key: value for key, value in runs[0].settings.items() if key != SEED}
    states = dict.fromkeys(each.state for each in runs)
    shared = [name for name in runs[0].scores if all(name in each.scores for each in runs)]
    scores = {name: _merge_scores([each.scores[name] for each in runs]) for name in shared}
    return ScoredRuns([each.runs[0] for each in runs], ", ".join(states), settings, scores)


def _merge_scores(found: Sequence[MetricScores]) -> MetricScores:
    curve = [
        (step, statistics.fmean(values))
        for step, values in merge_curves([each.curve for each in found])
    ]
    return MetricScores(
        _seed_score([each.last for each in found]),
        _seed_score([each.best for each in found]),
        curve,
    )


def _seed_score(found: Sequence[RunScore]) -> RunScore:
    values = [each.value for each in found]
    low, high = student_interval(values) or (None, None)
    return RunScore(statistics.fmean(values), low, high, max(each.step for each in found))
