"""Objects in place of names: the same run to the bit, named in config.yaml by fingerprint, asked for on resume."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import ascent
from ascent.cli.main import app
from ascent.models.tiny import create
from ascent.records import Prompt, Reply
from ascent.runs.folder import read_run

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n}+1=", "answer": str(n + 1), "kind": "sum"} for n in range(8)
]
PAIRS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(8)]
SFT = {
    "algorithm": "sft",
    "model.policy": "tiny:llama",
    "data.batch_size": 4,
    "data.max_tokens": 64,
    "run.steps": 2,
    "update.learning_rate": 1e-3,
}
GRPO = {
    "algorithm": "grpo",
    "model.policy": "tiny:llama",
    "rollouts.group_size": 4,
    "rollouts.prompts_per_step": 2,
    "rollouts.max_new_tokens": 4,
    "run.steps": 2,
    "run.save_every": 1,
    "update.learning_rate": 1e-3,
}


def brief(rollout: ascent.Rollout) -> float:
    return float(rollout.text.count("1")) + rollout.length / 8


FILE = """
def brief(rollout):
    return float(rollout.text.count("1")) + rollout.length / 8
"""


def quiet(line: str) -> None:
    pass


def train(folder: Path, recipe: Any, *overrides: Any, **objects: Any) -> str:
    """The sha256 of the trained weights."""
    ascent.train(recipe, *overrides, run=folder, progress=False, **{"say": quiet, **objects})
    return weights(folder)


def weights(folder: Path, step: int = 2) -> str:
    return hashlib.sha256(
        (folder / f"checkpoints/{step}/model/model.safetensors").read_bytes()
    ).hexdigest()


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(folder: Path) -> str:
    return (folder / "config.yaml").read_text()


def test_rows_from_python_train_as_the_file_of_those_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    found = {
        "file": train(tmp_path / "file", SFT, {"data": write(tmp_path / "any.jsonl", PAIRS)}),
        "list": train(tmp_path / "list", SFT, data=PAIRS, eval_data=PAIRS[:2]),
        "Dataset": train(tmp_path / "Dataset", SFT, data=datasets.Dataset.from_list(PAIRS)),
        "function": train(tmp_path / "function", {**SFT, "data.train": lambda: iter(PAIRS)}),
        "overrides": train(tmp_path / "overrides", SFT, {"data.train": PAIRS}),
        "other": train(tmp_path / "other", SFT, data=PAIRS[::-1]),
    }
    other = found.pop("other")
    assert len(set(found.values())) == 1 and other not in found.values()
    assert "train: python:list[" in config(
        tmp_path / "list"
    ) and "evaluate: python:list[" in config(tmp_path / "list")
    assert "train: python:Dataset[" in config(tmp_path / "Dataset")
    assert config(tmp_path / "list") != config(tmp_path / "other")


def test_prompts_and_rewards_from_python_sample_and_train_as_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    data = write(tmp_path / "train.jsonl", ROWS)
    by_name = train(
        tmp_path / "a", GRPO, {"data": data, "rewards": [{"use": f"{tmp_path}/mine.py:brief"}]}
    )
    assert train(tmp_path / "b", GRPO, data=ROWS, rewards=[brief]) == by_name
    assert "use: python:brief[" in config(tmp_path / "b")
    names = [set(read_run(tmp_path / run).metrics[-1]) for run in "ab"]
    assert names[0] == names[1] and "reward/brief" in names[0]
    halved = train(tmp_path / "c", GRPO, data=ROWS, rewards=[(brief, 0.5), "repetition"])
    assert halved != by_name and "weight: 0.5" in config(tmp_path / "c")


def by_columns(
    prompts: Any, completions: Any, completion_ids: Any, kind: Any, **columns: Any
) -> list[float]:
    assert (
        prompts[0] in [row["prompt"] for row in ROWS]
        and set(kind) == {"sum"}
        and set(columns) == {"answer"}
    )
    return [
        text.count("1") + len(ids) / 8
        for text, ids in zip(completions, completion_ids, strict=True)
    ]


async def later(data_source: Any, solution_str: str, ground_truth: str, extra_info: Any) -> float:
    await asyncio.sleep(0)
    assert ground_truth.isdigit()
    return float(solution_str.count("1"))


def test_functions_of_trl_and_verl_in_a_run(tmp_path: Path) -> None:
    lines: list[str] = []
    ours = train(tmp_path / "a", GRPO, data=ROWS, rewards=[brief])
    trl = train(tmp_path / "b", GRPO, data=ROWS, rewards=[by_columns], say=lines.append)
    assert trl == ours
    assert any(
        line.startswith("reward by_columns: called with TRL's signature (prompts, completions")
        for line in lines
    )
    train(tmp_path / "c", GRPO, data=ROWS, rewards=[later], say=lines.append)
    assert any(line.startswith("reward later: called with verl's signature") for line in lines)


def test_a_loaded_model_trains_as_its_folder(tmp_path: Path) -> None:
    folder = create(tmp_path / "m", seed=3)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    before = {name: each.clone() for name, each in model.state_dict().items()}
    dpo = {**SFT, "algorithm": "dpo"}
    del dpo["model.policy"]
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n + 2)} for n in range(8)]
    expected = train(tmp_path / "a", dpo, data=rows, model=str(folder))
    assert train(tmp_path / "b", dpo, data=rows, model=model, tokenizer=tokenizer) == expected
    assert "policy: python:LlamaForCausalLM[" in config(tmp_path / "b")
    assert all(each.equal(before[name]) for name, each in model.state_dict().items())
    text = config(tmp_path / "b").replace("steps: 2", "steps: 3")
    (tmp_path / "b/config.yaml").write_text(text)
    assert ascent.resume(tmp_path / "b", data=rows, progress=False, say=quiet).state == "finished"


class Guess:
    """One turn; the reply names the answer."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        return Reply(None, {"ones": float(text.count("1"))})


