"""Load a dataset by name: a file, a folder, a saved dataset, or a dataset of the hub.

    data/train.jsonl                   one file (.jsonl .json .csv .parquet)
    data/folder, data/folder@test      its files of a split (default "train"), or a dataset saved by `datasets`
    owner/name, owner/name:config@test a dataset of the hub
    gsm8k:any of these                 the same, read as that benchmark; also math: and tldr: (`ascent.data.benchmarks`)
    any of these:200                   its first 200 rows

Records of built-in tasks are wrapped by `from_records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from ascent.data import hub, rows
from ascent.data.benchmarks import schemas_of
from ascent.data.columns import Columns
from ascent.data.convert import CONVERSIONS, convert, detect_schema
from ascent.data.errors import Place, Policy, Report, RowError
from ascent.data.rows import Row
from ascent.data.schemas import SCHEMAS, Record, RecordKind, Schema, read_record
from ascent.records import Prompt

SAMPLE_ROWS = 100  # rows from which the schema is detected
# `ascent collect` writes a reason into this column of rows that are not for training, such as ties.
SET_ASIDE = "set_aside"


@dataclass(frozen=True)
class LoadResult:
    """Records with their places; the pairs made of one ranking share its place."""

    name: str
    records: tuple[Record, ...]
    places: tuple[Place, ...]
    report: Report
    kind: RecordKind
    schema: str
    unused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())


def load(
    name: str,
    want: RecordKind | None = None,
    *,
    invalid_rows: Policy = "fail",
    given: Iterator[Row] | None = None,
) -> LoadResult:
    """All records of a dataset. Invalid rows are collected first, then fatal or skipped.

    `given` are its rows, where they come from Python and not from files.
    """
    report = Report(invalid_rows)
    schemas, path, limit = parse_name(name)
    stream = islice(_skip_set_aside(read_rows(path) if given is None else given, report), limit)
    head = list(islice(stream, SAMPLE_ROWS))
    if not head:
        if report.rows:
            report.finish(0)
        raise ValueError(f"{name} holds no rows; there is nothing to read")
    schema = _detect(name, head, want, report, schemas)
    benchmark = schema not in SCHEMAS
    records: list[Record] = []
    places: list[Place] = []
    unread: Counter[str] = Counter()
    for row in chain(head, stream):
        report.rows += 1
        try:
            record = _read_record(row, schema, report, unread)
        except RowError as error:
            report.add(row.place, error)
            continue
        for converted in convert(record, schema.kind, want):
            records.append(
                _with_columns(converted, row, benchmark)
                if isinstance(converted, Prompt)
                else converted
            )
            places.append(row.place)
    report.finish(len(records))
    kind = want or schema.kind
    remarks = (CONVERSIONS[schema.kind, kind][1],) if kind != schema.kind else ()
    unused = () if kind == "prompts" else tuple(sorted(unread))
    return LoadResult(
        name, tuple(records), tuple(places), report, kind, schema.name, unused, remarks
    )


class DataName(NamedTuple):
    """A name in its parts: how to read the rows, where they are, and how many of them are read (None: all)."""

    schemas: Sequence[Schema]
    path: str
    limit: int | None


def parse_name(name: str) -> DataName:
    """gsm8k:train.jsonl:200 -> the schemas of GSM8K, train.jsonl, 200."""
    schemas, path = schemas_of(name)
    rest, _, count = path.rpartition(":")
    if not rest or not count.isdecimal() or Path(path).expanduser().exists():
        return DataName(schemas, path, None)
    if int(count) == 0:
        raise ValueError(f"{name}: 0 rows are no data; give at least 1, or leave out :0 for all")
    return DataName(schemas, rest, int(count))


def _with_columns(prompt: Prompt, row: Row, benchmark: bool) -> Prompt:
    """A prompt with its row, for rewards that take columns; a benchmark's answer is the one it is read as."""
    return replace(
        prompt, columns={**row.fields, "answer": prompt.answer} if benchmark else row.fields
    )


