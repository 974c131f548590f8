"""The card of an exported model: what the run says, how to load it, no folders of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

import ascent
from ascent.api.model_card import model_card, run_of
from tests.api.test_compare_runs import make_run
from tests.setup.runs import TINY


def quiet(text: str) -> None:
    pass


def front_matter(text: str) -> dict[str, object]:
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert found
    return yaml.safe_load(found[1])


def test_the_card_of_a_run_says_where_the_model_is_from_and_its_snippet_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret place").mkdir()
    data = tmp_path / "secret place/sums.jsonl"
    data.write_text("".join(f'{{"prompt": "{n}+1=", "completion": "{n + 1}"}}\n' for n in range(8)))
    recipe = {**TINY, "data": {**TINY["data"], "train": str(data), "batch_size": 4}}
    run = ascent.train(
        recipe, {"run.steps": 2, "seed": 7}, run=tmp_path / "run", progress=False, say=quiet
    )
    folder = ascent.export(tmp_path / "run", tmp_path / "plain")
    text = (folder / "README.md").read_text()
    assert front_matter(text) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ascent", "sft"],
    }
    assert (
        text.count("# plain\n") == 1
        and "(`sft`; " in text
        and "from `tiny:llama` on `sums.jsonl`" in text
    )
    assert (
        "| `seed` | 7 |" in text
        and "| `update.learning_rate` | 0.003 |" in text
        and "| checkpoint | step 2 |" in text
    )
    last = run.metrics[-1]["eval/loss/total"]
    assert f"| `eval/loss/total` | {last:.4g} (step 2) | {last:.4g} (step 2) |  |" in text
    assert "secret" not in text and str(tmp_path) not in text and "train: sums.jsonl" in text
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(
        snippet.replace('"plain"', repr(str(folder)))
        .replace('"..."', '"1+1="')
        .replace("=256", "=2"),
        {},
    )


def test_the_card_of_a_reward_model_scores(tmp_path: Path) -> None:
    ascent.train(
        {**TINY, "algorithm": "reward_model"},
        {"run.steps": 1},
        run=tmp_path / "run",
        progress=False,
        say=quiet,
    )
    folder = ascent.export(tmp_path / "run", tmp_path / "plain")
    text = (folder / "README.md").read_text()
    assert front_matter(text)["pipeline_tag"] == "text-classification"
    assert re.search(r"Ascent subtracts -?\d\S* from these scores", text)
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet.replace('"plain"', repr(str(folder))).replace('"..."', '"1+1="'), names)
    assert isinstance(names["score"], float)


def test_an_own_algorithm_rewards_and_addresses_are_named_without_their_places(
    tmp_path: Path,
) -> None:
    config = (
        "algorithm: /home/me/rows.py:MINE\nseed: 0\nmodel: {policy: ~/models/base}\n"
        "data: {train: 'gsm8k:/data/gsm8k'}\n"
        "rewards: [{use: ../rewards/mine.py:code}, {use: remote, url: 'http://10.0.0.1:80'}]\n"
    )
    answers: Any = {3: [(1.0, 1.0), (0.0, 0.0)]}
    make_run(
        tmp_path / "run",
        config,
        {0: {"eval/reward/correct": 0.0}, 3: {"eval/reward/correct": 0.5}},
        answers,
    )
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    text = model_card(tmp_path, run_of(tmp_path / "run/checkpoints/3/model"), "me/mine", 3)
    assert (
        'tags: ["ascent", "MINE"]' in text
        and "from `base` on `gsm8k:gsm8k` by `rows.py:MINE`" in text
    )
    assert (
        "| rewards | mine.py:code, remote |" in text
        and "url: (address)" in text
        and "10.0.0.1" not in text
    )
    assert (
        "| `eval/reward/correct` | 0 (step 0) | 0.5 (step 3) | 0.0945 to 0.905 |" in text
    )  # Wilson: 1 of 2
    assert 'from_pretrained("me/mine")' in text and text.index("# mine") > 0


def test_only_a_checkpoint_of_a_run_has_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "seed: 0\n", {1: {"loss/total": 1.0}})
    found = run_of(tmp_path / "run/checkpoints/3/model")
    assert found is not None and found.path == tmp_path / "run"
    assert (
        run_of(tmp_path / "run/initial") is None and run_of(tmp_path / "elsewhere/3/model") is None
    )
