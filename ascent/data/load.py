"""Records from a name: a file, a folder, a saved dataset, or a dataset of the hub.

    data/train.jsonl                   one file (.jsonl .json .csv .parquet)
    data/folder, data/folder@test      its files of a split ("train" unless told), or a dataset saved by `datasets`
    owner/name, owner/name:config@test a dataset of the hub
    gsm8k:any of these                 the same, read as that benchmark; also math: and tldr: (`ascent.data.benchmarks`)

Built-in tasks are records already; whoever builds a run hands them in with `from_records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from ascent.data import rows
from ascent.data.benchmarks import layouts_of
from ascent.data.columns import Columns
from ascent.data.convert import CONVERSIONS, convert, detect_schema
from ascent.data.errors import Place, Policy, Report, RowError
from ascent.data.rows import Row
from ascent.data.schemas import Record, Schema, Want

# How many rows decide which columns a file fills.
LOOKED_AT = 100
# A row with a reason in this column carries nothing to learn from: `ascent collect` writes it for ties and the like.
SET_ASIDE = "set_aside"


@dataclass(frozen=True)
class LoadResult:
    """Records with the place each came from (a ranking turned into pairs gives several records one place)."""

    name: str
    records: tuple[Record, ...]
    places: tuple[Place, ...]
    report: Report
    kind: Want
    layout: str
    unused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())


def load(name: str, want: Want | None = None, *, invalid_rows: Policy = "fail") -> LoadResult:
    """Every record of a name. Bad rows are collected over the whole of it, then fatal or skipped."""
    report = Report(invalid_rows)
    layouts, place = layouts_of(name)
    stream = _not_set_aside(rows_of(place), report)
    head = list(islice(stream, LOOKED_AT))
    if not head:
        if report.rows:
            report.settle(0)
        raise ValueError(f"{name} holds no rows; there is nothing to read")
    layout = _layout(name, head, want, report, layouts)
    records: list[Record] = []
    places: list[Place] = []
    unread: Counter[str] = Counter()
    for row in chain(head, stream):
        report.rows += 1
        try:
            made = _read(row, layout, report, unread)
        except RowError as error:
            report.refuse(row.place, error)
            continue
        for record in convert(made, layout.kind, want):
            records.append(record)
            places.append(row.place)
    report.settle(len(records))
    kind = want or layout.kind
    said = (CONVERSIONS[layout.kind, kind][1],) if kind != layout.kind else ()
    unused = () if kind == "prompts" else tuple(sorted(unread))
    return LoadResult(name, tuple(records), tuple(places), report, kind, layout.name, unused, said)


def _not_set_aside(stream: Iterator[Row], report: Report) -> Iterator[Row]:
    """Rows without a reason in the column `set_aside`: ties and the like stay in a file and are counted here."""
    for row in stream:
        reason = row.fields.get(SET_ASIDE)
        if reason is None:
            yield row
        else:
            report.rows += 1
            report.notes[f"rows set aside: {reason}"] += 1


def from_records(name: str, records: Sequence[Record], kind: Want) -> LoadResult:
    """Records that were made, not read: a built-in task's."""
    if not records:
        raise ValueError(f"{name} gave no records; ask for at least one")
    places = tuple(Place(name, number, "item") for number in range(1, len(records) + 1))
    return LoadResult(name, tuple(records), places, Report(rows=len(records)), kind, "built-in task")


def rows_of(name: str) -> Iterator[Row]:
    """The rows of a name, whatever it is."""
    path, split = _path(name)
    if path.is_file():
        if split is not None:
            raise ValueError(f"{name}: a file has no splits; leave out @{split}")
        return rows.rows_of_file(path, path.name)
    if path.is_dir() and rows.is_saved(path):
        return rows.rows_of_saved(path, path.name, split)
    if path.is_dir():
        files = rows.files_of_folder(path, name, split)
        return chain.from_iterable(rows.rows_of_file(each, shown) for each, shown in files)
    refuse_absent(name)
    return rows.rows_of_hub(*_hub(name))


def files_of(name: str) -> list[tuple[Path, str]]:
    """The files whose rows a name stands for, each with the name that places give it."""
    _, place = layouts_of(name)
    path, split = _path(place)
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir() and rows.is_saved(path):
        every = sorted(each for each in path.rglob("*") if each.is_file())
        return [(each, each.relative_to(path).as_posix()) for each in every]
    if path.is_dir():
        return rows.files_of_folder(path, place, split)
    refuse_absent(place)
    return rows.files_of_hub(*_hub(place))


def _hub(name: str) -> tuple[str, str | None, str | None]:
    """owner/name:config@split -> its three parts."""
    whole, _, split = name.partition("@")
    hub, _, config = whole.partition(":")
    return hub, config or None, split or None


def refuse_absent(name: str) -> None:
    """A name that can only be a path, where nothing is. Anything else may still be a hub's."""
    path, _ = _path(name)
    if not path.exists() and (path.suffix in rows.SUFFIXES or name.startswith((".", "/", "~"))):
        raise ValueError(f"no file or folder at {name}; give a path that exists, a hub name or a built-in task")


def _path(name: str) -> tuple[Path, str | None]:
    """A name that exists as it stands is a path; otherwise what follows the last @ is a split."""
    whole = Path(name).expanduser()
    if whole.exists() or "@" not in name:
        return whole, None
    before, _, split = name.rpartition("@")
    return Path(before).expanduser(), split


def _layout(name: str, head: Sequence[Row], want: Want | None, report: Report, layouts: Sequence[Schema]) -> Schema:
    """From the columns that at least half of the first rows fill."""
    good = [row for row in head if row.error is None]
    if not good:
        for row in head:
            assert row.error is not None
            report.rows += 1
            report.refuse(row.place, row.error)
        report.policy = "fail"  # no row tells what the columns are: nothing could be skipped to
        report.settle(0)
    filled = Counter(column for row in good for column, value in row.fields.items() if value is not None)
    usual = {column for column, count in filled.items() if 2 * count >= len(good)}
    sample = max(good, key=lambda row: sum(row.fields.get(column) is not None for column in usual))
    try:
        return detect_schema({column: sample.fields.get(column) for column in usual}, want, layouts)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read(row: Row, layout: Schema, report: Report, unread: Counter[str]) -> Record:
    if row.error is not None:
        raise row.error
    fields = Columns(f"{row.place.file}:{row.place.number}", row.fields)
    fields.refuse_what_we_cannot_hold()
    try:
        record = layout.read(fields)
    except RowError:
        raise
    except ValueError as error:  # a record's own rule, which knows no place
        raise RowError("type", str(error)) from None
    report.notes.update(fields.notes)
    unread.update(fields.rest().keys())
    return record
