"""Measure a model on a task or a file: `ascent.evaluate`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascent.data.errors import Policy
from ascent.data.load import load as load_data
from ascent.maths.estimates import Estimate, estimate, pass_at, powers_of_two
from ascent.maths.rouge import rouge_l, words
from ascent.records import Prompt, Rollout
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import Tally
from ascent.rewards.registry import Batch, Reward, find
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.runs.jsonl import encode_line, replace_file
from ascent.setup.data_names import as_dataset
from ascent.setup.environments import as_section
from ascent.setup.generation import Generator
from ascent.tasks.named import is_task, read_name

TASK_PROMPTS = 256  # prompts of a built-in task, where no number is given
REFERENCE_WORDS = 5.0  # references of fewer words on average are short answers, without ROUGE-L
RESULT_MARKS = ("####", "\\boxed")
SECONDS_PER_ANSWER, LEAST_SECONDS = 1.0, 60.0

Parts = Mapping[str, float | None]
Answer = tuple[Rollout, Parts]


@dataclass(frozen=True)
class EvalAnswer:
    """One completion. `sample` is its number, or greedy; `answer` is the reference; `scores` are None where unknown."""

    id: str
    sample: int | str
    prompt: str
    completion: str
    answer: str | None
    scores: Mapping[str, float | None]
    tokens: int
    stop: str


@dataclass(frozen=True)
class EvalResult:
    """`metrics` are means over prompts with 95% intervals; `tokens` describes lengths; `unscored` counts by reason.

    `answers` are all completions: those of a prompt follow each other, the greedy one first.
    """

    model: str
    data: str
    scored_by: str
    prompts: int
    samples: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, Estimate]
    tokens: Mapping[str, Mapping[str, float]]
    unscored: Mapping[str, int]
    answers: Sequence[EvalAnswer] = ()

    def as_dict(self, *, answers: int = 0) -> dict[str, Any]:
        """For JSON, with the answers to the first prompts only."""
        found = asdict(self)
        shown = list(dict.fromkeys(each.id for each in self.answers))[:answers]
        found["answers"] = [each for each in found["answers"] if each["id"] in shown]
        return found if answers else {key: each for key, each in found.items() if key != "answers"}


@dataclass(frozen=True)
class AnswerScorer:
    """Named scores of answers, in their order; `correct` is 0 or 1, or None where it is unknown."""

    name: str
    score: Callable[[Sequence[Rollout], Tally], list[Parts]]


def evaluate(
    model: str,
    data: str,
    *,
    samples: int = 4,
    limit: int | None = None,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    engine: str = "native",
    reward: str | Mapping[str, Any] | None = None,
    env: str | Mapping[str, Any] | None = None,
    invalid_rows: Policy = "fail",
    out: str | Path | None = None,
) -> EvalResult:
    """Measure a model: greedy accuracy, mean@k, pass@k, ROUGE-L, truncation, lengths.

    model: a run, a model folder or a hub name.
    data: a built-in task (its held-out split unless the name says otherwise), or prompts with answers.
    samples: sampled completions of each prompt, besides the greedy one.
    limit: at most this many prompts; a task has 256 otherwise.
    max_new_tokens, temperature, top_p: how to sample.
    seed: the same seed gives the same completions and intervals.
    engine: native; vllm or remote (ascent serve), which start a server; or the URLs of servers that have the model.
    reward: scores a file, a name or {"use": name, options}; by default mathematics or exact match, whichever fits the
        answers. A task has a verifier.
    env: a multi-turn environment, as in a recipe; its own verdict counts where no reward is given.
    invalid_rows: "fail", or "skip" rows that cannot be read.
    out: write every answer to this new .jsonl file: prompt, completion, reference, scores.

    Returns an `EvalResult`; its `answers` are what `out` holds.

        result = ascent.evaluate("runs/sft", "arithmetic", samples=8, out="answers.jsonl")
        result.metrics["pass@8"].value, result.answers[0].completion
    """
    _check_arguments(samples, limit, invalid_rows, out)
    section = as_section(env)
    prompts = load_prompts(data, limit, invalid_rows)
    scorer = scorer_for(data, prompts, reward)
    settings = SamplingParams(max_new_tokens, seed, temperature, top_p)
    rollouts = generate_answers(model, prompts, samples, settings, section, engine)
    if (
        section is not None
        and reward is None
        and any(each.episode and each.episode.parts for each in rollouts)
    ):
        scorer = AnswerScorer(
            f"env {section['use']}", lambda found, _: [_episode_parts(each) for each in found]
        )
    tally = Tally()
    scores = _score(scorer, rollouts, tally)
    answers = [_answer(rollout, parts) for rollout, parts in zip(rollouts, scores, strict=True)]
    if out is not None:
        replace_file(Path(out), b"".join(encode_line(asdict(each)) for each in answers))
    sampling = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    return EvalResult(
        *(model, data, scorer.name, len(prompts), samples, sampling),
        metrics=estimate_metrics(rollouts, scores, samples=samples, seed=seed),
        tokens=lengths(rollouts),
        unscored={
            f"{name}/{kind}": count for (name, kind), count in sorted(tally.unscored.items())
        },
        answers=answers,
    )


def _check_arguments(
    samples: int, limit: int | None, invalid_rows: str, out: str | Path | None
) -> None:
    if samples < 0:
        raise ValueError(
            f"samples={samples}, but it counts answers to each prompt; 0 leaves the greedy ones"
        )
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}, but at least 1 prompt must be asked")
    if invalid_rows not in ("fail", "skip"):
        raise ValueError(f"invalid_rows={invalid_rows!r}, but it must be fail or skip")
    if out is not None and (Path(out).exists() or not Path(out).parent.is_dir()):
        raise ValueError(f"out={out} must be a new file in a folder that exists; name another one")


def _answer(rollout: Rollout, scores: Parts) -> EvalAnswer:
    return EvalAnswer(
        id=rollout.prompt.id,
        sample="greedy" if rollout.sample == GREEDY else rollout.sample,
        prompt=rollout.prompt.messages[-1].content,
        completion=rollout.text,
        answer=rollout.prompt.answer,
        scores=scores,
        tokens=rollout.length,
        stop=rollout.turns[-1].completion.stop,
    )


def _score(scorer: AnswerScorer, rollouts: Sequence[Rollout], tally: Tally) -> list[Parts]:
    """Scores of all rollouts. Where the environment failed there are none, and the failure is counted."""
    failed = [each.episode is not None and each.episode.failed for each in rollouts]
    for rollout, out in zip(rollouts, failed, strict=True):
        if out and rollout.episode is not None:
            tally.unscored["env", rollout.episode.ended] += 1
    found = iter(
        scorer.score([each for each, out in zip(rollouts, failed, strict=True) if not out], tally)
    )
    return [{} if out else next(found) for out in failed]


def _episode_parts(rollout: Rollout) -> Parts:
    return {} if rollout.episode is None else rollout.episode.parts


def load_prompts(data: str, limit: int | None, invalid_rows: Policy = "fail") -> list[Prompt]:
    if is_task(data):
        named = read_name(data)
        count = named.count if named.count is not None else limit or TASK_PROMPTS
        return list(named.task.prompts(named.split or "heldout", count))[:limit]
    with as_dataset(data):
        found = load_data(data, "prompts", invalid_rows=invalid_rows).records[:limit]
    return [record for record in found if isinstance(record, Prompt)]


def scorer_for(
    data: str, prompts: Sequence[Prompt], reward: str | Mapping[str, Any] | None
) -> AnswerScorer:
    """A task's own verifier, the given reward, or the default reward of the answers."""
    if is_task(data):
        if reward is not None:
            raise ValueError(
                f"{data} is scored by its own verifier; leave out --reward {reward}, or give a file"
            )
        task = read_name(data).task
        return AnswerScorer(
            f"verifier of {task.name}",
            lambda rollouts, _: [task.verify(r.prompt, r.text) for r in rollouts],
        )
    given = default_reward(prompts) if reward is None else reward
    section = as_section(given, "--reward", "{use: programs, sandbox: none}")
    if section is None:
        return AnswerScorer("no reward", lambda rollouts, _: [{} for _ in rollouts])
    use = section["use"]
    found = find(use, **{key: value for key, value in section.items() if key != "use"})
    return AnswerScorer(
        f"reward {use}", lambda rollouts, tally: _reward_parts(use, found, rollouts, tally)
    )


