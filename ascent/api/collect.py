"""Sample answers and collect preferences about them: `ascent.collect`."""

from __future__ import annotations

import getpass
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from ascent.feedback.agreement import Agreement, agreement
from ascent.feedback.comparisons import (
    Answer,
    Comparison,
    Form,
    ShownComparison,
    make_comparisons,
    order_for_annotator,
)
from ascent.feedback.preference_log import PreferenceLog
from ascent.feedback.samples import Samples, fingerprint, samples_path
from ascent.feedback.verdicts import NoVerdict, Verdict, row_key, verdict_row
from ascent.records import Prompt
from ascent.rollouts.generate import SamplingParams
from ascent.setup.data import load_records
from ascent.setup.generation import Generator, refuse_servers, weights_of
from ascent.setup.judges import Judge, judge_of

PERSON = "person"
CHUNK = 64  # prompts sampled between two writes to the file of samples
Say = Callable[[str], None]


@runtime_checkable
class Person(Protocol):
    """Asks a person. `undo` takes back the last verdict, `quit` ends the session."""

    def ask(
        self, shown: ShownComparison, form: Form, *, done: int, total: int
    ) -> Verdict | Literal["undo", "quit"]: ...

    def tell(self, text: str) -> None: ...


@dataclass(frozen=True)
class CollectResult:
    """How far an annotator got.

    `left_out` counts prompts and answers without a question, by reason; `unjudged` counts judge failures by reason.
    """

    out: Path
    annotator: str
    questions: int
    done: int
    left_out: Counter[str]
    unjudged: Counter[str]
    agreement: Agreement

    @property
    def finished(self) -> bool:
        return self.done == self.questions


@dataclass(frozen=True)
class QuestionPlan:
    """Everything that determines the questions."""

    models: tuple[str, ...]
    prompts: str
    form: Form
    samples: int
    per_prompt: int
    limit: int | None
    sampling: SamplingParams
    engine: str = "native"

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
        refuse_servers(self.engine, self.models)


def collect(
    models: str | Sequence[str],
    prompts: str,
    *,
    out: str | Path,
    judge: str | Judge = PERSON,
    annotator: str | None = None,
    form: Form = "pairs",
    samples: int = 2,
    per_prompt: int = 1,
    repeat: float = 0.1,
    limit: int | None = None,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    engine: str = "native",
    person: Person | None = None,
    say: Say = print,
) -> CollectResult:
    """Sample answers and collect preferences about them; the same call again continues where it stopped.

    models: runs, model folders or hub names to sample from.
    prompts: a built-in task, or prompts as for training.
    out: the .jsonl file of verdicts; it grows by one line for each.
    judge: "person", a reward model, an endpoint, simulated:TASK, file.py:function; or a `Judge`.
    annotator: the name written into the file; by default the login or the judge's name.
    form: "pairs", "rankings" or "ratings".
    samples: completions of each model for each prompt.
    per_prompt: pairs to ask about for each prompt.
    repeat: share of questions asked again in the other order.
    limit: at most this many prompts.
    max_new_tokens, temperature, top_p: how to sample.
    seed: the same seed gives the same completions, questions and orders.
    engine: native; vllm or remote (ascent serve), which start a server; or the URLs of servers that have the model.
    person: asks the questions of judge "person"; the command asks at the terminal.
    say: receives notes, one line each.

    Returns a `CollectResult`; the verdicts are in `out`, which `ascent.train` reads as data.

        ascent.collect("runs/sft", "style:200", out="feedback.jsonl", judge="simulated:style?noise=0.1")
    """
    out = Path(out)
    if out.suffix != ".jsonl":
        raise ValueError(
            f"out={out}, but verdicts are lines of JSON; name a file that ends in .jsonl"
        )
    if judge == PERSON and person is None:
        raise ValueError(
            "judge is a person, but nobody is there to be asked; run ascent collect, or pass person="
        )
    names = (models,) if isinstance(models, str) else tuple(models)
    sampling = SamplingParams(max_new_tokens, seed, temperature, top_p)
    plan = QuestionPlan(names, prompts, form, samples, per_prompt, limit, sampling, engine)
    if person is not None and judge == PERSON:
        return _collect(plan, out, annotator or getpass.getuser(), person, repeat, say)
    opened, name = (
        (judge_of(judge, seed=seed), judge) if isinstance(judge, str) else (judge, judge.name)
    )
    try:
        return _collect(plan, out, annotator or name, opened, repeat, say)
    finally:
        if isinstance(judge, str):
            opened.close()


def _collect(
    plan: QuestionPlan, out: Path, annotator: str, source: Judge | Person, repeat: float, say: Say
) -> CollectResult:
    with PreferenceLog(out) as log:
        questions, left_out = make_questions(plan, samples_path(out), say)
        shown = order_for_annotator(annotator, questions, seed=plan.sampling.seed, repeat=repeat)
        todo = _unanswered(log, annotator, shown, say)
        session = _Session(log, plan.form, annotator, len(shown))
        unjudged: Counter[str] = Counter()
        if isinstance(source, Person):
            session.ask_person(source, todo)
        else:
            unjudged = session.ask_judge(source, todo)
        done = len(_answered(log, annotator, shown))
        return CollectResult(
            out, annotator, len(shown), done, left_out, unjudged, agreement(log.rows)
        )


