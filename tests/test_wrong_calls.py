"""Wrong calls of `ascent.train`: each one clear message, before a run folder exists (or anything is sampled).

A message names the argument or key, what was found there, and what to give instead.
"""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import ascent
from ascent.models.tiny import create

pytestmark = pytest.mark.filterwarnings("error")  # a coroutine that is never awaited is a warning
ROWS: list[dict[str, Any]] = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
PAIRS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(4)]
SFT = {
    "algorithm": "sft",
    "model.policy": "tiny:llama",
    "data.batch_size": 2,
    "data.max_tokens": 64,
    "run.steps": 1,
}
GRPO = {
    "algorithm": "grpo",
    "model.policy": "tiny:llama",
    "rollouts.group_size": 2,
    "rollouts.prompts_per_step": 2,
    "rollouts.max_new_tokens": 2,
    "run.steps": 1,
}


def fine(rollout: Any) -> float:
    return float(rollout.length)


def mean(rollout: Any) -> float:
    return 1.0


async def later(completion: str) -> float:
    await asyncio.sleep(0)
    return 1.0


async def rows_later() -> list[dict[str, Any]]:
    return ROWS


def broken_rows() -> Any:
    yield ROWS[0]
    raise OSError("the disk is gone")


class NotCallable:
    pass


class NeedsSize:
    def __init__(self, *, size: int) -> None:
        self.size = size

    def __call__(self, prompt: Any) -> Any:
        return prompt


class Watcher:
    def on_step(self, step: int) -> None:
        pass


class AsyncWatcher:
    async def on_step(self, step: int, metrics: Any) -> None:
        pass


def sft(data: Any = PAIRS, **more: Any) -> dict[str, Any]:
    return {"recipe": SFT, "data": data, **more}


def grpo(rewards: Any = (fine, 1.0), **more: Any) -> dict[str, Any]:
    return {"recipe": GRPO, "data": ROWS, "rewards": rewards, **more}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in SFT.items() if name != key}


