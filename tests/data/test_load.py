"""Every format, the names that lead to them, and bad rows with their places."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from ascent.data.load import check_path, files_of, from_records, load, parse_name
from ascent.records import Example, Message, Prompt, Ranking
from ascent.tasks import TASKS
from tests.data import files

ROWS = [
    {"prompt": "1 + 1 =", "completion": "2"},
    {"prompt": 'say "hi",\nplease', "completion": "hi, ünï"},
    {"prompt": "third", "completion": "3"},
]
TURNS = [{"role": "user", "content": "a, b\n"}, {"role": "assistant", "content": 'c "d"'}]


@pytest.mark.parametrize("write", files.FORMATS.values(), ids=files.FORMATS)
def test_every_format_gives_the_same_records(write, tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "train", ROWS), "examples")
    expected = [
        (Message("user", row["prompt"]), Message("assistant", row["completion"])) for row in ROWS
    ]
    assert [record.messages for record in loaded.records if isinstance(record, Example)] == expected
    assert loaded.report.rows == 3
    assert not loaded.report.invalid


@pytest.mark.parametrize("write", files.FORMATS.values(), ids=files.FORMATS)
def test_messages_survive_every_format(write, tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "train", [{"messages": TURNS}] * 2))
    assert loaded.kind == "examples"
    assert loaded.records[0].messages == (Message("user", "a, b\n"), Message("assistant", 'c "d"'))  # type: ignore[union-attr]


@pytest.mark.parametrize("write", files.FORMATS.values(), ids=files.FORMATS)
@pytest.mark.parametrize("indent", [None, 1])
def test_messages_as_text_survive_every_format(write, indent: int | None, tmp_path: Path) -> None:
    row = {
        "question": json.dumps(TURNS[:1], indent=indent),
        "response": " " + json.dumps(TURNS[1:], indent=indent),
    }
    loaded = load(write(tmp_path / "train", [row] * 2))
    assert loaded.records[0].messages == (Message("user", "a, b\n"), Message("assistant", 'c "d"'))  # type: ignore[union-attr]


def test_ids_do_not_depend_on_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = (
        load(files.jsonl(tmp_path / "a", ROWS)),
        load(files.jsonl(tmp_path / "other/a", ROWS)),
    )
    assert one.records == two.records
    assert one.records[1].id == "a.jsonl:2"  # type: ignore[union-attr]


def write_bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.jsonl"
    lines = [
        json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}).encode(),
        json.dumps({"prompt": "a", "chosen": "b"}).encode(),
        json.dumps({"prompt": "a", "chosen": 3, "rejected": "c"}).encode(),
        json.dumps({"prompt": " ", "chosen": "b", "rejected": "c"}).encode(),
        b"",
        b'{"prompt": "a", "chosen": "\xff\xfe", "rejected": "c"}',
        json.dumps({"prompt": "a", "chosen": "b", "rejected": "b"}).encode(),
        b'{"prompt": "a", ',
        b"[1, 2]",
        json.dumps({"prompt": "d", "chosen": "e", "rejected": "f"}).encode(),
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_every_kind_of_bad_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        load(str(write_bad(tmp_path)), "pairs")
    lines = str(caught.value).splitlines()
    assert (
        lines[0]
        == "7 invalid rows of 9 (1 empty, 1 encoding, 1 equal, 1 missing, 1 syntax, 2 type)"
    )
    places = [line.partition(": ")[0] for line in lines[1:-1]]
    assert places == [f"bad.jsonl:{number}" for number in (2, 3, 4, 6, 7, 8, 9)]
    assert "no value in column 'rejected'" in lines[1]
    assert "the line is not UTF-8 near character 27" in lines[4]


def test_skipping_keeps_the_good_rows_and_counts_the_rest(tmp_path: Path) -> None:
    loaded = load(str(write_bad(tmp_path)), "pairs", invalid_rows="skip")
    assert [str(place) for place in loaded.places] == ["bad.jsonl:1", "bad.jsonl:10"]
    assert loaded.report.kinds.total() == 7


def test_lines_of_csv_are_counted_through_quoted_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,completion\n"two\nlines",ok\nq,\nq,r,s\n"x",\xff\n')
    loaded = load(str(path), "examples", invalid_rows="collect")
    assert [str(place) for place in loaded.places] == ["a.csv:2"]
    assert [(str(bad.place), bad.kind) for bad in loaded.report.invalid] == [
        ("a.csv:4", "missing"),
        ("a.csv:5", "syntax"),
        ("a.csv:6", "encoding"),
    ]


def test_a_byte_order_mark_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion\nq,r\n", encoding="utf-8-sig")
    assert len(load(str(path), "examples").records) == 1


def test_long_cells_of_csv_are_read(tmp_path: Path) -> None:
    loaded = load(files.comma(tmp_path / "a", [{"text": "word " * 40_000}]))
    assert len(loaded.records[0].messages[0].content) == 200_000  # type: ignore[union-attr]


def test_folders_and_splits(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    files.jsonl(folder / "data/train-0", ROWS[:2])
    files.parquet(folder / "data/train-1", ROWS[2:])
    files.jsonl(folder / "data/test-0", ROWS[:1])
    assert len(load(str(folder)).records) == 3
    assert [str(place) for place in load(f"{folder}@test").places] == ["data/test-0.jsonl:1"]
    with pytest.raises(ValueError, match="no file for the split 'valid'"):
        load(f"{folder}@valid")


def named(folder: Path, *names: str) -> Path:
    """A folder of files that hold their own names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.jsonl(folder / name.removesuffix(".jsonl"), [{"text": name}])
    return folder


