"""Score records with a reward model: `ascent.score`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ascent.data.errors import RowError
from ascent.data.load import LoadResult
from ascent.data.prepare import Limits, prepare
from ascent.data.render import Renderer
from ascent.data.schemas import Record
from ascent.data.sources import single_pass
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample
from ascent.rewards.outcome import Unscored
from ascent.rewards.steps import Answer
from ascent.setup.data import load_records
from ascent.setup.policy import load_frozen
from ascent.setup.reward_models import ProcessRewardModel
from ascent.update.device import to_device

logger = logging.getLogger("ascent.api")


@dataclass(frozen=True)
class ScoredRecord:
    """The scores of one record: chosen before rejected, a ranking best first.

    `record` counts from 1. A process reward model gives one score for each step of a sequence.
    """

    record: int
    scores: tuple[float | tuple[float, ...], ...]


def score(
    model: str,
    data: str,
    *,
    tokens_per_microbatch: int = 16384,
    say: Callable[[str], None] = logger.info,
) -> Iterator[ScoredRecord]:
    """Score every record of a file with a reward model, in the file's order.

    model: a run, a model folder or a hub name, with a score head.
    data: records as for training, or a built-in task.
    tokens_per_microbatch: the longest record, in tokens.
    say: receives what the scores are relative to.

    Returns an iterator of `ScoredRecord`. Scores are centered on demonstrations where the model knows their mean.

        for each in ascent.score("runs/reward_model", "pairs.jsonl"):
            chosen, rejected = each.scores
    """
    judge = load_frozen(model, head="scalar")
    if judge.step_format is not None:
        say(
            f"{model} is a process reward model: one score for each step, the probability that it is right"
        )
        yield from _step_scores(
            ProcessRewardModel(model, loaded=judge), load_records(data, None, seed=0)
        )
        return
    center = judge.normalization
    say(
        f"scores are relative to {center.records} demonstrations (mean {center.mean:.4g}, std {center.std:.4g})"
        if center is not None
        else f"{model} holds no score normalization, because its training had not ended; scores are raw"
    )
    yield from _sequence_scores(judge, load_records(data, None, seed=0), tokens_per_microbatch)


def _sequence_scores(
    judge: LanguageModel, records: LoadResult, budget: int
) -> Iterator[ScoredRecord]:
    renderer = Renderer(
        judge.tokenizer,
        train_on="completion",
        context=max_sequence_length(judge.module.config),
        check_content=False,
    )
    items = prepare(
        records, renderer, Limits(max_tokens=budget, max_prompt_tokens=budget - 1)
    ).items
    for number, item in enumerate(items, start=1):
        (batch,) = single_pass(
            [item], tokens_per_microbatch=budget, max_tokens=budget, mismatched=False
        )
        with torch.no_grad():
            scores_B = judge.outputs(to_device(batch, judge.device), frozenset({"scores_B"}))[
                "scores_B"
            ]
        normalize = judge.normalization
        yield ScoredRecord(
            number, tuple((scores_B if normalize is None else normalize(scores_B)).tolist())
        )


def _step_scores(judge: ProcessRewardModel, records: LoadResult) -> Iterator[ScoredRecord]:
    for number, (record, place) in enumerate(
        zip(records.records, records.places, strict=True), start=1
    ):
        try:
            outcomes = judge(_answers(record, judge))
        except RowError as error:
            raise ValueError(f"{place}: {error}") from error
        scores = []
        for outcome in outcomes:
            if isinstance(outcome, Unscored):
                raise ValueError(f"{place}: {outcome.detail}")
            scores.append(tuple(step.value for step in outcome))
        yield ScoredRecord(number, tuple(scores))


def _answers(record: Record, judge: ProcessRewardModel) -> list[Answer]:
    """The answers of a record, in the order of its scores."""
    if isinstance(record, StepExample):
        return [Answer(record.prompt.messages, judge.joined(record.steps))]
    if isinstance(record, Example):
        return [Answer(record.messages[:-1], record.messages[-1].content)]
    if isinstance(record, Prompt):
        raise RowError("missing", "a prompt alone has no steps to score; give answers, too")
    if isinstance(record, Pair):
        answers: Sequence[tuple[Message, ...]] = (record.chosen, record.rejected)
    else:
        answers = record.answers if isinstance(record, Ranking) else (record.answer,)
    return [
        Answer((*record.prompt.messages, *answer[:-1]), answer[-1].content) for answer in answers
    ]
