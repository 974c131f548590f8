"""Records -> items: rendered sequences that stay in one micro-batch, within the length limits.

An item has one sequence for an example, an unpaired answer or an answer in steps, two for a pair (chosen first; a gold
answer third, where the algorithm needs one), K for a ranking (best first).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

from ascent.data.errors import Policy, Report, RowError
from ascent.data.load import LoadResult
from ascent.data.render import Rendered, Renderer
from ascent.data.schemas import Record, RecordKind
from ascent.data.truncate import fit_messages
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample

LEFT_OUT = "tied answers left out, because the algorithm needs a strict order"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """Maximum lengths, and whether a longer prompt is refused or truncated by paragraphs from its end.

    The context length of the renderer's model is a further limit; `answer_tokens` of it are reserved for the answer.
    `prompt_key` is the recipe's key that limits prompts.
    """

    max_tokens: int = 2048
    max_prompt_tokens: int = 1024
    prompt_overflow: Literal["refuse", "truncate"] = "refuse"
    keep_end: str = ""
    answer_tokens: int = 0
    prompt_key: str = "data.max_prompt_tokens"

    def __post_init__(self) -> None:
        if self.prompt_overflow not in ("refuse", "truncate"):
            raise ValueError(
                f"prompt_overflow={self.prompt_overflow!r}, but it must be refuse or truncate"
            )
        if self.max_prompt_tokens < 1 or self.max_tokens < 2:
            raise ValueError(
                f"max_prompt_tokens={self.max_prompt_tokens}, max_tokens={self.max_tokens}: a prompt has at least 1 "
                "token, and a record at least 2"
            )


@dataclass(frozen=True, eq=False)
class Item:
    """The rendered sequences of one record, with its margin or labels."""

    kind: RecordKind
    sequences: tuple[Rendered, ...]
    margin: float | None = None
    good: bool | None = None
    ranks: tuple[
        int, ...
    ] = ()  # of a ranking's answers; equal ones are ties, and () is a strict order
    mismatched: Rendered | None = None
    step_ends: tuple[int, ...] = ()  # the token where each step is scored
    step_labels: tuple[float | None, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens in one forward pass: the larger one where the mismatched sequence has its own."""
        own = sum(len(sequence) for sequence in self.sequences)
        return max(own, len(self.mismatched)) if self.mismatched is not None else own


class PreparedData(NamedTuple):
    """The items of the valid records, in order, and the report on the others."""

    name: str
    items: tuple[Item, ...]
    report: Report


def prepare(
    loaded: LoadResult,
    renderer: Renderer,
    limits: Limits,
    *,
    invalid_rows: Policy = "fail",
    gold: bool = False,
    strict_order: bool = False,
) -> PreparedData:
    """Render every record, so that one that is too long is found before the first step.

    With `gold`, the prompt's own answer is the third sequence of a pair. With `strict_order`, of a ranking's tied
    answers the first is kept, and the others are counted.
    """
    report = Report(invalid_rows)

    def render(record: Record) -> Item:
        if strict_order and isinstance(record, Ranking):
            record = _without_ties(record, report)
        return render_record(
            fit_prompt(record, renderer, limits, report), renderer, limits, gold=gold
        )

    items = _render_all(loaded, report, render)
    _check_margins(loaded.name, items)
    return PreparedData(loaded.name, tuple(items), report)


def prepare_prompts(
    loaded: LoadResult,
    renderer: Renderer,
    limits: Limits,
    *,
    invalid_rows: Policy = "fail",
    check: Callable[[Prompt], str | None] = lambda prompt: None,
) -> tuple[tuple[tuple[Prompt, tuple[int, ...]], ...], Report]:
    """Prompts with their tokens, for rollouts. `check` returns why no answer to a prompt can be scored, or None."""
    report = Report(invalid_rows)

    def render(record: Record) -> tuple[Prompt, tuple[int, ...]]:
        assert isinstance(record, Prompt), f"{type(record).__name__} among prompts"
        if (problem := check(record)) is not None:
            raise RowError("type", problem)
        prompt = fit_prompt(record, renderer, limits, report)
        assert isinstance(prompt, Prompt)
        return prompt, renderer.prompt(prompt.messages)

    return tuple(_render_all(loaded, report, render)), report


def _render_all(loaded: LoadResult, report: Report, render: Callable[[Record], _T]) -> list[_T]:
    found: list[_T] = []
    for record, place in zip(loaded.records, loaded.places, strict=True):
        report.rows += 1
        try:
            found.append(render(record))
        except RowError as error:
            report.add(place, error)
    report.finish(len(found))
    return found


