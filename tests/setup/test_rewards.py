"""From the recipe's rewards to rollouts with rewards: verifiers, files, reward models, weights, gates, policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.plan.resolve import Plan, resolve
from ascent.records import Completion, Episode, Message, Prompt, Rollout, Turn
from ascent.rewards.calls import CallOptions
from ascent.rewards.combine import Gate
from ascent.rewards.outcome import RewardFailed, Tally
from ascent.rollouts.generate import stream_of
from ascent.rollouts.metrics import episode_metrics
from ascent.rollouts.score import RewardPipeline
from ascent.setup.rewards import Verifier, rewards_of, scorer_of
from ascent.tasks import TASKS
from tests.rewards.tallies import counters


def rollout(text: str, prompt: Prompt | None = None) -> Rollout:
    asked = prompt or TASKS["sort_digits"].prompts("train", 1)[0]
    done = Completion(asked.id, 0, (1, 2), (-0.1, -0.2), (0, 0), "eos")
    return Rollout(asked, 0, (Turn((5,), done, text),))


def plan(*rewards: dict[str, object], **more: object) -> Plan:
    tree = {
        "algorithm": "rlvr",
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "rewards": list(rewards),
    }
    return resolve(validate(nest_keys({**tree, **more})))


def scored(asked: Plan, *rollouts: Rollout, tally: Tally | None = None) -> list[Rollout]:
    return scorer_of(asked, tally or Tally())(stream_of(rollouts))


def test_a_tasks_verifier_counts_what_is_right_and_shows_the_rest() -> None:
    asked = TASKS["sort_digits"].prompts("train", 1)[0]
    right, wrong = scored(plan({"use": "verifier"}), rollout(asked.answer or ""), rollout("0"))
    assert right.reward == 1.0
    assert right.parts["verifier/correct"] == 1.0
    assert wrong.reward == 0.0
    assert 0 <= (wrong.parts["verifier/places"] or 0) < 1


STRANGER = Prompt("mine", (Message("user", "?"),), "7")


def test_a_prompt_of_no_task_is_unscored_and_counted() -> None:
    tally = Tally()
    known, found = scored(
        plan({"use": "verifier"}), rollout("7"), rollout("7", STRANGER), tally=tally
    )
    assert known.reward == 0.0 and found.reward is None
    assert found.failures == {"verifier": "no_task"} and known.failures == {}
    assert counters(tally) == {"rewards/verifier/scored": 1, "rewards/verifier/unscored/no_task": 1}
    assert {name: each.value() for name, each in episode_metrics([known, found]).items()} == {
        "reward/failures/verifier/no_task": 1
    }
    assert Verifier().score([rollout("7", STRANGER)])[0].kind == "no_task"  # type: ignore[union-attr]


def test_more_than_half_unscored_stops_the_run_unless_it_is_told_to_go_on() -> None:
    strangers = [rollout("7", STRANGER)] * 2
    with pytest.raises(
        RewardFailed, match=r"2 of 3 rollouts could not be scored \(2 verifier: no_task\)"
    ):
        scored(plan({"use": "verifier"}), rollout("7"), *strangers)
    found = scored(plan({"use": "verifier", "on_error": "never"}), rollout("7"), *strangers)
    assert [each.reward for each in found] == [0.0, None, None]
    with pytest.raises(RewardFailed, match="reward verifier on prompt 'mine', sample 0: no_task"):
        scored(
            plan({"use": "verifier", "on_error": "failures"}),
            rollout("7"),
            rollout("7"),
            strangers[0],
        )


FILE = """
import time
def short(rollout):
    return 1.0 if len(rollout.text) < 3 else 0.0
def long(rollout, *, most=10):
    return float(len(rollout.text)) if len(rollout.text) <= most else None
def slow(rollout):
    time.sleep(30)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FILE)
    return str(tmp_path / "mine.py")


def test_rewards_from_a_file_add_up_with_their_weights(file: str) -> None:
    asked = TASKS["sort_digits"].prompts("train", 1)[0]
    both = plan({"use": "verifier"}, {"use": f"{file}:short", "weight": 0.25})
    right, brief = scored(both, rollout(asked.answer or ""), rollout("x"))
    assert right.reward == pytest.approx(1.0)
    assert brief.reward == pytest.approx(0.25)
    assert brief.parts["short"] == 1.0


