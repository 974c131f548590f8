"""Train from a recipe, or resume a run: `ascent.train`, `ascent.resume`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from ascent import __version__, loop
from ascent.api.input_changes import check_inputs, record_inputs
from ascent.checkpoints import rng
from ascent.checkpoints.resume import ResumePoint, newest, read_state
from ascent.checkpoints.save import RetentionPolicy, best, save
from ascent.config.load import load_config, merge_configs, nest_keys, parse_overrides
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.plan.resolve import Plan, resolve
from ascent.protocols import Tracker
from ascent.runs import trackers
from ascent.runs.claim import FolderClaim
from ascent.runs.environment import describe
from ascent.runs.folder import CHECKPOINTS, CONFIG, Run, RunFolder, read_run, state_of
from ascent.runs.jsonl import numbers
from ascent.runs.lock import Lock
from ascent.runs.sample_log import EvalTracker, SampleBatch, SampleTracker, WarningTracker
from ascent.runs.signals import GracefulStop
from ascent.runs.terminal import Terminal
from ascent.runs.trackers import MultiTracker
from ascent.runs.warnings import CLIP_FRACTION
from ascent.setup import evaluation, sample_records
from ascent.setup.data import refuse_absent_files
from ascent.setup.offline import Training, assemble_offline
from ascent.setup.optimal_values import FILE as OPTIMUM
from ascent.setup.policy import INITIAL, REFERENCE, device
from ascent.setup.prompt_overlap import prompt_overlap
from ascent.setup.rewards import names_of
from ascent.setup.rl import RLSetup
from ascent.setup.trackers import compared, trackers_of

# What assembling may leave in a folder before there is a run in it.
LEFTOVERS = (INITIAL, REFERENCE, f".{REFERENCE}.writing", OPTIMUM, f".{OPTIMUM}.writing")
Say = Callable[[str], None]
Recipe = str | Path | Mapping[str, Any] | Plan
Overrides = Sequence[str] | Mapping[str, Any]


def train(
    recipe: Recipe, overrides: Overrides = (), *, run: str | Path, progress: bool = True, say: Say = print
) -> Run:
    """Train from a recipe into a new run folder.

    recipe: the name of a shipped recipe, a .yaml file, or a mapping of keys, nested or dotted.
    overrides: keys to set on top, as "KEY=VALUE" strings or as a mapping of dotted keys.
    run: the run folder to create; it must be new or empty.
    progress: show progress on standard error.
    say: receives notes, one line each.

    Returns the run, read back from its folder: `state`, `metrics`, `samples`, `checkpoints`.

        run = ascent.train("sft", {"model.policy": "tiny:llama", "data.train": "arithmetic:256"}, run="runs/sft")
        run.metrics[-1]["loss/total"]
    """
    origin = recipe if isinstance(recipe, str | Path) else "Python"
    header = f"# Resolved by ascent {__version__} from {origin}; itself a recipe.\n"
    train_plan(plan_of(recipe, overrides), Path(run), progress=progress, say=say, header=header)
    return read_run(Path(run))


def resume(run: str | Path, *, accept_changes: bool = False, progress: bool = True, say: Say = print) -> Run:
    """Continue a run from its newest valid checkpoint, bit for bit.

    run: the run folder.
    accept_changes: continue although inputs of the run have changed; the change is recorded.
    progress: show progress on standard error.
    say: receives notes, one line each.

    Returns the run, read back from its folder.

        ascent.resume("runs/sft")
    """
    resume_run(Path(run), accept_changes=accept_changes, progress=progress, say=say)
    return read_run(Path(run))


def plan_of(recipe: Recipe, overrides: Overrides = ()) -> Plan:
    """The plan of a recipe with overrides on top; a plan stays as it is."""
    if isinstance(recipe, Plan):
        if overrides:
            raise ValueError("overrides apply to a recipe, but a plan is resolved already; override its recipe")
        return recipe
    if isinstance(recipe, Mapping):
        return resolve(validate(merge_configs(nest_keys(recipe), parse_overrides(override_strings(overrides)))))
    return resolve(load_config(str(recipe), override_strings(overrides)))


def override_strings(overrides: Overrides) -> Sequence[str]:
    """Overrides as KEY=VALUE; a value is read as YAML, of which JSON is a part."""
    if not isinstance(overrides, Mapping):
        return overrides
    return [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]


def train_plan(plan: Plan, folder: Path, *, progress: bool = True, say: Say = print, header: str = "") -> int:
    """A new run in `folder`, from the first step to the last; returns the last finished step."""
    claim = FolderClaim(folder, LEFTOVERS, say=say)
    with ExitStack() as stack:
        try:
            text = header + as_yaml(plan.config)
            plan, inputs = record_inputs(plan, folder, say=say)
            training = assemble(plan, folder)
            stack.callback(_close, training, say)
            environment = describe(devices=[device()])
            run = RunFolder.create(folder, text, environment, inputs=inputs, lock=claim.lock, say=say)
        except BaseException:
            claim.abandon()
            raise
        with run:
            return _drive(plan, training, run, done=0, progress=progress, say=say)


def resume_run(folder: Path, *, accept_changes: bool = False, progress: bool = True, say: Say = print) -> int:
    """Continue a run from its newest valid checkpoint, bit for bit; returns the last finished step."""
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder} is no run folder: it has no {CONFIG}; ascent runs lists the runs of a folder. A run that was "
            "killed before it had one is started again with ascent train and the same --run"
        )
    plan = resolve(validate(read_yaml((folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG))))
    ended = state_of(folder) == "finished"
    with ExitStack() as stack:
        lock = stack.enter_context(Lock(folder, say=say))
        found = newest(folder / CHECKPOINTS)
        for line in found.lines() if found else ["no checkpoint was saved; starting from the first step"]:
            say(line)
        done, steps = (found.step if found else 0), plan.config.run.steps
        if done >= steps and ended:  # a run killed after its last save has yet to end
            raise ValueError(
                f"{folder} is finished (step {done} of {steps}), so there is nothing to resume; to train further, "
                f"raise run.steps in {folder / CONFIG}"
            )
        plan, changes = check_inputs(plan, folder, done, started=found is not None, accept=accept_changes, say=say)
        training = assemble(plan, folder, model_folder=found.folder / "model" if found else None)
        stack.callback(_close, training, say)
        environment = describe(devices=[device()])
        run = RunFolder.reopen(folder, done, environment, changes=changes, lock=lock, say=say)
        stack.enter_context(run)
        return _drive(plan, training, run, done=done, progress=progress, say=say, found=found)


def assemble(plan: Plan, folder: Path, *, model_folder: Path | None = None) -> Training:
    """Every part of a run; `model_folder` is the checkpoint's model when resuming."""
    trackers.require(plan.config.run.trackers)
    refuse_absent_files(plan.config)
    rng.seed(plan.config.seed)
    return (_assemble_rl if plan.row.samples else assemble_offline)(plan, folder, model_folder)


