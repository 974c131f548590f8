"""Phases: what is going on, how much of it is done, and that every part of a step has one."""

import re

import pytest

import ascent
from ascent import progress
from ascent.api.check import check
from ascent.progress import WaitingNotes, add_tokens, current, note, notes_to, phase, track
from tests.end_to_end import rewarded


def test_the_innermost_phase_counts_and_ends_even_after_an_error() -> None:
    with pytest.raises(KeyError), phase("evaluating"), phase("sampling", 8, "rollouts") as sampling:
        sampling.done += 2
        add_tokens(30)
        name, innermost = current() or ("", sampling)
        assert name == "evaluating, sampling" and innermost is sampling
        assert sampling.describe(sampling.started + 4.0) == "2/8 rollouts  0.5/s  7.5 tokens/s  4 s"
        raise KeyError
    assert current() is None
    add_tokens(1)  # of no phase


def test_work_in_other_threads_is_counted_when_it_is_shown() -> None:
    done = [1]
    with phase("scoring", 3, "rollouts", count=lambda: done[0]) as scoring:
        done[0] = 2
        assert scoring.describe(scoring.started + 4.0) == "2/3 rollouts  0.5/s  4 s"


def test_tracked_items_are_all_given_in_order() -> None:
    found = []
    for each in track("updating", "abc", "micro-batches"):
        phases = current()
        assert phases is not None
        found.append((each, phases[1].progress()))
    assert found == [("a", 0), ("b", 1), ("c", 2)] and current() is None


class Phases(list):
    """The phases that are going on, and in `ended` those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[progress.Phase] = []

    def append(self, each: progress.Phase) -> None:
        super().append(each)
        self.ended.append(each)


def test_check_says_what_it_does_and_every_part_of_a_step_counts_its_work(
    monkeypatch, capsys
) -> None:
    phases = Phases()
    monkeypatch.setattr(progress, "_phases", phases)
    recipe = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "rewards": [{"use": f"{rewarded.__file__}:shuffled"}],
        "rollouts.prompts_per_step": 2,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 5,
    }
    check(recipe)
    said = ["reading the data, loading the model", "first step", "second step", "saving the model"]
    assert capsys.readouterr().err.splitlines() == said
    for name in ("sampling", "scoring", "updating"):
        found = [each for each in phases.ended if each.name == name]
        assert len(found) >= 2 and all(each.progress() == each.total > 0 for each in found), name
        assert name == "scoring" or all(each.tokens > 0 for each in found), name


def test_waiting_is_said_after_ten_seconds_then_seldom_and_once_at_its_end() -> None:
    said: list[tuple[int, str]] = []
    now = 0
    notes = WaitingNotes(lambda text: said.append((now, text)), clock=lambda: now)
    for now in range(600):  # noqa: B007 - the clock
        notes.waiting(lambda since: f"no server for {since}: refused")
    assert [at for at, _ in said] == [10, 60, 120, 240, 480]
    assert re.fullmatch(r"no server for 10 s, since \d\d:\d\d:\d\d: refused", said[0][1])
    notes.over("it is back")
    notes.over("it is back")
    assert said[5:] == [(599, "it is back after 599 s")]
    notes.waiting(str)
    now += 9
    notes.waiting(str)
    notes.over("it is back")  # nothing was said of this one
    assert len(said) == 6


def test_notes_go_to_the_innermost_receiver_or_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outer, inner = [], []
    with notes_to(outer.append):
        with notes_to(inner.append):
            note("one")
        note("two")
    note("three")
    assert (inner, outer, capsys.readouterr().err) == (["one"], ["two"], "three\n")


def test_notes_of_a_run_are_said_with_and_without_bars(tmp_path, capsys) -> None:
    (tmp_path / "reward.py").write_text(
        "from ascent.progress import note\n\ndef noted(rollout):\n    note('a note')\n    return len(rollout.text)\n"
    )
    recipe = {
        "algorithm": "grpo",
        "model": "tiny:llama",
        "data": "arithmetic:8",
        "run.steps": 1,
        "rewards": [{"use": f"{tmp_path}/reward.py:noted"}],
        "rollouts.prompts_per_step": 2,
        "rollouts.group_size": 2,
        "rollouts.max_new_tokens": 4,
    }
    said: list[str] = []
    ascent.train(recipe, run=tmp_path / "plain", progress=False, say=said.append)
    assert said.count("a note") == 4
    capsys.readouterr()
    ascent.train(recipe, run=tmp_path / "bars", say=said.append)
    assert said.count("a note") == 4 and capsys.readouterr().err.count("a note") >= 4
