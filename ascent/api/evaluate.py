"""How good a model is on a task or a file: greedy accuracy, mean@k, pass@k, ROUGE-L, truncation, lengths."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ascent.data.errors import Policy
from ascent.data.load import load as load_data
from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.maths.estimates import Estimate, estimate, pass_at, powers_of_two
from ascent.maths.rouge import rouge_l, words
from ascent.models.load import load
from ascent.models.model import longest as longest_of
from ascent.records import Prompt, Rollout
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import Tally
from ascent.rewards.registry import Batch, Reward, find
from ascent.rollouts.generate import GREEDY, RenderedPrompt, SamplingParams, generate
from ascent.setup.environments import env_session
from ascent.setup.policy import device
from ascent.tasks.named import is_task, read_name

OF_A_TASK = 256  # prompts, where nobody says how many
# A reference of fewer words on average is an answer, not a text to compare with.
WORDS_OF_A_TEXT = 5.0
MARKS = ("####", "\\boxed")
SECONDS_PER_ANSWER, FEWEST_SECONDS = 1.0, 60.0

Parts = Mapping[str, float | None]
Answer = tuple[Rollout, Parts]


@dataclass(frozen=True)
class EvalResult:
    """`figures` are means over prompts, by name; `tokens` describes lengths; `unscored` counts by reason."""

    model: str
    data: str
    scored_by: str
    prompts: int
    samples: int
    settings: Mapping[str, Any]
    figures: Mapping[str, Estimate]
    tokens: Mapping[str, Mapping[str, float]]
    unscored: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Judge:
    """Named scores of answers, in their order; `correct` is 0 or 1 and None where nobody could tell."""

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
    reward: str | None = None,
    invalid_rows: Policy = "fail",
    env: Mapping[str, Any] | None = None,
) -> EvalResult:
    """One greedy answer and `samples` drawn ones to every prompt, scored and summed up.

    `data` is a built-in task (its held-out split unless the name says otherwise) or whatever `ascent.data` reads as
    prompts. A task is scored by its verifier, a file by `reward` or by what `suited` finds. `env` is what answers talk
    to, as in a recipe; where it has a verdict of its own and no `reward` is named, that is what counts.
    """
    if samples < 0:
        raise ValueError(f"samples={samples}, but it counts answers to each prompt; 0 leaves the greedy ones")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}, but at least 1 prompt must be asked")
    prompts = prompts_of(data, limit, invalid_rows)
    judge = judge_of(data, prompts, reward)
    settings = SamplingParams(max_new_tokens, seed, temperature, top_p)
    rollouts = answered(model, prompts, samples, settings, env)
    if env is not None and reward is None and any(each.episode and each.episode.parts for each in rollouts):
        judge = Judge(f"env {env['use']}", lambda found, _: [_verdict(each) for each in found])
    tally = Tally()
    scores = judged(judge, rollouts, tally)
    drawn = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    return EvalResult(
        *(model, data, judge.name, len(prompts), samples, drawn),
        figures=figures(rollouts, scores, samples=samples, seed=seed),
        tokens=lengths(rollouts),
        unscored={f"{name}/{kind}": count for (name, kind), count in sorted(tally.unscored.items())},
    )


def judged(judge: Judge, rollouts: Sequence[Rollout], tally: Tally) -> list[Parts]:
    """Scores of all rollouts; none, and a count, where the environment failed: that says nothing about the answer."""
    failed = [each.episode is not None and each.episode.failed for each in rollouts]
    for rollout, out in zip(rollouts, failed, strict=True):
        if out and rollout.episode is not None:
            tally.unscored["env", rollout.episode.ended] += 1
    found = iter(judge.score([each for each, out in zip(rollouts, failed, strict=True) if not out], tally))
    return [{} if out else next(found) for out in failed]


def _verdict(rollout: Rollout) -> Parts:
    return {} if rollout.episode is None else rollout.episode.parts


def prompts_of(data: str, limit: int | None, invalid_rows: Policy = "fail") -> list[Prompt]:
    if is_task(data):
        named = read_name(data)
        count = named.count if named.count is not None else limit or OF_A_TASK
        return list(named.task.prompts(named.split or "heldout", count))[:limit]
    found = load_data(data, "prompts", invalid_rows=invalid_rows).records[:limit]
    return [record for record in found if isinstance(record, Prompt)]


def judge_of(data: str, prompts: Sequence[Prompt], reward: str | None) -> Judge:
    """Who scores: a task's own verifier, the reward that was named, or the one that suits the answers."""
    if is_task(data):
        if reward is not None:
            raise ValueError(f"{data} is scored by its own verifier; leave out --reward {reward}, or give a file")
        task = read_name(data).task
        return Judge(f"verifier of {task.name}", lambda rollouts, _: [task.verify(r.prompt, r.text) for r in rollouts])
    use = reward or suited(prompts)
    if use is None:
        return Judge("nothing but the reference", lambda rollouts, _: [{} for _ in rollouts])
    found = find(use)
    return Judge(f"reward {use}", lambda rollouts, tally: _rewarded(use, found, rollouts, tally))


def suited(prompts: Sequence[Prompt]) -> str | None:
    """`mathematics` where prompts or answers mark results with #### or \\boxed, `exact` for other short answers.

    None where no prompt has an answer, and where answers are whole texts: those are compared, not matched.
    """
    if any(mark in text for prompt in prompts for text in _texts(prompt) for mark in MARKS):
        return "mathematics"
    return None if all(prompt.answer is None for prompt in prompts) or _has_texts(prompts) else "exact"