def render_record(
    record: Record, renderer: Renderer, limits: Limits, *, gold: bool = False
) -> Item:
    """One record as an item; RowError where it is too long."""
    if isinstance(record, Example):
        item = Item("examples", (renderer.example(record.messages),))
    elif isinstance(record, UnpairedExample):
        item = Item(
            "unpaired", (renderer.answer(record.prompt.messages, record.answer),), good=record.good
        )
    elif isinstance(record, Pair):
        answers = (record.chosen, record.rejected, *((_gold(record),) if gold else ()))
        item = Item(
            "pairs",
            tuple(renderer.answer(record.prompt.messages, each) for each in answers),
            margin=record.margin,
        )
    elif isinstance(record, Ranking):
        sequences = tuple(renderer.answer(record.prompt.messages, each) for each in record.answers)
        item = Item("rankings", sequences, ranks=record.ranks)
    elif isinstance(record, StepExample):
        rendered, ends = renderer.steps(record.prompt.messages, record.steps)
        item = Item("steps", (rendered,), step_ends=ends, step_labels=record.right)
    else:
        raise ValueError("a prompt alone has nothing to train on; use an algorithm that samples")
    if renderer.check_content:
        _check_differ(item)
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


def _check_differ(item: Item) -> None:
    """RowError where answers that are compared have the same tokens; a gold answer may equal the chosen one."""
    compared = (
        item.sequences[:2]
        if item.kind == "pairs"
        else item.sequences
        if item.kind == "rankings"
        else ()
    )
    ranks = item.ranks or range(len(compared))
    found: dict[bytes, int] = {}
    for sequence, rank in zip(compared, ranks, strict=False):
        if found.setdefault(sequence.tokens.tobytes(), rank) != rank:
            raise RowError(
                "equal",
                "two answers that are compared have the same tokens: they differ only in what the chat template leaves "
                "out, such as white space; remove the row",
            )


def _without_ties(record: Ranking, report: Report) -> Ranking:
    first = dict(reversed(list(zip(record.ranks, record.answers, strict=True))))
    report.notes += Counter({LEFT_OUT: len(record.answers) - len(first)})
    return Ranking(record.prompt, tuple(first[rank] for rank in sorted(first)))


def _gold(record: Pair) -> tuple[Message, ...]:
    if record.prompt.answer is None:
        raise RowError(
            "missing",
            "no gold answer, which this algorithm needs with every pair; add a column 'gold'",
        )
    return (Message("assistant", record.prompt.answer),)


def fit_prompt(record: Record, renderer: Renderer, limits: Limits, report: Report) -> Record:
    """The record with a prompt within the limits: a longer one is a RowError, or truncated and counted."""
    prompt = prompt_messages(record)
    if not prompt or _fits(prompt, renderer, limits):
        return record
    if limits.prompt_overflow == "refuse":
        length = len(renderer.prompt(prompt))
        if length > limits.max_prompt_tokens:
            rule = f"at most {limits.max_prompt_tokens} are allowed ({limits.prompt_key}); raise it"
        else:
            reserved = f", {limits.answer_tokens} of them for the answer (rollouts.max_new_tokens)"
            rule = f"the model holds {renderer.context}{reserved if limits.answer_tokens else ''}; shorten the prompt"
        raise RowError(
            "long",
            f"a prompt of {length} tokens, but {rule}, or truncate long prompts (data.prompt_overflow=truncate)",
        )
    try:
        messages, truncation = fit_messages(
            prompt, lambda m: _fits(m, renderer, limits), keep_end=limits.keep_end
        )
    except RowError:
        raise
    except ValueError as error:
        raise RowError("long", str(error)) from None
    report.notes[
        "prompts truncated"
        + (" inside a paragraph" if truncation.characters else " at a paragraph")
    ] += 1
    return _with_prompt(record, messages)


def _fits(messages: Sequence[Message], renderer: Renderer, limits: Limits) -> bool:
    length = len(renderer.prompt(messages))
    in_context = renderer.context is None or length + limits.answer_tokens <= renderer.context
    return length <= limits.max_prompt_tokens and in_context


def prompt_messages(record: Record) -> tuple[Message, ...]:
    """The messages before the last answer; none for plain text."""
    if isinstance(record, Example):
        return record.messages[:-1]
    return record.messages if isinstance(record, Prompt) else record.prompt.messages


def _with_prompt(record: Record, messages: tuple[Message, ...]) -> Record:
    if isinstance(record, Example):
        return replace(record, messages=(*messages, record.messages[-1]))
    if isinstance(record, Prompt):
        return replace(record, messages=messages)
    return replace(record, prompt=replace(record.prompt, messages=messages))


def _check_margins(name: str, items: Sequence[Item]) -> None:
    with_margin = sum(item.margin is not None for item in items)
    if 0 < with_margin < len(items):
        raise ValueError(
            f"{name}: {with_margin} of {len(items)} pairs have a margin; give one to every pair or to none, "
            "because a missing margin is not a margin of 0"
        )
