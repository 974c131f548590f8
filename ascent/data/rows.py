"""Rows of files, each with its place: JSONL and CSV line by line, Parquet and saved datasets through `datasets`.

Text is decoded so that a byte that is not UTF-8 survives as a lone surrogate: that row is refused by its line, and the
lines after it are still read.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ascent.data.columns import encodable
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
# How files begin that are not what their suffix says.
OTHER_FILES = {
    b"\x1f\x8b": "compressed by gzip; unpack it with gunzip",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it with unzstd",
    b"BZh": "compressed by bzip2; unpack it with bunzip2",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
BLANK = re.compile(r"[ \t\r\n]*")


class Row(NamedTuple):
    """A row's values, or why there are none."""

    place: Place
    fields: dict[str, Any]
    error: RowError | None = None


def rows_of_file(path: Path, shown: str) -> Iterator[Row]:
    """`shown` is how places name the file."""
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    with path.open("rb") as file:
        start = file.read(4)
    other = next((words for mark, words in OTHER_FILES.items() if start.startswith(mark)), None)
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
            yield _object(line, Place(shown, number))


def _object(line: str, place: Place) -> Row:
    try:
        encodable(line, "the line")
        found, end = parsed(line, _blank(line, 0))
        if _blank(line, end) < len(line):
            raise RowError("syntax", f"not JSON: more follows at character {end}; write one object per line")
    except RowError as error:
        return Row(place, {}, error)
    return _as_row(found, place)


def _as_row(found: Any, place: Place) -> Row:
    if isinstance(found, dict):
        return Row(place, found)
    kind = {list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(type(found), "a number")
    return Row(place, {}, RowError("type", f'{kind}, but a row is an object such as {{"prompt": "...", ...}}'))


def _json(path: Path, shown: str) -> Iterator[Row]:
    """A list of objects, or (as many do) lines of objects under the name .json, or one object on many lines."""
    text = "".join(_lines(path))
    at = _blank(text, 0)
    if not text.startswith("[", at):
        yield from _single(text, shown) or _jsonl(path, shown)
        return
    number, at = 0, _blank(text, at + 1)
    more = not text.startswith("]", at)
    while more:
        number += 1
        try:
            found, end = parsed(text, at)
            encodable(text[at:end], f"row {number}")
            at = _blank(text, end)
            if not text.startswith((",", "]"), at):
                raise RowError("syntax", "not JSON: a comma or ] is missing behind a row; the file may be cut off")
        except RowError as error:
            raise ValueError(f"{shown}:{text.count(chr(10), 0, at) + 1}: {error}") from None
        yield _as_row(found, Place(shown, number, "row"))
        more = text[at] == ","
        at = _blank(text, at + 1) if more else at
    if _blank(text, at + 1) < len(text):
        raise ValueError(f"{shown}: not JSON: more follows behind the list; a .json file is one list of objects")


def _single(text: str, shown: str) -> list[Row]:
    try:
        found, end = parsed(text, _blank(text, 0))
    except RowError:
        return []
    return [_as_row(found, Place(shown, 1))] if _blank(text, end) == len(text) else []


def parsed(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at a character, and where it ends. What JSON does not have is a RowError: names given
    twice, NaN, numbers and depths beyond what Python reads."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        words = error.msg.removesuffix(" at")
        raise RowError("syntax", f"not JSON: {words} at character {error.pos - at}; write one whole object") from None
    except RecursionError:
        raise RowError("syntax", "nested too deep to be read; no row needs more than a few levels") from None
    except RowError:
        raise
    except ValueError:  # what int() says of more digits than it reads
        raise RowError("syntax", "a number has thousands of digits; write a smaller one, or text in quotes") from None


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowError("syntax", f"the name {twice!r} is given twice in one object; keep one")
    return found


def _no_constant(word: str) -> Any:
    raise RowError("syntax", f"{word} is not JSON; write a finite number, or null")


_DECODER = json.JSONDecoder(object_pairs_hook=_fields, parse_constant=_no_constant)


def _blank(text: str, at: int) -> int:
    """Where the white space from a character on ends."""
    return BLANK.match(text, at).end()  # type: ignore[union-attr] # it matches everywhere


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
            _check_header(header, place)
        elif cells:
            yield _record(header, cells, place)


def _check_header(header: list[str], place: Place) -> None:
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{place}: the column name {twice!r} is given twice; rename or remove one of the columns")
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise ValueError(f"{place}: one column named {header[0]!r}; separate columns by commas")
    try:
        encodable("".join(header), "the line of column names")
    except RowError as error:
        raise ValueError(f"{place}: {error}") from None


def _record(header: list[str], cells: list[str], place: Place) -> Row:
    if len(cells) != len(header):
        words = f"{len(cells)} cells under {len(header)} column names; quote cells that hold commas"
        return Row(place, {}, RowError("syntax", words))
    fields: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        try:
            encodable(cell, f"column {name!r}")
            fields[name] = _cell(name, cell)
        except RowError as error:
            return Row(place, {}, error)
    return Row(place, fields)


def _cell(name: str, cell: str) -> Any:
    """An empty cell is a missing value; lists come as JSON."""
    if cell == "":
        return None
    is_chat = name in MAYBE_CHAT and cell.startswith("[{") and '"role"' in cell
    if not is_chat and not (name in JSON_COLUMNS and cell.startswith(JSON_STARTS)):
        return cell
    try:
        found, end = parsed(cell)
    except RowError as error:
        raise RowError(error.kind, f"column {name!r}: {error}") from None
    if _blank(cell, end) < len(cell):
        raise RowError("syntax", f"column {name!r}: not JSON: more follows at character {end}; it holds one list")
    return found


def _datasets() -> Any:
    """Imported when a table is read: it takes longer than most text files."""
    import datasets  # type: ignore[import-untyped]

    return datasets


def _parquet(path: Path, shown: str) -> Iterator[Row]:
    datasets = _datasets()
    # Streaming leaves no copy in a cache, and the file's own order is the order of rows.
    options = {"data_files": str(path), "split": "train", "streaming": True}
    yield from _table(_opened(shown, lambda: datasets.load_dataset("parquet", **options)), shown)


def _opened(shown: str, load: Callable[[], Any]) -> Any:
    """What `datasets` opens. Of a damaged file it logs what it raises; once, with the file's name, is enough."""
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


def _table(table: Any, shown: str) -> Iterator[Row]:
    number = 0
    try:
        for number, item in enumerate(table, 1):
            yield Row(Place(shown, number, "row"), dict(item))
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown} row {number + 1} or later: not UTF-8 ({error.reason}); re-encode the file") from None
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(f"{shown} row {number + 1} or later", error) from None


def rows_of_saved(folder: Path, shown: str, split: str | None) -> Iterator[Row]:
    """A folder that `datasets` wrote with save_to_disk."""
    datasets = _datasets()
    found = _opened(shown, lambda: datasets.load_from_disk(str(folder)))
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
    return _table(_of_hub(name, config, split), f"{name}@{split or 'train'}")


def files_of_hub(name: str, config: str | None, split: str | None) -> list[tuple[Path, str]]:
    """The files of that cache."""
    files = [Path(each["filename"]) for each in _of_hub(name, config, split).cache_files]
    return [(path, path.name) for path in files]


def _of_hub(name: str, config: str | None, split: str | None) -> Any:
    datasets = _datasets()
    try:
        return datasets.load_dataset(name, config, split=split or "train")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is no file, no folder and no built-in task here, and as a hub dataset it cannot be read: {error}"
        ) from None


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
