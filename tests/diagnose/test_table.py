"""Every cause from made-up curves, each with what would look like it and is something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ascent.config.schema import leaves
from ascent.diagnose.facts import DataFacts, Facts
from ascent.diagnose.table import CAUSES, RULES, find_causes
from ascent.metrics import find_metric

STEPS = 24


def line(first: float, last: float, *, wobble: float = 0.01, steps: int = STEPS) -> list[float]:
    """A straight curve with a small noise that is the same every time."""
    return [
        first + (last - first) * place / (steps - 1) + wobble * (((place * 7) % 5) - 2) / 2
        for place in range(steps)
    ]


HEALTHY: dict[str, Sequence[float]] = {
    "reward/mean": line(0.2, 0.8),
    "reward/correct": line(0.2, 0.8),
    "reward/std": line(0.4, 0.4),
    "reward/zero_std_frac": line(0.3, 0.3),
    "reward/failure_frac": [0.0] * STEPS,
    "policy/entropy": line(0.5, 0.3),
    "policy/ref_kl": line(0.0, 0.3),
    "policy/update_kl": [0.01] * STEPS,
    "policy/approx_kl": [0.0] * STEPS,
    "completion/length_mean": line(10, 11),
    "completion/truncated_frac": [0.0] * STEPS,
    "sampler/logprob_diff": [0.0] * STEPS,
}
FLAT = {"reward/mean": line(0.2, 0.2), "reward/correct": line(0.2, 0.2)}
LOST = {"reward/mean": line(0.3, 0.0), "reward/correct": line(0.3, 0.0)}
HACKED = {"reward/mean": line(0.2, 0.9), "reward/correct": line(0.2, 0.0)}


def facts(
    curves: Mapping[str, Sequence[float]], samples: Sequence[Mapping[str, Any]] = (), **more: Any
) -> Facts:
    metrics = [
        {
            "step": float(place + 1),
            **{name: values[place] for name, values in curves.items() if place < len(values)},
        }
        for place in range(max(map(len, curves.values())))
    ]
    return Facts(metrics, samples, more.pop("config", {"update.learning_rate": 1e-4}), **more)


def run(
    changed: Mapping[str, Sequence[float]], samples: Sequence[Mapping[str, Any]] = (), **more: Any
) -> Facts:
    return facts({**HEALTHY, **changed}, samples, **more)


def sample(
    step: int, text: str, reward: float | None, *, correct: float = 0.0, prompt: str = "p"
) -> dict[str, Any]:
    return {
        "step": step,
        "id": prompt,
        "prompt": prompt,
        "completion": text,
        "reward": reward,
        "stop": "eos",
        "parts": {"verifier/correct": correct},
    }


def samples_of(texts: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [
        sample(step, text, reward) for step in (1, 2, STEPS - 1, STEPS) for text, reward in texts
    ]


LONG = samples_of(
    [(" ".join("abcdefghijkl"[:count]), count / 12) for count in (2, 4, 6, 8, 10, 12)]
)
TWICE = samples_of(
    [("a b c d", 0.0), ("a a b b", 0.5), ("a a a a", 0.75), ("a b c c", 0.25), ("e f g h", 0.0)]
)
MARKED = samples_of(
    [("a b!", 0.9), ("a b c d e", 0.2), ("c!", 0.9), ("b", 0.2), ("a c d!", 0.9), ("a b c", 0.2)]
)
COIN = [sample(step, "a b", float(place % 2)) for step in range(1, STEPS) for place in range(4)]
FORMAT = [
    {**each, "parts": {"format_marks/format": each["reward"], "verifier/correct": 0.0}}
    for each in samples_of([("[a b c]", 1.0), ("a b", 0.0), ("[a]", 1.0), ("a b c d", 0.0)])
]

SFT = {
    "loss/total": line(3.0, 0.6),
    "eval/loss/total": line(2.9, 0.7),
    "optim/grad_norm": [1.0] * STEPS,
}
PAIRS = {**SFT, "loss/total": line(0.69, 0.69, wobble=0.02), "preference/margin": line(0.0, 0.3)}
RM = {"model.reward_model": "runs/rm", "update.learning_rate": 1e-4}
AGREES = [
    sample(step, f"{step} {place}", float(place), correct=float(place))
    for step in range(1, 25)
    for place in (0, 1)
]
AGAINST = [
    sample(step, f"{step} {place}", float(place), correct=1.0 - place)
    for step in range(1, 25)
    for place in (0, 1)
]

FAILING: dict[str, Facts] = {
    "learning_rate_too_high": run(
        {**LOST, "policy/update_kl": [3.0, 2.0, 1.0, *[0.1] * 21], "policy/ref_kl": line(0, 5)}
    ),
    "learning_rate_too_low": run(
        {**FLAT, "policy/update_kl": [1e-9] * STEPS, "policy/ref_kl": [1e-8] * STEPS}
    ),
    "entropy_explosion": run(
        {**LOST, "policy/entropy": line(0.5, 5.0), "completion/truncated_frac": line(0, 1)}
    ),
    "entropy_collapse": run({**FLAT, "policy/entropy": line(0.5, 0.005, wobble=0.001)}),
    "kl_runaway": run({"policy/ref_kl": line(0.1, 6.0), **FLAT}),
    "length_explosion": run({**FLAT, "completion/length_mean": line(10, 60)}),
    "truncation": run({**FLAT, "completion/truncated_frac": [0.7] * STEPS}),
    "no_signal_too_hard": run(
        {
            "reward/mean": [0.0] * STEPS,
            "reward/correct": [0.0] * STEPS,
            "reward/std": [0.0] * STEPS,
            "reward/zero_std_frac": [1.0] * STEPS,
        }
    ),
    "no_signal_too_easy": run(
        {
            "reward/mean": [0.99] * STEPS,
            "reward/correct": [0.99] * STEPS,
            "reward/zero_std_frac": [0.95] * STEPS,
        }
    ),
    "no_signal_equal_groups": run(
        {**FLAT, "reward/mean": [0.4] * STEPS, "reward/zero_std_frac": [1.0] * STEPS}
    ),
    "constant_reward": run(
        {
            "reward/mean": [1.0] * STEPS,
            "reward/correct": line(0.2, 0.2),
            "reward/std": [0.0] * STEPS,
            "reward/zero_std_frac": [1.0] * STEPS,
        }
    ),
    "noisy_reward": run(FLAT, COIN),
    "unscored_rewards": run(
        {"reward/failure_frac": [0.3] * STEPS, "reward/failures/mine/timeout": [9.0] * STEPS}
    ),
    "sampler_mismatch": run({"sampler/logprob_diff": [0.1] * STEPS}),
    "stale_rollouts": run(
        {
            **LOST,
            "sampler/staleness": [8.0] * STEPS,
            "policy/approx_kl": [0.5] * STEPS,
            "policy/update_kl": [0.7] * STEPS,
        }
    ),
    "critic_explains_nothing": run(
        {**FLAT, "critic/explained_variance": [-2.0] * STEPS, "critic/loss": [1.0] * STEPS}
    ),
    "reward_hacking_length": run(HACKED, LONG),
    "reward_hacking_repetition": run(HACKED, TWICE),
    "reward_hacking_format": run(HACKED, FORMAT),
    "reward_hacking_flattery": run(HACKED, MARKED),
    "reward_model_wrong": run(HACKED, AGAINST, config=RM),
    "reward_model_overoptimized": run(
        {**HACKED, "reward/correct": [*line(0.2, 0.7, steps=12), *line(0.7, 0.0, steps=12)]},
        AGREES,
        config=RM,
    ),
    "noisy_labels": facts(
        {**PAIRS, "preference/accuracy": line(0.5, 0.6), "eval/preference/accuracy": [0.5] * STEPS}
    ),
    "data_copies": facts(SFT, data=DataFacts(100, repeated=90)),
    "data_leak": facts(SFT, data=DataFacts(100, heldout=20, leaked=15)),
    "data_order": facts(SFT, data=DataFacts(100, order=0.9), config={"data.shuffle": False}),
    "overfitting": facts(
        {
            **SFT,
            "loss/total": line(3, 0.05),
            "eval/loss/total": [*line(2.9, 1.0, steps=12), *line(1.0, 2.5, steps=12)],
        }
    ),
    "unlucky_seed": run(
        {"reward/mean": line(0.2, 0.3), "reward/correct": line(0.2, 0.3)},
        peers=(0.8, 0.82, 0.79, 0.81),
    ),
    "needs_more_steps": run({}),
}
NOTES = {"needs_more_steps"}


def test_every_cause_is_tried() -> None:
    assert set(FAILING) == set(CAUSES)


def test_the_page_explains_every_cause() -> None:
    page = (Path(__file__).parents[2] / "docs/diagnosis.md").read_text()
    assert [each for each in CAUSES if f"`{each}`" not in page] == []


@pytest.mark.parametrize("cause", FAILING)
def test_the_cause_is_named_first_with_evidence_and_changes(cause: str) -> None:
    found = find_causes(FAILING[cause])
    assert [each.cause for each in found][:1] == [cause], [
        (each.cause, each.evidence) for each in found
    ]
    first = found[0]
    assert (
        0 < first.confidence <= 1 and first.evidence and first.changes and len(first.rollouts) <= 3
    )
    assert first.note == (cause in NOTES)
    assert first.follows_from is None
    assert all(any(letter.isdigit() for letter in each) for each in first.evidence[:1]), (
        first.evidence
    )


@pytest.mark.parametrize("cause", FAILING)
def test_changes_are_keys_of_a_recipe_and_metrics_are_registered(cause: str) -> None:
    for rule in RULES:
        found = rule.find(FAILING[cause])
        if found is not None:
            assert found.cause in rule.causes
            assert all(find_metric(name) for name in found.metrics)
            for change in found.changes:
                key = change.key.replace("[]", "").split(".")
                known = {tuple(each.split(".")) for each in leaves()}
                assert any(each == tuple(key[: len(each)]) for each in known), change.key


HEALTHY_RUNS = {
    "still rising": run({}),
    "solved": run(
        {
            "reward/mean": line(0.3, 1.0, wobble=0),
            "reward/correct": line(0.3, 1.0, wobble=0),
            "policy/entropy": line(0.5, 0.005),
        }
    ),
    "supervised": facts(SFT),
    "preferences": facts(
        {
            **SFT,
            "loss/total": line(0.69, 0.3),
            "preference/accuracy": line(0.5, 0.9),
            "eval/preference/accuracy": line(0.5, 0.85),
        }
    ),
    "critic": run({"critic/explained_variance": line(-2, 0.5), "critic/loss": line(1, 0.2)}),
    "two steps": facts({name: values[:2] for name, values in HEALTHY.items()}),
    "no steps": Facts([], [], {}),
    "longer and better": run(
        {"completion/length_mean": line(10, 60)},
        [sample(s, "a " * n, float(n > 4)) for s in range(1, 25) for n in (2, 8)],
    ),
    "longer and better, by chance": run({"completion/length_mean": line(10, 60)}),
    "other seeds are no better": run({}, peers=(0.7, 0.9, 0.8)),
    "shuffled although the file is ordered": facts(SFT, data=DataFacts(100, order=0.9)),
    "a few copies": facts(SFT, data=DataFacts(100, repeated=10, heldout=10)),
}


@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_a_healthy_run_raises_no_alarm(name: str) -> None:
    found = [each for each in find_causes(HEALTHY_RUNS[name]) if not each.note]
    assert found == []


def test_losses_on_other_held_out_data_are_not_compared() -> None:
    """The held-out loss jumps where the held-out data changes, and falls again."""
    curves = {**SFT, "eval/loss/total": [*line(1.0, 0.8, steps=12), *line(2.5, 2.3, steps=12)]}
    assert [each.cause for each in find_causes(facts(curves))] == ["overfitting"]
    changed = {"step": 13, "key": "data.evaluate", "input": True}
    assert find_causes(facts(curves, changes=[changed])) == ()


def test_what_follows_from_a_cause_is_told_after_it() -> None:
    found = find_causes(FAILING["learning_rate_too_high"])
    assert [each.cause for each in found if each.follows_from == "learning_rate_too_high"]
    assert found[0].follows_from is None


def test_a_note_is_not_told_beside_a_failure() -> None:
    found = find_causes(run({"sampler/logprob_diff": [0.1] * STEPS}))
    assert [each.cause for each in found] == ["sampler_mismatch"]


def test_when_it_began() -> None:
    entropy = [*[0.5] * 10, *[4.0] * 14]
    (first, *_) = find_causes(run({**LOST, "policy/entropy": entropy}))
    assert (first.cause, first.began) == ("entropy_explosion", 11)


def test_one_update_that_spoils_the_policy_is_a_learning_rate() -> None:
    """The first value is of the untouched policy; quarters of the run see nothing of it."""
    spoiled = {
        name: [0.5, *line(0.05, 0.05, steps=STEPS - 1)]
        for name in ("reward/mean", "reward/correct")
    }
    large, small = (
        {**spoiled, "policy/update_kl": [value, *[0.02] * (STEPS - 1)]} for value in (0.3, 0.03)
    )
    assert first(run(large)) == "learning_rate_too_high"
    assert first(run(small)) != "learning_rate_too_high"
    paid = {**large, "reward/mean": line(0.2, 0.9)}  # it earns more and more, for something else
    assert first(run(paid, LONG)) == "reward_hacking_length"


def test_a_cold_policy_is_named_before_what_large_updates_do_to_it() -> None:
    cold = {
        **LOST,
        "policy/entropy": [0.02] * STEPS,
        "reward/zero_std_frac": [0.9] * STEPS,
        "policy/update_kl": [2.0] * STEPS,
        "completion/length_mean": line(5, 12),
    }
    config = {"update.learning_rate": 1e-4, "rollouts.temperature": 0.3}
    found = find_causes(run(cold, config=config))
    assert (
        found[0].cause == "entropy_collapse" and found[0].changes[0].key == "rollouts.temperature"
    )
    assert all(each.follows_from == "entropy_collapse" for each in found[1:])
    assert first(run(cold)) == "learning_rate_too_high"  # at a temperature of 1
    hard = {**cold, "reward/mean": [0.0] * STEPS, "reward/correct": [0.0] * STEPS}
    assert (
        first(run({**hard, "policy/update_kl": [0.0] * STEPS}, config=config))
        == "no_signal_too_hard"
    )


def first(found: Facts) -> str | None:
    causes = find_causes(found)
    return causes[0].cause if causes else None


def test_a_critic_that_started_as_the_reward_model_is_told_of_the_policy() -> None:
    curves = {**FLAT, "critic/explained_variance": [-2.0] * STEPS, "critic/loss": [1.0] * STEPS}
    for config, value in (
        ({"model.policy": "runs/sft", "model.reward_model": "runs/rm"}, "runs/sft"),
        (
            {
                "model.policy": "runs/sft",
                "model.reward_model": "runs/rm",
                "model.critic_from": "runs/c",
            },
            "the reward",
        ),
        ({"model.policy": "runs/sft"}, "the reward"),
    ):
        found = find_causes(run(curves, config=config))[0]
        start = next(each for each in found.changes if each.key == "model.critic_from")
        assert str(start.value).startswith(value)
