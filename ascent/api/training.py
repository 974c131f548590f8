"""A plan becomes objects, and the objects a run: the only place that knows every part of training from files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ascent import loop
from ascent.api.input_changes import begin, go_on
from ascent.checkpoints import rng
from ascent.checkpoints.resume import ResumePoint, newest, read_state
from ascent.checkpoints.save import RetentionPolicy, best, save
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.data.prepare import Item
from ascent.data.render import Renderer
from ascent.data.sources import FileSource, once
from ascent.models.model import LanguageModel
from ascent.models.model import longest as longest_of
from ascent.plan.resolve import Plan, resolve
from ascent.protocols import Tracker
from ascent.runs import trackers
from ascent.runs.environment import describe
from ascent.runs.folder import CHECKPOINTS, CONFIG, Claim, RunFolder, state_of
from ascent.runs.jsonl import numbers
from ascent.runs.lock import Lock
from ascent.runs.sample_log import EvalTracker, SampleRecorder, SampleTracker, WarningTracker
from ascent.runs.signals import Stop
from ascent.runs.terminal import Terminal
from ascent.runs.trackers import Fanout
from ascent.runs.warnings import CLIP_FRACTION
from ascent.setup import evaluation, sample_records
from ascent.setup.data import prepare_records, refuse_absent_files, refuse_shorter, within_context
from ascent.setup.on_policy_distillation import OnPolicyAnswers
from ascent.setup.optimal_values import FILE as OPTIMUM
from ascent.setup.policy import INITIAL, REFERENCE, adam_of, device, load_policy, reference_of
from ascent.setup.prompt_overlap import prompt_overlap
from ascent.setup.rewards import names_of
from ascent.setup.rl import RLSetup, sampler_of
from ascent.setup.teacher import Teacher, teacher_of
from ascent.setup.trackers import compared, trackers_of
from ascent.update.learner import LocalLearner
from ascent.update.objective import Objective, objective_of
from ascent.update.reference_cache import Reference
from ascent.update.schedule import Schedule

# What building a run may leave in its folder before there is a run in it.
MADE = (INITIAL, REFERENCE, f".{REFERENCE}.writing", OPTIMUM, f".{OPTIMUM}.writing")
Say = Callable[[str], None]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """Everything a run is made of, built and checked, nothing trained yet.

    `largest` is the number of tokens of the longest record. `demonstrations` are what a reward model is centered on;
    there are none for what has no scores.
    """

    model: LanguageModel
    learner: LocalLearner
    objective: Objective
    source: loop.Source
    heldout: Sequence[Batch]
    notes: tuple[str, ...]
    largest: int
    demonstrations: Sequence[Batch] = ()
    evaluate: Callable[[int], dict[str, float]] | None = None  # by sampling, where there are no held-out batches
    samples: Callable[[], SampleRecorder] | None = None  # what the policy said in the last step
    answers: Callable[[], SampleRecorder] | None = None  # what it said to held-out prompts in the last evaluation
    complaints: Callable[[], list[str]] = list  # why rewards could not score something, each reason once
    others: tuple[loop.TrainedModel, ...] = ()  # who learns besides the policy: a critic with weights of its own
    saved: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)  # their folders of a checkpoint
    starts: int = 1  # the first step in which the policy learns too
    halted: Callable[[], str] = str  # why the run should end before its last step; empty while it should not
    close: Callable[[], None] = lambda: None  # gives back what rewards, environments and samplers hold

    @property
    def trained(self) -> list[loop.TrainedModel]:
        return [loop.TrainedModel("policy", self.learner, self.objective, self.starts), *self.others]


class FrozenOutputSource:
    """A source whose batches also carry what a frozen model says: reference log-probs, or a teacher's distributions."""

    def __init__(self, source: FileSource, frozen: Reference | Teacher) -> None:
        self.source, self.frozen = source, frozen

    def next(self, step: int) -> list[Batch]:
        return [self.frozen(batch) for batch in self.source.next(step)]

    def more(self, stats: Mapping[str, Any]) -> list[Batch]:
        return self.source.more(stats)

    def report(self) -> dict[str, Any]:
        return self.source.report()

    def refresh(self, weights: Mapping[str, Any]) -> None:
        self.source.refresh(weights)

    def state(self) -> dict[str, Any]:
        return self.source.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.source.load_state(state)


