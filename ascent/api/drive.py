"""Drive an assembled run: the loop, with everything that is written and reported about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain

from ascent import loop
from ascent.api.callbacks import Callbacks
from ascent.api.diagnose import write_diagnosis
from ascent.api.peak_memory import explain_memory
from ascent.checkpoints import rng
from ascent.checkpoints.resume import ResumePoint, read_state
from ascent.checkpoints.save import RetentionPolicy, best, save
from ascent.config.changes import evaluated_since, flatten
from ascent.metrics import larger_is_better
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.progress import notes_to
from ascent.protocols import Tracker
from ascent.runs.folder import CHANGES, Outcome, RunFolder, UnwrittenFolder
from ascent.runs.jsonl import numbers
from ascent.runs.sample_log import EvalTracker, SampleTracker, WarningTracker
from ascent.runs.signals import GracefulStop
from ascent.runs.terminal import Terminal
from ascent.runs.trackers import MultiTracker
from ascent.runs.warnings import CLIP_FRACTION
from ascent.setup import evaluation
from ascent.setup.offline import Training
from ascent.setup.trackers import compared, trackers_of

Say = Callable[[str], None]


def close(training: Training, say: Say) -> None:
    """Release what a run holds. A failure is only reported: the run itself is over."""
    try:
        training.close()
    except Exception as error:
        say(f"rewards or environments could not be closed ({type(error).__name__}: {error})")


def drive(
    plan: Plan,
    training: Training,
    run: RunFolder,
    callbacks: Callbacks,
    *,
    done: int,
    progress: bool,
    say: Say,
) -> int:
    """Run the loop from step `done` to the end, write everything that is reported, and note how the run ended."""
    settings, ranks = plan.config.run, training.learner.ranks
    _say_notes(training, say)
    ranks.call_on_failure(lambda message: _record_failure(run, done, message, say))
    callbacks, progress = (callbacks, progress) if ranks.is_first else (Callbacks(), False)
    scores: dict[
        str, float
    ] = {}  # the last evaluation, by which the checkpoint saved with it is ranked

    def evaluate(step: int) -> dict[str, float]:
        scores.update(_evaluated(training, step))
        callbacks.on_evaluate(step, scores)
        return dict(scores)

    terminal = (
        Terminal(settings.steps, done=done, history=map(numbers, run.history()))
        if progress
        else None
    )
    tracker = MultiTracker(run, [terminal] if terminal else [], say=say)
    parts = loop.LoopParts(
        source=training.source,
        trained=training.trained,
        tracker=tracker,
        save=lambda step, state: _save(plan, training, run, step, state, scores),
        evaluate=evaluate if training.heldout or training.evaluate else None,
        on_step=callbacks.on_step,
    )
    schedule = loop.Schedule(settings.steps, settings.save_every, settings.evaluate_every)
    why = partial(_stop_reason, training, callbacks, ranks)
    try:
        if ranks.is_first:
            outside = trackers_of(plan, run, training, resumed_at=done or None)
            for each in chain(
                outside, _recorders(plan, training, run, terminal.note if terminal else say)
            ):
                tracker.add(each)
        with (
            notes_to(terminal.note if terminal else say),
            explain_memory(plan, training),
            GracefulStop() as stop,
        ):
            if (
                training.evaluate is not None and done == 0
            ):  # the baseline; no checkpoint is ranked by it
                baseline = training.evaluate(0)
                tracker.log(0, baseline)
                callbacks.on_evaluate(0, baseline)
                evaluation.refuse_unreported_part(settings.best_metric, baseline)
            last = loop.run(parts, schedule, done=done, stop=lambda: bool(why(stop)))
            callbacks.raise_error()
    except BaseException as error:
        _record_failure(run, done, f"{type(error).__name__}: {error}", say)
        raise
    finally:
        tracker.close_others()
    reason = why(stop)
    _finish(plan, run, last, reason, say)
    callbacks.on_end(last, reason if last < settings.steps else "")
    return last


def _stop_reason(training: Training, callbacks: Callbacks, ranks: Ranks, stop: GracefulStop) -> str:
    """Why the run stops before its last step: the first reason of all ranks; empty while it goes on."""
    own = (
        f"stopped by {stop.received}"
        if stop.received
        else training.stop_reason() or callbacks.reason
    )
    if stop.received and ranks.count > 1:
        own += f" on rank {ranks.rank}"
    return next(filter(None, ranks.gather(own, "the end of the step")), "")


def _say_notes(training: Training, say: Say) -> None:
    for note in training.notes:
        say(note)
    if training.samples is not None and training.evaluate is None:
        say("no held-out prompts: only rewards in training will be known; data.evaluate names some")


def restore(training: Training, found: ResumePoint) -> None:
    """Put the run where the checkpoint is. Nothing is written: a checkpoint that does not fit costs nothing."""
    ranks = training.learner.ranks
    state = read_state(found.folder, lazily=ranks.count > 1)
    loop.load_state(training.source, training.trained, state)
    rng.restore(state["rng"], ranks)


def _evaluated(training: Training, step: int) -> Mapping[str, float]:
    """By sampling, or on held-out batches."""
    if training.evaluate is not None:
        return training.evaluate(step)
    return evaluation.evaluated(training.learner, training.heldout, training.objective)


def _record_failure(run: RunFolder, done: int, message: str, say: Say) -> None:
    try:
        run.finish("failed", done, message)
    except OSError as second:  # a full disk, most likely; the first error is the one to show
        say(f"the failure could not be noted in {run.path}: {second}")
    else:
        _say_diagnosis(run, "failed", message, say)


def _finish(plan: Plan, run: RunFolder, last: int, reason: str, say: Say) -> None:
    """Report and note the end of a run; `reason` is why it stopped before its last step."""
    settings = plan.config.run
    stopped = last < settings.steps
    if stopped:
        say(reason)
    for line in compared(run):  # before the end is noted: a run killed later is not continued
        say(line)
    state: Outcome = "stopped" if stopped else "finished"
    run.finish(state, last, reason if stopped else "")
    _say_diagnosis(run, state, reason, say)
    for step in best(run.checkpoints, _retention(plan, run)):
        say(f"kept for eval/{settings.best_metric}: {run.checkpoints / str(step)}")
    say(
        f"{'stopped after' if stopped else 'finished'} step {last} of {settings.steps}; the run is in {run.path}"
    )


def _say_diagnosis(run: RunFolder, state: str, message: str, say: Say) -> None:
    """Write and say what went wrong; a failure to tell is only reported: the run itself is over."""
    if isinstance(run, UnwrittenFolder):
        return
    try:
        say(write_diagnosis(run, state, message).line())
    except Exception as error:
        say(f"the run could not be diagnosed ({type(error).__name__}: {error})")


def _recorders(plan: Plan, training: Training, run: RunFolder, warn: Say) -> Iterator[Tracker]:
    """Writers of samples, warnings and held-out completions."""
    if training.samples is not None:
        expected = [CLIP_FRACTION] if plan.row.clips_by_design else []
        yield SampleTracker(run, training.samples)
        yield WarningTracker(run, warn, training.reward_failures, expected)
    if training.answers is not None:
        yield EvalTracker(run, training.answers)


def _retention(plan: Plan, run: RunFolder) -> RetentionPolicy:
    settings = plan.config.run
    since = evaluated_since(run.history(CHANGES), flatten(plan.config), samples=plan.row.samples)
    return RetentionPolicy(
        settings.keep, settings.keep_best, larger_is_better(settings.best_metric), since
    )


def _save(
    plan: Plan,
    training: Training,
    run: RunFolder,
    step: int,
    state: loop.State,
    scores: Mapping[str, float],
) -> None:
    """Write a checkpoint. The final and the best ones of a reward model hold its score normalization.

    A score is written only where the best checkpoints are kept: later it would be read as another metric's.
    """
    settings = plan.config.run
    score = scores.get(f"eval/{settings.best_metric}") if settings.keep_best else None
    if training.demonstrations and (step == settings.steps or settings.keep_best):
        training.model.normalization = evaluation.normalization(
            training.learner, training.demonstrations
        )
    save(
        run.checkpoints,
        step,
        {**state, "rng": rng.capture(training.learner.ranks)},
        {"model": training.model.save, **training.saved},
        keep=_retention(plan, run),
        score=score,
        ranks=training.learner.ranks,
    )