def test_options_gates_clips_and_part_weights_of_a_recipe(file: str) -> None:
    """`long` says 2 of "xy", clipped to 1.5 and halved; `short` counts only where the verifier's format is right."""
    made = plan(
        {"use": "verifier", "weights": {"correct": 0.0, "format": 0.5}},
        {
            "use": f"{file}:long",
            "name": "size",
            "most": 4,
            "clip": [0, 1.5],
            "weight": 0.5,
            "on_error": "never",
        },
        {"use": f"{file}:short", "gate": {"part": "verifier/format", "at_least": 1}},
    )
    words, digits = scored(made, rollout("xy"), rollout("3"))
    assert words.parts["verifier/format"] == 0.0 and digits.parts["verifier/format"] == 1.0
    assert words.reward == pytest.approx(0.5 * 1.5)
    assert digits.reward == pytest.approx(0.5 * 1 + 0.5 * 1 + 1)
    unscored, _ = scored(made, rollout("xyz" * 3), rollout("3"))
    assert unscored.failures == {"size": "none"}


def test_a_time_out_of_ones_own(file: str) -> None:
    made = plan({"use": "verifier"}, {"use": f"{file}:slow", "timeout": 0.1, "weight": 0.0})
    (found,) = scored(made, rollout("3"))
    assert found.reward == 0.0 and found.failures == {"slow": "timeout"}