def assemble(plan: Plan, folder: Path, *, model_folder: Path | None = None) -> Training:
    """Build every part of a run that learns from files; `model_folder` is the checkpoint's model when resuming."""
    config, row = plan.config, plan.row
    trackers.require(config.run.trackers)
    refuse_absent_files(config)
    rng.seed(config.seed)
    if row.samples:
        if config.run.keep_best:
            evaluation.refuse_unreported(config.run.best_metric, names_of(plan), talks=config.env is not None)
        made = RLSetup(plan, folder, model_folder)
        heard, pieces = made.evaluate, sample_records.TokenTexts(made.model.tokenizer)
        return Training(
            made.model, made.learner, made.objective, made.source, (),
            (*made.notes, *prompt_overlap(made.source.asked, heard.asked if heard else ())), made.longest,
            others=made.others, saved=made.saved, starts=config.update.critic_warmup_steps + 1,
            halted=lambda: made.source.halted, close=made.close,
            evaluate=heard, complaints=sample_records.NewFailures(made.failures),
            samples=lambda: SampleRecorder(
                sample_records.samples(made.source.rollouts, made.source.advantages, pieces), len(made.source.rollouts)
            ),
            answers=None if heard is None else lambda: SampleRecorder(sample_records.answers(heard.rollouts),
            len(heard.rollouts)),
        )  # fmt: skip
    model = load_policy(plan, folder, model_folder)
    renderer = Renderer(
        model.tokenizer,
        train_on=config.data.train_on if row.source == "examples" else "completion",
        step_separator=config.data.step_separator,
        context=longest_of(model.module.config),
    )
    plan, clipped = within_context(plan, renderer)
    source, items, notes = source_of(plan, renderer, on_policy_answers(plan, model, renderer))
    notes = (*model.notes, *renderer.describe(), *clipped, *notes)
    learner = LocalLearner(
        model,
        Schedule(config.update.learning_rate, config.update.schedule, config.update.warmup_steps, config.run.steps),
        adam=adam_of(plan),
        max_grad_norm=config.update.max_grad_norm,
    )
    heldout: list[Batch] = []
    if config.data.evaluate is not None:
        heldout = _once(plan, prepare_records(config.data.evaluate, config, row, renderer).items)
    largest = max(item.tokens for item in items)
    training = Training(model, learner, objective_of(row), source, heldout, notes, largest)
    if "reference" in row.needs:
        training = with_reference(plan, folder, training, source, _once(plan, items))
    if "teacher_distribution" in row.needs:
        teacher = Teacher(teacher_of(plan, folder, model))
        longest = plan.config.data.max_tokens if config.data.on_policy_fraction else largest
        refuse_shorter("the teacher (model.teacher)", teacher.model, model, longest)
        taught = [teacher(each) for each in training.heldout]
        training = replace(training, source=FrozenOutputSource(source, teacher), heldout=taught)
    if "score_head" in row.needs:
        batches, words = evaluation.demonstrations(plan, items, renderer)
        centered = f"after training, scores are centered on {words}"
        training = replace(training, demonstrations=batches, notes=(*training.notes, centered))
    if config.run.keep_best:
        evaluation.refuse_unknown(config.run.best_metric, training.heldout, training.objective)
    return training


def on_policy_answers(plan: Plan, model: LanguageModel, renderer: Renderer) -> OnPolicyAnswers | None:
    """Who answers anew what the records ask, where the recipe wants that."""
    config, rollouts = plan.config, plan.config.rollouts
    if "teacher_distribution" not in plan.row.needs or not config.data.on_policy_fraction:
        return None
    longest = min(config.data.max_tokens, config.update.tokens_per_microbatch)
    return OnPolicyAnswers(
        sampler_of(plan, model, renderer, longest),
        config.data.on_policy_fraction,
        config.seed,
        rollouts.temperature,
        rollouts.max_new_tokens,
        longest,
    )