def default_reward(prompts: Sequence[Prompt]) -> str | None:
    """`mathematics` where prompts or answers mark results with #### or \\boxed, `exact` for other short answers.

    None where no prompt has an answer, and where answers are long texts.
    """
    texts = (
        text for prompt in prompts for text in (prompt.messages[-1].content, prompt.answer or "")
    )
    if any(mark in text for text in texts for mark in RESULT_MARKS):
        return "mathematics"
    return (
        None
        if all(prompt.answer is None for prompt in prompts) or _long_references(prompts)
        else "exact"
    )


def _reward_parts(
    use: str, reward: Reward, rollouts: Sequence[Rollout], tally: Tally
) -> list[Parts]:
    try:
        timeout = max(LEAST_SECONDS, SECONDS_PER_ANSWER * len(rollouts))
        outcomes = score_all({use: reward}, rollouts, timeout=timeout, tally=tally)
    finally:
        if isinstance(reward, Batch):
            reward.close()
    named = [
        {part or "reward": value for part, value in each[use].parts.items()} for each in outcomes
    ]
    if all(set(each) <= {"reward"} and each.get("reward") in (None, 0.0, 1.0) for each in named):
        return [
            {"correct": each.get("reward")} for each in named
        ]  # a single number of 0 or 1 is correctness
    return [dict(each) for each in named]


