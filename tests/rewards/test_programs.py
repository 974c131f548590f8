"""Model-written programs as a reward: three styles of tests, two scores, and what cannot be said."""

import os
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.rewards import Unscored, find
from ascent.rewards.calls import score_all
from ascent.rewards.programs import extract_code
from tests.rewards.rollouts import rollout
from tests.wall_clock import wall_clock

CALLS = {"tests": {"function": "double", "calls": [[[4], 8], [[5], 10]]}}
STDIO = {"tests": {"stdio": [["4", "8"], ["5", "10"]]}}
ASSERTS = {
    "tests": {
        "asserts": ["assert double(4) == 8", "assert double(5) == 10"],
        "setup": "import math",
    }
}
GOOD = """Here:
```python
def double(n):
    return 2 * n

if __name__ == "__main__":
    print(double(int(input())))
```
"""
HALF = "```python\ndef double(n):\n    return 8\nif __name__ == '__main__':\n    print(8)\n```"

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)


@needs_bubblewrap
def test_scores_and_reasons():
    reward = find("programs", workers=2, limits={"wall_seconds": 5, "test_seconds": 2})
    asked = [
        *[(GOOD, info) for info in (CALLS, STDIO, ASSERTS)],
        *[(HALF, info) for info in (CALLS, STDIO, ASSERTS)],
        *[("while True: pass", CALLS), ("no code at all", STDIO)],
        *[
            (GOOD, {}),
            (GOOD, {"tests": {"stdio": []}}),
            (GOOD, {"tests": {"asserts": ["assert (", "x"]}}),
        ],
        *[
            (GOOD, {"tests": {"calls": 3, "function": "f"}}),
            (GOOD, {"tests": {"asserts": ["assert double(print) == 1"]}}),
        ],
        (GOOD, {"tests": {"asserts": ["assert 1 == 2"]}}),
    ]
    scores = reward.score([rollout(text, info=info) for text, info in asked])
    reward.close()
    assert scores[:3] == [{"correct": 1.0, "fraction": 1.0}] * 3
    assert scores[3:6] == [{"correct": 0.0, "fraction": 0.5}] * 3
    assert scores[6:8] == [{"correct": 0.0, "fraction": 0.0}] * 2
    assert [score.kind for score in scores[8:]] == ["no_tests", *["bad_tests"] * 5]
    assert all(isinstance(score, Unscored) for score in scores[8:])
    assert reward.failure_counts == {"time": 1}
    assert reward.weights == {"fraction": 0.0}


NAMED = {"stdio": [{"input": "4", "output": "8"}, {"input": "5", "output": "10"}]}
FIELDS = [
    *[(NAMED, 1.0), ({"asserts": ["assert double(4) == 8"], "setup": None}, 1.0)],
    *[
        ({"asserts": {"a": 1}}, "bad_tests"),
        ({"stdio": [[4, "8"]]}, "bad_tests"),
        ({"stdio": [["4", None]]}, "bad_tests"),
    ],
    *[
        ({"asserts": ["assert double(4) == 8"], "setup": 3}, "bad_tests"),
        ("double(4) == 8", "bad_tests"),
        (None, "no_tests"),
    ],
]


@needs_bubblewrap
def test_tests_fields_are_read_or_refused_and_never_misread():
    reward = find("programs", workers=1, limits={"wall_seconds": 5, "test_seconds": 2})
    scores = reward.score([rollout(GOOD, info={"tests": tests}) for tests, _ in FIELDS])
    reward.close()
    assert [
        score.kind if isinstance(score, Unscored) else score["correct"] for score in scores
    ] == [want for _, want in FIELDS]


def test_a_prompt_is_checked_before_anything_is_sampled():
    reward = find("programs", sandbox="none", workers=1)
    reward.check(rollout(info=CALLS).prompt)
    for info, kind in (
        (STDIO, None),
        ({}, "no_tests"),
        ({"tests": {"stdio": [[4, "8"]]}}, "bad_tests"),
    ):
        try:
            reward.check(rollout(info=info).prompt)
        except Unscored as refused:
            assert refused.kind == kind
        else:
            assert kind is None
    reward.close()


