"""A run that learns from files, built from its plan: data, policy, reference or teacher, held-out batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ascent import loop
from ascent.data.prepare import Item
from ascent.data.render import Renderer
from ascent.data.sources import FileSource, single_pass
from ascent.maths.batch import PackedBatch
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.runs.sample_log import SampleBatch
from ascent.setup import evaluation
from ascent.setup.data import prepare_records, refuse_shorter, within_context
from ascent.setup.layout import agreed_target, choose_layout, describe_layout, divide
from ascent.setup.on_policy_distillation import OnPolicyAnswers
from ascent.setup.policy import adam_of, device, load_policy, reference_of
from ascent.setup.samplers import local_sampler
from ascent.setup.teacher import Teacher, teacher_of
from ascent.setup.unrounded import describe_masters, unrounded_weights
from ascent.update.learner import LocalLearner
from ascent.update.objective import Objective, objective_of
from ascent.update.reference_cache import ReferenceCache
from ascent.update.schedule import Schedule

Batch = PackedBatch


@dataclass(frozen=True)
class Training:
    """Every part of a run, built and checked; nothing is trained yet.

    `longest` is the number of tokens of the longest record. `steps` is the length of the run. `demonstrations` center a
    reward model's scores.
    """

    model: LanguageModel
    learner: LocalLearner
    objective: Objective
    source: loop.Source
    heldout: Sequence[Batch]
    notes: tuple[str, ...]
    longest: int
    steps: int
    demonstrations: Sequence[Batch] = ()
    evaluate: Callable[[int], dict[str, float]] | None = (
        None  # by sampling, where there are no held-out batches
    )
    samples: Callable[[], SampleBatch] | None = None  # the rollouts of the last step
    answers: Callable[[], SampleBatch] | None = None  # the completions of the last evaluation
    reward_failures: Callable[[], list[str]] = (
        list  # why rewards could not score something, each reason once
    )
    others: tuple[
        loop.TrainedModel, ...
    ] = ()  # trained besides the policy: a critic with weights of its own
    saved: Mapping[str, Callable[[Path], None]] = field(
        default_factory=dict
    )  # their folders of a checkpoint
    first_policy_step: int = 1  # after the critic's warm-up
    stop_reason: Callable[[], str] = (
        str  # why the run should end before its last step; empty while it should not
    )
    close: Callable[[], None] = lambda: (
        None
    )  # releases what rewards, environments and samplers hold

    @property
    def trained(self) -> list[loop.TrainedModel]:
        return [
            loop.TrainedModel("policy", self.learner, self.objective, self.first_policy_step),
            *self.others,
        ]


class FrozenOutputSource:
    """A source whose batches also carry the outputs of a frozen model: reference log-probs, or a teacher's
    distributions."""

    def __init__(self, source: FileSource, frozen: ReferenceCache | Teacher) -> None:
        self.source, self.frozen = source, frozen

    def next(self, step: int) -> list[Batch]:
        return self.frozen.add(self.source.next(step))

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


def assemble_offline(plan: Plan, folder: Path, model_folder: Path | None, ranks: Ranks) -> Training:
    """Every part of a run that learns from files; `model_folder` is the checkpoint's model when resuming."""
    config, row = plan.config, plan.row
    model = load_policy(plan, folder, model_folder)
    renderer = Renderer(
        model.tokenizer,
        train_on=config.data.train_on if row.source == "examples" else "completion",
        step_separator=config.data.step_separator,
        context=max_sequence_length(model.module.config),
    )
    model.add_stop_ids(renderer.stop_ids)
    plan, clipped = within_context(plan, renderer)
    answers = on_policy_answers(plan, model, renderer, ranks)
    layout = choose_layout(plan, model, ranks)
    target = agreed_target(plan, model, ranks, layout)
    source, items, notes = source_of(plan, renderer, target, ranks, answers)
    if config.data.batch_size > len(items):
        few = f"data.batch_size={config.data.batch_size}, but there are only {len(items)} records"
        notes = (*notes, f"{few}: a step has some of them several times")
    steps = config.run.steps
    if config.data.epochs is not None:
        steps = math.ceil(round(config.data.epochs * source.steps_per_epoch, 6))
        notes = (
            *notes,
            f"data.epochs={config.data.epochs:g}: {steps} steps of {config.data.batch_size} records",
        )
    notes = (*model.notes, *renderer.describe(), *clipped, *notes)
    if layout.sharded and answers is None:
        model.to_host()  # it is written there when it is saved
    learner = LocalLearner(
        divide(
            lambda: load_policy(plan, folder, model_folder, place="cpu"),
            ranks,
            torch.device(device()),
            layout,
        )
        if layout.sharded
        else model,
        Schedule(
            config.update.learning_rate, config.update.schedule, config.update.warmup_steps, steps
        ),
        adam=adam_of(plan),
        max_grad_norm=config.update.max_grad_norm,
        ranks=ranks,
        whole=model if layout.sharded else None,
        samples=answers is not None,
        unrounded=unrounded_weights(model) if model_folder is None else None,
    )
    notes = (
        *notes,
        *(describe_masters(model) if model_folder is None else ()),
        *describe_layout(layout),
    )
    heldout: list[Batch] = []
    if config.data.evaluate is not None:
        found = prepare_records(config.data.evaluate, plan, renderer)
        notes = (*notes, f"{len(found.items)} held-out records from {found.name}")
        heldout = _batches(plan, found.items, ranks)
    longest = max(item.tokens for item in items)
    training = Training(model, learner, objective_of(row), source, heldout, notes, longest, steps)
    if "reference" in row.needs:
        training = _with_reference(plan, folder, training, source, _batches(plan, items, ranks))
    if "teacher_distribution" in row.needs:
        training = _with_teacher(plan, folder, training, source)
    if "score_head" in row.needs:
        batches, words = evaluation.demonstrations(plan, items, renderer, ranks)
        centered = f"after training, scores are centered on {words}"
        training = replace(training, demonstrations=batches, notes=(*training.notes, centered))
    if config.run.keep_best:
        evaluation.refuse_unknown(config.run.best_metric, training.heldout, training.objective)
    return training


