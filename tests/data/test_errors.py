"""Bad rows are named, counted, and fatal or skipped; never silent."""

from __future__ import annotations

import logging

import pytest

from ascent.data.errors import Place, Report, RowError


def report(policy: str, bad: int) -> Report:
    found = Report(policy, rows=20)  # type: ignore[arg-type]
    for number in range(1, bad + 1):
        found.add(Place("a.jsonl", number), RowError("empty", "prompt is empty; remove the row"))
    return found


def test_fail_raises_with_places_counts_and_the_fix() -> None:
    with pytest.raises(ValueError) as caught:
        report("fail", 12).finish(8)
    lines = str(caught.value).splitlines()
    assert lines[0] == "12 invalid rows of 20 (12 empty)"
    assert lines[1] == "a.jsonl:1: prompt is empty; remove the row"
    assert lines[-2:] == [
        "... and 2 more",
        "fix or remove them, or skip them with data.invalid_rows=skip",
    ]


def test_skip_says_what_it_skipped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ascent.data"):
        report("skip", 2).finish(18)
    assert caplog.messages[0] == "2 invalid rows of 20 (2 empty), skipped"
    assert caplog.messages[1].startswith("a.jsonl:1: ")


def test_nothing_left_is_fatal_under_every_policy() -> None:
    for policy in ("fail", "skip", "collect"):
        with pytest.raises(ValueError, match="20 invalid rows of 20"):
            report(policy, 20).finish(0)


def test_a_clean_pass_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    report("fail", 0).finish(20)
    assert caplog.messages == []


def test_places_are_written_as_editors_read_them() -> None:
    assert str(Place("a.csv", 7)) == "a.csv:7"
    assert str(Place("a.parquet", 7, "row")) == "a.parquet row 7"


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="invalid_rows='ignore'"):
        Report("ignore")  # type: ignore[arg-type]
