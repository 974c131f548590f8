"""Rewards are found by name, in files and among entry points; what does not fit is refused before anything runs."""

import importlib.metadata

import pytest

from ascent.rewards import Batch, Unscored, batched, find
from ascent.rewards.registry import BUILT_IN
from tests.rewards.rollouts import rollout

GROUP = "ascent.rewards"

FILE = """
from ascent.rewards import Batch, batched

def plain(rollout, *, factor=1.0):
    return factor * len(rollout.text)

async def later(rollout):
    return 0.5

@batched
def together(rollouts, *, base=0.0):
    return [base + n for n, _ in enumerate(rollouts)]

class Held(Batch):
    def __init__(self, *, value):
        self.value = value
    def score(self, rollouts):
        return [self.value] * len(rollouts)

def two(rollout, other):
    return 0

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return str(path)


def test_a_function_of_a_file(file):
    assert find(f"{file}:plain")(rollout("abc")) == 3
    assert find(f"{file}:plain", factor=2.0)(rollout("abc")) == 6


def test_a_batched_function_and_a_class(file):
    assert find(f"{file}:together", base=1.0).score([rollout(), rollout()]) == [1.0, 2.0]
    assert find(f"{file}:Held", value=0.25).score([rollout()]) == [0.25]


def test_two_files_of_one_name_do_not_meet(tmp_path):
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"def f(rollout):\n    return {value}\n")
    assert [find(f"{tmp_path}/{folder}/same.py:f")(rollout()) for folder in "ab"] == [1, 2]


def test_an_entry_point(monkeypatch):
    entry = importlib.metadata.EntryPoint("elsewhere", "ascent.rewards.text:exact", GROUP)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [entry] if group == GROUP else []
    )
    assert find("elsewhere")(rollout("4", answer="4")) == 1.0


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mathematic", {}, "did you mean mathematics"),
        ("zzzz", {}, "there are exact, format"),
        ("nowhere.py:f", {}, "there is no file"),
        ("{file}:missing", {}, "defines no missing; it defines Batch, batched, plain"),
        ("{file}:number", {}, "is a int, not a function"),
        ("{file}:two", {}, "called with one"),
        ("{file}:plain", {"faktor": 1}, "has no option faktor; it has factor"),
        ("{file}:Held", {}, "needs the option value"),
        ("length", {}, "needs the option target"),
        ("format", {"pattern": "a", "tags": ["b"]}, "either a pattern or tags"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, words, file):
    with pytest.raises(ValueError, match=words):
        find(name.format(file=file), **options)


def test_a_file_that_raises_is_tried_again(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise RuntimeError('not yet')")
    with pytest.raises(ValueError, match=r"broken\.py:1: RuntimeError: not yet"):
        find(f"{path}:f")
    path.write_text("def f(rollout):\n    return 1.0\n")
    assert find(f"{path}:f")(rollout()) == 1.0


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_name_leads_somewhere(name):
    options = {
        **{
            "format": {"tags": ["a"]},
            "length": {"target": 10},
            "overlong": {"max_length": 20, "cache": 5},
        },
        **{
            "cosine_length": {"max_length": 10, "of": "exact"},
            "remote": {"url": "http://localhost:1"},
        },
        **{"judge": {"url": "http://localhost:1/v1", "model": "m", "rubric": "be right"}},
        **{"programs": {"sandbox": "none"}},
    }
    found = find(name, **options.get(name, {}))
    if isinstance(found, Batch):
        found.close()


def test_marks_are_public():
    @batched
    def f(rollouts):
        return [Unscored("cannot")] * len(rollouts)

    assert isinstance(f, Batch)