@pytest.mark.parametrize(
    ("names", "split", "read"),
    [
        (["codecontests-train", "codecontests-test"], "test", ["codecontests-test"]),
        (["codecontests-train", "codecontests-test"], "train", ["codecontests-train"]),
        (["constraints", "general", "latest"], None, ["constraints", "general", "latest"]),
        (["constraints", "train"], None, ["train"]),
        (
            ["my_train", "train-00000-of-2", "train2", "validation"],
            None,
            ["my_train", "train-00000-of-2", "train2"],
        ),
        (["myTrain", "training", "trainset", "tests"], None, ["myTrain", "training", "trainset"]),
        (["train", "validation"], "valid", ["validation"]),
        (["train", "valid"], "val", ["valid"]),
        (["train", "evaluation", "retrieval"], "eval", ["evaluation"]),
        (["test/part-0", "train/part-0"], "test", ["test/part-0"]),
        (["train_sft-0", "test_sft-0"], "train_sft", ["train_sft-0"]),
        # Part of a longer word, but the same name with another split is there too.
        (["gsm8ktrain", "gsm8ktest"], None, ["gsm8ktrain"]),
        (["gsm8ktrain", "gsm8ktest"], "test", ["gsm8ktest"]),
        (["gsm8ktrain", "mathtrain", "gsm8ktest"], None, ["gsm8ktrain", "mathtrain"]),
        (["chattrain", "chatdev"], None, ["chattrain"]),
        (["trainsft", "testsft"], "train", ["trainsft"]),
    ],
)
def test_a_split_is_a_whole_word_of_a_name(
    names: list[str], split: str | None, read: list[str], tmp_path: Path
) -> None:
    folder = named(tmp_path, *(f"{name}.jsonl" for name in names))
    found = load(str(folder) if split is None else f"{folder}@{split}", "examples")
    assert sorted(place.file for place in found.places) == sorted(f"{name}.jsonl" for name in read)


@pytest.mark.parametrize(
    "names", [["mytest", "myeval"], ["set_test"], ["general", "val"], ["constraints", "evaluation"]]
)
def test_no_file_of_another_split_is_read_by_default(names: list[str], tmp_path: Path) -> None:
    folder = named(tmp_path, *(f"{name}.jsonl" for name in names))
    with pytest.raises(ValueError, match="has no file for the split 'train', only"):
        load(str(folder), "examples")


def test_hidden_files_are_not_read(tmp_path: Path) -> None:
    folder = named(
        tmp_path / ".cache",
        "train.jsonl",
        ".ipynb_checkpoints/train-checkpoint.jsonl",
        "._train.jsonl",
    )
    assert [str(place) for place in load(str(folder), "examples").places] == ["train.jsonl:1"]
    with pytest.raises(ValueError, match="holds no data file"):
        load(str(named(tmp_path / "set", ".git/train.jsonl")), "examples")