def _texts(prompt: Prompt) -> list[str]:
    return [prompt.messages[-1].content, prompt.answer or ""]


def _rewarded(use: str, found: Reward, rollouts: Sequence[Rollout], tally: Tally) -> list[Parts]:
    try:
        timeout = max(FEWEST_SECONDS, SECONDS_PER_ANSWER * len(rollouts))
        outcomes = score_all({use: found}, rollouts, timeout=timeout, tally=tally)
    finally:
        if isinstance(found, Batch):
            found.close()
    named = [{part or "reward": value for part, value in each[use].parts.items()} for each in outcomes]
    if all(set(each) <= {"reward"} and each.get("reward") in (None, 0.0, 1.0) for each in named):
        return [{"correct": each.get("reward")} for each in named]  # one number, right or wrong: that is correctness
    return [dict(each) for each in named]


def answered(
    model: str, prompts: Sequence[Prompt], samples: int, settings: SamplingParams, env: Mapping[str, Any] | None = None
) -> list[Rollout]:
    """The greedy answer to each prompt, then its samples."""
    policy = load(model, device=device())
    policy.eval()
    renderer = Renderer(policy.tokenizer, train_on="completion", context=longest_of(policy.module.config))
    talk = env_session(env, renderer, settings.max_new_tokens) if env is not None else None
    begun = [prompt if talk is None else talk.make(prompt).first() for prompt in prompts]
    asked = [
        RenderedPrompt(first, _rendered(renderer, first), prompt) for first, prompt in zip(begun, prompts, strict=True)
    ]
    room = settings.max_new_tokens if talk is None else talk.limits.room(settings.max_new_tokens)
    longest = max(len(each.tokens) for each in asked) + room
    engine = NativeEngine(policy, renderer.stop_ids, longest_sequence=longest)

    def text(tokens: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(tokens), skip_special_tokens=True))

    try:
        samplings = replace(settings, talk=talk)
        return generate(engine, asked, [GREEDY, *range(samples)], samplings, occasion="evaluate", text=text)
    finally:
        engine.close()
        if talk is not None:
            talk.close()


def _rendered(renderer: Renderer, prompt: Prompt) -> tuple[int, ...]:
    try:
        return renderer.prompt(prompt.messages)
    except ValueError as error:
        raise ValueError(f"{prompt.id}: {error}") from None


def figures(
    rollouts: Sequence[Rollout], scores: Sequence[Parts], *, samples: int, seed: int = 0
) -> dict[str, Estimate]:
    """Every figure as a mean over prompts of the mean over that prompt's answers; what is unscored is left out."""
    groups: dict[str, list[Answer]] = {}
    for rollout, parts in zip(rollouts, scores, strict=True):
        groups.setdefault(rollout.prompt.id, []).append((rollout, parts))
    greedy = [[each for each in group if each[0].sample == GREEDY] for group in groups.values()]
    drawn = [[each for each in group if each[0].sample != GREEDY] for group in groups.values()]
    texts = _has_texts([group[0][0].prompt for group in groups.values()])
    names = list(dict.fromkeys(name for parts in scores for name in parts))
    kinds = [("greedy", greedy), *([(f"mean@{samples}", drawn)] if samples else [])]
    found: dict[str, list[float]] = {}
    for kind, each in kinds:
        found |= {f"{kind}/{name}": _means(each, _part(name)) for name in names}
        if texts:
            found[f"{kind}/rouge_l"] = _means(each, lambda answer: _rouge(answer[0]))
        found[f"{kind}/truncated"] = _means(each, lambda answer: float(answer[0].truncated))
    for k in powers_of_two(samples) if "correct" in names else []:
        found[f"pass@{k}"] = _passes(k, drawn)
    return {name: estimate(values, seed=seed) for name, values in found.items() if values}


def _part(name: str) -> Callable[[Answer], float | None]:
    return lambda answer: answer[1].get(name)


def _means(groups: Sequence[Sequence[Answer]], value: Callable[[Answer], float | None]) -> list[float]:
    """One mean for every prompt with an answer that has the value."""
    known = [[number for answer in group if (number := value(answer)) is not None] for group in groups]
    return [statistics.fmean(numbers) for numbers in known if numbers]


def _passes(k: int, groups: Sequence[Sequence[Answer]]) -> list[float]:
    """pass@k of every prompt of which k answers or more could be scored."""
    verdicts = [[parts["correct"] for _, parts in group if parts.get("correct") is not None] for group in groups]
    return [pass_at(k, right=sum(v == 1 for v in each), of=len(each)) for each in verdicts if len(each) >= k]


def _has_texts(prompts: Sequence[Prompt]) -> bool:
    counts = [len(words(prompt.answer)) for prompt in prompts if prompt.answer is not None]
    return bool(counts) and statistics.fmean(counts) >= WORDS_OF_A_TEXT


def _rouge(rollout: Rollout) -> float | None:
    reference = rollout.prompt.answer
    return rouge_l(reference, rollout.text) if reference is not None and words(reference) else None


def lengths(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Sampled tokens of the greedy and of the drawn answers, the one that ends them included."""
    kinds = {"greedy": [r.length for r in rollouts if r.sample == GREEDY]}
    kinds["drawn"] = [r.length for r in rollouts if r.sample != GREEDY]
    return {
        kind: {"mean": statistics.fmean(n), "median": float(statistics.median(n)), "max": float(max(n))}
        for kind, n in kinds.items()
        if n
    }