DATA: dict[str, tuple[dict[str, Any], str]] = {
    "a number": (
        sft(42),
        r"data\.train is a int \(42\); give a list of dicts, a datasets\.Dataset, or a function",
    ),
    "no rows": (sft([]), r"data\.train: list holds no rows"),
    "rows that are numbers": (
        sft([1, 2]),
        r'data\.train row 1 is a int \(1\); a row is a dict such as {"prompt"',
    ),
    "rows that are texts": (sft([PAIRS[0], "hello"]), r"data\.train row 2 is a str \('hello'\)"),
    "a tensor": (sft(torch.zeros(2, 2)), r"data\.train row 1 is a Tensor"),
    "a dict of columns": (
        sft({"prompt": ["a"]}),
        r"data\.train is a dict with the keys prompt; give a list of dicts",
    ),
    "an iterator": (
        sft(iter(PAIRS)),
        r"data\.train is a list_iterator, which can be read once only; give the function",
    ),
    "a function with a parameter": (
        sft(lambda split: PAIRS),
        "the function takes split, but it is called without arg",
    ),
    "an async function": (
        sft(rows_later),
        r"data\.train: rows_later is async; give a plain function",
    ),
    "a function that returns nothing": (
        sft(lambda: None),
        "the function returned a NoneType; it returns an iterator",
    ),
    "a function that raises": (
        sft(lambda: {}["x"]),
        r"the function raised KeyError: 'x' at .*wrong_calls\.py:\d+, in",
    ),
    "a generator that raises": (
        sft(broken_rows),
        r"reading it raised OSError: the disk is gone at .*in broken_rows",
    ),
    "a row with a lock": (
        sft([{**PAIRS[0], "lock": threading.Lock()}]),
        r"data\.train row 1: a lock \(<unlocked.*\) cannot be written as JSON; a row holds text, numbers",
    ),
    "a row without a column": (
        sft([*PAIRS, {"prompt": "5+1="}]),
        r"data\.train row 5: no value in any of the columns",
    ),
    "columns of no schema": (sft([{"foo": 1}]), "columns foo fit no known schema; rename them"),
    "a prompt that is a number": (
        sft([{"prompt": 5, "completion": "6"}]),
        "prompt is int 5, but it must be text",
    ),
    "pairs for prompts and answers": (
        sft(ROWS[:1], recipe={**SFT, "algorithm": "dpo"}),
        "cannot be used as pairs",
    ),
    "data given twice": (
        sft(overrides={"data.train": PAIRS}),
        "data.train is given twice; keep one",
    ),
    "evaluation data of a wrong type": (sft(eval_data=7), r"data\.evaluate is a int \(7\)"),
}
REWARDS: dict[str, tuple[dict[str, Any], str]] = {
    "a number": (
        grpo([3]),
        r"rewards\[0\] is a int \(3\); give a name, a function, \(function, weight\), or a dict",
    ),
    "a weight that is text": (
        grpo([(fine, "0.5")]),
        r"rewards\[0\] is \(<function fine.*a weight is a number",
    ),
    "a tuple of three": (grpo([(fine, 1, 2)]), r"rewards\[0\] is \(<function fine"),
    "the same twice": (
        grpo([fine, fine]),
        r"rewards\[1\]: two rewards are called fine; give one another `name`",
    ),
    "a dict without use": (grpo([{"weight": 1.0}]), r"rewards\[0\]\.use is missing"),
    "an unknown option": (
        grpo([{"use": fine, "wieght": 2}]),
        "reward fine has no option wieght; it has none",
    ),
    "an unknown name": (
        grpo(["mathematic"]),
        "no reward named 'mathematic'; did you mean mathematics",
    ),
    "the name of a metric": (
        grpo([mean]),
        r"a reward is called mean, but reward/mean is another metric",
    ),
    "only keyword arguments": (
        grpo([lambda **kw: [1.0]]),
        r"takes \(\*\*kw\), which does not say how to call it",
    ),
    "unknown parameters": (
        grpo([lambda a, b: 1.0]),
        "takes 2 positional parameters, but it is called with one",
    ),
    "a coroutine": (
        grpo(lambda: [later("x")]),
        r"rewards\[0\] is a coroutine, the result of a call; give the function",
    ),
    "a column that is missing": (
        grpo([lambda completions, solution: [1.0]]),
        r"none of 4 prompts can be scored: reward lambda: no_column: .* the column solution, but the row has answer",
    ),
    "no ground truth": (
        grpo([lambda solution_str, ground_truth: 1.0], data=[{"prompt": "1+1="}]),
        r"no_gold: the function takes ground_truth, but the row has no reward_model\.ground_truth",
    ),
    "too many scores": (
        grpo([lambda completions: [1.0, 2.0]]),
        r"made-up completion .*2 scores for 1 rollouts; it was called with TRL's signature \(prompts, completions",
    ),
    "nothing returned": (
        grpo([lambda completions: None]),
        "a batch returned a NoneType, not a list; it was called with",
    ),
    "a text returned": (
        grpo([lambda rollout: "good"]),
        "wrong_type: returned 'good' .*and should return a number",
    ),
    "an infinite number": (
        grpo([lambda rollout: float("inf")]),
        "infinite: returned inf; a reward is finite",
    ),
    "coroutines never awaited": (
        grpo([lambda completions: [later(each) for each in completions]]),
        "returned a coroutine that was never awaited; await it in an `async def`",
    ),
    "an unknown variable": (
        grpo([lambda rollout: undefined_name]),  # type: ignore[name-defined] # noqa: F821
        r"NameError: name 'undefined_name' is not defined at .*wrong_calls\.py:\d+.*nothing has been sampled yet",
    ),
    "rewards for sft": (sft(rewards=[fine]), "rewards=.* has no effect"),
}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "a model of no kind": (
        sft(recipe=without("model.policy"), model=object()),
        r"model\.policy is a object; give a name",
    ),
    "a torch module": (
        sft(recipe=without("model.policy"), model=torch.nn.Linear(1, 1)),
        r"model\.policy is a Linear",
    ),
    "a tokenizer alone": (
        sft(tokenizer=object()),
        r"tokenizer= goes with a loaded model \(model=\.\.\.\)",
    ),
    "an env that is a number": (
        grpo(env=3),
        r"env is a int \(3\); give a name, a class, a function",
    ),
    "an env that cannot be called": (
        grpo(env=NotCallable),
        "env NotCallable: NotCallable cannot be called with a prompt",
    ),
    "an env without its option": (grpo(env=NeedsSize), "env NeedsSize needs the option size"),
    "an env of two parameters": (
        grpo(env=lambda a, b: a),
        "env lambda takes 2 positional parameters",
    ),
    "a callback that is a number": (
        sft(callbacks=[3]),
        r"callbacks\[0\] is a int \(3\); a callback is a function of",
    ),
    "a callback's class": (
        sft(callbacks=[Watcher]),
        r"callbacks\[0\] is the class Watcher; pass an instance, Watcher",
    ),
    "a callback without metrics": (
        sft(callbacks=[Watcher()]),
        r"callbacks\[0\]: on_step is called with \(step, metrics",
    ),
    "an async callback": (
        sft(callbacks=AsyncWatcher()),
        "on_step is async, but callbacks are plain functions",
    ),
    "a callback of transformers": (
        sft(callbacks=[TrainerCallback()]),
        "on_step_end, as of transformers; give a function",
    ),
    "a recipe that is a list": (
        sft(recipe=["sft"]),
        r"recipe is a list \(\['sft'\]\); give a name, a \.yaml file",
    ),
    "overrides that are a text": (
        sft(overrides="run.steps=2"),
        r"overrides is 'run.steps=2'; give a mapping, .*or a list",
    ),
    "overrides of pairs": (
        sft(overrides=[("run.steps", 2)]),
        r"overrides is \[\('run.steps', 2\)\]; give a mapping",
    ),
    "an object at another key": (
        sft(overrides={"update.learning_rate": fine}),
        r"update\.learning_rate is a function .*; objects are taken at the keys model\.policy, data\.train",
    ),
    "a folder that is a number": (
        sft(run=3),
        r"run is a int \(3\); give the path of the run folder",
    ),
}
CASES = {
    f"{group}: {name}": case
    for group, cases in (("data", DATA), ("rewards", REWARDS), ("other", OTHERS))
    for name, case in cases.items()
}


