"""Functions of TRL's and verl's signature are recognized by their parameters, and get what those libraries pass."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from ascent.records import Completion, Message, Prompt, Rollout, Turn
from ascent.rewards.calls import score_all
from ascent.rewards.combine import Term
from ascent.rewards.outcome import RewardFailed, Tally, Unscored
from ascent.rewards.registry import batched, bind, signature_taken

CHAT = {"prompt": [{"role": "user", "content": "2+2?"}], "answer": 4, "difficulty": "low"}
PLAIN = {"prompt": "2+2?", "answer": 4, "difficulty": "low"}


def rollout(
    row: dict[str, Any], text: str = "4", turns: int = 1, answer: str | None = "4"
) -> Rollout:
    prompt = Prompt("p", (Message("user", "2+2?"),), answer, {}, row)
    done = Completion("p", 0, (7, 8), (-0.1, -0.2), (0, 0), "eos")
    more = [Turn((1,), done, f"turn {n}", "go on", "tool") for n in range(1, turns)]
    return Rollout(prompt, 0, (Turn((5, 6), done, text), *more))


def scores(function: Callable[..., Any], rollouts: list[Rollout], **options: Any) -> list[Any]:
    found = score_all({"f": bind("f", function, options)}, rollouts, timeout=5, on_error="failures")
    return [each["f"].parts for each in found]


def test_trl_gets_lists_of_text_where_the_row_has_a_text_prompt() -> None:
    seen: dict[str, Any] = {}

    def f(
        prompts: Any, completions: Any, completion_ids: Any, answer: Any, **columns: Any
    ) -> list[float]:
        seen.update(
            prompts=prompts,
            completions=completions,
            ids=completion_ids,
            answer=answer,
            columns=columns,
        )
        return [float(c == str(a)) for c, a in zip(completions, answer, strict=True)]

    assert scores(f, [rollout(PLAIN), rollout(PLAIN, "5")]) == [{"": 1.0}, {"": 0.0}]
    assert seen == {
        "prompts": ["2+2?", "2+2?"],
        "completions": ["4", "5"],
        "ids": [[7, 8], [7, 8]],
        "answer": [4, 4],
        "columns": {"difficulty": ["low", "low"]},
    }


def test_trl_gets_messages_where_the_row_has_messages() -> None:
    def f(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        assert prompts == [CHAT["prompt"]] * 2
        assert completions[0] == [{"role": "assistant", "content": "4"}]
        assert [each["role"] for each in completions[1]] == ["assistant", "tool", "assistant"]
        return [float(each[0]["content"]) for each in completions]

    assert scores(f, [rollout(CHAT), rollout(CHAT, "5", turns=2)]) == [{"": 4.0}, {"": 5.0}]


def test_verl_gets_one_rollout_and_only_the_score_of_a_dict_counts() -> None:
    row = {
        "data_source": "gsm8k",
        "reward_model": {"ground_truth": [4]},
        "extra_info": {"index": 3},
        **PLAIN,
    }

    def f(data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None) -> Any:
        assert (data_source, solution_str, ground_truth, extra_info) == (
            "gsm8k",
            "4",
            [4],
            {"index": 3},
        )
        return {"score": 0.5, "acc": True, "pred": "four"}

    reward = bind("f", f, {})
    assert scores(f, [rollout(row)]) == [{"score": 0.5, "acc": 1.0}]
    term = Term.of("f", reward, weight=2.0)
    assert [term.weight_of(part) for part in ("", "score", "acc")] == [2.0, 2.0, 0.0]


def test_verls_batch_and_ground_truth_from_an_answer() -> None:
    def f(
        data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any
    ) -> list[float]:
        assert (data_sources, extra_infos) == ([None, None], [{}, {}])
        return [float(a == b) for a, b in zip(solution_strs, ground_truths, strict=True)]

    assert scores(f, [rollout(PLAIN), rollout(PLAIN, "5")]) == [{"": 1.0}, {"": 0.0}]


async def trl_later(completions: Any, **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [1.0] * len(completions)


async def verl_later(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any
) -> float:
    await asyncio.sleep(0)
    return 1.0


async def ours_later(rollouts: Any) -> list[float]:
    await asyncio.sleep(0)
    return [1.0] * len(rollouts)


async def one_later(completion: str) -> float:
    await asyncio.sleep(0)
    return 1.0


def returns_a_coroutine(rollout: Rollout) -> Any:
    return one_later(rollout.text)


@pytest.mark.parametrize(
    "function", [trl_later, verl_later, ours_later, one_later, returns_a_coroutine]
)
def test_coroutines_are_awaited(function: Callable[..., Any]) -> None:
    assert scores(function, [rollout(PLAIN), rollout(PLAIN)]) == [{"": 1.0}] * 2


def test_options_bind_before_columns() -> None:
    def f(completions: Any, answer: Any, difficulty: str = "none") -> list[float]:
        assert difficulty == "high" and answer == [4]
        return [1.0]

    assert scores(f, [rollout(PLAIN)], difficulty="high") == [{"": 1.0}]
    with pytest.raises(ValueError, match="reward f has no option size; it has answer, difficulty"):
        bind("f", f, {"size": 1})


def test_a_bound_keyword_is_not_replaced_by_a_column() -> None:
    def f(completions: Any, difficulty: str, **columns: Any) -> list[float]:
        assert difficulty == "bound" and columns["answer"] == [4]
        return [1.0]

    assert scores(functools.partial(f, difficulty="bound"), [rollout(PLAIN)]) == [{"": 1.0}]


def one(completion: str, answer: int) -> float:
    return float(completion == str(answer))


class Callables:
    def __call__(self, prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        return [0.25] * len(completions)


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda rollout: 1.0, "Ascent's signature (rollout), one rollout per call"),
        (lambda anything: 1.0, "Ascent's signature (rollout), one rollout per call"),
        (
            lambda rollouts: [1.0],
            "Ascent's signature (rollouts), all rollouts of a step in one call",
        ),
        (
            trl_later,
            "TRL's signature (prompts, completions, completion_ids, COLUMNS), all rollouts of a step in one",
        ),
        (
            one,
            "TRL's signature (prompt, completion, completion_ids, COLUMNS), one rollout per call",
        ),
        (
            Callables,
            "TRL's signature (prompts, completions, completion_ids, COLUMNS), all rollouts of a step in one",
        ),
        (
            verl_later,
            "verl's signature (data_source, solution_str, ground_truth, extra_info), one rollout per call",
        ),
    ],
)
def test_the_signature_that_is_taken(function: Any, shown: str) -> None:
    assert str(signature_taken(bind("f", function, {}))).startswith(shown)


def test_numbers_of_numpy_and_torch() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    assert scores(lambda completions: numpy.array([1, 2], "float32"), [rollout(PLAIN)] * 2) == [
        {"": 1.0},
        {"": 2.0},
    ]
    assert scores(lambda completions: torch.tensor([0.5]), [rollout(PLAIN)]) == [{"": 0.5}]
    assert scores(lambda rollout: numpy.float32(0.5), [rollout(PLAIN)]) == [{"": 0.5}]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda completions: [1.0],
            r"1 scores for 2 rollouts; it was called with TRL's .* should return a list",
        ),
        (
            lambda completions: None,
            "a batch returned a NoneType, not a list; it was called with TRL's signature",
        ),
        (lambda completions: [None, 1.0], "none: returned None; it was called with TRL's"),
        (
            lambda completions: ["a", "b"],
            r"wrong_type: returned 'a' \(str\).*it was called with TRL's",
        ),
        (
            lambda completions: [one_later("x")] * 2,
            "returned a coroutine that was never awaited; await it",
        ),
        (
            lambda rollout: "good",
            "returned 'good'.*it was called with Ascent's signature .* should return a number",
        ),
        (lambda solution_str: {"acc": 1}, "wrong_type: .*needs the key score, but it has acc"),
        (
            lambda solution_str: [1.0],
            "wrong_type.*it was called with verl's signature .*should return a number or",
        ),
        (
            lambda completions, answer: 1 / 0,
            r"ZeroDivisionError: division by zero at .*test_signatures\.py:\d+, in "
            r"<lambda>; called with completions=\['4', '4'\], answer=\[4, 4\]",
        ),
    ],
)
def test_a_wrong_return_says_what_was_assumed(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(RewardFailed, match=words):
        scores(function, [rollout(PLAIN)] * 2)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda **kwargs: [1.0],
            r"takes \(\*\*kwargs\), which does not say how to call it; name its parameters",
        ),
        (lambda *args: 1.0, r"takes \(\*args\), which does not say"),
        (
            lambda completions, trainer_state: [1.0],
            "takes trainer_state, which no run here can give it",
        ),
        (lambda solution_str, tokenizer: 1.0, "takes tokenizer, which no run here can give it"),
        (
            lambda question, reply: 1.0,
            "takes 2 positional parameters, but it is called with one: the rollout",
        ),
    ],
)
def test_parameters_that_nobody_gives_are_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bind("f", function, {})


def test_a_column_that_the_row_lacks_is_found_before_sampling() -> None:
    reward: Any = bind("f", lambda completions, solution: [1.0], {})
    with pytest.raises(
        Unscored, match="takes the column solution, but the row has prompt, answer, difficulty"
    ):
        reward.check(Prompt("p", (Message("user", "?"),), None, {}, PLAIN))
    gold: Any = bind("f", lambda solution_str, ground_truth: 1.0, {})
    with pytest.raises(Unscored, match=r"no reward_model\.ground_truth"):
        gold.check(Prompt("p", (Message("user", "?"),)))
    gold.check(
        Prompt("p", (Message("user", "?"),), None, {}, {"reward_model": {"ground_truth": "4"}})
    )


def test_a_built_in_tasks_answer_is_a_column() -> None:
    def f(completions: Any, answer: Any, task: Any) -> list[float]:
        assert task == ["sort_digits"]
        return [float(completions[0] == answer[0])]

    prompt = Prompt("p", (Message("user", "sort 21"),), "12", {"task": "sort_digits"})
    done = Completion("p", 0, (7,), (-0.1,), (0,), "eos")
    assert scores(f, [Rollout(prompt, 0, (Turn((1,), done, "12"),))]) == [{"": 1.0}]


def test_a_failing_batch_counts_for_each_of_its_rollouts() -> None:
    tally = Tally()
    score_all(
        {"f": bind("f", lambda completions: 1 / 0, {})},
        [rollout(PLAIN)] * 3,
        timeout=5,
        tally=tally,
    )
    assert tally.unscored == {("f", "raised"): 3}


def test_what_a_function_takes_out_of_a_column_is_there_for_the_next() -> None:
    row = {"prompt": "p", "gold": ["4", "5"], "extra_info": {"left": [1]}, "letters": {"a"}}

    def takes(
        completions: list[str], gold: list[list[str]], letters: list[set[str]], **_: Any
    ) -> list[float]:
        found = [float(len(each) + len(letter)) for each, letter in zip(gold, letters, strict=True)]
        for each, letter in zip(gold, letters, strict=True):
            each.clear()
            letter.clear()
        return found

    def verl(solution_str: str, extra_info: dict[str, Any]) -> float:
        return float(extra_info["left"].pop())

    def whole(rollout: Rollout) -> float:
        return float(len(rollout.prompt.columns["gold"].pop()))

    @batched
    def several(rollouts: list[Rollout]) -> list[float]:
        return [float(each.prompt.columns["extra_info"].pop("left")[0]) for each in rollouts]

    same = [rollout(row), rollout(row)]
    for _ in range(2):
        assert scores(takes, same) == [{"": 3.0}] * 2
        for function in (verl, whole, several):
            assert scores(function, same) == [{"": 1.0}] * 2
    assert row == {"prompt": "p", "gold": ["4", "5"], "extra_info": {"left": [1]}, "letters": {"a"}}