def source_of(
    plan: Plan, renderer: Renderer, rewrite: OnPolicyAnswers | None = None
) -> tuple[FileSource, tuple[Item, ...], tuple[str, ...]]:
    """The training data as a source, all of its items, and where they come from in words."""
    config = plan.config
    shares = [each.share for each in config.data.mix]
    shares = [1 - math.fsum(shares), *shares]
    parts = [
        prepare_records(name, config, plan.row, renderer)
        for name in (config.data.train, *(each.use for each in config.data.mix))
    ]
    source = FileSource(
        parts,
        batch_size=config.data.batch_size,
        tokens_per_microbatch=config.update.tokens_per_microbatch,
        max_tokens=config.data.max_tokens,
        seed=config.seed,
        shuffle=config.data.shuffle,
        weights=shares if config.data.mix else None,
        rewrite=rewrite,
    )
    told = [f"{len(each.items)} records from {each.name}" for each in parts]
    if config.data.mix:
        told = [f"{line}, {share:.4g} of every step" for line, share in zip(told, shares, strict=True)]
    return source, tuple(item for each in parts for item in each.items), tuple(told)


def with_reference(
    plan: Plan, folder: Path, training: Training, source: FileSource, everything: Sequence[Batch]
) -> Training:
    """The same with reference log-probs, all of them computed now or found in the run folder."""
    reference = reference_of(plan, folder, training.model)
    fresh = reference.learn([*everything, *training.heldout])
    told = f"reference log-probs of {fresh} sequences computed, {len(reference.known)} known"
    if plan.row.source != "unpaired":  # its companions are made anew in every epoch
        reference.model = None
    return replace(
        training,
        source=FrozenOutputSource(source, reference),
        heldout=[reference(each) for each in training.heldout],
        notes=(*training.notes, *reference.notes, told),
    )


def _once(plan: Plan, items: Sequence[Item]) -> list[Batch]:
    config = plan.config
    return once(items, tokens_per_microbatch=config.update.tokens_per_microbatch, max_tokens=config.data.max_tokens)


def train(plan: Plan, folder: Path, *, say: Say = print, header: str = "") -> int:
    """A new run in `folder`, from the first step to the last; returns the last step finished."""
    claim = Claim(folder, MADE, say=say)
    with ExitStack() as ending:
        try:
            text = header + as_yaml(plan.config)
            plan, inputs = begin(plan, folder, say=say)
            training = assemble(plan, folder)
            ending.callback(closed, training, say)
            environment = describe(devices=[device()])
            run = RunFolder.create(folder, text, environment, inputs=inputs, lock=claim.lock, say=say)
        except BaseException:
            claim.abandon()
            raise
        with run:
            return _drive(plan, training, run, done=0, say=say)


def resume(folder: Path, *, accept_changes: bool = False, say: Say = print) -> int:
    """Continue a run from its newest checkpoint that verifies, to the same bits; returns the last step finished.

    A run whose inputs are not what they were is refused, unless the changes are accepted (`ascent.api.input_changes`).
    """
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder} is no run folder: it has no {CONFIG}; ascent runs lists the runs of a folder. A run that was "
            "killed before it had one is started again with ascent train and the same --run"
        )
    plan = resolve(validate(read_yaml((folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG))))
    ended = state_of(folder) == "finished"
    with ExitStack() as ending:
        lock = ending.enter_context(Lock(folder, say=say))
        found = newest(folder / CHECKPOINTS)
        for line in found.lines() if found else ["no checkpoint was saved; starting from the first step"]:
            say(line)
        done, steps = (found.step if found else 0), plan.config.run.steps
        if done >= steps and ended:  # killed after its last save, a run has yet to end
            raise ValueError(
                f"{folder} is finished (step {done} of {steps}), so there is nothing to resume; to train further, "
                f"raise run.steps in {folder / CONFIG}"
            )
        plan, changes = go_on(plan, folder, done, started=found is not None, accept=accept_changes, say=say)
        training = assemble(plan, folder, model_folder=found.folder / "model" if found else None)
        ending.callback(closed, training, say)
        environment = describe(devices=[device()])
        run = RunFolder.reopen(folder, done, environment, changes=changes, lock=lock, say=say)
        ending.enter_context(run)
        return _drive(plan, training, run, done=done, say=say, found=found)


def closed(training: Training, say: Say) -> None:
    """What a run holds is given back however it ends. Where that fails it is told: the run itself is over."""
    try:
        training.close()
    except Exception as error:
        say(f"what rewards or environments held could not be given back ({type(error).__name__}: {error})")