def test_saved_datasets_with_splits(tmp_path: Path) -> None:
    whole = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    )
    whole.save_to_disk(str(tmp_path / "set"))
    assert len(load(str(tmp_path / "set")).records) == 3
    assert len(load(f"{tmp_path / 'set'}@test").records) == 1
    with pytest.raises(ValueError, match="no split 'valid'; it has train, test"):
        load(f"{tmp_path / 'set'}@valid")


def test_a_parquet_file_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array([b"fine", b"\xff\xfe"], type=pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet row \d or later: not UTF-8"):
        load(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.jsonl", "no file or folder at gone.jsonl"),
        ("./gone", "no file or folder at ./gone"),
        ("owner/gone", "is no file, no folder and no built-in task here"),
    ],
)
def test_names_that_lead_nowhere(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=words):
        load(name)


def test_empty_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="holds no rows"):
        load(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"files of type '\.txt' are not read"):
        load(str(tmp_path / "a.txt"))
    (tmp_path / "b.jsonl").write_text("{\n{\n")
    with pytest.raises(ValueError, match="2 invalid rows of 2"):
        load(str(tmp_path / "b.jsonl"), invalid_rows="skip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no data file"):
        load(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="a file has no splits"):
        load(files.jsonl(tmp_path / "c", ROWS) + "@test")


def test_unused_columns_and_conversions_are_said(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c", "source": "x"}]
    loaded = load(files.jsonl(tmp_path / "a", rows), "examples")
    assert loaded.unused == ("source",)
    assert loaded.remarks == ("chosen answers only",)


def test_tied_answers_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "q", "responses": ["a", "b", "c"], "ratings": [1, 5, 1]}]
    loaded = load(files.jsonl(tmp_path / "a", rows), "rankings")
    record = loaded.records[0]
    assert isinstance(record, Ranking)
    assert [answer[0].content for answer in record.answers] == ["b", "a", "c"] and record.ranks == (
        0,
        1,
        1,
    )
    assert caplog.messages == ["1 pairs of tied answers, which hold no preference"]


def test_a_repeated_answer_is_kept_once(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "responses": ["a", "b", "a"], "ranks": [1, 2, 1]}]
    loaded = load(files.jsonl(tmp_path / "a", rows), "rankings")
    assert loaded.records == (Ranking(loaded.records[0].prompt, loaded.records[0].answers),)
    assert loaded.report.notes == {"answers left out because they are repeated": 1}


def test_built_in_tasks_are_handed_in() -> None:
    made = TASKS["style"].prompts("train", 3)
    loaded = from_records("style", made, "prompts")
    assert loaded.records == made
    assert isinstance(loaded.records[0], Prompt)
    with pytest.raises(ValueError, match="gave no records"):
        from_records("style", [], "prompts")


def test_a_count_limits_the_rows(tmp_path: Path) -> None:
    path = files.jsonl(tmp_path / "a", ROWS)
    assert load(f"{path}:2", "examples").records == load(path, "examples").records[:2]
    assert len(load(f"{path}:9", "examples").records) == 3
    assert len(load(f"{tmp_path}:1", "examples").records) == 1
    with pytest.raises(ValueError, match="0 rows are no data"):
        load(f"{path}:0")
    with pytest.raises(ValueError, match=r"no file or folder at .*b\.jsonl; give a path"):
        load(f"{tmp_path}/b.jsonl:2")
    odd = Path(path).rename(tmp_path / "odd:2")
    assert parse_name(str(odd)).limit is None  # a file of this very name


def test_a_limited_file_is_read_no_further(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\nnot json\n")
    assert len(load(f"{path}:1", "examples").records) == 1
    with pytest.raises(ValueError, match=r"a\.jsonl"):
        load(f"{path}:2", "examples")


@pytest.mark.parametrize("name", ["gsm8k:{}", "gsm8k:{}:1"])
def test_the_file_of_a_benchmark_is_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"question": "1 and 1?", "answer": "2.\n#### 2"}) + "\n")
    name = name.format(path)
    check_path(name)
    assert [each for each, _ in files_of(name)] == [path]
    assert load(name, "prompts").records[0].answer == "2"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"no file or folder at gsm8k:.*absent\.jsonl"):
        check_path(f"gsm8k:{tmp_path}/absent.jsonl")
