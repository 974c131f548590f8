"""Answers are sampled once; a file that belongs to other questions is refused."""

from __future__ import annotations

import pytest

from ascent.feedback.samples import Samples, fingerprint, samples_path
from tests.feedback.made import answers, prompt


def test_what_was_put_is_there_next_time_and_half_a_line_is_not(tmp_path):
    path = samples_path(tmp_path / "v.jsonl")
    assert path.name == "v.samples.jsonl"
    one, two = prompt("one"), prompt("two")
    samples = Samples(path, {"seed": 1})
    samples.put(0, one, answers("x", "y"), "abc")
    samples.close()
    with path.open("a") as file:
        file.write('{"model": 0, "pro')
    samples = Samples(path, {"seed": 1})
    assert samples.has(0, one) and not samples.has(0, two) and not samples.has(1, one)
    samples.put(0, two, answers("z"), "abc")
    samples.close()
    again = Samples(path, {"seed": 1})
    assert [a.text for p in ("one", "two") for a in again.answers([one, two], 1)[p]] == [
        "x",
        "y",
        "z",
    ]
    with pytest.raises(ValueError, match="runs/a has changed since"):
        again.check_weights(0, "runs/a", "def")
    again.check_weights(0, "runs/a", "abc")
    again.close()


def test_other_questions_are_refused_by_name(tmp_path):
    Samples(tmp_path / "s.jsonl", {"seed": 1, "samples": 2}).close()
    with pytest.raises(ValueError, match="with other arguments: samples was 2 and is 4"):
        Samples(tmp_path / "s.jsonl", {"seed": 1, "samples": 4})


def test_the_fingerprint_sees_every_word():
    assert fingerprint([prompt("a")]) == fingerprint([prompt("a")])
    assert len({fingerprint([p]) for p in (prompt("a"), prompt("b"), prompt("a", "What?"))}) == 3
