"""Sample answers, have them judged, and keep every verdict: `ascent collect`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ascent.feedback.agreement import Agreement, agreement
from ascent.feedback.comparisons import Answer, Comparison, Form, ShownComparison, make_comparisons, shown_to
from ascent.feedback.preference_log import PreferenceLog
from ascent.feedback.samples import Samples, beside, fingerprint
from ascent.feedback.verdicts import Unjudged, Verdict, key_of, row_of
from ascent.records import Prompt
from ascent.rollouts.generate import SamplingParams
from ascent.setup.data import load_records
from ascent.setup.generation import Generator, weights_of
from ascent.setup.judges import Judge

AT_ONCE = 64  # prompts sampled between two lines of the file
Say = Callable[[str], None]


class Person(Protocol):
    """Asks somebody at a terminal. `undo` takes back the last verdict, `quit` ends the session."""

    def ask(
        self, shown: ShownComparison, form: Form, *, done: int, total: int
    ) -> Verdict | Literal["undo", "quit"]: ...

    def tell(self, text: str) -> None: ...


@dataclass(frozen=True)
class CollectOptions:
    """What is asked of whom: everything that decides the questions."""

    models: tuple[str, ...]
    prompts: str
    form: Form = "pairs"
    samples: int = 2
    per_prompt: int = 1
    limit: int | None = None
    max_new_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("collect needs at least one model to sample from")
        if self.samples * len(self.models) < 2:
            raise ValueError(
                f"samples={self.samples} of {len(self.models)} model(s) is one answer to a prompt, which cannot be "
                "compared; use samples >= 2, or two models"
            )
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}, but at least 1 prompt must be asked")


@dataclass(frozen=True)
class CollectResult:
    """How far one annotator got. `left_out` says why prompts and answers gave no question, `unjudged` what failed."""

    questions: int
    done: int
    left_out: Counter[str]
    unjudged: Counter[str]
    agreement: Agreement

    @property
    def finished(self) -> bool:
        return self.done == self.questions


def collect(
    asked: CollectOptions,
    out: Path,
    *,
    annotator: str,
    judge: Judge | None = None,
    person: Person | None = None,
    repeat: float = 0.1,
    say: Say = print,
) -> CollectResult:
    """Ask everything that this annotator has not answered yet; the same call again goes on where it stopped.

    Either a judge answers or a person does.
    """
    assert (judge is None) != (person is None), "one of the two answers"
    if out.suffix != ".jsonl":
        raise ValueError(f"out={out}, but verdicts are lines of JSON; name a file that ends in .jsonl")
    with PreferenceLog(out) as ledger:
        questions, left = _questions(asked, beside(out), say)
        shown = shown_to(annotator, questions, seed=asked.seed, repeat=repeat)
        done = ledger.done_by(annotator)
        strange = done - {each.key for each in shown}
        if strange:
            raise ValueError(
                f"{out} holds {len(strange)} verdicts of {annotator} on other questions ({min(strange)[0]}); give the "
                "same arguments as before, or another --out"
            )
        todo = [each for each in shown if each.key not in done]
        if done and todo:
            say(f"{annotator} has answered {len(done)} of {len(shown)} questions; going on")
        session = _Session(ledger, asked.form, annotator, len(shown))
        failed: Counter[str] = Counter()
        if person is not None:
            session.with_person(person, todo)
        elif judge is not None:
            failed = session.with_judge(judge, todo)
        return CollectResult(len(shown), len(ledger.done_by(annotator)), left, failed, agreement(ledger.rows))


class _Session:
    def __init__(self, ledger: PreferenceLog, form: Form, annotator: str, total: int) -> None:
        self.ledger, self.form, self.annotator, self.total = ledger, form, annotator, total

    def with_judge(self, judge: Judge, todo: Sequence[ShownComparison]) -> Counter[str]:
        failed: Counter[str] = Counter()
        for each, found in zip(todo, judge.verdicts(todo, self.form, annotator=self.annotator), strict=True):
            if isinstance(found, Unjudged):
                failed[found.why] += 1
            else:
                self._keep(each, found)
        return failed

    def with_person(self, person: Person, todo: Sequence[ShownComparison]) -> None:
        waiting = list(todo)
        said: list[ShownComparison] = []
        while waiting:
            reply = person.ask(waiting[0], self.form, done=self.total - len(waiting), total=self.total)
            if reply == "quit":
                return
            if isinstance(reply, Verdict):
                self._keep(waiting[0], reply)
                said.append(waiting.pop(0))
            elif (row := self.ledger.undo()) is None:
                person.tell("nothing to undo: only verdicts of this session can be taken back")
            else:
                assert key_of(row) == said[-1].key, "the last line is the last verdict"
                waiting.insert(0, said.pop())
                person.tell("taken back; asking again")

    def _keep(self, shown: ShownComparison, verdict: Verdict) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.ledger.append(row_of(shown, verdict, form=self.form, annotator=self.annotator, time=when))


def _questions(asked: CollectOptions, file: Path, say: Say) -> tuple[list[Comparison], Counter[str]]:
    records = load_records(asked.prompts, "prompts", seed=asked.seed).records[: asked.limit]
    prompts = [record for record in records if isinstance(record, Prompt)]
    about = {
        "prompts": asked.prompts, "number": len(prompts), "content": fingerprint(prompts),
        "models": list(asked.models), "samples": asked.samples, "max_new_tokens": asked.max_new_tokens,
        "temperature": asked.temperature, "top_p": asked.top_p, "seed": asked.seed,
    }  # fmt: skip
    samples = Samples(file, about)
    try:
        for place, model in enumerate(asked.models):
            _sample(asked, place, model, prompts, samples, say)
        answers = samples.answers(prompts, len(asked.models))
    finally:
        samples.close()
    return make_comparisons(prompts, answers, asked.form, seed=asked.seed, per_prompt=asked.per_prompt)


def _sample(
    asked: CollectOptions, place: int, model: str, prompts: Sequence[Prompt], samples: Samples, say: Say
) -> None:
    """The answers of one model that are not in the file yet, piece by piece; pieces do not depend on what is there."""
    pieces = [prompts[first : first + AT_ONCE] for first in range(0, len(prompts), AT_ONCE)]
    waiting = [n for n, piece in enumerate(pieces) if not all(samples.has(place, prompt) for prompt in piece)]
    if not waiting:
        return
    weights = weights_of(model)
    samples.refuse_other_weights(place, model, weights)
    say(f"sampling {asked.samples} answers of {model} to each of {sum(len(pieces[n]) for n in waiting)} prompts")
    settings = SamplingParams(asked.max_new_tokens, asked.seed, asked.temperature, asked.top_p)
    answering = Generator(model, prompts, settings)
    try:
        for number in waiting:
            found = answering(pieces[number], range(asked.samples), occasion=f"collect/{place}/{number}")
            for prompt, rollouts in zip(pieces[number], found, strict=True):
                if not samples.has(place, prompt):
                    answers = [Answer(f"{place}.{r.sample}", model, r.text, r.length) for r in rollouts]
                    samples.put(place, prompt, answers, weights)
    finally:
        answering.close()
