"""Records -> items: rendered sequences that belong together, within the limits of length.

An item is never cut apart: one sequence for an example, a judged answer or judged steps, two for a pair (chosen first;
a gold answer comes third, where one is wanted), K for a ranking (best first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

from ascent.data.errors import Place, Policy, Report, RowError
from ascent.data.load import LoadResult
from ascent.data.render import Rendered, Renderer
from ascent.data.schemas import Record, Want
from ascent.data.truncate import fit_messages
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample

_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """How long a record may be, and whether a prompt beyond its limit is refused or loses paragraphs from its end.

    What the renderer's model holds is a limit besides; `answer` tokens of it stay free behind a prompt.
    """

    max_tokens: int = 2048
    max_prompt_tokens: int = 1024
    prompt_overflow: Literal["refuse", "truncate"] = "refuse"
    keep_end: str = ""
    answer: int = 0

    def __post_init__(self) -> None:
        if self.prompt_overflow not in ("refuse", "truncate"):
            raise ValueError(f"prompt_overflow={self.prompt_overflow!r}, but it must be refuse or truncate")
        if self.max_prompt_tokens < 1 or self.max_tokens < 2:
            raise ValueError(
                f"max_prompt_tokens={self.max_prompt_tokens}, max_tokens={self.max_tokens}: a prompt has at least 1 "
                "token, and a record at least 2"
            )


@dataclass(frozen=True, eq=False)
class Item:
    """The sequences of one record, and what the record says of them."""

    kind: Want
    sequences: tuple[Rendered, ...]
    margin: float | None = None
    good: bool | None = None
    mismatched: Rendered | None = None
    ends: tuple[int, ...] = ()  # of judged steps: where each is judged, and what the verdict is
    labels: tuple[float | None, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of its forward pass, the larger one where a mismatched companion is run too."""
        own = sum(len(sequence) for sequence in self.sequences)
        return max(own, len(self.mismatched)) if self.mismatched is not None else own


class PreparedData(NamedTuple):
    """Items in the records' order, without the refused ones, and the report on those."""

    name: str
    items: tuple[Item, ...]
    report: Report


def prepare(
    loaded: LoadResult, renderer: Renderer, limits: Limits, *, invalid_rows: Policy = "fail", gold: bool = False
) -> PreparedData:
    """Render every record now, so that what is too long is known before the first step.

    With `gold`, pairs bring the prompt's own answer as a third sequence.
    """
    report = Report(invalid_rows)

    def made(record: Record) -> Item:
        return item_of(shortened(record, renderer, limits, report), renderer, limits, gold=gold)

    items = _each(loaded, report, made)
    _margins_of_all_or_none(loaded.name, items)
    return PreparedData(loaded.name, tuple(items), report)


def prepare_prompts(
    loaded: LoadResult,
    renderer: Renderer,
    limits: Limits,
    *,
    invalid_rows: Policy = "fail",
    check: Callable[[Prompt], str | None] = lambda prompt: None,
) -> tuple[tuple[tuple[Prompt, tuple[int, ...]], ...], Report]:
    """Prompts with the tokens a sampler continues, for rollouts. `check` says why no answer could be scored."""
    report = Report(invalid_rows)

    def made(record: Record) -> tuple[Prompt, tuple[int, ...]]:
        assert isinstance(record, Prompt), f"{type(record).__name__} among prompts"
        if (problem := check(record)) is not None:
            raise RowError("type", problem)
        prompt = shortened(record, renderer, limits, report)
        assert isinstance(prompt, Prompt)
        return prompt, renderer.prompt(prompt.messages)

    return tuple(_each(loaded, report, made)), report


def _each(loaded: LoadResult, report: Report, made: Callable[[Record], _T]) -> list[_T]:
    found: list[_T] = []
    places: Sequence[Place] = loaded.places
    for record, place in zip(loaded.records, places, strict=True):
        report.rows += 1
        try:
            found.append(made(record))
        except RowError as error:
            report.refuse(place, error)
    report.settle(len(found))
    return found