def _assemble_rl(plan: Plan, folder: Path, model_folder: Path | None) -> Training:
    config = plan.config
    if config.run.keep_best:
        evaluation.refuse_unreported(config.run.best_metric, names_of(plan), talks=config.env is not None)
    rl = RLSetup(plan, folder, model_folder)
    source, evaluate, texts = rl.source, rl.evaluate, sample_records.TokenTexts(rl.model.tokenizer)

    def samples() -> SampleBatch:
        return SampleBatch(sample_records.samples(source.rollouts, source.advantages, texts), len(source.rollouts))

    def answers() -> SampleBatch:
        assert evaluate is not None
        return SampleBatch(sample_records.answers(evaluate.rollouts), len(evaluate.rollouts))

    return Training(
        *(rl.model, rl.learner, rl.objective, source, ()),
        notes=(*rl.notes, *prompt_overlap(source.prompts, evaluate.prompts if evaluate else ())),
        longest=rl.longest,
        evaluate=evaluate,
        samples=samples,
        answers=None if evaluate is None else answers,
        reward_failures=sample_records.NewFailures(rl.failures),
        others=rl.others,
        saved=rl.saved,
        first_policy_step=config.update.critic_warmup_steps + 1,
        stop_reason=lambda: source.stop_reason,
        close=rl.close,
    )


def _close(training: Training, say: Say) -> None:
    """Release what a run holds. A failure is only reported: the run itself is over."""
    try:
        training.close()
    except Exception as error:
        say(f"rewards or environments could not be closed ({type(error).__name__}: {error})")