def _drive(
    plan: Plan, training: Training, run: RunFolder, *, done: int, say: Say, found: ResumePoint | None = None
) -> int:
    settings = plan.config.run
    for note in training.notes:
        say(note)
    if training.samples is not None and training.evaluate is None:
        say("no held-out prompts: only rewards in training will be known; data.evaluate names some")
    judged: dict[str, float] = {}  # the last evaluation; the checkpoint saved with it is as good as it says

    def evaluate(step: int) -> dict[str, float]:
        by_sampling = training.evaluate
        found = by_sampling(step) if by_sampling else evaluation.evaluated(
            training.learner, training.heldout, training.objective
        )  # fmt: skip
        judged.update(found)
        return dict(judged)

    terminal = Terminal(settings.steps, done=done, history=map(numbers, run.history()))
    tracker = Fanout(run, [terminal], say=say)
    parts = loop.LoopParts(
        source=training.source,
        trained=training.trained,
        tracker=tracker,
        save=lambda step, state: _save(plan, training, run, step, state, judged),
        evaluate=evaluate if training.heldout or training.evaluate else None,
    )
    if found is not None:
        state = read_state(found.folder)
        loop.load_state(parts, state)
        rng.restore(state["rng"])
    schedule = loop.Schedule(settings.steps, settings.save_every, settings.evaluate_every)
    try:
        for each in trackers_of(plan, run, resumed_at=done if found else None):
            tracker.add(each)
        for each in start_writer(
            training, run, terminal.note, expected=[CLIP_FRACTION] if plan.row.clips_by_design else []
        ):
            tracker.add(each)
        with Stop() as stop:
            if training.evaluate is not None and done == 0:  # what training starts from; no checkpoint is judged by it
                before = training.evaluate(0)
                tracker.log(0, before)
                evaluation.refuse_unreported_part(settings.best_metric, before)
            last = loop.run(parts, schedule, done=done, stop=lambda: stop.requested or bool(training.halted()))
    except BaseException as error:
        try:
            run.end("failed", done, f"{type(error).__name__}: {error}")
        except OSError as second:  # a full disk, most likely; the first error is the one to show
            say(f"the failure could not be noted in {run.path}: {second}")
        raise
    finally:
        tracker.close_others()
    stopped = last < settings.steps
    why = f"asked by {stop.received}" if stop.received else training.halted()
    if stopped and not stop.received:
        say(why)
    for line in compared(run):  # before the end is noted: whoever is killed after that is not continued
        say(line)
    run.end("stopped" if stopped else "finished", last, why if stopped else "")
    for step in best(run.checkpoints, keep_of(plan)):
        say(f"kept for eval/{settings.best_metric}: {run.checkpoints / str(step)}")
    say(f"{'stopped after' if stopped else 'finished'} step {last} of {settings.steps}; the run is in {run.path}")
    return last


def start_writer(training: Training, run: RunFolder, warn: Say, *, expected: Sequence[str] = ()) -> Iterator[Tracker]:
    """What the run folder keeps besides metrics."""
    if training.samples is not None:
        yield SampleTracker(run, training.samples)
        yield WarningTracker(run, warn, training.complaints, expected)
    if training.answers is not None:
        yield EvalTracker(run, training.answers)


def keep_of(plan: Plan) -> RetentionPolicy:
    settings = plan.config.run
    return RetentionPolicy(settings.keep, settings.keep_best, evaluation.larger_is_better(settings.best_metric))


def _save(
    plan: Plan, training: Training, run: RunFolder, step: int, state: loop.State, judged: Mapping[str, float]
) -> None:
    """A checkpoint. Those that may be a reward model's last word (the final one, the best) know what to subtract.

    It has a score only where the best are kept: a score by which nobody chose would be taken for another one later.
    """
    settings = plan.config.run
    score = judged.get(f"eval/{settings.best_metric}") if settings.keep_best else None
    if training.demonstrations and (step == settings.steps or settings.keep_best):
        training.model.normalization = evaluation.normalization(training.learner, training.demonstrations)
    save(
        run.checkpoints,
        step,
        {**state, "rng": rng.capture()},
        {"model": training.model.save, **training.saved},
        keep=keep_of(plan),
        score=score,
    )
