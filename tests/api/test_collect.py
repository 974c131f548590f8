"""Collect: resumable, deterministic, nothing asked twice; what it writes is trained on as it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.api.collect import CollectResult, collect
from ascent.feedback.preference_log import PreferenceLog, read
from ascent.feedback.verdicts import Verdict
from ascent.models.tiny import create
from ascent.setup.data import load_records

COLLECT = importlib.import_module("ascent.api.collect")
QUIET: dict[str, Any] = {"say": lambda line: None, "max_new_tokens": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(create(tmp_path_factory.mktemp("models") / "tiny", seed=0))


@pytest.fixture
def liked(tmp_path: Path) -> str:
    file = tmp_path / "liked.py"
    file.write_text("def brief(rollout):\n    return -float(len(rollout.text))\n")
    return f"{file}:brief?strength=0.5&noise=0.1"


def collect_with(asked: dict[str, Any], out: Path, judge: str, **options) -> CollectResult:
    return collect(
        **asked, out=out, judge=judge, **{**QUIET, "annotator": "sim", "repeat": 0.25, **options}
    )


def plain(out: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "time"} for row in read(out)]


class Person:
    """Somebody whose replies are known."""

    def __init__(self, *replies) -> None:
        self.replies: Iterator = iter(replies)
        self.told: list[str] = []
        self.asked: list[str] = []

    def ask(self, shown, form, *, done, total):
        self.asked.append(shown.question.id)
        return next(self.replies)

    def tell(self, text: str) -> None:
        self.told.append(text)


def test_the_same_seed_gives_the_same_file_and_training_reads_it(model, liked, tmp_path):
    asked = {"models": model, "prompts": "style:10", "samples": 3, "per_prompt": 2}
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    found = collect_with(asked, first, liked)
    assert found.finished and found.questions == len(read(first)) > 20
    collect_with(asked, second, liked)
    assert plain(first) == plain(second)
    other = tmp_path / "3.jsonl"
    collect_with(asked | {"seed": 1}, other, liked)
    assert plain(other) != plain(first)
    sides = {tuple(row["shown"]) == tuple(sorted(row["shown"])) for row in read(first)}
    assert sides == {True, False}
    pairs = load_records(str(first), "pairs", seed=0)
    assert len(pairs.records) + pairs.report.notes.total() == found.questions
    assert pairs.report.notes["rows set aside: asked again"] >= 1
    assert "sim" in found.agreement.self_agreement


def test_interrupted_it_goes_on_where_it_stopped(model, liked, tmp_path, monkeypatch):
    asked = {"models": model, "prompts": "style:10", "samples": 3}
    calm, wild = tmp_path / "calm.jsonl", tmp_path / "wild.jsonl"
    collect_with(asked, calm, liked)
    append = PreferenceLog.append
    monkeypatch.setattr(COLLECT, "CHUNK", 4)

    def interrupted(self, row):
        if len(self.rows) == 5:
            raise KeyboardInterrupt
        append(self, row)

    monkeypatch.setattr(PreferenceLog, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect_with(asked, wild, liked)
    assert len(read(wild)) == 5
    monkeypatch.undo()
    monkeypatch.setattr(COLLECT, "Generator", None)  # nothing is sampled a second time
    assert collect_with(asked, wild, liked).finished
    assert [row["id"] for row in read(wild)] == [row["id"] for row in read(calm)]
    before = wild.read_bytes()
    assert collect_with(asked, wild, liked).finished
    assert wild.read_bytes() == before


def test_sampling_that_was_cut_off_gives_the_same_answers(model, liked, tmp_path, monkeypatch):
    monkeypatch.setattr(COLLECT, "CHUNK", 4)
    asked = {"models": model, "prompts": "style:10", "samples": 2}
    calm, wild = tmp_path / "calm.jsonl", tmp_path / "wild.jsonl"
    collect_with(asked, calm, liked)
    whole = (tmp_path / "calm.samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "wild.samples.jsonl").write_text(
        "".join(whole[:6]) + whole[6][:9]
    )  # the header, 5 prompts, a piece
    collect_with(asked, wild, liked)
    assert (tmp_path / "wild.samples.jsonl").read_text() == "".join(whole)


def test_other_questions_are_refused(model, liked, tmp_path):
    out = tmp_path / "v.jsonl"
    asked = {"models": model, "prompts": "style:4", "samples": 2}
    collect_with(asked, out, liked)
    for changed, word in (
        (asked | {"samples": 3}, "samples"),
        (asked | {"prompts": "style:5"}, "prompts"),
    ):
        with pytest.raises(ValueError, match=f"was sampled with other arguments: {word} was"):
            collect_with(changed, out, liked)
    with pytest.raises(ValueError, match="verdicts of sim on other questions"):
        collect_with(
            asked | {"form": "rankings", "samples": 2, "per_prompt": 1}, out, liked, repeat=0.0
        )
    with pytest.raises(ValueError, match="one answer to a prompt, which cannot be compared"):
        collect_with(asked | {"samples": 1}, out, liked)


def test_a_second_annotator_answers_the_same_questions_in_an_order_of_its_own(
    model, liked, tmp_path
):
    out = tmp_path / "v.jsonl"
    asked = {"models": model, "prompts": "style:24", "samples": 2}
    collect_with(asked, out, liked, repeat=0.0)
    found = collect_with(asked, out, liked, annotator="other", repeat=0.0)
    rows = read(out)
    mine, theirs = ({r["id"]: r for r in rows if r["annotator"] == who} for who in ("sim", "other"))
    assert mine.keys() == theirs.keys()
    assert {mine[key]["shown"] == theirs[key]["shown"] for key in mine} == {True, False}
    assert found.agreement.between is not None and found.agreement.between.units == len(mine)


def test_a_person_may_take_back_skip_and_leave(model, tmp_path):
    out = tmp_path / "v.jsonl"
    asked = {"models": model, "prompts": "style:6", "samples": 2}
    person = Person(
        "undo", Verdict("first"), Verdict("tie"), "undo", "undo", "undo", Verdict("second"), "quit"
    )
    found = collect(**asked, **QUIET, out=out, annotator="ann", person=person, repeat=0.0)
    assert [row["verdict"] for row in read(out)] == ["second"]
    assert (found.done, found.finished) == (1, False)
    nothing = "nothing to undo: only verdicts of this session can be taken back"
    assert person.told == [nothing, "taken back; asking again", "taken back; asking again", nothing]
    first, second = person.asked[0], person.asked[2]
    assert first != second
    assert person.asked == [first, first, second, person.asked[3], second, first, first, second]
    again = Person(*[Verdict("skip")] * (found.questions - 1))
    assert collect(**asked, **QUIET, out=out, annotator="ann", person=again, repeat=0.0).finished
    assert first not in again.asked


def test_two_models_are_set_against_each_other_and_hidden(model, liked, tmp_path):
    other = str(create(tmp_path / "other", seed=1))
    out = tmp_path / "v.jsonl"
    collect_with({"models": [model, other], "prompts": "style:6", "samples": 1}, out, liked)
    assert all(set(row["models"]) == {model, other} for row in read(out))
    assert all(
        model not in str(row.get(name))
        for row in read(out)
        for name in ("prompt", "chosen", "answers")
    )
