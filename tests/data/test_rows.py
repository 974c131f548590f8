"""Files that are not what they should be: each is told with its name, its place and what to do."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ascent.data.load import load
from ascent.data.rows import read_file
from ascent.records import Example, Pair
from tests.data import files

FINE = json.dumps({"prompt": "q", "completion": "a"}) + "\n"
DIGITS = "9" * 5000
DEEP = "[" * 100_000
TABLE = "prompt,completion\n"
RATED = "prompt,responses,ratings\n"
U, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def pair(margin: str) -> str:
    return f'{{"prompt": "q", "chosen": "a", "rejected": "b", "margin": {margin}}}\n'


def chat(*messages: Any) -> str:
    return json.dumps({"messages": messages}) + "\n"


def thumb(label: Any) -> str:
    return json.dumps({"prompt": "q", "completion": "a", "label": label}) + "\n"


# What is in a file, what it is wanted as, and how the error ends: behind the file's name in `a.SUFFIX`.
LINES: list[tuple[str | bytes, str, str]] = [
    # numbers
    (
        FINE + f'{{"prompt": {DIGITS}}}\n',
        "examples",
        ":2: a number has thousands of digits; write a smaller one",
    ),
    (pair("9" * 400), "pairs", ":1: margin is int 999"),
    (
        pair("1e300"),
        "pairs",
        ":1: margin is float 1e+300, but it must be a finite number, within 1e+30",
    ),
    (pair("1e999"), "pairs", ":1: margin is float inf"),
    (pair("NaN"), "pairs", ":1: NaN is not JSON; write a finite number, or null"),
    (FINE + '{"prompt": "q", "x": -Infinity}\n', "examples", ":2: -Infinity is not JSON"),
    # depth
    (FINE + DEEP + "\n", "examples", ":2: nested too deep to be read"),
    (FINE + '{"a":' * 100_000 + "\n", "examples", ":2: nested too deep to be read"),
    # names given twice
    (
        FINE + '{"prompt": "q", "prompt": "r"}\n',
        "examples",
        ":2: the name 'prompt' is given twice in one object",
    ),
    (
        '{"messages": [{"role": "user", "role": "user"}]}\n',
        "examples",
        ":1: the name 'role' is given twice",
    ),
    # encodings
    (gzip.compress(FINE.encode()), "examples", " is compressed by gzip; unpack it with gunzip"),
    (FINE.encode("utf-16"), "examples", " is UTF-16; save it as UTF-8"),
    (
        FINE.encode() + b'{"prompt": "caf\xe9"}\n',
        "examples",
        ":2: the line is not UTF-8 near character 15; re-encode",
    ),
    (
        FINE.encode() + b'{"prompt": "q", "completion": "a", "\xe9": 1}\n',
        "examples",
        ":2: the line is not UTF-8",
    ),
    (
        FINE.encode() + b'{"prompt": "q\x00"}\n',
        "examples",
        ":2: the line holds a NUL byte at character 13",
    ),
    (FINE + '{"prompt": "\\ud800", "completion": "a"}\n', "examples", ":2: prompt is not UTF-8"),
    (b"\xef\xbb\xbf" + b'{"prompt": 5, "completion": "a"}\n', "examples", ":1: prompt is int 5"),
    # shapes
    ("", "examples", " holds no rows; there is nothing to read"),
    ("1\n", "examples", ':1: a number, but a row is an object such as {"prompt"'),
    (
        FINE + "{} {}\n",
        "examples",
        ":2: not JSON: trailing text at character 2; write one object per line",
    ),
    (
        (FINE + '{"prompt": 5}\n').replace("\n", "\r\n"),
        "prompts",
        ":2: prompt is int 5, but it must be text or a list",
    ),
    (
        FINE + '{"prompt": "q", "completion": ["a"]}\n',
        "examples",
        ":2: completion[0] is str 'a', but a message is {",
    ),
    # meanings
    (
        chat({"role": "customer", "content": "q"}, A),
        "examples",
        ":1: messages[0] has the role 'customer'; write user,",
    ),
    (
        chat(U, {"role": "model", "content": "a"}),
        "examples",
        ":1: messages[1] has the role 'model'; write user, assis",
    ),
    (
        chat({"role": ["user"], "content": "q"}, A),
        "examples",
        ":1: messages[0] has the role ['user']; write",
    ),
    (chat(), "examples", ':1: messages is an empty list; give it messages, each {"role"'),
    (chat(U, A) + chat(), "examples", ":2: messages is an empty list"),
    (
        '{"messages": "hello"}\n',
        "examples",
        ":1: messages is text, but it must be a list of messages",
    ),
    (thumb(2), "unpaired", ":1: label is int 2, but it must be true or false (or 1 or 0)"),
    (thumb("good"), "unpaired", ":1: label is str 'good', but it must be true or false"),
    (json.dumps({"messages": [U, A], "label": 2}), "unpaired", ":1: label is int 2, but"),
    (
        FINE,
        "unpaired",
        "cannot be used as unpaired; give unpaired: a question, an answer and a label",
    ),
    ('{"question": "q", "response_j": "a"}\n', "pairs", ":1: no value in column 'response_k'"),
    (
        '{"question": "q", "response_j": "a", "response_k": "a"}\n',
        "pairs",
        ":1: chosen equals rejected",
    ),
]
LISTS: list[tuple[str | bytes, str, str]] = [
    (f'[{FINE},\n{{"prompt": {DIGITS}}}]', "examples", ":3: a number has thousands of digits"),
    (f"[{FINE},{DEEP}", "examples", ":2: nested too deep to be read"),
    (
        f'[{FINE},\n{{"prompt": 1, "prompt": 2}}]',
        "examples",
        ":3: the name 'prompt' is given twice",
    ),
    (b'[\n{"prompt": "caf\xe9"}]', "examples", ":2: row 1 is not UTF-8"),
    (f'[{FINE},\n{{"prompt":', "examples", ":3: not JSON: Expecting value at character 10"),
    (f"[{FINE}{FINE}]", "examples", ":2: not JSON: a comma or ] is missing after a row"),
    (f"[{FINE},]", "examples", ":2: not JSON: Expecting value"),
    (f"[{FINE}]]", "examples", ": not JSON: trailing text after the list"),
    ("[[1], null]", "examples", " row 1: a list, but a row is an object"),
    (" [ ] ", "examples", " holds no rows; there is nothing to read"),
    (
        json.dumps({"train": [json.loads(FINE)]}, indent=1),
        "examples",
        ": columns train fit no known schema; rename",
    ),
]
TABLES: list[tuple[str | bytes, str, str]] = [
    (
        f'{RATED}q,"[""a"", ""b""]","[1, {DIGITS}]"\n',
        "rankings",
        ":2: column 'ratings': a number has thousands",
    ),
    (f"prompt,chosen,rejected,margin\nq,a,b,{DIGITS}\n", "pairs", ":2: margin is float inf"),
    (f'messages\n"{DEEP}"\n', "examples", ":2: column 'messages': nested too deep"),
    (
        'messages\n"[{""role"": 1, ""role"": 2}]"\n',
        "examples",
        ":2: column 'messages': the name 'role' is given twice",
    ),
    (
        'messages\n"[] []"\n',
        "examples",
        ":2: column 'messages': not JSON: trailing text at character 2",
    ),
    (
        "prompt,completion,completion\nq,a,b\n",
        "examples",
        ":1: the column name 'completion' is given twice; rename",
    ),
    (b"PK\x03\x04rest", "examples", " is a zip archive; unpack it"),
    (TABLE.encode("utf-16"), "examples", " is UTF-16; save it as UTF-8"),
    (b"prompt,completion,\xe9\nq,a,b\n", "examples", ":1: the line of column names is not UTF-8"),
    (TABLE.encode() + b"q,a\nq,\xe9\n", "examples", ":3: column 'completion' is not UTF-8"),
    (TABLE + "q,a\nq\0,b\n", "examples", ":3: column 'prompt' holds a NUL byte"),
    (
        "prompt;completion\nq;a\n",
        "examples",
        ":1: one column named 'prompt;completion'; separate columns by commas",
    ),
    (TABLE + '"q,a\n', "examples", ":2: not CSV: unexpected end of data"),
    (
        TABLE + "q,a\nq,a,b\n",
        "examples",
        ":3: 3 cells under 2 column names; quote cells that hold commas",
    ),
    (TABLE, "examples", " holds no rows; there is nothing to read"),
]
BAD = (
    [("jsonl", *case) for case in LINES]
    + [("json", *case) for case in LISTS]
    + [("csv", *case) for case in TABLES]
)


@pytest.mark.parametrize(
    ("suffix", "content", "want", "words"), BAD, ids=[f"{case[0]}{case[-1]}" for case in BAD]
)
def test_what_is_wrong_is_told_with_its_place(
    suffix: str, content: str | bytes, want: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as caught:
        load(str(path), want)
    assert (words if words.startswith("cannot") else f"a.{suffix}{words}") in str(caught.value)
    assert (
        max(len(line) for line in str(caught.value).splitlines()) < 500
    )  # and not thousands of digits


def test_a_compressed_file_is_told_how_to_unpack_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(FINE.encode())[:10])
    with pytest.raises(
        ValueError, match=r"^a\.jsonl\.gz is compressed by gzip; unpack it with gunzip$"
    ):
        load(str(tmp_path / "a.jsonl.gz"))


def test_only_the_bad_row_is_lost_where_bad_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        FINE + DEEP + "\n" + f'{{"prompt": {DIGITS}}}\n' + '{"prompt": "q", "prompt": "r"}\n' + FINE
    )
    found = load(str(path), "examples", invalid_rows="skip")
    assert [str(place) for place in found.places] == ["a.jsonl:1", "a.jsonl:5"]
    assert found.report.kinds == {"syntax": 3}


def test_j_was_voted_above_k(tmp_path: Path) -> None:
    rows = [{"qid": 1, "question": "q", "response_j": "better", "response_k": "worse"}]
    (record,) = load(files.jsonl(tmp_path / "a", rows), "pairs").records
    assert isinstance(record, Pair)
    assert (record.chosen[0].content, record.rejected[0].content) == ("better", "worse")
    assert load(files.jsonl(tmp_path / "a", rows)).kind == "pairs"


def test_a_column_without_a_name_is_no_ranking(tmp_path: Path) -> None:
    """pandas writes its index so."""
    (tmp_path / "a.csv").write_text(",prompt,completion\n0,q,a\n")
    (record,) = load(str(tmp_path / "a.csv")).records
    assert isinstance(record, Example)


def test_one_object_on_many_lines_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(json.loads(FINE), indent=1))
    assert len(load(str(tmp_path / "a.json"), "examples").records) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda whole: b"",
            "a.parquet is damaged or cut off: Parquet file size is 0 bytes; write it again",
        ),
        (
            lambda whole: FINE.encode(),
            "a.parquet is damaged or cut off: Parquet magic bytes not found",
        ),
        (lambda whole: whole[:-10], "a.parquet is damaged or cut off"),
        (lambda whole: whole[: len(whole) // 2] + b"PAR1", "a.parquet is damaged or cut off"),
        (lambda whole: whole[:-40] + b"\xff" * 32 + whole[-8:], "a.parquet is damaged or cut off"),
        (
            lambda whole: whole[:4] + b"\xff" * 30 + whole[34:],
            "a.parquet row 1 or later is damaged or cut off",
        ),
    ],
)
def test_a_damaged_parquet_file_is_named(
    damage: Any, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(files.parquet(tmp_path / "a", [{"prompt": "q", "completion": "a" * 50}] * 100))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError) as caught:
        load(str(path))
    assert words in str(caught.value)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]  # said once


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "state.json").write_text("{"),
        lambda folder: (folder / "state.json").write_text("{}"),
        lambda folder: (folder / "dataset_info.json").unlink(),
        lambda folder: next(folder.glob("*.arrow")).write_bytes(b"xx"),
        lambda folder: next(folder.glob("*.arrow")).unlink(),
    ],
)
def test_a_damaged_saved_dataset_is_named(damage: Any, tmp_path: Path) -> None:
    folder = Path(files.saved(tmp_path / "set", [{"prompt": "q", "completion": "a"}]))
    damage(folder)
    with pytest.raises(
        ValueError, match=r"^set is damaged or cut off: .*; write it again, or copy it again$"
    ):
        load(str(folder))


def test_places_count_lines_whatever_ends_them(tmp_path: Path) -> None:
    for number, ending in enumerate(("\n", "\r\n", "\r")):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(ending.join([FINE.strip(), "", FINE.strip(), ""]).encode())
        assert [row.place.number for row in read_file(path, "a")] == [1, 3]


def test_a_nul_that_a_model_wrote_is_a_character(tmp_path: Path) -> None:
    """In the file it is escaped, as any JSON writer does it."""
    file = tmp_path / "sampled.jsonl"
    file.write_text(json.dumps({"prompt": "q", "chosen": "a\0b", "rejected": "\0"}) + "\n")
    (found,) = load(str(file), "pairs").records
    assert (
        isinstance(found, Pair)
        and found.chosen[-1].content == "a\0b"
        and found.rejected[-1].content == "\0"
    )


def test_a_hub_that_cannot_be_reached_is_said_at_once(tmp_path):
    """In a process of its own: the address of the hub is read when its library is imported."""
    code = "from ascent.data.hub import read_hub; read_hub('owner/Nothing', None, None)"
    env = {
        **os.environ,
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
    }
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert (
        "'owner/Nothing' is no file, no folder and no built-in task here, and the hub cannot be reached"
        in done.stderr
    )
    assert "Retrying" not in done.stderr and time.monotonic() - start < 20, done.stderr
