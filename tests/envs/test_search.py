"""BM25 over a file, with its score worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.envs.search import Search

LINES = "the fox is red\nthe frog is green\n\nthe crocodile is green and lies in the river\n"


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "facts.txt").write_text(LINES)
    return str(tmp_path / "facts.txt")


def test_rare_words_and_short_passages_come_first(corpus: str) -> None:
    search = Search(corpus, results=2)
    assert search("What is the frog?").splitlines()[0] == "1. the frog is green"
    assert (
        search("GREEN") == "1. the frog is green\n2. the crocodile is green and lies in the river"
    )
    assert search("elephant") == "nothing found"


def test_ties_go_by_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "same.txt").write_text("one two\none three\n")
    assert Search(str(tmp_path / "same.txt"))("one") == "1. one two\n2. one three"


def test_titles_of_a_jsonl(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "it is red", "title": "Fox"}\n{"text": "it is green"}\n'
    )
    assert Search(str(tmp_path / "a.jsonl"))("fox") == "1. Fox: it is red"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "\n \n", "holds no passage"),
        ("a.jsonl", '{"body": 1}\n', "a.jsonl:1 has no `text`"),
        ("a.jsonl", "{\n", "a.jsonl:1 is not JSON"),
    ],
)
def test_a_corpus_that_cannot_be_read(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        Search(str(tmp_path / name))


def test_no_file_and_no_results(corpus: str) -> None:
    with pytest.raises(ValueError, match="no such file"):
        Search("nowhere.txt")
    with pytest.raises(ValueError, match="results=0"):
        Search(corpus, results=0)
