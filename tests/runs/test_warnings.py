"""Each warning fires where its number is out of range, once for each crossing, and no healthy start sets one off."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ascent.algorithms import TABLE
from ascent.runs.warnings import CLIP_FRACTION, FIRST, RULES, Monitor, RunWarning

ROOT = Path(__file__).parents[2]
HEALTHY = {
    "policy/clip_frac_low": 0.01,
    "policy/clip_frac_high": 0.02,
    "policy/approx_kl": 0.002,
    "policy/ref_kl": 0.05,
    "policy/entropy": 0.4,
    "policy/update_kl": 0.01,
    "sampler/logprob_diff": 0.004,
    "completion/length_mean": 20.0,
    "completion/truncated_frac": 0.02,
    "reward/zero_std_frac": 0.5,
    "reward/failure_frac": 0.0,
    "reward/correct": 0.3,
}


def watched(*metrics: dict[str, float]) -> list[RunWarning]:
    monitor = Monitor()
    return [
        each
        for step, one in enumerate(metrics, 1)
        for each in monitor.update(step, {**HEALTHY, **one})
    ]


def test_numbers_in_range_say_nothing() -> None:
    assert watched(*[{}] * 50) == []


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("update_too_large", {"policy/update_kl": 0.6}),
        ("sampler_mismatch", {"sampler/logprob_diff": 0.021}),
        ("clip_fraction", {"policy/clip_frac_low": 0.2, "policy/clip_frac_high": 0.15}),
        ("approx_kl", {"policy/approx_kl": 0.11}),
        ("ref_kl", {"policy/ref_kl": 1.5}),
        ("entropy", {"policy/entropy": 0.01}),
        ("entropy", {"policy/entropy": 1.3}),  # three times .4 is 1.2
        ("length", {"completion/length_mean": 4.9}),
        ("length", {"completion/length_mean": 81.0}),
        ("truncation", {"completion/truncated_frac": 0.31}),
        ("zero_variance", {"reward/zero_std_frac": 0.95}),
        ("reward_failures", {"reward/failure_frac": 0.06}),
    ],
)
def test_each_fires_once_for_a_crossing_and_again_for_the_next(
    name: str, bad: dict[str, float]
) -> None:
    patience = next(rule.patience for rule in RULES if rule.name == name)
    start: list[dict[str, float]] = [{}] * FIRST
    assert watched(*start, *[bad] * (patience - 1)) == []
    (found,) = watched(*start, *[bad] * (patience + 30))
    assert (found.rule.name, found.step) == (name, FIRST + patience)
    assert name in found.text() and found.rule.fix in found.text()
    again = watched(*start, *[bad] * patience, *[{}] * patience, *[bad] * patience)
    assert [each.rule.name for each in again] == [name, name]


def test_one_step_inside_neither_ends_a_crossing_nor_hides_one() -> None:
    bad = {"completion/truncated_frac": 0.9}
    assert watched(bad, bad, {}, bad, bad) == []  # never three in a row
    assert len(watched(bad, bad, bad, {}, bad, bad, bad)) == 1  # never three in a row inside


def test_a_policy_that_has_learnt_its_task_may_be_sure() -> None:
    sure = {"policy/entropy": 0.001}
    assert [
        each.rule.name for each in watched(*[{}] * FIRST, *[{**sure, "reward/correct": 0.5}] * 9)
    ] == ["entropy"]
    assert watched(*[{}] * FIRST, *[{**sure, "reward/correct": 0.95}] * 9) == []


def test_stale_rollouts_whose_difference_is_corrected_are_no_mismatch() -> None:
    stale = {"sampler/logprob_diff": 0.5, "sampler/staleness": 1.0}
    assert [each.rule.name for each in watched(*[stale] * 9)] == ["sampler_mismatch"]
    for corrected in ("sampler/is_capped_frac", "sampler/is_rejected_frac"):
        assert watched(*[{**stale, corrected: 0.0}] * 9) == []
        fresh = {"sampler/logprob_diff": 0.5, corrected: 0.0}
        assert [each.rule.name for each in watched(*[fresh] * 9)] == ["sampler_mismatch"]


DESTROYED = {
    "completion/truncated_frac": 0.9,
    "reward/zero_std_frac": 1.0,
    "completion/length_mean": 100.0,
    "policy/entropy": 3.0,
}


def test_what_follows_from_an_update_that_was_too_large_is_no_news() -> None:
    """No step trains after the policy was destroyed, so no later update can clear the first one's name."""
    after = {
        name: value
        for name, value in {**HEALTHY, **DESTROYED}.items()
        if name != "policy/update_kl"
    }
    monitor = Monitor()
    told = [each for step in range(1, FIRST + 1) for each in monitor.update(step, HEALTHY)]
    told += monitor.update(FIRST + 1, {**HEALTHY, "policy/update_kl": 7.9})
    told += [each for step in range(FIRST + 2, 60) for each in monitor.update(step, after)]
    assert [each.rule.name for each in told] == ["update_too_large"]
    assert "update.learning_rate" in told[0].text() and "for 1 steps" not in told[0].text()


def test_after_enough_small_updates_other_warnings_speak_again() -> None:
    found = watched(
        *[{}] * FIRST,
        {"policy/update_kl": 7.9},
        *[{}] * (FIRST + 1),
        *[{"completion/truncated_frac": 0.9}] * 5,
    )
    assert [each.rule.name for each in found] == ["update_too_large", "truncation"]


def test_what_an_algorithm_does_by_design_is_not_warned_about() -> None:
    clipped = {**HEALTHY, "policy/clip_frac_high": 0.6}
    assert any(monitor.update(step, clipped) for monitor in [Monitor()] for step in range(9))
    assert not any(
        monitor.update(step, clipped)
        for monitor in [Monitor(expected=[CLIP_FRACTION])]
        for step in range(9)
    )
    assert {name for name, row in TABLE.items() if row.clips_by_design} == {
        "gspo",
        "gspo_token",
        "luspo",
    }


def test_without_groups_equal_rewards_have_no_signal() -> None:
    ungrouped = {name: value for name, value in HEALTHY.items() if name != "reward/zero_std_frac"}
    monitor = Monitor()
    found = [
        each for step in range(9) for each in monitor.update(step, {**ungrouped, "reward/std": 0.0})
    ]
    assert [each.rule.name for each in found] == ["zero_variance"]
    assert not any(Monitor().update(step, {**ungrouped, "reward/std": 0.1}) for step in range(9))


def test_what_is_missing_or_not_a_number_is_not_judged() -> None:
    monitor = Monitor()
    for step in range(20):
        assert (
            monitor.update(step, {"loss/total": 1.0, "completion/truncated_frac": math.nan}) == []
        )


def test_the_documentation_has_every_rule_with_its_range() -> None:
    page = (ROOT / "docs/runs.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| `{rule.name}` | `{rule.reads}` | {rule.range()} | {rule.patience} |" in page
