"""Every figure of README.md and docs/results is in a committed JSON of bench/results, to the digits printed.

A mark names the files of the figures that follow it, up to the next mark:

    <!-- figures: bench/results/2026-11-15-rlhf-*.json -->

A figure is a number with a decimal point, a percentage, or a number with a unit of time, memory or speed. Code and
settings in backticks, versions and "95% interval" are no figures.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]
MARK = re.compile(r"<!-- figures: (?P<files>.*?) -->")
CODE = re.compile(
    r"```.*?```|`[^`\n]*`|^ {4}[^\n]*$|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL
)
OTHER = re.compile(
    r"95%(?= interval|\s+confidence)|(?:Python|[Vv]ersion|License|torch|transformers) \d[\d.]*\d"
)
BYTES = {"MiB": 2.0**20, "GiB": 2.0**30}
UNITS = "%| ?(?:seconds?|minutes?|ms|GiB|MiB|tokens per\\s+second|tokens/s)\\b"
NUMBER = re.compile(
    rf"(?<![\w.,/-])-?(?:(?:\d[\d,]*)?\.\d+(?:{UNITS})?|\d[\d,]*(?:{UNITS}))(?![\w]|\.\d)"
)
PIECE = re.compile(
    rf"^#+ (?P<section>.*)$|{MARK.pattern}|(?P<number>{NUMBER.pattern})", re.MULTILINE
)
DIGITS = re.compile(r"-?(?:\d[\d,]*)?(?:\.\d+)?")


@lru_cache
def values_of(pattern: str) -> tuple[float, ...]:
    """Every number of the files, at any depth, in order of size."""
    paths = [path for each in pattern.split() for path in sorted(ROOT.glob(each))]
    assert paths and all(path.parent == ROOT / "bench/results" for path in paths), (
        f"{pattern}: no file of bench/results"
    )
    return tuple(
        sorted(value for path in paths for value in numbers_in(json.loads(path.read_text())))
    )


def numbers_in(tree: object) -> Iterator[float]:
    if isinstance(tree, int | float) and not isinstance(tree, bool):
        yield float(tree)
    elif isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from numbers_in(each)


def is_recorded(figure: str, values: tuple[float, ...]) -> bool:
    """Some value rounds to the figure; a percentage may be recorded as a share, memory in bytes."""
    printed = next(each for each in DIGITS.findall(figure) if each)
    text = printed.replace(",", "")
    rounded = (
        len(text) - len(text.rstrip("0")) if "," in printed else 0
    )  # 66,600 is rounded to hundreds
    half = 0.5 * 10.0 ** (rounded - len(text.partition(".")[2])) * (1 + 1e-9)
    for scale in (1.0, 0.01 if figure.endswith("%") else BYTES.get(figure[-3:], 1.0)):
        low, high = sorted(((float(text) - half) * scale, (float(text) + half) * scale))
        place = bisect.bisect_left(values, low)
        if place < len(values) and values[place] <= high:
            return True
    return False


def figures(text: str) -> list[tuple[str, str, str]]:
    """(section, files, figure): the heading and the mark that it stands under, or "" without one."""
    found, section, files = [], "", ""
    plain = CODE.sub(lambda match: match[0] if MARK.fullmatch(match[0]) else "", text)
    for match in PIECE.finditer(OTHER.sub("", plain)):
        section, files = match["section"] or section, match["files"] or files
        found += [(section, files, match["number"])] if match["number"] else []
    return found


def problems(text: str) -> list[str]:
    found = []
    for section, files, figure in figures(text):
        if not files or not is_recorded(figure, values_of(files)):
            found.append(
                f"{section}: {figure} is not in {files or 'any file: there is no mark above it'}"
            )
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_is_in_a_committed_json(page: Path) -> None:
    assert problems(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_another_figure_would_be_noticed(page: Path) -> None:
    """Of the figures with three decimals, most are found nowhere once they are changed by seven in the last place."""
    held = [(files, each) for _, files, each in figures(page.read_text()) if files]
    exact = [(files, each) for files, each in held if re.fullmatch(r"\.\d{3}", each)]
    changed = [(files, f".{(int(each[1:]) + 7) % 1000:03}") for files, each in exact]
    missed = [each for files, each in changed if is_recorded(each, values_of(files))]
    assert len(missed) <= len(exact) / 3


def test_what_counts_as_a_figure() -> None:
    text = "<!-- figures: a -->\n.156 to 1.25 in 62 seconds, 9% at 66,000 tokens per second; 1.5B, 40 steps, `beta=0.3`"
    assert [each for _, _, each in figures(text)] == [
        ".156",
        "1.25",
        "62 seconds",
        "9%",
        "66,000 tokens per second",
    ]
    assert (
        is_recorded("91%", (0.914,))
        and is_recorded(".914", (0.9141,))
        and not is_recorded(".914", (0.9146,))
    )
    assert is_recorded("66,600", (66626.0,)) and not is_recorded("66,600", (66651.0,))
    assert problems(".5")