def on_policy_answers(
    plan: Plan, model: LanguageModel, renderer: Renderer, ranks: Ranks
) -> OnPolicyAnswers | None:
    """The sampler of on-policy distillation; None where data.on_policy_fraction is 0."""
    config, rollouts = plan.config, plan.config.rollouts
    if "teacher_distribution" not in plan.row.needs or not config.data.on_policy_fraction:
        return None
    longest = min(config.data.max_tokens, config.update.max_microbatch_tokens)
    return OnPolicyAnswers(
        local_sampler(rollouts.engine, model, renderer, longest),
        config.data.on_policy_fraction,
        config.seed,
        rollouts.temperature,
        rollouts.max_new_tokens,
        longest,
        ranks,
    )


def source_of(
    plan: Plan,
    renderer: Renderer,
    target: int,
    ranks: Ranks,
    rewrite: OnPolicyAnswers | None = None,
) -> tuple[FileSource, tuple[Item, ...], tuple[str, ...]]:
    """The training data as a source, all of its items, and a note for each part of the mix.

    Micro-batches have `target` tokens, or as many as the longest record.
    """
    config = plan.config
    limit = config.update.max_microbatch_tokens
    shares = [each.share for each in config.data.mix]
    shares = [1 - math.fsum(shares), *shares]
    parts = [
        prepare_records(name, plan, renderer)
        for name in (config.data.train, *(each.use for each in config.data.mix))
    ]
    if (
        plan.row.source == "unpaired" or rewrite is not None
    ):  # records may become longer, up to the limit
        target = limit
    longest = max(item.tokens for each in parts for item in each.items)
    source = FileSource(
        parts,
        batch_size=config.data.batch_size,
        tokens_per_microbatch=min(limit, max(target, longest)),
        max_tokens=config.data.max_tokens,
        seed=config.seed,
        shuffle=config.data.shuffle,
        weights=shares if config.data.mix else None,
        rewrite=rewrite,
        ranks=ranks.count,
    )
    notes = [f"{len(each.items)} records from {each.name}" for each in parts]
    if config.data.mix:
        notes = [
            f"{line}, {share:.4g} of every step" for line, share in zip(notes, shares, strict=True)
        ]
    return source, tuple(item for each in parts for item in each.items), tuple(notes)


def _with_reference(
    plan: Plan, folder: Path, training: Training, source: FileSource, batches: Sequence[Batch]
) -> Training:
    """Adds reference log-probs, all of them computed now or read from the run folder."""
    reference = reference_of(plan, folder, training.model, training.learner.ranks)
    fresh = reference.precompute([*batches, *training.heldout])
    note = f"reference log-probs of {fresh} sequences computed, {len(reference.cached)} cached"
    if (
        plan.row.source != "unpaired"
    ):  # KTO pairs prompts with other answers, differently in every epoch
        reference.model = None
    return replace(
        training,
        source=FrozenOutputSource(source, reference),
        heldout=reference.add(training.heldout),
        notes=(*training.notes, *reference.notes, note),
    )


def _with_teacher(plan: Plan, folder: Path, training: Training, source: FileSource) -> Training:
    """Adds the teacher's distributions to every batch."""
    data = plan.config.data
    teacher = Teacher(teacher_of(plan, folder, training.model), training.learner.ranks)
    longest = data.max_tokens if data.on_policy_fraction else training.longest
    refuse_shorter("the teacher (model.teacher)", teacher.model, training.model, longest)
    heldout = teacher.add(training.heldout)
    return replace(training, source=FrozenOutputSource(source, teacher), heldout=heldout)


def _batches(plan: Plan, items: Sequence[Item], ranks: Ranks) -> list[Batch]:
    config = plan.config
    return single_pass(
        items,
        tokens_per_microbatch=config.update.max_microbatch_tokens,
        max_tokens=config.data.max_tokens,
        ranks=ranks.count,
    )