class Guessing:
    def __call__(self, prompt: Prompt) -> Guess:
        return Guess(prompt)


def test_an_environment_class_and_function(tmp_path: Path) -> None:
    by_class = train(tmp_path / "a", GRPO, data=ROWS, rewards=["env"], env=Guessing)
    section = {"use": lambda prompt: Guess(prompt), "max_turns": 2}
    assert train(tmp_path / "b", GRPO, data=ROWS, rewards=["env"], env=section) == by_class
    assert "use: python:Guessing[" in config(tmp_path / "a") and "max_turns: 2" in config(
        tmp_path / "b"
    )
    with pytest.raises(
        ValueError,
        match=r"env\.use is python:Guessing.*ascent\.resume\(.*, data=\.\.\., env=\.\.\.\)",
    ) as e:
        ascent.resume(tmp_path / "a")
    assert "model" not in str(e.value).partition("pass them")[2]


def test_resume_takes_the_objects_again(tmp_path: Path) -> None:
    full = train(tmp_path / "full", GRPO, data=ROWS, rewards=[brief])
    stopping = {"data": ROWS, "rewards": [brief], "callbacks": [lambda step, metrics: step == 1]}
    ascent.train(GRPO, run=tmp_path / "r", progress=False, say=quiet, **stopping)
    assert not (tmp_path / "r/checkpoints/2").exists()
    words = str(CliRunner().invoke(app, ["resume", str(tmp_path / "r")]).exception)
    assert "data.train is python:list[" in words and "rewards[0].use is python:brief[" in words
    assert words.endswith(
        f'pass them from Python: ascent.resume("{tmp_path}/r", data=..., rewards=...)'
    )

    changed = [dict(row, answer="0") for row in ROWS]
    with pytest.raises(
        ValueError, match=r"data\.train python:list\[\w+\] has another content \(rows \w+ -> \w+\)"
    ):
        ascent.resume(tmp_path / "r", data=changed, rewards=[brief])
    with pytest.raises(
        ValueError, match=r"rewards\[0\]\.use python:brief\[\w+\] has another content"
    ):
        ascent.resume(tmp_path / "r", data=ROWS, rewards=[lambda rollout: 1.0])
    with pytest.raises(
        ValueError, match=r"rewards= has 2 entries, but .* has 1; pass all of them, in their order"
    ):
        ascent.resume(tmp_path / "r", data=ROWS, rewards=[brief, brief])
    with pytest.raises(
        ValueError, match=r"rewards= gives rewards\[0\]\.weight=0\.5, but .* has .*weight=1\.0"
    ):
        ascent.resume(tmp_path / "r", data=ROWS, rewards=[(brief, 0.5)])
    with pytest.raises(
        ValueError, match=r"eval_data= gives data\.evaluate=python:list.*has data\.evaluate=None"
    ):
        ascent.resume(tmp_path / "r", data=ROWS, rewards=[brief], eval_data=ROWS)
    done = ascent.resume(
        tmp_path / "r", data=[dict(row) for row in ROWS], rewards=[brief], progress=False, say=quiet
    )
    assert done.state == "finished" and weights(tmp_path / "r") == full


def test_a_changed_object_can_be_accepted(tmp_path: Path) -> None:
    ascent.train(
        GRPO,
        data=ROWS,
        rewards=[brief],
        run=tmp_path / "r",
        callbacks=lambda step, _: True,
        progress=False,
        say=quiet,
    )
    lines: list[str] = []
    new = {"data": ROWS, "rewards": [lambda rollout: float(rollout.length)]}
    ascent.resume(tmp_path / "r", **new, accept_changes=True, progress=False, say=lines.append)
    assert any(
        "rewards[0].use python:brief" in line and "accepted, from step 2 on" in line
        for line in lines
    )


def test_the_recipe_of_such_a_run_needs_its_objects(tmp_path: Path) -> None:
    train(tmp_path / "a", SFT, data=PAIRS)
    with pytest.raises(
        ValueError,
        match=r"names Python objects.*data\.train is python:list.*ascent\.train\(.*data=",
    ):
        ascent.train(tmp_path / "a/config.yaml", run=tmp_path / "b")
    assert train(tmp_path / "c", tmp_path / "a/config.yaml", data=PAIRS) == weights(tmp_path / "a")


def test_check_takes_objects_in_a_recipe() -> None:
    assert ascent.check({**SFT, "data.train": PAIRS}).tokens > 0