def item_of(record: Record, renderer: Renderer, limits: Limits, *, gold: bool = False) -> Item:
    """One record, rendered; too long is a RowError."""
    if isinstance(record, Example):
        item = Item("examples", (renderer.example(record.messages),))
    elif isinstance(record, UnpairedExample):
        item = Item("unpaired", (renderer.answer(record.prompt.messages, record.answer),), good=record.good)
    elif isinstance(record, Pair):
        answers = (record.chosen, record.rejected, *((_gold(record),) if gold else ()))
        item = Item(
            "pairs", tuple(renderer.answer(record.prompt.messages, each) for each in answers), margin=record.margin
        )
    elif isinstance(record, Ranking):
        item = Item("rankings", tuple(renderer.answer(record.prompt.messages, each) for each in record.answers))
    elif isinstance(record, StepExample):
        rendered, ends = renderer.steps(record.prompt.messages, record.steps)
        item = Item("steps", (rendered,), ends=ends, labels=record.right)
    else:
        raise ValueError("a prompt alone has nothing to train on; an algorithm that samples takes prompts")
    longest = max(len(sequence) for sequence in item.sequences)
    if renderer.context is not None and longest > renderer.context:
        raise RowError(
            "long",
            f"{longest} tokens, but the model holds {renderer.context}; shorten the row or remove it, or use a model "
            "with a longer context",
        )
    if longest > limits.max_tokens:
        raise RowError(
            "long",
            f"{longest} tokens, but at most {limits.max_tokens} are allowed (data.max_tokens); raise it, or shorten "
            "the row or remove it",
        )
    return item


def _gold(record: Pair) -> tuple[Message, ...]:
    if record.prompt.answer is None:
        raise RowError(
            "missing", "no gold answer, which this algorithm imitates beside every pair; add a column 'gold'"
        )
    return (Message("assistant", record.prompt.answer),)


def shortened(record: Record, renderer: Renderer, limits: Limits, report: Report) -> Record:
    """The record with a prompt that fits; refused where long prompts are, counted where they are cut."""
    asked = _asked(record)
    if not asked or _fits(asked, renderer, limits):
        return record
    if limits.prompt_overflow == "refuse":
        length = len(renderer.prompt(asked))
        if length > limits.max_prompt_tokens:
            rule = f"at most {limits.max_prompt_tokens} are allowed (data.max_prompt_tokens); raise it"
        else:
            kept = f", {limits.answer} of them for the answer (rollouts.max_new_tokens)" if limits.answer else ""
            rule = f"the model holds {renderer.context}{kept}; shorten the prompt"
        raise RowError(
            "long",
            f"a prompt of {length} tokens, but {rule}, or let long prompts be cut (data.prompt_overflow=truncate)",
        )
    try:
        cut, lost = fit_messages(asked, lambda m: _fits(m, renderer, limits), keep_end=limits.keep_end)
    except RowError:
        raise
    except ValueError as error:
        raise RowError("long", str(error)) from None
    report.notes["prompts cut" + (" inside a paragraph" if lost.characters else " at a paragraph")] += 1
    return _with_prompt(record, cut)


def _fits(messages: Sequence[Message], renderer: Renderer, limits: Limits) -> bool:
    length = len(renderer.prompt(messages))
    held = renderer.context is None or length + limits.answer <= renderer.context
    return length <= limits.max_prompt_tokens and held


def _asked(record: Record) -> tuple[Message, ...]:
    """What comes before the last answer; nothing for plain text."""
    if isinstance(record, Example):
        return record.messages[:-1]
    return record.messages if isinstance(record, Prompt) else record.prompt.messages


def _with_prompt(record: Record, messages: tuple[Message, ...]) -> Record:
    if isinstance(record, Example):
        return replace(record, messages=(*messages, record.messages[-1]))
    if isinstance(record, Prompt):
        return replace(record, messages=messages)
    return replace(record, prompt=replace(record.prompt, messages=messages))


def _margins_of_all_or_none(name: str, items: Sequence[Item]) -> None:
    with_margin = sum(item.margin is not None for item in items)
    if 0 < with_margin < len(items):
        raise ValueError(
            f"{name}: {with_margin} of {len(items)} pairs have a margin; give one to every pair or to none, "
            "because a missing margin is not a margin of 0"
        )