def generate_answers(
    model: str,
    prompts: Sequence[Prompt],
    samples: int,
    settings: SamplingParams,
    env: Mapping[str, Any] | None = None,
    engine: str = "native",
) -> list[Rollout]:
    """For each prompt the greedy completion, then its samples."""
    with Generator(model, prompts, settings, env, engine) as generator:
        return list(generator.stream([GREEDY, *range(samples)], noise_key="evaluate"))


def estimate_metrics(
    rollouts: Sequence[Rollout], scores: Sequence[Parts], *, samples: int, seed: int = 0
) -> dict[str, Estimate]:
    """Every metric as a mean over prompts of the mean over that prompt's completions; unscored ones are left out."""
    groups: dict[str, list[Answer]] = {}
    for rollout, parts in zip(rollouts, scores, strict=True):
        groups.setdefault(rollout.prompt.id, []).append((rollout, parts))
    greedy = [[each for each in group if each[0].sample == GREEDY] for group in groups.values()]
    drawn = [[each for each in group if each[0].sample != GREEDY] for group in groups.values()]
    rouge = _long_references([group[0][0].prompt for group in groups.values()])
    names = list(dict.fromkeys(name for parts in scores for name in parts))
    kinds = [("greedy", greedy), *([(f"mean@{samples}", drawn)] if samples else [])]
    found: dict[str, list[float]] = {}
    for kind, each in kinds:
        found |= {f"{kind}/{name}": _means(each, _part(name)) for name in names}
        if rouge:
            found[f"{kind}/rouge_l"] = _means(each, lambda answer: _rouge(answer[0]))
        found[f"{kind}/truncated"] = _means(each, lambda answer: float(answer[0].truncated))
    for k in powers_of_two(samples) if "correct" in names else []:
        found[f"pass@{k}"] = _passes(k, drawn)
    return {name: estimate(values, seed=seed) for name, values in found.items() if values}


def _part(name: str) -> Callable[[Answer], float | None]:
    return lambda answer: answer[1].get(name)


def _means(
    groups: Sequence[Sequence[Answer]], value: Callable[[Answer], float | None]
) -> list[float]:
    """One mean for every prompt with an answer that has the value."""
    known = [
        [number for answer in group if (number := value(answer)) is not None] for group in groups
    ]
    return [statistics.fmean(numbers) for numbers in known if numbers]


def _passes(k: int, groups: Sequence[Sequence[Answer]]) -> list[float]:
    """pass@k of every prompt with at least k scored completions."""
    verdicts = [
        [parts["correct"] for _, parts in group if parts.get("correct") is not None]
        for group in groups
    ]
    return [
        pass_at(k, right=sum(v == 1 for v in each), of=len(each))
        for each in verdicts
        if len(each) >= k
    ]


def _long_references(prompts: Sequence[Prompt]) -> bool:
    counts = [len(words(prompt.answer)) for prompt in prompts if prompt.answer is not None]
    return bool(counts) and statistics.fmean(counts) >= REFERENCE_WORDS


def _rouge(rollout: Rollout) -> float | None:
    reference = rollout.prompt.answer
    return rouge_l(reference, rollout.text) if reference is not None and words(reference) else None


def lengths(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Tokens of the greedy and of the sampled completions, the end token included."""
    kinds = {"greedy": [r.length for r in rollouts if r.sample == GREEDY]}
    kinds["drawn"] = [r.length for r in rollouts if r.sample != GREEDY]
    return {
        kind: {
            "mean": statistics.fmean(n),
            "median": float(statistics.median(n)),
            "max": float(max(n)),
        }
        for kind, n in kinds.items()
        if n
    }
