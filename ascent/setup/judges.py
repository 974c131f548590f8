"""Who judges, from one name:

runs/reward_model              the higher score of a reward model
simulated:TASK?noise=0.1       the truth of a built-in task, with noise (see ascent.feedback.simulated)
file.py:function, exact, ...   the higher value of a reward
http://host/v1?model=NAME      a language model behind an endpoint; also rubric=TEXT or @FILE, token_file, at_once

What gives scores takes noise, strength, bias and tie too, behind a ?.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

from ascent.feedback.comparisons import Form, ShownComparison
from ascent.feedback.endpoint import RUBRIC, ComparisonEndpoint
from ascent.feedback.simulated import SimulatedAnnotator, annotator_from_options, verdict
from ascent.feedback.verdicts import NoVerdict, Verdict
from ascent.http_client import validate_url
from ascent.records import Completion, Prompt, Rollout, Turn
from ascent.rewards.calls import score_all
from ascent.rewards.combine import Combination, Term
from ascent.rewards.model_reward import ModelReward
from ascent.rewards.outcome import Tally
from ascent.rewards.registry import Batch, Reward, find
from ascent.setup.rewards import ModelScorer
from ascent.tasks import find_task
from ascent.tasks.task import Task

SIMULATED = "simulated:"
AT_ONCE = 32  # verdicts between two looks at the file
SECONDS = 120.0
ENDPOINT = {"model", "rubric", "token_file", "at_once"}

JudgeVerdict = Verdict | NoVerdict


class Judge(Protocol):
    """Gives verdicts piece by piece, so that each can be written down before the next."""

    name: str

    def verdicts(
        self, shown: Sequence[ShownComparison], form: Form, *, annotator: str
    ) -> Iterator[JudgeVerdict]: ...

    def scores(self, prompt: Prompt, texts: Sequence[str]) -> list[float] | None:
        """What it thinks of each text, where it thinks in numbers."""

    def close(self) -> None: ...


@dataclass
class RewardJudge:
    """A judge that thinks in numbers: of every rollout, or None where it cannot. It thinks once about each text."""

    name: str
    values: Callable[[Sequence[Rollout]], Sequence[float | None]]
    manner: SimulatedAnnotator
    seed: int
    end: Callable[[], None] = field(default=lambda: None)
    known: dict[tuple[str, str], float] = field(default_factory=dict)

    def verdicts(
        self, shown: Sequence[ShownComparison], form: Form, *, annotator: str
    ) -> Iterator[JudgeVerdict]:
        if form == "ratings" and self.manner != SimulatedAnnotator():
            raise ValueError(
                f"{self.name}: ratings are the scores themselves; leave out noise, strength, bias and tie"
            )
        for first in range(0, len(shown), AT_ONCE):
            piece = shown[first : first + AT_ONCE]
            self._learn(
                [
                    rollout_of(each.question.prompt, a.text, a.tokens)
                    for each in piece
                    for a in each.answers
                ]
            )
            for each in piece:
                scores = self._of(each.question.prompt, [answer.text for answer in each.answers])
                yield (
                    NoVerdict("unscored")
                    if scores is None
                    else verdict(
                        each, scores, form, self.manner, seed=self.seed, annotator=annotator
                    )
                )

    def scores(self, prompt: Prompt, texts: Sequence[str]) -> list[float] | None:
        self._learn([rollout_of(prompt, text) for text in texts])
        return self._of(prompt, texts)

    def _learn(self, rollouts: Sequence[Rollout]) -> None:
        new = {
            (r.prompt.id, r.text): r for r in rollouts if (r.prompt.id, r.text) not in self.known
        }
        for key, value in zip(new, self.values(list(new.values())), strict=True):
            if value is not None:
                self.known[key] = value

    def _of(self, prompt: Prompt, texts: Sequence[str]) -> list[float] | None:
        found = [self.known[prompt.id, text] for text in texts if (prompt.id, text) in self.known]
        return found if len(found) == len(texts) else None

    def close(self) -> None:
        self.end()


class EndpointJudge:
    """A language model: compares two answers at a time."""

    def __init__(self, name: str, comparing: ComparisonEndpoint) -> None:
        self.name, self._comparing = name, comparing

    def verdicts(
        self, shown: Sequence[ShownComparison], form: Form, *, annotator: str
    ) -> Iterator[JudgeVerdict]:
        if form != "pairs":
            raise ValueError(
                f"{self.name} compares two answers at a time, but {form} were asked for; ask for pairs, or use the "
                "reward judge, which gives one answer a number"
            )
        for first in range(0, len(shown), AT_ONCE):
            yield from self._comparing.verdicts(shown[first : first + AT_ONCE])

    def scores(self, prompt: Prompt, texts: Sequence[str]) -> list[float] | None:
        return None

    def close(self) -> None:
        """Connections end with each call."""


def judge_of(name: str, *, seed: int = 0) -> Judge:
    """The judge of that name; ValueError where there is none, or its options do not fit."""
    use, _, query = name.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if use.startswith(("http://", "https://")):
        return _endpoint(use, options)
    manner = annotator_from_options(options, use)
    if use.startswith(SIMULATED):
        task = find_task(use.removeprefix(SIMULATED))
        if not isinstance(task, Task):
            raise ValueError(f"{use}: reasoning-gym knows no preferences; simulate a built-in task")
        return RewardJudge(
            name,
            lambda rollouts: [task.true_utility(r.prompt, r.text) for r in rollouts],
            manner,
            seed,
        )
    reward: Reward = (
        ModelReward(scorer=ModelScorer(use)) if Path(use).expanduser().is_dir() else find(use)
    )
    end = reward.close if isinstance(reward, Batch) else (lambda: None)
    return RewardJudge(name, _rewarding(use, reward), manner, seed, end)


def rollout_of(prompt: Prompt, text: str, tokens: int = 0) -> Rollout:
    """A rollout for rewards to read. Of its tokens only their number is known."""
    count = tokens or max(len(text), 1)
    completion = Completion(prompt.id, 0, (0,) * count, (0.0,) * count, (0,) * count, "eos")
    return Rollout(prompt, 0, (Turn((0,), completion, text),))


def _rewarding(use: str, reward: Reward) -> Callable[[Sequence[Rollout]], list[float | None]]:
    name = use.rpartition(":")[2].rpartition("/")[2] or "reward"
    combination = Combination((Term.of(name, reward),))

    def values(rollouts: Sequence[Rollout]) -> list[float | None]:
        outcomes = score_all({name: reward}, rollouts, timeout=SECONDS, tally=Tally())
        scored = [combination.apply(r, each) for r, each in zip(rollouts, outcomes, strict=True)]
        return [each.reward if each.scored else None for each in scored]

    return values


def _endpoint(url: str, options: dict[str, Any]) -> EndpointJudge:
    validate_url(url)  # first: the messages below repeat it
    unknown = next((name for name in options if name not in ENDPOINT), None)
    if unknown is not None or "model" not in options:
        raise ValueError(
            f"{url}: give ?model=NAME, and if you like {', '.join(sorted(ENDPOINT - {'model'}))}"
        )
    rubric = options.get("rubric", RUBRIC)
    if rubric.startswith("@"):
        rubric = Path(rubric[1:]).read_text(encoding="utf-8")
    return EndpointJudge(
        f"{options['model']} at {url}",
        ComparisonEndpoint(
            url=url,
            model=options["model"],
            rubric=rubric,
            token_file=options.get("token_file"),
            at_once=int(options.get("at_once", 8)),
        ),
    )
