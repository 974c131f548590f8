"""People judge answers in a browser: `ascent label`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ascent.data.rows import SUFFIXES
from ascent.feedback.agreement import Agreement, agreement
from ascent.feedback.candidates import is_run, read_file_candidates, read_run_candidates
from ascent.feedback.comparisons import Comparison, Form, make_comparisons
from ascent.feedback.labeling import LabelingPlan, LabelingSession
from ascent.feedback.preference_log import PreferenceLog
from ascent.feedback.samples import samples_path
from ascent.view import extra

Say = Callable[[str], None]


@dataclass(frozen=True)
class LabelResult:
    """What is in the file of verdicts when the server ends. `left_out` counts what was not asked about, by reason."""

    out: Path
    questions: int
    verdicts: int
    left_out: Counter[str]
    agreement: Agreement


def label(
    sources: str | Sequence[str],
    *,
    out: str | Path | None = None,
    prompts: str | None = None,
    form: Form = "pairs",
    guidelines: str | Path | None = None,
    annotators: Sequence[str] | None = None,
    overlap: float = 0.2,
    repeat: float = 0.1,
    scale: int = 5,
    per_prompt: int = 1,
    step: int | None = None,
    limit: int | None = None,
    samples: int = 2,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 8771,
    say: Say = print,
) -> LabelResult:
    """Serve a page on which people judge answers, until interrupted; the same call again continues.

    sources: a run, whose rollouts are judged, or a file of answers; with `prompts`, models to sample from.
    out: the .jsonl file of verdicts; by default the name of the source with .labels.jsonl.
    prompts: a built-in task, or prompts as for training; the models answer them first.
    form: "pairs", "rankings" or "ratings".
    guidelines: a Markdown file that the page shows.
    annotators: the names that may judge; by default anyone who gives a name.
    overlap: share of the questions that every annotator gets, for agreement; each of the others goes to one.
    repeat: share of an annotator's questions asked again in the other order.
    scale: ratings are 1 to this.
    per_prompt: pairs to ask about for each prompt.
    step: of a run, only the rollouts of this step.
    limit: at most this many prompts.
    samples, max_new_tokens, temperature, top_p: how many completions of each model for each prompt, and how to sample.
    seed: the same seed gives the same completions, questions and orders.
    host: the address to listen on; any other than loopback gets a link with a token.
    port: the port to listen on; 0 takes a free one.
    say: receives the link and notes, one line each.

    Returns a `LabelResult`; the verdicts are in `out`, which `ascent.train` reads as data.

        label("runs/sft", prompts="style:200", out="labels.jsonl", form="rankings", samples=4)
    """
    names = (sources,) if isinstance(sources, str) else tuple(sources)
    plan = LabelingPlan(form, overlap, repeat, scale, tuple(annotators or ()), seed)
    answers = _AnswerSource(
        names, prompts, step, limit, per_prompt, samples, max_new_tokens, temperature, top_p
    )
    file = Path(out) if out is not None else answers.default_out()
    return _label(
        plan, answers, file, None if guidelines is None else Path(guidelines), host, port, say
    )


@dataclass(frozen=True)
class _AnswerSource:
    """Where the answers come from: a run, a file, or models that answer prompts."""

    names: tuple[str, ...]
    prompts: str | None
    step: int | None
    limit: int | None
    per_prompt: int
    samples: int
    max_new_tokens: int
    temperature: float
    top_p: float

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}, but at least 1 prompt must be asked")
        if self.prompts is None and len(self.names) != 1:
            raise ValueError(
                f"{len(self.names)} sources, but without --prompts one run or one file is judged; give --prompts to "
                "have the models answer them, or a file with the answers of all models"
            )
        if self.step is not None and (self.prompts is not None or not is_run(self.names[0])):
            raise ValueError(
                f"step={self.step} chooses among the logged rollouts of a run; leave it out here"
            )

    def default_out(self) -> Path:
        if len(self.names) != 1:
            raise ValueError(
                "verdicts on several models need a file of their own: give --out labels.jsonl"
            )
        name = Path(Path(self.names[0].partition(":")[0]).name)
        return Path(f"{name.stem if name.suffix in SUFFIXES else name}.labels.jsonl")

    def recorded(self, plan: LabelingPlan) -> tuple[list[Comparison], Counter[str]]:
        """Questions about answers that exist, and counts of what is not asked about."""
        source = self.names[0]
        if is_run(source):
            found = read_run_candidates(Path(source).expanduser(), step=self.step, limit=self.limit)
        else:
            found = read_file_candidates(source, limit=self.limit)
        questions, left_out = make_comparisons(
            found.prompts, found.answers, plan.form, seed=plan.seed, per_prompt=self.per_prompt
        )
        return questions, left_out + found.left_out

    def sampled(
        self, plan: LabelingPlan, prompts: str, out: Path, say: Say
    ) -> tuple[list[Comparison], Counter[str]]:
        """The same about answers that the models give now."""
        from ascent.api.collect import QuestionPlan, make_questions  # imports torch
        from ascent.rollouts.generate import SamplingParams

        sampling = SamplingParams(self.max_new_tokens, plan.seed, self.temperature, self.top_p)
        asked = QuestionPlan(
            self.names, prompts, plan.form, self.samples, self.per_prompt, self.limit, sampling
        )
        return make_questions(asked, samples_path(out), say)


def _label(
    plan: LabelingPlan,
    answers: _AnswerSource,
    out: Path,
    guidelines: Path | None,
    host: str,
    port: int,
    say: Say,
) -> LabelResult:
    extra.require()
    from ascent.view.label import label_app, read_guidelines
    from ascent.view.server import link, listen, make_token, serve

    if out.suffix != ".jsonl":
        raise ValueError(
            f"out={out}, but verdicts are lines of JSON; name a file that ends in .jsonl"
        )
    if answers.prompts is None and out.resolve() == Path(answers.names[0]).resolve():
        raise ValueError(f"out={out} is the file that is judged; give another --out")
    shown = "" if guidelines is None else read_guidelines(guidelines)
    token = make_token(host)
    recorded = answers.recorded(plan) if answers.prompts is None else None
    with listen(host, port) as sock, PreferenceLog(out) as log:
        questions, left_out = recorded or answers.sampled(plan, answers.prompts or "", out, say)
        if not questions:
            raise ValueError(f"there are no two different answers to one prompt ({dict(left_out)})")
        app = label_app(
            LabelingSession(log, questions, plan), guidelines=shown, host=host, token=token
        )
        for reason, count in sorted(left_out.items()):
            say(f"not asked about: {count} {reason}")
        say(f"{len(questions)} questions; {len(log.rows)} verdicts so far, in {out}; Ctrl-C ends")
        for line in _links(link(host, sock.getsockname()[1], token), plan.annotators):
            say(line)
        with suppress(KeyboardInterrupt):
            serve(app, sock)
        return LabelResult(out, len(questions), len(log.rows), left_out, agreement(log.rows))


def _links(address: str, annotators: Sequence[str]) -> list[str]:
    join = "&" if "?" in address else "?"
    return [f"{name}: {address}{join}annotator={quote(name)}" for name in annotators] or [
        f"open {address}"
    ]
