"""Rows of files, each with its place: JSONL and CSV line by line, Parquet and saved datasets through `datasets`.

Text is decoded so that a byte that is not UTF-8 survives as a lone surrogate: reading the row's fields then refuses
that row by its line, and the lines after it are still read.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ascent.data.errors import Place, RowError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
# A cell of a CSV file that starts like this in one of these columns holds JSON.
JSON_STARTS = ("[", "{")
JSON_COLUMNS = {
    *("messages", "conversations", "conversation", "rejected_messages", "history", "responses", "completions"),
    *("answers", "ranked", "ratings", "scores", "ranks", "reward_model", "extra_info", "labels"),
}
# Python refuses cells over 128 KiB unless told otherwise; a long document is longer.
LONGEST_CELL = 2**30
MAYBE_CHAT = {"prompt", "completion", "chosen", "rejected"}


class Row(NamedTuple):
    """A row's values, or why there are none."""

    place: Place
    fields: dict[str, Any]
    error: RowError | None = None


def rows_of_file(path: Path, shown: str) -> Iterator[Row]:
    """`shown` is how places name the file."""
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(
            f"{shown}: files of type {path.suffix or 'no suffix'!r} are not read; use {', '.join(SUFFIXES)}"
        )
    return readers[path.suffix](path, shown)


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        for number, line in enumerate(file):
            yield line.removeprefix("\ufeff") if number == 0 else line


def _jsonl(path: Path, shown: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _object(line, Place(shown, number))


def _object(line: str, place: Place) -> Row:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        return Row(
            place, {}, RowError("syntax", f"not JSON: {error.msg} at character {error.pos}; one object per line")
        )
    if not isinstance(found, dict):
        return Row(place, {}, RowError("type", f"a {type(found).__name__} where an object was expected"))
    return Row(place, found)


def _json(path: Path, shown: str) -> Iterator[Row]:
    """A list of objects, or (as many do) lines of objects under the name .json."""
    text = "".join(_lines(path))
    if not text.lstrip().startswith("["):
        yield from _jsonl(path, shown)
        return
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{shown}:{error.lineno}: not JSON: {error.msg}; a .json file is a list of objects") from None
    for number, item in enumerate(found, 1):
        place = Place(shown, number, "row")
        bad = None if isinstance(item, dict) else RowError("type", f"a {type(item).__name__}, not an object")
        yield Row(place, item if bad is None else {}, bad)


def _csv(path: Path, shown: str) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(_lines(path), strict=True)
    header: list[str] | None = None
    start = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{shown}:{start}: not CSV: {error}; quote cells that hold quotes or line ends") from None
        if cells is None:
            return
        place, start = Place(shown, start), reader.line_num + 1
        if header is None:
            header = cells
        elif cells:
            yield _record(header, cells, place)


def _record(header: list[str], cells: list[str], place: Place) -> Row:
    if len(cells) != len(header):
        return Row(place, {}, RowError("syntax", f"{len(cells)} cells under {len(header)} column names"))
    fields: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        try:
            fields[name] = _cell(name, cell)
        except json.JSONDecodeError as error:
            return Row(place, {}, RowError("syntax", f"column {name!r} is not JSON: {error.msg}; it holds a list"))
    return Row(place, fields)


def _cell(name: str, cell: str) -> Any:
    """An empty cell is a missing value; lists come as JSON."""
    if cell == "":
        return None
    if name in JSON_COLUMNS and cell.startswith(JSON_STARTS):
        return json.loads(cell)
    if name in MAYBE_CHAT and cell.startswith("[{") and '"role"' in cell:
        return json.loads(cell)
    return cell


def _datasets() -> Any:
    """Imported when a table is read: it takes longer than most text files."""
    import datasets  # type: ignore[import-untyped]

    return datasets


def _parquet(path: Path, shown: str) -> Iterator[Row]:
    datasets = _datasets()
    # Streaming leaves no copy in a cache, and the file's own order is the order of rows.
    stream = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    yield from _table(stream, shown)


def _table(table: Any, shown: str) -> Iterator[Row]:
    number = 0
    try:
        for number, item in enumerate(table, 1):
            yield Row(Place(shown, number, "row"), dict(item))
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown} row {number + 1} or later: not UTF-8 ({error.reason}); re-encode the file") from None


def rows_of_saved(folder: Path, shown: str, split: str | None) -> Iterator[Row]:
    """A folder that `datasets` wrote with save_to_disk."""
    datasets = _datasets()
    found = datasets.load_from_disk(str(folder))
    if isinstance(found, datasets.DatasetDict):
        name = split or "train"
        if name not in found:
            raise ValueError(f"{shown} has no split {name!r}; it has {', '.join(found)}: add @SPLIT to the name")
        found = found[name]
    elif split is not None:
        raise ValueError(f"{shown} is one dataset without splits, but @{split} was asked for; leave it out")
    return _table(found, shown)


def rows_of_hub(name: str, config: str | None, split: str | None) -> Iterator[Row]:
    """A dataset of the hub, through `datasets`, in its cache."""
    datasets = _datasets()
    try:
        found = datasets.load_dataset(name, config, split=split or "train")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is no file, no folder and no built-in task here, and as a hub dataset it cannot be read: {error}"
        ) from None
    return _table(found, f"{name}@{split or 'train'}")


def is_saved(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def files_of_folder(folder: Path, shown: str, split: str | None) -> list[tuple[Path, str]]:
    """Data files below a folder, in the order of their names: those of the split, or all where names tell of none."""
    every = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    inside = [(path, path.relative_to(folder).as_posix()) for path in every if not path.name.endswith("_info.json")]
    if not inside:
        raise ValueError(f"{shown} holds no data file; put {', '.join(SUFFIXES)} files there")
    wanted = split or "train"
    named = [(path, name) for path, name in inside if wanted in os.path.splitext(name)[0].lower()]
    if named:
        return named
    others = [name for _, name in inside if any(word in name.lower() for word in ("train", "test", "valid", "eval"))]
    if split is not None or others:
        names = ", ".join(name for _, name in inside[:5])
        raise ValueError(f"{shown} has no file for the split {wanted!r}, only {names}; add @SPLIT to the name")
    return inside
