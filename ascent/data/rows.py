"""Rows of files, each with its place: JSONL and CSV line by line, Parquet and saved datasets through `datasets`.

A byte that is not UTF-8 is decoded as a lone surrogate, so only its own row is invalid.
"""

from __future__ import annotations

import csv
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from typing import Any, NamedTuple

from ascent.data.columns import check_utf8
from ascent.data.errors import Place, RowError
from ascent.data.json_text import parse_json, parse_messages, skip_blank

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
# A CSV cell of these columns holds JSON where it starts like this.
JSON_STARTS = ("[", "{")
JSON_COLUMNS = {
    *(
        "messages",
        "conversations",
        "conversation",
        "rejected_messages",
        "history",
        "responses",
        "completions",
    ),
    *(
        "answers",
        "ranked",
        "ratings",
        "scores",
        "ranks",
        "reward_model",
        "extra_info",
        "labels",
        "tools",
    ),
}
LONGEST_CELL = 2**30  # Python's default is 128 KiB, which long documents exceed
MAYBE_CHAT = {"prompt", "completion", "chosen", "rejected"}
# First bytes of files that are not what their suffix says.
MAGIC = {
    b"\x1f\x8b": "compressed by gzip; unpack it with gunzip",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it with unzstd",
    b"BZh": "compressed by bzip2; unpack it with bunzip2",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
# Splits that the names of files mention, and how their longer forms go on: validation.
SPLITS = {
    "train": "ing",
    "test": "ing",
    "valid": "ation",
    "val": "id|idation",
    "eval": "uation",
    "dev": "",
}


class Row(NamedTuple):
    """The values of a row, or its error. `id` is that of the record, if another than the place."""

    place: Place
    fields: dict[str, Any]
    error: RowError | None = None
    id: str = ""


def read_file(path: Path, shown: str) -> Iterator[Row]:
    """The rows of one file; `shown` is its name in error messages."""
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    with path.open("rb") as file:
        start = file.read(4)
    other = next((text for magic, text in MAGIC.items() if start.startswith(magic)), None)
    if other is not None:
        raise ValueError(f"{shown} is {other}")
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
            yield _parse_line(line, Place(shown, number))


def read_lines(lines: Iterable[str], key: str) -> Iterator[Row]:
    """Rows that are given as lines of JSON for a key of the recipe, such as data.train.

    They get the ids of a file train.jsonl, so that a run on them samples as a run on that file.
    """
    file = f"{key.rpartition('.')[2]}.jsonl"
    for number, line in enumerate(lines, 1):
        yield _parse_line(line, Place(key, number, "row"))._replace(id=f"{file}:{number}")


def _parse_line(line: str, place: Place) -> Row:
    try:
        check_utf8(line, "the line")
        found, end = parse_json(line, skip_blank(line, 0))
        if skip_blank(line, end) < len(line):
            raise RowError(
                "syntax", f"not JSON: trailing text at character {end}; write one object per line"
            )
    except RowError as error:
        return Row(place, {}, error)
    return _as_row(found, place)


def _as_row(found: Any, place: Place) -> Row:
    if isinstance(found, dict):
        return Row(place, found)
    kind = {list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(
        type(found), "a number"
    )
    return Row(
        place,
        {},
        RowError("type", f'{kind}, but a row is an object such as {{"prompt": "...", ...}}'),
    )


def _json(path: Path, shown: str) -> Iterator[Row]:
    """A list of objects, JSON lines under the name .json, or one object over many lines."""
    text = "".join(_lines(path))
    at = skip_blank(text, 0)
    if not text.startswith("[", at):
        yield from _parse_single(text, shown) or _jsonl(path, shown)
        return
    number, at = 0, skip_blank(text, at + 1)
    more = not text.startswith("]", at)
    while more:
        number += 1
        try:
            found, end = parse_json(text, at)
            check_utf8(text[at:end], f"row {number}")
            at = skip_blank(text, end)
            if not text.startswith((",", "]"), at):
                raise RowError(
                    "syntax",
                    "not JSON: a comma or ] is missing after a row; the file may be cut off",
                )
        except RowError as error:
            raise ValueError(f"{shown}:{text.count(chr(10), 0, at) + 1}: {error}") from None
        yield _as_row(found, Place(shown, number, "row"))
        more = text[at] == ","
        at = skip_blank(text, at + 1) if more else at
    if skip_blank(text, at + 1) < len(text):
        raise ValueError(
            f"{shown}: not JSON: trailing text after the list; a .json file is one list of objects"
        )


def _parse_single(text: str, shown: str) -> list[Row]:
    try:
        found, end = parse_json(text, skip_blank(text, 0))
    except RowError:
        return []
    return [_as_row(found, Place(shown, 1))] if skip_blank(text, end) == len(text) else []


def _csv(path: Path, shown: str) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(_lines(path), strict=True)
    header: list[str] | None = None
    start = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{shown}:{start}: not CSV: {error}; quote cells that hold quotes or line ends"
            ) from None
        if cells is None:
            return
        place, start = Place(shown, start), reader.line_num + 1
        if header is None:
            header = cells
            _check_header(header, place)
        elif cells:
            yield _csv_row(header, cells, place)


def _check_header(header: list[str], place: Place) -> None:
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{place}: the column name {twice!r} is given twice; rename or remove one of the columns"
        )
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise ValueError(f"{place}: one column named {header[0]!r}; separate columns by commas")
    try:
        check_utf8("".join(header), "the line of column names")
    except RowError as error:
        raise ValueError(f"{place}: {error}") from None