@wall_clock
def test_a_program_has_the_time_of_its_own_limits_whatever_a_call_may_take():
    """Cut off from outside it would be unscored; its own clock says that it is wrong."""
    reward = find(
        "programs", sandbox="none", workers=1, limits={"wall_seconds": 1.5, "test_seconds": 1.5}
    )
    (found,) = score_all(
        {"programs": reward}, [rollout("while True: pass", info=CALLS)], timeout=0.5
    )
    reward.close()
    assert found["programs"].failure is None and found["programs"].parts["correct"] == 0.0


def test_the_program_is_the_last_block():
    assert extract_code("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```\n") == "y = 2\n"
    assert extract_code("x = 1") == "x = 1"


def test_without_bubblewrap_it_refuses_and_names_the_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"install the package bubblewrap .*`sandbox: none`"):
        find("programs")
    find("programs", sandbox="none").close()  # said in so many words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": "docker"}, "must be bubblewrap or none"),
        ({"score": "half"}, "must be all"),
        ({"limits": {"seconds": 3}}, "unexpected keyword argument 'seconds'"),
        ({"limits": {"wall_seconds": 0}}, "a finite number above 0"),
        ({"limits": {"memory_mb": 8}}, "the interpreter alone needs 64"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        find("programs", **{"sandbox": "none", **options})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("so\r\n```python\r\nx = 1\r\n```\r\n", "x = 1\r\n"),
        ('```python title="a.py"\nx = 1\n```', "x = 1\n"),
        ("1. It:\n   ```python\n   if x:\n       y\n   ```\n", "if x:\n    y\n"),
        ("````\na\n```\nb\n````", "a\n```\nb\n"),
        ("```python\nx = 1\ny = 2", "x = 1\ny = 2"),
        ("```\nx\n```\nbetter:\n```python\ny", "y"),
        # Fences in a docstring, stray ones, and indented lines that go on with a given function.
        (
            '```python\n"""\n    ```\n    f()\n    ```\n"""\n```',
            '"""\n    ```\n    f()\n    ```\n"""\n',
        ),
        ('```python\n"""\n  ```\n  f()\n  ```\n"""\n```', '"""\n  ```\n  f()\n  ```\n"""\n'),
        (
            '```python\n"""\n  ```python\n  f()\n  ```\n"""\n```\nend',
            '"""\n  ```python\n  f()\n  ```\n"""\n',
        ),
        ("```python\nx\n```\n```\nThis works.", "x\n"),
        # Indented fences: examples of a list after the solution, solutions in a list, and carelessly closed blocks.
        ("```python\nx\n```\n1. Example:\n   ```\n   f()\n   ```\n", "x\n"),
        ("```python\nx\n```\n1. Example:\n   ```\n   f()\n", "x\n"),
        ("1. Slow:\n   ```\n   x\n   ```\n2. Fast:\n   ```\n   y\n   ```\n", "y\n"),
        ("```\nx\n```\n1. Better:\n   ```python\n   y\n   ```\n", "y\n"),
        ("```python\nx\n  ```\nThis works.", "x\n"),
        ("```python\nx\n  ```\nbetter:\n```python\ny\n```\n", "y\n"),
        ("x = 1\n```\n", "x = 1\n```\n"),
        ("  x = '```'", "  x = '```'"),
        ("```python\n    return 2 * n\n```", "    return 2 * n\n"),
    ],
)
def test_fences(text, code):
    assert extract_code(text) == code


def blocks(text):
    """(language, code, closed?) of every block, line by line."""
    found, language, length, code = [], None, 0, []
    for line in text.split("\n"):
        fence = re.fullmatch(r"(`{3,})([^`]*)", line)
        if language is None and fence:
            language, length, code = fence[2], len(fence[1]), []
        elif language is not None and fence and not fence[2] and len(fence[1]) >= length:
            found.append((language, "".join(each + "\n" for each in code), True))
            language = None
        else:
            code.append(line)
    return found if language is None else [*found, (language, "\n".join(code), False)]


@settings(max_examples=500)
@given(
    st.lists(st.sampled_from(["```", "```python", "```c++", "``", "\n", "\n", "x = 1"])).map(
        "".join
    )
)
def test_blocks_as_the_lines_show_them(text):
    found = blocks(text)
    if (
        found
        and not found[-1][2]
        and (not found[-1][1].strip() or (len(found) > 1 and not found[-1][0]))
    ):
        found.pop()
    assert extract_code(text) == (found[-1][1] if found else text)
