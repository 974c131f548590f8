"""From a recipe's env section to what rollouts talk to; what cannot work is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.api.evaluate import evaluate
from ascent.api.train import train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.data.load import from_records
from ascent.data.render import Renderer
from ascent.models.tiny import create
from ascent.plan.resolve import resolve
from ascent.records import Message, Prompt
from ascent.rollouts.multi_turn import Limits
from ascent.runs.folder import read_run
from ascent.setup.environments import as_section, env_session, family_of, open_environment
from tests.data.chat import CHATML, FORGETFUL, tokenizer

MAZE = {"use": "maze", "max_turns": 3, "max_tokens": 64}


def test_limits_and_options_are_told_apart() -> None:
    family, limits = family_of(
        {"use": "maze", "shows": "ways", "max_turns": 3, "reply_timeout": 9.5}
    )
    assert family.name == "maze" and limits == Limits(max_turns=3, reply_timeout=9.5)
    assert Limits(max_turns=2).room(10) == 2 * (10 + 128) and Limits(max_tokens=7).room(10) == 7


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"use": "maze", "max_turn": 3}, "env maze has no option max_turn; it has shows"),
        ({"use": "maze", "max_turns": 0}, "env.max_turns=0"),
        ({"use": "maze", "max_turns": "many"}, "env.max_turns='many', but it must be a number"),
        ({"use": "maze", "reply_timeout": 0}, "env.reply_timeout=0"),
        (
            {"use": "maze", "max_tokens": 5},
            "env.max_tokens=5 leaves no room for one turn of 16 tokens",
        ),
        ({"use": "mace"}, "no env named 'mace'; did you mean maze"),
    ],
)
def test_what_cannot_work_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        env_session(section, Renderer(tokenizer(CHATML)), 16)


def test_a_template_that_forgets_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        ValueError, match="env maze: the chat template of this tokenizer changes earlier turns"
    ):
        env_session(MAZE, Renderer(tokenizer(FORGETFUL)), 16)


def test_prompts_are_begun_by_their_environments() -> None:
    prompts = [Prompt(name, (Message("user", "maze\nS.G\nmoves:"),)) for name in "ab"]
    talk = env_session(MAZE, Renderer(tokenizer(CHATML)), 16)
    begun, made_from = open_environment(from_records("x", prompts, "prompts"), talk)
    assert [each.messages[0].content for each in begun.records] == ["S.G\nmove: "] * 2  # type: ignore[union-attr]
    assert made_from == {"a": prompts[0], "b": prompts[1]}
    with pytest.raises(ValueError, match="2 prompts have only 1 ids"):
        open_environment(from_records("x", [prompts[0], prompts[0]], "prompts"), talk)


def test_what_stands_on_a_command_line() -> None:
    assert as_section(None) is None and as_section("maze") == {"use": "maze"}
    assert as_section("{use: tools, tools: [calculator]}") == {
        "use": "tools",
        "tools": ["calculator"],
    }
    with pytest.raises(ValueError, match="it is a name, or a section"):
        as_section("[maze]")


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_a_run_with_an_environment_and_an_evaluation_of_it(engine: str, tmp_path: Path) -> None:
    """An untrained policy; what counts is that turns, verdicts and samples are where they belong."""
    settings = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "data.train": "maze:8",
        "data.evaluate": "maze@heldout:4",
        "env": {**MAZE, "max_tokens": 300},
        "rewards": [{"use": "env"}],
        "rollouts.prompts_per_step": 2,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 40,
        "rollouts.engine": engine,
        "run.steps": 2,
        "run.save_every": 2,
        "run.evaluate_every": 1,
    }
    train_plan(resolve(validate(nest_keys(settings))), tmp_path / "run", say=lambda line: None)
    done = read_run(tmp_path / "run")
    assert done.state == "finished"
    for line in [
        each for each in done.metrics if each["step"]
    ]:  # what is measured before the first step has none
        assert (
            line["reward/mean"] == 0 and line["reward/failure_frac"] == 0 and line["env/turns"] >= 1
        )
        ended = sum(value for name, value in line.items() if name.startswith("env/ended/"))
        assert ended == 8 and "eval/env/turns" in line
    if engine == "native":
        found = evaluate(
            str(tmp_path / "run"), "maze@heldout:3", samples=1, max_new_tokens=8, env=MAZE
        )
        assert found.scored_by == "env maze" and found.metrics["greedy/correct"].value == 0


def test_an_evaluation_whose_environment_breaks_leaves_those_answers_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from ascent.records import Reply\n"
        "class Env:\n"
        "    def __init__(self, prompt):\n        self.prompt = prompt\n"
        "    def first(self):\n        return self.prompt\n"
        "    def reply(self, text):\n"
        "        if self.prompt.answer == '1':\n            raise KeyError('x')\n"
        "        return Reply(None)\n"
        "def env(prompt):\n    return Env(prompt)\n"
    )
    data = tmp_path / "a.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(3))
    )
    model = str(create(tmp_path / "tiny", seed=0))
    found = evaluate(model, str(data), samples=0, max_new_tokens=4, env={"use": f"{file}:env"})
    assert found.unscored == {"env/raised": 1} and found.metrics["greedy/correct"].prompts == 2
