"""What is recorded of messages, and that a lost or shortened one fails the run of the tests that provoke it."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.regression import messages
from tests.regression.messages import (
    Run,
    compare,
    normalize,
    own_error,
    read_messages,
    update,
    write_messages,
)

pytest_plugins = ["pytester"]
A, B = "tests/a/test_a.py::test_a", "tests/a/test_a.py::test_b"
LONG = "ValueError: size=0, but it must be at least 1; leave it out"
SHORT = "ValueError: size=0, but it must be at least 1"


def run_of(cases: dict[str, int], provoked: dict[str, str], **fields: Any) -> Run:
    """Every case passed; `provoked` has a message and its test."""
    passed = {name: {f"{name}[{case}]" for case in range(cases[name])} for name in cases}
    seen = defaultdict(set, {text: {function} for text, function in provoked.items()})
    files = {"tests/a/test_a.py", "tests/b/test_b.py"}
    given = {"visited": {"tests/a/test_a.py"}, "cases": cases, "seen": set(seen), **fields}
    return Run(files, passed=defaultdict(set, passed), provoked=seen, **given)


def test_a_lost_message_fails_and_a_shortened_one_is_shown_beside_the_new_one() -> None:
    recorded = {LONG: {A}}
    lost = compare(recorded, run_of({A: 2}, {}))
    assert lost.failed and lost.lost == [LONG]
    shortened = compare(recorded, run_of({A: 2}, {SHORT: A}))
    assert shortened.failed and shortened.changed == [(LONG, SHORT)] and not shortened.new
    lines = list(shortened.lines())
    assert f"  - {LONG}" in lines and f"  + {SHORT}" in lines and f"    {A}" in lines
    same = compare(recorded, run_of({A: 2}, {LONG: A}))
    assert not same.failed and list(same.lines()) == []


def test_a_new_message_is_listed_and_no_failure() -> None:
    found = compare({LONG: {A}}, run_of({A: 1, B: 1}, {LONG: A, "KeyError: 'x'": B}))
    assert not found.failed and found.new == ["KeyError: 'x'"]


@pytest.mark.parametrize(
    "fields",
    [
        {"deselected": {A}},  # a case of the function ran, another was left out by its tier
        {"named": ["tests/a/test_a.py::test_a[0]"]},
        {"passed": defaultdict(set)},  # it failed, or was skipped
    ],
)
def test_what_did_not_run_whole_says_nothing(fields) -> None:
    run = run_of({A: 1}, {})
    for name, value in fields.items():
        setattr(run, name, value)
    assert not compare({LONG: {A}}, run).failed


def test_a_message_whose_test_is_gone_is_lost_to_a_run_of_every_file_alone() -> None:
    some = compare({LONG: {B}}, run_of({A: 1}, {}))
    assert not some.failed and some.undecided == [LONG]
    every = run_of({A: 1}, {}, visited={"tests/a/test_a.py", "tests/b/test_b.py"})
    assert compare({LONG: {B}}, every).lost == [LONG]
    moved = run_of({A: 1}, {LONG: A}, visited={"tests/a/test_a.py", "tests/b/test_b.py"})
    assert not compare({LONG: {B}}, moved).failed


def test_recording_replaces_what_the_functions_that_ran_provoke() -> None:
    recorded = {LONG: {A}, "TypeError: of another": {"tests/b/test_b.py::test_c"}}
    assert update(recorded, run_of({A: 1}, {SHORT: A})) == {
        SHORT: {A},
        "TypeError: of another": {"tests/b/test_b.py::test_c"},
    }


def test_an_entry_with_any_fits_every_text_in_its_place() -> None:
    entry = "RemoteError: tried <any> times: refused"
    found = compare({entry: {A}}, run_of({A: 1}, {"RemoteError: tried 17 times: refused": A}))
    assert not found.failed and not found.new
    assert compare({entry: {A}}, run_of({A: 1}, {"RemoteError: tried 17 times": A})).failed


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorded = {LONG: {A, B}, "exit 2: ascent: first\n\n  second": {"tests/b/test_b.py::test_c"}}
    write_messages(recorded, tmp_path / "messages")
    assert read_messages(tmp_path / "messages") == recorded


def test_what_differs_between_runs_is_replaced() -> None:
    folder = f"{tempfile.gettempdir()}/pytest-of-me/pytest-3/popen-gw1/test_a0/run"
    assert normalize(f"{folder} is at http://127.0.0.1:41234/v1, step 41234") == (
        "<tmp>/run is at http://127.0.0.1:PORT/v1, step 41234"
    )
    assert normalize("<function f at 0x7f00aa>, (ascent/loop.py:17)") == (
        "<function f at 0x...>, (ascent/loop.py:N)"
    )


def test_only_the_packages_own_errors_count() -> None:
    from ascent.models import tiny

    with pytest.raises(ValueError) as ours:
        tiny.named("nowhere", "nothing")
    assert own_error(ours.value) is ours.value
    with pytest.raises(ValueError) as pythons:
        int("x")
    assert own_error(pythons.value) is None


SUITE = """
import pytest
from ascent.models import tiny

def test_refused():
    with pytest.raises(ValueError):
        tiny.named("nowhere", "nothing")
"""


def test_a_run_whose_message_is_not_the_recorded_one_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "FILE", pytester.path / "messages.txt")
    pytester.makepyfile(test_suite=SUITE)
    plain = ("-p", "tests.regression.messages", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert pytester.inline_run(*plain, "--record-messages").ret == pytest.ExitCode.OK
    (message,) = read_messages(messages.FILE)
    assert message.startswith("ValueError: no tiny model named 'nothing'; there are ")
    assert pytester.inline_run(*plain).ret == pytest.ExitCode.OK
    text = messages.FILE.read_text()
    messages.FILE.write_text(text.replace("there are ", "choose one of "))
    assert pytester.inline_run(*plain).ret == pytest.ExitCode.TESTS_FAILED
