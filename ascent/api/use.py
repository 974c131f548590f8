"""Using a trained model: score files, sample answers, export, and train from Python in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ascent.api.training import resume as resume_run
from ascent.api.training import train as train_plan
from ascent.checkpoints import export as exporting
from ascent.config.load import nested
from ascent.config.validate import validate
from ascent.data.errors import RowError
from ascent.data.load import LoadResult
from ascent.data.prepare import Limits, prepare
from ascent.data.render import Renderer
from ascent.data.schemas import Record
from ascent.data.sources import once
from ascent.engines.native.engine import NativeEngine
from ascent.models.load import load
from ascent.models.locate import resolve as model_folder
from ascent.models.model import longest as longest_of
from ascent.plan.resolve import resolve
from ascent.records import Example, Message, Pair, Prompt, Ranking, Request, StepExample
from ascent.rewards.outcome import Unscored
from ascent.rewards.steps import Answer
from ascent.runs.folder import Run, read_run
from ascent.setup.data import load_records
from ascent.setup.policy import device
from ascent.setup.reward_models import ProcessRewardModel, judge_in
from ascent.update.device import to_device

logger = logging.getLogger("ascent.api")


def train(
    algorithm: str,
    *,
    model: str,
    data: str,
    run: str | Path,
    evaluate: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Train `model` on `data` with a row of the table; returns the finished run, read back from its folder.

    `settings` holds any other key of a recipe, dotted: {"update.learning_rate": 1e-5, "run.steps": 200}.
    """
    tree = {"algorithm": algorithm, "model.policy": model, "data.train": data, **(settings or {})}
    if evaluate is not None:
        tree["data.evaluate"] = evaluate
    train_plan(resolve(validate(nested(tree))), Path(run))
    return read_run(Path(run))


def resume(run: str | Path, *, accept_changes: bool = False) -> Run:
    """Continue a run that was stopped or killed, to the same bits; returns it, read back from its folder.

    Where its inputs have changed since, that is refused unless the changes are accepted.
    """
    resume_run(Path(run), accept_changes=accept_changes)
    return read_run(Path(run))


class ScoredRecord(NamedTuple):
    """One line of a file: each of its sequences' scores, chosen first for a pair, best first for a ranking. A process
    reward model has as many for a sequence as that has steps."""

    place: int
    scores: tuple[float | tuple[float, ...], ...]


def score(
    model: str, file: str, *, tokens_per_microbatch: int = 16384, say: Callable[[str], None] = logger.info
) -> Iterator[ScoredRecord]:
    """A reward model's scores of every record in a file, in the file's order.

    Demonstrations score 0 on average where the model knows what they scored; where it does not, that is said.
    """
    judge = judge_in(model)
    if judge.step_format is not None:
        say(f"{model} judges steps: of every answer, the probability of each step to be right")
        yield from _step_scores(ProcessRewardModel(model, loaded=judge), load_records(file, None, seed=0))
        return
    center = judge.normalization
    say(
        f"scores are relative to {center.records} demonstrations (mean {center.mean:.4g}, std {center.std:.4g})"
        if center is not None
        else f"{model} does not say what demonstrations score: its training had not ended; scores are raw"
    )
    records = load_records(file, None, seed=0)
    limits = Limits(max_tokens=tokens_per_microbatch, max_prompt_tokens=tokens_per_microbatch - 1)
    renderer = Renderer(judge.tokenizer, train_on="completion", context=longest_of(judge.module.config))
    items = prepare(records, renderer, limits).items
    for place, item in enumerate(items, start=1):
        budget = {"tokens_per_microbatch": tokens_per_microbatch, "max_tokens": tokens_per_microbatch}
        (batch,) = once([item], **budget, companions=False)
        with torch.no_grad():
            scores = judge.outputs(to_device(batch, judge.device), frozenset({"scores_B"}))["scores_B"]
        yield ScoredRecord(place, tuple((scores if center is None else center(scores)).tolist()))


def _step_scores(judge: ProcessRewardModel, records: LoadResult) -> Iterator[ScoredRecord]:
    for place, (record, at) in enumerate(zip(records.records, records.places, strict=True), start=1):
        try:
            found = judge(_answers(record, judge))
        except RowError as error:
            raise ValueError(f"{at}: {error}") from error
        scores = []
        for each in found:
            if isinstance(each, Unscored):
                raise ValueError(f"{at}: {each.detail}")
            scores.append(tuple(step.value for step in each))
        yield ScoredRecord(place, tuple(scores))


def _answers(record: Record, judge: ProcessRewardModel) -> list[Answer]:
    """What a record has to be judged, in the order of its scores."""
    if isinstance(record, StepExample):
        return [Answer(record.prompt.messages, judge.joined(record.steps))]
    if isinstance(record, Example):
        return [Answer(record.messages[:-1], record.messages[-1].content)]
    if isinstance(record, Prompt):
        raise RowError("missing", "a question alone has no steps to score; give answers, too")
    if isinstance(record, Pair):
        answers: Sequence[tuple[Message, ...]] = (record.chosen, record.rejected)
    else:
        answers = record.answers if isinstance(record, Ranking) else (record.answer,)
    return [Answer((*record.prompt.messages, *answer[:-1]), answer[-1].content) for answer in answers]


class SampledAnswers(NamedTuple):
    prompt: str
    answer: str
    tokens: int
    stop: str


def sample(
    model: str,
    prompts: Sequence[str],
    *,
    samples: int = 1,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_p: float = 1.0,
    greedy: bool = False,
    seed: int = 0,
) -> Iterator[SampledAnswers]:
    """Answers of a model to plain-text prompts, in their order, with the chat template where it has one."""
    policy = load(model, device=device())
    policy.eval()
    renderer = Renderer(policy.tokenizer, train_on="completion")
    asked = [Prompt(str(n), (Message("user", text),)) for n, text in enumerate(prompts)]
    requests = [
        Request(p.id, k, renderer.prompt(p.messages), max_new_tokens, seed, temperature, top_p, greedy)
        for p in asked
        for k in range(samples)
    ]
    longest = max(len(request.tokens) for request in requests) + max_new_tokens
    engine = NativeEngine(policy, renderer.stop_ids, longest_sequence=longest)
    waiting, ready = iter([(request.prompt_id, request.sample) for request in requests]), {}
    turn = next(waiting, None)
    for completion in engine.sample(requests):
        ready[completion.prompt_id, completion.sample] = completion
        while turn in ready:
            done = ready.pop(turn)
            text = str(policy.tokenizer.decode(list(done.tokens), skip_special_tokens=True))
            yield SampledAnswers(prompts[int(done.prompt_id)], text, len(done.tokens), done.stop)
            turn = next(waiting, None)


def export(source: str, target: Path) -> Path:
    """A run's newest model as a plain Hugging Face folder that loads with no Ascent installed."""
    folder = model_folder(source)
    if not isinstance(folder, Path):
        raise ValueError(f"{source} is a hub name; export takes a run or a model folder of this machine")
    return exporting.export(exporting.copy_of(folder), target)