def test_there_are_forty() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_call_gets_one_clear_message(name: str, tmp_path: Path) -> None:
    call, words = CASES[name]
    if name == "rewards: a coroutine":  # made here, so that no other test is left with it
        call = {**call, "rewards": call["rewards"]()}
    lines: list[str] = []
    with pytest.raises(ValueError, match=words) as found:
        ascent.train(**{"run": tmp_path / "r", "progress": False, "say": lines.append, **call})
    assert len(str(found.value).splitlines()) <= 3 and len(str(found.value)) < 1000
    assert not (tmp_path / "r").exists()
    gc.collect()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return create(tmp_path_factory.mktemp("model") / "m")


def test_loaded_models_that_cannot_be_trained(model: Path, tmp_path: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(model)
    peft = pytest.importorskip("peft")
    wrong: list[tuple[Callable[[], Any], Any, str]] = [
        (
            lambda: loaded,
            None,
            r"model\.policy is a loaded model with no tokenizer; pass tokenizer=",
        ),
        (lambda: loaded, "gpt2", r"model\.policy is a loaded model with a str; pass tokenizer="),
        (
            lambda: peft.get_peft_model(loaded, peft.LoraConfig(target_modules=["q_proj"])),
            AutoTokenizer.from_pretrained(model),
            r"model with an adapter \(PeftModel\w*\); give model\.merge_and_unload",
        ),
    ]
    for make, tokenizer, words in wrong:
        with pytest.raises(ValueError, match=words):
            ascent.train(
                without("model.policy"),
                data=PAIRS,
                model=make(),
                tokenizer=tokenizer,
                run=tmp_path / "r",
            )


def test_a_reward_that_raises_on_every_rollout_is_shown_in_full(tmp_path: Path) -> None:
    def picks(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [{"never": 1.0}[text + gold] for text, gold in zip(completions, answer, strict=True)]

    lines: list[str] = []
    with pytest.raises(ValueError, match="could not be scored") as found:
        ascent.train(**grpo([picks], run=tmp_path / "r", progress=False, say=lines.append))
    for words in (
        r"4 of 4 rollouts could not be scored \(4 picks: raised\); the first was prompt '.*train\.jsonl:\d', sample 0",
        r"KeyError: '.*' at .*test_wrong_calls\.py:\d+, in (<listcomp>|picks)",
        r"called with prompts=\['\d\+1=.*, completions=\['.*, answer=\['",
        "set `on_error: never` for the reward to go on",
    ):
        assert re.search(words, str(found.value)), words
    assert any(
        "reward picks, tried on one made-up completion" in line and "KeyError" in line
        for line in lines
    )


def test_what_cannot_be_pickled_is_named_and_trains(tmp_path: Path) -> None:
    lock, lines = threading.Lock(), []

    def locked(rollout: Any) -> float:
        with lock:
            return float(rollout.length)

    ascent.train(**grpo([locked], run=tmp_path / "r", progress=False, say=lines.append))
    assert any(
        "locked.lock (lock), which cannot be compared when the run is resumed" in line
        for line in lines
    )


def test_a_callback_that_returns_a_number(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError, match="returned a float; it returns None, True or a reason to stop"
    ):
        ascent.train(
            **sft(
                run=tmp_path / "r",
                callbacks=lambda step, metrics: 0.5,
                progress=False,
                say=lambda line: None,
            )
        )