def _skip_set_aside(stream: Iterator[Row], report: Report) -> Iterator[Row]:
    """Rows without a reason in the column `set_aside`; the others are counted."""
    for row in stream:
        reason = row.fields.get(SET_ASIDE)
        if reason is None:
            yield row
        else:
            report.rows += 1
            report.notes[f"rows set aside: {reason}"] += 1


def from_records(name: str, records: Sequence[Record], kind: RecordKind) -> LoadResult:
    """Generated records, of a built-in task."""
    if not records:
        raise ValueError(f"{name} gave no records; ask for at least one")
    places = tuple(Place(name, number, "item") for number in range(1, len(records) + 1))
    return LoadResult(
        name, tuple(records), places, Report(rows=len(records)), kind, "built-in task"
    )


def read_rows(name: str) -> Iterator[Row]:
    path, split = _split_name(name)
    if path.is_file():
        if split is not None:
            raise ValueError(f"{name}: a file has no splits; leave out @{split}")
        return rows.read_file(path, path.name)
    if path.is_dir() and rows.is_saved_dataset(path):
        return rows.read_saved_dataset(path, path.name, split)
    if path.is_dir():
        files = rows.files_of_folder(path, name, split)
        return chain.from_iterable(rows.read_file(each, shown) for each, shown in files)
    check_path(name)
    return hub.read_hub(*_split_hub_name(name))


def files_of(name: str) -> list[tuple[Path, str]]:
    """The files of a dataset, each with the name that error messages use."""
    name = parse_name(name).path
    path, split = _split_name(name)
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir() and rows.is_saved_dataset(path):
        every = sorted(each for each in path.rglob("*") if each.is_file())
        return [(each, each.relative_to(path).as_posix()) for each in every]
    if path.is_dir():
        return rows.files_of_folder(path, name, split)
    check_path(name)
    return hub.files_of_hub(*_split_hub_name(name))


def _split_hub_name(name: str) -> tuple[str, str | None, str | None]:
    """owner/name:config@split -> (owner/name, config, split)."""
    whole, _, split = name.partition("@")
    owner_and_name, _, config = whole.partition(":")
    return owner_and_name, config or None, split or None


def check_path(name: str) -> None:
    """ValueError for a name that can only be a path and does not exist; any other name may be on the hub."""
    place = parse_name(name).path
    path, _ = _split_name(place)
    if not path.exists() and (path.suffix in rows.SUFFIXES or place.startswith((".", "/", "~"))):
        raise ValueError(
            f"no file or folder at {name}; give a path that exists, a hub name or a built-in task"
        )


def _split_name(name: str) -> tuple[Path, str | None]:
    """(path, split): what follows the last @ is the split, unless a file of the full name exists."""
    whole = Path(name).expanduser()
    if whole.exists() or "@" not in name:
        return whole, None
    before, _, split = name.rpartition("@")
    return Path(before).expanduser(), split


def _detect(
    name: str,
    head: Sequence[Row],
    want: RecordKind | None,
    report: Report,
    schemas: Sequence[Schema],
) -> Schema:
    """The schema that fits the columns which at least half of the first rows fill."""
    good = [row for row in head if row.error is None]
    if not good:
        for row in head:
            assert row.error is not None
            report.rows += 1
            report.add(row.place, row.error)
        report.policy = "fail"  # without one valid row there is no schema
        report.finish(0)
    filled = Counter(
        column for row in good for column, value in row.fields.items() if value is not None
    )
    usual = {column for column, count in filled.items() if 2 * count >= len(good)}
    sample = max(good, key=lambda row: sum(row.fields.get(column) is not None for column in usual))
    try:
        return detect_schema({column: sample.fields.get(column) for column in usual}, want, schemas)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_record(row: Row, schema: Schema, report: Report, unread: Counter[str]) -> Record:
    if row.error is not None:
        raise row.error
    columns = Columns(row.id or f"{row.place.file}:{row.place.number}", row.fields)
    columns.check_text_only()
    try:
        record = read_record(schema, columns)
    except RowError:
        raise
    except ValueError as error:  # a check of the record class
        raise RowError("type", str(error)) from None
    report.notes.update(columns.notes)
    unread.update(columns.unread().keys())
    return record