def _drive(
    plan: Plan,
    training: Training,
    run: RunFolder,
    *,
    done: int,
    progress: bool,
    say: Say,
    found: ResumePoint | None = None,
) -> int:
    """Run the loop from step `done` to the end, write everything that is reported, and note how the run ended."""
    settings = plan.config.run
    for note in training.notes:
        say(note)
    if training.samples is not None and training.evaluate is None:
        say("no held-out prompts: only rewards in training will be known; data.evaluate names some")
    scores: dict[str, float] = {}  # the last evaluation, by which the checkpoint saved with it is ranked

    def evaluate(step: int) -> dict[str, float]:
        if training.evaluate is not None:
            scores.update(training.evaluate(step))
        else:
            scores.update(evaluation.evaluated(training.learner, training.heldout, training.objective))
        return dict(scores)

    terminal = Terminal(settings.steps, done=done, history=map(numbers, run.history())) if progress else None
    tracker = MultiTracker(run, [terminal] if terminal else [], say=say)
    parts = loop.LoopParts(
        source=training.source,
        trained=training.trained,
        tracker=tracker,
        save=lambda step, state: _save(plan, training, run, step, state, scores),
        evaluate=evaluate if training.heldout or training.evaluate else None,
    )
    if found is not None:
        state = read_state(found.folder)
        loop.load_state(parts, state)
        rng.restore(state["rng"])
    schedule = loop.Schedule(settings.steps, settings.save_every, settings.evaluate_every)
    try:
        outside = trackers_of(plan, run, resumed_at=done if found else None)
        for each in chain(outside, _recorders(plan, training, run, terminal.note if terminal else say)):
            tracker.add(each)
        with GracefulStop() as stop:
            if training.evaluate is not None and done == 0:  # the baseline; no checkpoint is ranked by it
                baseline = training.evaluate(0)
                tracker.log(0, baseline)
                evaluation.refuse_unreported_part(settings.best_metric, baseline)
            last = loop.run(parts, schedule, done=done, stop=lambda: stop.requested or bool(training.stop_reason()))
    except BaseException as error:
        _record_failure(run, done, error, say)
        raise
    finally:
        tracker.close_others()
    _finish(plan, run, last, f"stopped by {stop.received}" if stop.received else training.stop_reason(), say)
    return last


def _record_failure(run: RunFolder, done: int, error: BaseException, say: Say) -> None:
    try:
        run.finish("failed", done, f"{type(error).__name__}: {error}")
    except OSError as second:  # a full disk, most likely; the first error is the one to show
        say(f"the failure could not be noted in {run.path}: {second}")


def _finish(plan: Plan, run: RunFolder, last: int, reason: str, say: Say) -> None:
    """Report and note the end of a run; `reason` is why it stopped before its last step."""
    settings = plan.config.run
    stopped = last < settings.steps
    if stopped:
        say(reason)
    for line in compared(run):  # before the end is noted: a run killed later is not continued
        say(line)
    run.finish("stopped" if stopped else "finished", last, reason if stopped else "")
    for step in best(run.checkpoints, _retention(plan)):
        say(f"kept for eval/{settings.best_metric}: {run.checkpoints / str(step)}")
    say(f"{'stopped after' if stopped else 'finished'} step {last} of {settings.steps}; the run is in {run.path}")


def _recorders(plan: Plan, training: Training, run: RunFolder, warn: Say) -> Iterator[Tracker]:
    """Writers of samples, warnings and held-out completions."""
    if training.samples is not None:
        expected = [CLIP_FRACTION] if plan.row.clips_by_design else []
        yield SampleTracker(run, training.samples)
        yield WarningTracker(run, warn, training.reward_failures, expected)
    if training.answers is not None:
        yield EvalTracker(run, training.answers)


def _retention(plan: Plan) -> RetentionPolicy:
    settings = plan.config.run
    return RetentionPolicy(settings.keep, settings.keep_best, evaluation.larger_is_better(settings.best_metric))


def _save(
    plan: Plan, training: Training, run: RunFolder, step: int, state: loop.State, scores: Mapping[str, float]
) -> None:
    """Write a checkpoint. The final and the best ones of a reward model hold its score normalization.

    A score is written only where the best checkpoints are kept: later it would be read as another metric's.
    """
    settings = plan.config.run
    score = scores.get(f"eval/{settings.best_metric}") if settings.keep_best else None
    if training.demonstrations and (step == settings.steps or settings.keep_best):
        training.model.normalization = evaluation.normalization(training.learner, training.demonstrations)
    save(
        run.checkpoints,
        step,
        {**state, "rng": rng.capture()},
        {"model": training.model.save, **training.saved},
        keep=_retention(plan),
        score=score,
    )
