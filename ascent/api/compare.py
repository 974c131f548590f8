"""Which of two models a judge prefers: `ascent.compare`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ascent.api.evaluate import load_prompts
from ascent.feedback.comparisons import Answer, Comparison, ShownComparison
from ascent.feedback.verdicts import CHOICES, NoVerdict, Verdict
from ascent.feedback.win_rate import Interval, combine_orders, length_matched, wilson
from ascent.records import Prompt, Rollout
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.setup.generation import Generator, refuse_servers
from ascent.setup.judges import Judge, judge_of

WORTH = {"a": 1.0, "b": 0.0, "tie": 0.5, "inconsistent": 0.5, "same": 0.5}


@dataclass(frozen=True)
class CompareResult:
    """`outcomes` counts pairs: a, b, tie, inconsistent (the two orders disagree), same (equal texts, not judged).

    `win_rate` is A's, a mean over prompts in which ties, inconsistent and same count half. `length_matched` is the win
    rate with the effect of length removed, `length_diff` the mean characters by which A is longer. `consistency` is the
    share of judged pairs with the same verdict in both orders, `first_position` the share of choices for the answer
    shown first. `scores` are the judge's mean scores of A and B, where it gives scores.
    """

    a: str
    b: str
    data: str
    judge: str
    prompts: int
    samples: int
    settings: Mapping[str, Any]
    outcomes: Mapping[str, int]
    win_rate: Interval
    length_matched: Interval
    length_diff: float
    consistency: float | None
    first_position: Interval | None
    scores: tuple[float, float] | None
    unjudged: Mapping[str, int]

    @property
    def winner(self) -> str | None:
        """A or B where the interval leaves out one half, None where it does not."""
        rate = self.win_rate
        return "a" if rate.low > 0.5 else "b" if rate.high < 0.5 else None

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self) | {"winner": self.winner}
        for name in ("win_rate", "length_matched", "first_position"):
            each = getattr(self, name)
            found[name] = each._asdict() if each is not None else None
        return found


@dataclass(frozen=True)
class Pairing:
    """The answers of A and B to one prompt with one sample number."""

    prompt: Prompt
    a: Rollout
    b: Rollout

    def comparison(self) -> Comparison:
        answers = [
            Answer(name, name, each.text, each.length)
            for name, each in (("a", self.a), ("b", self.b))
        ]
        return Comparison(f"{self.prompt.id}/{self.a.sample}", self.prompt, tuple(answers))


def compare(
    a: str,
    b: str,
    prompts: str,
    judge: str | Judge,
    *,
    samples: int = 0,
    limit: int | None = None,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    engine: str = "native",
) -> CompareResult:
    """Compare two models: both answer every prompt, and a judge sees each pair in both orders.

    a, b: runs, model folders or hub names.
    prompts: a built-in task (its held-out split unless the name says otherwise), or prompts.
    judge: a reward model, an endpoint, simulated:TASK, file.py:function, the name of a reward; or a `Judge`.
    samples: sampled completions of each prompt; 0 takes one greedy completion.
    limit: at most this many prompts; a task has 256 otherwise.
    max_new_tokens, temperature, top_p: how to sample.
    seed: the same seed gives the same completions and verdicts.
    engine: native; vllm or remote (ascent serve), which start a server for each model in turn.

    Returns a `CompareResult`.

        result = ascent.compare("runs/dpo", "runs/sft", "style", "simulated:style")
        result.win_rate.value, result.winner
    """
    if samples < 0:
        raise ValueError(
            f"samples={samples}, but it counts drawn answers to each prompt; 0 asks for greedy ones"
        )
    refuse_servers(engine, (a, b))
    opened = judge_of(judge, seed=seed) if isinstance(judge, str) else judge
    try:
        records = load_prompts(prompts, limit)
        settings = SamplingParams(max_new_tokens, seed, temperature, top_p)
        numbers = list(range(samples)) or [GREEDY]
        answers_a, answers_b = (
            _answers(model, records, numbers, settings, side, engine)
            for model, side in ((a, "a"), (b, "b"))
        )
        pairings = [
            Pairing(prompt, one, other)
            for prompt, of_a, of_b in zip(records, answers_a, answers_b, strict=True)
            for one, other in zip(of_a, of_b, strict=True)
        ]
        sampling = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
        }
        return judge_pairings(
            pairings, opened, a=a, b=b, data=prompts, samples=samples, settings=sampling
        )
    finally:
        if isinstance(judge, str):
            opened.close()


def judge_pairings(
    pairings: Sequence[Pairing],
    judge: Judge,
    *,
    a: str,
    b: str,
    data: str,
    samples: int,
    settings: Mapping[str, Any],
) -> CompareResult:
    """Have pairings judged and summarize the verdicts."""
    differing = [each for each in pairings if each.a.text.strip() != each.b.text.strip()]
    verdicts = _verdicts(differing, judge)
    words: dict[int, str] = {id(each): "same" for each in pairings}
    unjudged: Counter[str] = Counter()
    for each, pair in zip(differing, verdicts, strict=True):
        failure = next((v for v in pair if isinstance(v, NoVerdict)), None)
        if failure is not None:
            unjudged[failure.why] += 1
            del words[id(each)]
        else:
            words[id(each)] = combine_orders(*(v.word for v in pair if isinstance(v, Verdict)))
    kept = [each for each in pairings if id(each) in words]
    if not kept:
        raise ValueError(f"{judge.name} gave no verdict at all: {dict(unjudged)}; is it there?")
    groups: dict[str, list[Pairing]] = {}
    for each in kept:
        groups.setdefault(each.prompt.id, []).append(each)
    outcomes = [
        statistics.fmean(WORTH[words[id(each)]] for each in group) for group in groups.values()
    ]
    longer = [
        statistics.fmean(len(each.a.text) - len(each.b.text) for each in group)
        for group in groups.values()
    ]
    counts = Counter(words.values())
    judged = counts.total() - counts["same"]
    choices = [
        v.word for pair in verdicts for v in pair if isinstance(v, Verdict) and v.word in CHOICES
    ]
    return CompareResult(
        *(a, b, data, judge.name, len(groups), samples, settings),
        outcomes={name: counts[name] for name in WORTH},
        win_rate=wilson(sum(outcomes), len(outcomes)),
        length_matched=length_matched(outcomes, longer),
        length_diff=statistics.fmean(longer),
        consistency=1 - counts["inconsistent"] / judged if judged else None,
        first_position=wilson(choices.count("first"), len(choices)) if choices else None,
        scores=_scores(kept, judge),
        unjudged=dict(unjudged),
    )


def _answers(
    model: str,
    prompts: Sequence[Prompt],
    samples: Sequence[int],
    settings: SamplingParams,
    side: str,
    engine: str,
) -> list[list[Rollout]]:
    with Generator(model, prompts, settings, engine=engine) as generator:
        return generator.groups(samples, noise_key=f"compare/{side}")


def _verdicts(
    pairings: Sequence[Pairing], judge: Judge
) -> list[tuple[Verdict | NoVerdict, Verdict | NoVerdict]]:
    both = [
        ShownComparison(each.comparison(), order, order[0])
        for each in pairings
        for order in ((0, 1), (1, 0))
    ]
    found = list(judge.verdicts(both, "pairs", annotator="compare"))
    return list(zip(found[::2], found[1::2], strict=True))


def _scores(pairings: Sequence[Pairing], judge: Judge) -> tuple[float, float] | None:
    pairs = [judge.scores(each.prompt, [each.a.text, each.b.text]) for each in pairings]
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return None
    return statistics.fmean(pair[0] for pair in known), statistics.fmean(pair[1] for pair in known)
