"""`ascent inspect`: counts, lengths, duplicates, rows that do not fit, and one record as it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascent.cli.lines import echo

if TYPE_CHECKING:
    from rich.console import Console

    from ascent.data.load import LoadResult
    from ascent.data.prepare import Item, Limits
    from ascent.data.render import Rendered, Renderer

TASK_RECORDS = 1000  # of a built-in task
BAR = 24
KINDS = "prompts, examples, pairs, rankings, unpaired or steps"


def inspect(
    data: Annotated[
        list[str],
        typer.Argument(help="Files, folders, hub names or built-in tasks, shown side by side."),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="Count tokens of this model, and render a sample.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--as", help=f"Read the data as {KINDS}.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="As data.max_tokens.")] = 2048,
    max_prompt_tokens: Annotated[
        int, typer.Option("--max-prompt-tokens", help="As data.max_prompt_tokens.")
    ] = 1024,
    words: Annotated[
        bool, typer.Option("--words", help="Without a model: count words, not characters.")
    ] = False,
) -> None:
    """Show counts, lengths, duplicates, bad rows and a sample of data.

    With --model: also what would be cut, and one sample with its trained tokens marked.
    """
    from ascent.cli.console import make_console

    console = make_console()
    sets = [_load(name, kind) for name in data]
    renderer = _renderer(model)
    for loaded in sets:
        _print_counts(console, loaded)
    unit, measure = _measure(renderer, words)
    _print_lengths(console, sets, unit, measure)
    _print_duplicates(console, sets)
    if renderer is None:
        echo("\nTruncation and a rendered sample need a tokenizer: add --model MODEL")
    else:
        from ascent.data.prepare import Limits

        for line in renderer.describe():
            echo(line)
        for loaded in sets:
            _print_rendered(console, loaded, renderer, Limits(max_tokens, max_prompt_tokens))
    if any(loaded.report.invalid for loaded in sets):
        raise typer.Exit(1)


def _load(name: str, kind: Any) -> LoadResult:
    from ascent.data.load import from_records, load
    from ascent.setup.data_names import as_dataset
    from ascent.tasks.named import from_name, is_task

    if not is_task(name):
        with as_dataset(name):
            return load(name, kind, invalid_rows="collect")
    wanted: Any = kind or "examples"
    return from_records(name, from_name(name, wanted, count=TASK_RECORDS), wanted)


def _renderer(model: str | None) -> Renderer | None:
    if model is None:
        return None
    from ascent.data.render import Renderer, load_tokenizer

    return Renderer(load_tokenizer(model))


def _measure(renderer: Renderer | None, words: bool) -> tuple[str, Callable[[str], int]]:
    if renderer is not None:
        tokenizer = renderer.tokenizer
        return "tokens", lambda text: len(tokenizer.encode(text, add_special_tokens=False))
    return ("words", lambda text: len(text.split())) if words else ("characters", len)


def _print_counts(console: Console, loaded: LoadResult) -> None:
    counts = f"{len(loaded.records)} {loaded.kind} of {loaded.report.rows} rows"
    echo(f"{loaded.name}: {counts}, schema: {loaded.schema}")
    for remark in loaded.remarks:
        echo(f"  converted: {remark}")
    if loaded.unused:
        echo(f"  columns not used: {', '.join(loaded.unused)}")
    for line in loaded.report.lines():
        echo(f"  {line}")
    if {"annotator", "verdict"} <= set(loaded.unused):  # written by ascent collect
        from pathlib import Path

        from ascent.feedback.agreement import agreement, agreement_lines
        from ascent.feedback.preference_log import read

        for line in agreement_lines(agreement(read(Path(loaded.name)))):
            echo(f"  {line}")


def _print_lengths(
    console: Console, sets: Sequence[LoadResult], unit: str, measure: Callable[[str], int]
) -> None:
    from rich.table import Table

    from ascent.data import summary

    columns: dict[str, list[int]] = {}
    for number, loaded in enumerate(sets, 1):
        mark = f" ({number})" if len(sets) > 1 else ""
        columns |= {
            name + mark: values for name, values in summary.lengths(loaded.records, measure).items()
        }
    table = Table(title=f"Lengths in {unit}", title_justify="left", box=None, header_style="bold")
    table.add_column("part")
    for word in summary.LengthStats._fields:
        table.add_column(word, justify="right")
    for name, values in columns.items():
        five = summary.summarize(values)
        table.add_row(
            name,
            str(five.texts),
            f"{five.mean:.1f}",
            str(five.median),
            str(five.p95),
            str(five.longest),
        )
    console.print(table)
    bars = Table(box=None, header_style="bold")
    bars.add_column(unit, justify="right")
    for name in columns:
        bars.add_column(name, no_wrap=True)
    bins = summary.histogram(columns)
    most = {name: max(counts[name] for _, _, counts in bins) for name in columns}
    width = max(4, BAR // len(columns))
    for low, high, counts in bins:
        cells = [_bar(counts[name], most[name], width) for name in columns]
        bars.add_row(f"{low}-{high}" if high > low else f"{low}", *cells)
    console.print(bars)


def _bar(count: int, most: int, width: int) -> str:
    """A bar in eighths of a character, with its count; a count above 0 is always visible."""
    eighths = max(1, round(8 * width * count / most)) if count else 0
    blocks = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
    return f"{blocks:<{width}} {count}"


def _print_duplicates(console: Console, sets: Sequence[LoadResult]) -> None:
    from ascent.data import summary

    for loaded in sets:
        records, prompts = summary.count_duplicates(loaded.records)
        echo(
            f"{loaded.name}: {records} records repeat an earlier one, {prompts} repeat an earlier prompt"
        )
        longer = summary.chosen_longer_frac(loaded.records)
        if longer is not None:
            echo(f"{loaded.name}: the chosen answer is the longer one in {longer:.0%} of pairs")
    for one, other in combinations(sets, 2):
        echo(
            f"{one.name} and {other.name} share {summary.count_shared_prompts(one.records, other.records)} prompts"
        )


def _print_rendered(
    console: Console, loaded: LoadResult, renderer: Renderer, limits: Limits
) -> None:
    """Print what the limits refuse, then the first record that fits, with its trained tokens in brackets."""
    from ascent.data.errors import Report, RowError
    from ascent.data.prepare import fit_prompt, render_record
    from ascent.records import Prompt

    report = Report("collect", rows=len(loaded.records))
    sample: Item | tuple[int, ...] | None = None
    for record, place in zip(loaded.records, loaded.places, strict=True):
        try:
            fitting = fit_prompt(record, renderer, limits, report)
            prompt = renderer.prompt(fitting.messages) if isinstance(fitting, Prompt) else None
            item = prompt or render_record(fitting, renderer, limits)
        except RowError as error:
            report.add(place, error)
            continue
        sample = sample or item
    budget = f"{limits.max_tokens} tokens a record, {limits.max_prompt_tokens} a prompt"
    echo(
        f"\n{loaded.name}: {len(report.invalid)} of {report.rows} records cannot be trained on ({budget})"
    )
    for line in report.lines():
        echo(f"  {line}")
    if isinstance(sample, tuple):
        echo(
            f"sample, {len(sample)} tokens, as a sampler continues it:\n{renderer.tokenizer.decode(list(sample))}"
        )
    elif sample is not None:
        for sequence in sample.sequences:
            _print_sequence(console, sequence, renderer)


def _print_sequence(console: Console, sequence: Rendered, renderer: Renderer) -> None:
    from rich.text import Text

    from ascent.cli.console import print_text

    shown = Text()
    runs = groupby(
        zip(sequence.tokens.tolist(), sequence.loss_mask.tolist(), strict=True),
        key=lambda each: each[1],
    )
    for trained, run in runs:
        text = renderer.tokenizer.decode([token for token, _ in run])
        shown.append(
            f"⟦{text}⟧" if trained else str(text), style="bold green" if trained else "dim"
        )
    echo(f"sample, {len(sequence)} tokens, {int(sequence.loss_mask.sum())} trained, marked ⟦ ⟧:")
    print_text(console, shown)
