"""Format, length, repetition: hand-worked numbers, and patterns that never end."""

import math
import time

import pytest

from ascent.rewards import Unscored, find
from ascent.rewards.registry import Batch
from ascent.rewards.text import check_pattern, has_tag_blocks
from tests.rewards.rollouts import rollout
from tests.wall_clock import wall_clock


def test_exact():
    assert find("exact")(rollout(" 4\n", answer="4")) == 1.0
    assert find("exact")(rollout("5", answer="4")) == 0.0
    with pytest.raises(Unscored, match="no_gold"):
        find("exact")(rollout("5"))


@pytest.mark.parametrize(
    ("tokens", "cost"), [(1, 0), (80, 0), (90, -0.5), (95, -0.75), (100, -1), (110, -1)]
)
def test_overlong_of_dapo(tokens, cost):
    assert find("overlong", max_length=100, cache=20)(rollout(tokens=tokens)) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("tokens", "value"), [(10, 0.0), (5, -0.5), (15, -0.5), (20, -1.0), (90, -1.0)]
)
def test_length(tokens, value):
    assert find("length", target=10)(rollout(tokens=tokens)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0.0),
        ("a b", 0.0),
        ("a b c d", 0.0),
        ("a a a a a", 1 / 3 - 1),
        ("a b c a b c", 3 / 4 - 1),
    ],
)
def test_repetition(text, value):
    assert find("repetition")(rollout(text)) == pytest.approx(value)


def test_cosine_length():
    reward = find("cosine_length", max_length=100, of="exact")
    right = [reward.score([rollout("4", answer="4", tokens=n)])[0] for n in (1, 50, 100, 150)]
    assert right[0] == {
        "correct": 1.0,
        "shaped": pytest.approx(0.5 + 0.5 * (1 + math.cos(math.pi * 0.01)) / 2),
    }
    assert [each["shaped"] for each in right[1:]] == pytest.approx([0.75, 0.5, 0.5])
    wrong = [reward.score([rollout("5", answer="4", tokens=n)])[0]["shaped"] for n in (50, 100)]
    assert wrong == pytest.approx([-0.75, -0.5])
    (unknown,) = reward.score([rollout("5")])
    assert isinstance(unknown, Unscored) and unknown.kind == "no_gold"


SLOW = """
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch

class Slow(Batch):
    batch_size, concurrency, max_seconds, closed = 3, 5, 700.0, 0

    def check(self, prompt):
        raise Unscored("bad_tests", prompt.id)

    def score(self, rollouts):
        return [1.0 for _ in rollouts]

    def close(self):
        Slow.closed += 1
"""


def test_cosine_length_is_called_as_the_reward_that_it_scales(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    use = f"{tmp_path / 'slow.py'}:Slow"
    reward, scaled = find(use), find("cosine_length", max_length=100, of=use)
    public = {name for name in vars(Batch) if not name.startswith("_")}
    values = (
        public
        - {"weights", "other_weight"}
        - {name for name in public if callable(getattr(Batch, name))}
    )
    assert values >= {"batch_size", "concurrency", "max_seconds"}
    for name in values:
        assert getattr(scaled, name) == getattr(reward, name) != getattr(Batch, name), name
    for name in public - values - {"weights", "other_weight"}:
        assert getattr(type(scaled), name) is not getattr(Batch, name), f"{name} is not passed on"
    with pytest.raises(Unscored, match="bad_tests"):
        scaled.check(rollout("4").prompt)
    scaled.close()
    assert scaled._verifier.closed == 1


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("<think>a</think><answer>b</answer>", True),
        ("  <think>a\nb</think>\n\n<answer>b</answer>\n", True),
        ("<think></think><answer></answer>", True),
        ("<think>a</think>", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think><answer>b</answer> and more", False),
        ("say <think>a</think><answer>b</answer>", False),
        ("<think>a</think> then <answer>b</answer>", False),
        ("<think>a</think><think>a</think><answer>b</answer>", False),
        ("<think>a<answer></think><answer>b</answer>", False),
        ("<think><answer>b</answer></think>", False),
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("<think>a<answer>b</answer>", False),
        ("", False),
    ],
)
def test_blocks(text, good):
    assert has_tag_blocks(text, ("think", "answer")) is good
    assert find("format", tags=["think", "answer"]).score([rollout(text)]) == [float(good)]


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+", "(a*)*b", "(?:a+|b)*", "((x+x+)+)+y", "(.*)*", "(?=(a+)+)a", "(a{1,2000})+"],
)
def test_a_repeated_repetition_is_refused(pattern):
    with pytest.raises(ValueError, match="repeats a repetition"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", [r"<a>.*?</a>", r"(?:ab)+c", r"\d+(?:,\d{3})*", r"(?:(?!</a>).)*"]
)
def test_plain_patterns_pass(pattern):
    check_pattern(pattern)


def test_no_pattern():
    with pytest.raises(ValueError, match="no regular expression"):
        check_pattern("(")


class TestPatternsInAProcess:
    def test_the_whole_text_must_match(self):
        reward = find("format", pattern=r"<a>.*</a>", seconds=20.0)
        texts = ["<a>x</a>", "<a>x\ny</a>", "<a>x</a>.", "so <a>x</a>", ""]
        assert reward.score([rollout(text) for text in texts]) == [1.0, 1.0, 0.0, 0.0, 0.0]
        reward.close()

    @wall_clock
    def test_backtracking_is_cut_off_and_is_not_0(self):
        """Polynomial, so no rule about patterns finds it: five stars over 3,000 letters take hours."""
        reward = find("format", pattern=r".*a.*a.*a.*a.*a.*b", seconds=3.0)
        start = time.monotonic()
        first, second = reward.score([rollout("a" * 3000), rollout("aaaaab")])
        assert isinstance(first, Unscored) and first.kind == "timeout"
        assert second == 1.0  # by a new checker
        assert time.monotonic() - start < 20
        reward.close()