def _unanswered(
    log: PreferenceLog, annotator: str, shown: Sequence[ShownComparison], say: Say
) -> list[ShownComparison]:
    unknown = log.answered_by(annotator) - {each.key for each in shown}
    if unknown:
        raise ValueError(
            f"{log.path} holds {len(unknown)} verdicts of {annotator} on other questions ({min(unknown)[0]}); give the "
            "same arguments as before, or another --out"
        )
    done = _answered(log, annotator, shown)
    todo = [each for each in shown if each.key not in done]
    if done and todo:
        say(f"{annotator} has answered {len(done)} of {len(shown)} questions; continuing")
    return todo


def _answered(
    log: PreferenceLog, annotator: str, shown: Sequence[ShownComparison]
) -> set[tuple[str, int]]:
    """What the annotator has judged. `person` is anyone, as in `ascent iterate`: verdicts of `ascent label` count."""
    if annotator != PERSON:
        return log.answered_by(annotator)
    return {row_key(row) for row in log.rows} & {each.key for each in shown}


class _Session:
    """Writes each verdict of one annotator as soon as it is there."""

    def __init__(self, log: PreferenceLog, form: Form, annotator: str, total: int) -> None:
        self.log, self.form, self.annotator, self.total = log, form, annotator, total

    def ask_judge(self, judge: Judge, todo: Sequence[ShownComparison]) -> Counter[str]:
        """Returns the judge's failures by reason."""
        unjudged: Counter[str] = Counter()
        for each, found in zip(
            todo, judge.verdicts(todo, self.form, annotator=self.annotator), strict=True
        ):
            if isinstance(found, NoVerdict):
                unjudged[found.why] += 1
            else:
                self._write(each, found)
        return unjudged

    def ask_person(self, person: Person, todo: Sequence[ShownComparison]) -> None:
        queue = list(todo)
        answered: list[ShownComparison] = []
        while queue:
            reply = person.ask(queue[0], self.form, done=self.total - len(queue), total=self.total)
            if reply == "quit":
                return
            if isinstance(reply, Verdict):
                self._write(queue[0], reply)
                answered.append(queue.pop(0))
            elif (row := self.log.undo()) is None:
                person.tell("nothing to undo: only verdicts of this session can be taken back")
            else:
                assert row_key(row) == answered[-1].key, "the last line is the last verdict"
                queue.insert(0, answered.pop())
                person.tell("taken back; asking again")

    def _write(self, shown: ShownComparison, verdict: Verdict) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.log.append(
            verdict_row(shown, verdict, form=self.form, annotator=self.annotator, time=now)
        )


def make_questions(
    plan: QuestionPlan, file: Path, say: Say
) -> tuple[list[Comparison], Counter[str]]:
    """Sample what is missing in the file of samples, and make the comparisons; also counts of what was left out."""
    seed, sampling = plan.sampling.seed, plan.sampling
    records = load_records(plan.prompts, "prompts", seed=seed).records[: plan.limit]
    prompts = [record for record in records if isinstance(record, Prompt)]
    header = {
        "prompts": plan.prompts,
        "number": len(prompts),
        "content": fingerprint(prompts),
        "models": list(plan.models),
        "samples": plan.samples,
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
    }
    samples = Samples(file, header)
    try:
        for index, model in enumerate(plan.models):
            _sample(plan, index, model, prompts, samples, say)
        answers = samples.answers(prompts, len(plan.models))
    finally:
        samples.close()
    return make_comparisons(prompts, answers, plan.form, seed=seed, per_prompt=plan.per_prompt)


def _sample(
    plan: QuestionPlan,
    index: int,
    model: str,
    prompts: Sequence[Prompt],
    samples: Samples,
    say: Say,
) -> None:
    """Sample what is not in the file yet. Chunks do not depend on what is there, so completions do not either."""
    chunks = [slice(first, first + CHUNK) for first in range(0, len(prompts), CHUNK)]
    missing = [
        n
        for n, chunk in enumerate(chunks)
        if not all(samples.has(index, each) for each in prompts[chunk])
    ]
    if not missing:
        return
    weights = weights_of(model)
    samples.check_weights(index, model, weights)
    say(
        f"sampling {plan.samples} answers of {model} to each of {sum(len(prompts[chunks[n]]) for n in missing)} prompts"
    )
    with Generator(model, prompts, plan.sampling, engine=plan.engine) as generator:
        for n in missing:
            found = generator.groups(
                range(plan.samples), noise_key=f"collect/{index}/{n}", part=chunks[n]
            )
            for prompt, rollouts in zip(prompts[chunks[n]], found, strict=True):
                if not samples.has(index, prompt):
                    answers = [
                        Answer(f"{index}.{r.sample}", model, r.text, r.length) for r in rollouts
                    ]
                    samples.put(index, prompt, answers, weights)