def test_programs_without_a_sandbox_must_be_said() -> None:
    made = rewards_of(
        plan(
            {
                "use": "programs",
                "sandbox": "none",
                "score": "fraction",
                "limits": {"wall_seconds": 3},
            }
        )
    )
    reward = made.rewards["programs"]
    assert reward.weights == {"correct": 0.0}  # type: ignore[union-attr]
    reward.close()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"use": "mathematix"}, r"rewards\[0\]: no reward named 'mathematix'"),
        (
            {"use": "verifier", "wieght": 2},
            r"rewards\[0\]: reward verifier has no option wieght; it has none",
        ),
        (
            {"use": "length", "taget": 3},
            r"rewards\[0\]: reward length has no option taget; it has target",
        ),
        ({"use": "exact", "gate": "x"}, r"rewards\[0\]\.gate='x', but it must be a section"),
        (
            {"use": "exact", "gate": {"part": "x"}},
            r"rewards\[0\]\.gate=.*a gate is \{part: NAME, at_least: NUMBER\}",
        ),
        (
            {"use": "exact", "gate": {"part": "x", "at_least": "high"}},
            r"rewards\[0\]\.gate\.at_least='high', .* finite",
        ),
        (
            {"use": "exact", "gate": {"part": "x", "at_least": True}},
            r"rewards\[0\]\.gate\.at_least=True, but",
        ),
        (
            {"use": "exact", "gate": {"part": 3, "at_least": 1}},
            r"rewards\[0\]\.gate\.part=3, but it is the name",
        ),
        ({"use": "exact", "clip": 3}, r"rewards\[0\]\.clip=3, but it is two numbers"),
        (
            {"use": "exact", "clip": ["a", 1]},
            r"rewards\[0\]\.clip=\['a', 1\], but it is two numbers",
        ),
        (
            {"use": "exact", "clip": [1, 0]},
            r"rewards\[0\]\.clip=\[1, 0\], .*lower bound must lie below",
        ),
        (
            {"use": "exact", "clip": [0, float("nan")]},
            r"rewards\[0\]\.clip=\[0, nan\], .*lower bound must lie below",
        ),
        ({"use": "exact", "on_error": "often"}, r"rewards\[0\]\.on_error='often'"),
        ({"use": "exact", "timeout": 0}, r"rewards\[0\]\.timeout=0"),
        ({"use": "exact", "weights": 2}, r"rewards\[0\]\.weights=2, but it must be a section"),
        (
            {"use": "exact", "weights": {"": float("nan")}},
            r"rewards\[0\]\.weights=\{'': nan\}, .*finite",
        ),
        (
            {"use": "exact", "weights": {"correct": "big"}},
            r"rewards\[0\]\.weights=\{'correct': 'big'\}, .*finite",
        ),
        (
            {"use": "exact", "weights": {1: 0.5}},
            r"rewards\[0\]\.weights=\{1: 0\.5\}, but .*names of parts",
        ),
        ({"use": "exact", "name": 3}, r"rewards\[0\]\.name=3, but a name is text"),
        ({"use": "exact", "name": "a/b"}, r"rewards\[0\]\.name='a/b', but a name is text.*no /"),
        (
            {"use": "exact", "gate": {"part": "x", "at_least": 1}},
            "gated on x, but the rewards are exact",
        ),
    ],
)
def test_what_does_not_fit_is_refused(reward: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scorer_of(plan(reward), Tally())


def test_a_clip_may_have_one_side_and_a_gate_any_number() -> None:
    made = rewards_of(
        plan(
            {"use": "verifier"},
            {
                "use": "length",
                "target": 3,
                "clip": [float("-inf"), 0],
                "gate": {"part": "verifier", "at_least": -0.5},
            },
        )
    )
    term = made.combination.terms[1]
    assert term.clip == (float("-inf"), 0) and term.gate == Gate("verifier", -0.5)


def stepwise(*rewards: dict[str, object]) -> RewardPipeline:
    more: dict[str, object] = {"algorithm": "grpo_process", "data.train": "running_sum:8"}
    return rewards_of(plan(*rewards, **more), text=str)


def test_beside_a_verifier_of_steps_stands_what_has_an_effect() -> None:
    """Weight, time-out and what to stop on count for the steps; whole answers are shown, with no weight."""
    made = stepwise(
        {"use": "verifier", "weight": 0.5, "timeout": 7, "on_error": "never"}, {"use": "exact"}
    )
    assert {term.name: term.weight for term in made.combination.terms} == {
        "steps": 0.5,
        "verifier": 0.0,
        "exact": 1.0,
    }
    assert made.rules["steps"] == made.rules["verifier"] == CallOptions(7, "never")


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"typo": 3}, r"rewards\[0\]: reward verifier has no option typo; it has none"),
        (
            {"clip": [0, 1]},
            r"rewards\[0\]\.clip=\[0, 1\] has no effect: grpo_process learns from .*steps.*; remove it",
        ),
        ({"gate": {"part": "exact", "at_least": 1}}, r"rewards\[0\]\.gate=\{.*\} has no effect"),
        ({"weights": {"correct": 1}}, r"rewards\[0\]\.weights=\{'correct': 1\} has no effect"),
        ({"name": "sums"}, r"rewards\[0\]\.name='sums' has no effect"),
        ({"clip": ["a", 1]}, r"rewards\[0\]\.clip=\['a', 1\]"),
    ],
)
def test_beside_a_verifier_of_steps_the_rest_is_refused(
    beside: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        stepwise({"use": "verifier", **beside}, {"use": "exact"})


def test_the_names_of_a_verifier_of_steps_are_taken() -> None:
    for other in ({"use": "verifier"}, {"use": "exact", "name": "steps"}):
        with pytest.raises(
            ValueError, match=r"rewards\[1\]: two rewards are called (steps|verifier)"
        ):
            stepwise({"use": "verifier"}, other)
        with pytest.raises(
            ValueError, match=r"rewards\[1\]: two rewards are called (steps|verifier)"
        ):
            stepwise(other, {"use": "verifier"})


def test_two_rewards_of_one_name_need_names() -> None:
    both = [{"use": "length", "target": 3}, {"use": "length", "target": 9}]
    with pytest.raises(ValueError, match="two rewards are called length; give one another `name`"):
        scorer_of(plan(*both), Tally())
    assert set(rewards_of(plan({**both[0], "name": "near"}, both[1])).rewards) == {"near", "length"}


def test_the_verdict_of_an_environment_and_one_that_failed() -> None:
    won = replace(rollout("U"), episode=Episode("over", {"correct": 1.0}))
    broken = replace(
        rollout("U"), sample=1, episode=Episode("raised", {"correct": 0.0}, detail="KeyError: 3")
    )
    silent, alone = replace(rollout("U"), episode=Episode("over")), rollout("U")
    tally = Tally()
    env = plan({"use": "env", "on_error": "never"}, {"use": "verifier", "weight": 0.0})
    found = scored(env, won, broken, silent, alone, tally=tally)
    assert [each.reward for each in found] == [1.0, None, None, None]
    assert [each.failures.get("env") for each in found] == [None, "raised", "no_verdict", "no_env"]
    assert counters(tally)["rewards/env/unscored/raised"] == 1
    assert counters(tally)["rewards/verifier/scored"] == 3  # nothing was asked about the broken one


def test_a_reward_that_is_refused_closes_those_made_before_it(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(
        "from ascent.rewards.registry import Batch\n"
        "class Held(Batch):\n"
        "    def score(self, rollouts):\n"
        "        return [1.0 for _ in rollouts]\n"
        "    def close(self):\n"
        f"        open({str(tmp_path / 'closed')!r}, 'w').close()\n"
        "held = Held\n"
    )
    with pytest.raises(ValueError, match=r"rewards\[1\]: .*nosuch"):
        rewards_of(plan({"use": f"{tmp_path / 'kept.py'}:held"}, {"use": "nosuch"}))
    assert (tmp_path / "closed").is_file()


def test_a_reward_may_be_called_correct() -> None:
    assert set(rewards_of(plan({"use": "exact", "name": "correct"})).rewards) == {"correct"}


@pytest.mark.parametrize("name", ["mean", "std", "failure_frac"])
def test_a_name_that_would_hide_a_metric_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"a reward is called {name}, but reward/{name} is another metric"
    ):
        rewards_of(plan({"use": "exact", "name": name}))
