"""Rows written as real files, one writer for each format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets

datasets.disable_progress_bars()
Rows = Sequence[dict[str, Any]]


def jsonl(path: Path, rows: Rows) -> str:
    path = path.with_suffix(".jsonl")
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return str(path)


def json_list(path: Path, rows: Rows) -> str:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(list(rows), indent=1), encoding="utf-8")
    return str(path)


def parquet(path: Path, rows: Rows) -> str:
    path = path.with_suffix(".parquet")
    datasets.Dataset.from_list(list(rows)).to_parquet(str(path))
    return str(path)


def saved(path: Path, rows: Rows) -> str:
    datasets.Dataset.from_list(list(rows)).save_to_disk(str(path))
    return str(path)


def comma(path: Path, rows: Rows) -> str:
    path = path.with_suffix(".csv")
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    name: value if isinstance(value, str) else json.dumps(value)
                    for name, value in row.items()
                }
            )
    return str(path)


FORMATS: dict[str, Callable[[Path, Rows], str]] = {
    "jsonl": jsonl,
    "json": json_list,
    "csv": comma,
    "parquet": parquet,
    "saved": saved,
}