def _csv_row(header: list[str], cells: list[str], place: Place) -> Row:
    if len(cells) != len(header):
        words = f"{len(cells)} cells under {len(header)} column names; quote cells that hold commas"
        return Row(place, {}, RowError("syntax", words))
    fields: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        try:
            check_utf8(cell, f"column {name!r}")
            fields[name] = _parse_cell(name, cell)
        except RowError as error:
            return Row(place, {}, error)
    return Row(place, fields)


def _parse_cell(name: str, cell: str) -> Any:
    """An empty cell is a missing value; lists are JSON."""
    if cell == "":
        return None
    if name in MAYBE_CHAT:
        return parse_messages(cell, f"column {name!r}")
    if not (name in JSON_COLUMNS and cell.lstrip().startswith(JSON_STARTS)):
        return cell
    try:
        found, end = parse_json(cell, skip_blank(cell, 0))
    except RowError as error:
        raise RowError(error.kind, f"column {name!r}: {error}") from None
    if skip_blank(cell, end) < len(cell):
        raise RowError(
            "syntax",
            f"column {name!r}: not JSON: trailing text at character {end}; it holds one list",
        )
    return found


def _datasets() -> Any:
    """Imported late: the import is slow."""
    import datasets  # type: ignore[import-untyped]

    return datasets


def _parquet(path: Path, shown: str) -> Iterator[Row]:
    datasets = _datasets()
    # Streaming makes no copy in a cache and keeps the order of the file.
    options = {"data_files": str(path), "split": "train", "streaming": True}
    yield from table_rows(
        _open_dataset(shown, lambda: datasets.load_dataset("parquet", **options)), shown
    )


def _open_dataset(shown: str, load: Callable[[], Any]) -> Any:
    """Open with `datasets`, whose own log would repeat the error of a damaged file."""
    logger = logging.getLogger("datasets")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return load()
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(shown, error) from None
    finally:
        logger.setLevel(level)


def _damaged(shown: str, error: Exception) -> ValueError:
    reason = (str(error) or type(error).__name__).splitlines()[0].strip(" .:")
    return ValueError(f"{shown} is damaged or cut off: {reason}; write it again, or copy it again")


def table_rows(table: Any, shown: str) -> Iterator[Row]:
    """The rows of a table of `datasets`."""
    number = 0
    try:
        for number, item in enumerate(table, 1):
            yield Row(Place(shown, number, "row"), dict(item))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{shown} row {number + 1} or later: not UTF-8 ({error.reason}); re-encode the file"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(f"{shown} row {number + 1} or later", error) from None


def read_saved_dataset(folder: Path, shown: str, split: str | None) -> Iterator[Row]:
    """A folder written by `datasets`' save_to_disk."""
    datasets = _datasets()
    found = _open_dataset(shown, lambda: datasets.load_from_disk(str(folder)))
    if isinstance(found, datasets.DatasetDict):
        name = split or "train"
        if name not in found:
            raise ValueError(
                f"{shown} has no split {name!r}; it has {', '.join(found)}: add @SPLIT to the name"
            )
        found = found[name]
    elif split is not None:
        raise ValueError(
            f"{shown} is one dataset without splits, but @{split} was given; leave it out"
        )
    return table_rows(found, shown)


def is_saved_dataset(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def files_of_folder(folder: Path, shown: str, split: str | None) -> list[tuple[Path, str]]:
    """Data files below a folder, sorted by name: those of the split, or all where no name mentions a split."""
    every = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    below = [
        (path, path.relative_to(folder).as_posix())
        for path in every
        if not path.name.endswith("_info.json")
    ]
    inside = [
        (path, name) for path, name in below if "/." not in f"/{name}"
    ]  # editors keep old copies there
    if not inside:
        raise ValueError(f"{shown} holds no data file; put {', '.join(SUFFIXES)} files there")
    wanted = split or "train"
    stems = [_stem(name) for _, name in inside]
    every_stem = frozenset(stems)
    named = [
        each
        for each, stem in zip(inside, stems, strict=True)
        if _is_of_split(stem, wanted.lower(), every_stem)
    ]
    if split is not None and not named:  # asked for by name, so trainsft may be meant
        begins = re.compile(rf"(?<![a-z]){re.escape(wanted.lower())}")
        named = [each for each, stem in zip(inside, stems, strict=True) if begins.search(stem)]
    if named:
        return named
    has_splits = any(_is_of_split(stem, word, every_stem) for stem in stems for word in SPLITS)
    if split is not None or has_splits:
        names = ", ".join(name for _, name in inside[:5])
        raise ValueError(
            f"{shown} has no file for the split {wanted!r}, only {names}; add @SPLIT to the name"
        )
    return inside


def _stem(name: str) -> str:
    """The name without its suffix in lower case; testSet is two words."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", os.path.splitext(name)[0]).lower()


def _is_of_split(stem: str, split: str, stems: Set[str]) -> bool:
    """The split is a word of the name: contests and constraints name none. It may end a longer word where some name is
    there with two splits: gsm8ktrain next to gsm8ktest, and then mathtrain too."""
    if re.search(
        rf"(?<![a-z]){re.escape(split)}({SPLITS.get(split, '')})?(s|set|data)?(?![a-z])", stem
    ):
        return True
    ends = {
        each.removesuffix(word): word for each in stems for word in SPLITS if each.endswith(word)
    }
    twice = any(
        f"{name}{other}" in stems
        for name, word in ends.items()
        if name
        for other in SPLITS
        if other != word
    )
    return twice and stem.endswith(split)
