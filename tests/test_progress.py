"""Phases: what is going on, how much of it is done, and that every part of a step has one."""

import pytest

from ascent import progress
from ascent.api.check import check
from ascent.progress import add_tokens, current, phase, track
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


def test_check_says_what_it_does_and_every_part_of_a_step_counts_its_work(monkeypatch, capsys) -> None:
    phases = Phases()
    monkeypatch.setattr(progress, "_phases", phases)
    recipe = {
        "algorithm": "grpo", "model.policy": "tiny:llama", "data.train": "sort_digits:8",
        "rewards": [{"use": f"{rewarded.__file__}:shuffled"}],
        "rollouts.prompts_per_step": 2, "rollouts.group_size": 4, "rollouts.max_new_tokens": 5,
    }  # fmt: skip
    check(recipe)
    assert capsys.readouterr().err.splitlines() == ["reading the data, loading the model", "first step", "second step"]
    for name in ("sampling", "scoring", "updating"):
        found = [each for each in phases.ended if each.name == name]
        assert len(found) >= 2 and all(each.progress() == each.total > 0 for each in found), name
        assert name == "scoring" or all(each.tokens > 0 for each in found), name
