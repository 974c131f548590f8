"""Recipes in the wheel: they say what they are for, resolve, read their data by its own layout, and take a step.

Models and data are put in their place: a tiny model, files of a few rows in the layout that the recipe expects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ascent.algorithms import TABLE
from ascent.api.check import check
from ascent.api.iterate import Folders, _plans
from ascent.config.iterate import iterate_config
from ascent.config.load import read_recipe, shipped_recipes
from ascent.data.load import load as load_data
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.plan import resolve
from ascent.plan.load import load_config

OURS = (
    "sft", "sort", "reward_model", "dpo", "rlhf", "rlvr", "grpo_gsm8k", "tldr_sft", "tldr_rm", "tldr_ppo", "tools",
)  # fmt: skip
IN_ROUNDS = "rlhf_iterated"
SMALL = ["model.policy=tiny:llama", "model.dtype=float32"]
FILES = ["data.batch_size=4", "data.max_tokens=512"]
ROLLOUTS = ["rollouts.prompts_per_step=2", "rollouts.max_new_tokens=4"]


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for each layout that a recipe names."""
    root = tmp_path_factory.mktemp("data")
    lines(root / "demonstrations.jsonl", ({"prompt": f"{n} + 1 =", "completion": f"{n + 1}"} for n in range(8)))
    pairs = [{"prompt": f"{n} + 1 =", "chosen": f"{n + 1}", "rejected": f"{n}"} for n in range(8)]
    lines(root / "preferences.jsonl", pairs)
    lines(root / "preferences_heldout.jsonl", pairs[:4])
    lines(root / "prompts.jsonl", ({"prompt": f"{n} + 1 ="} for n in range(8)))
    asked = [
        {"question": f"What is {n} and 1?", "answer": f"It is <<{n}+1={n + 1}>>{n + 1}.\n#### {n + 1}"}
        for n in range(8)
    ]
    for split in ("train", "test"):
        lines(root / "gsm8k" / f"{split}.jsonl", asked)
    post = {"subreddit": "AskReddit", "title": "A title", "post": "It rained.\nIt stopped."}
    for split in ("train", "validation"):
        lines(root / "tldr" / f"{split}.jsonl", ({**post, "summary": f"Rain, {n} days."} for n in range(8)))
        choices = (
            {"info": post, "summaries": [{"text": f"Rain {n}."}, {"text": "Sun."}], "choice": 0} for n in range(8)
        )
        lines(root / "tldr_comparisons" / f"{split}.jsonl", choices)
    (root / "reward.py").write_text("def first(rollout): return float(rollout.turns[0].completion.tokens[0] % 2)\n")
    judge = load(create(root / "start", seed=0), head="scalar", seed=0)
    judge.save(root / "judge")
    return root


def overrides(name: str, root: Path) -> list[str]:
    """The recipe's own data, by the names and layouts it has, from this folder; the rest as small as it goes."""
    own = load_config(name).data
    found = list(SMALL)
    for key in ("train", "evaluate", "centering_data"):
        named = getattr(own, key)
        if named is not None and "data/" in named:
            found.append(f"data.{key}={named.replace('data/', f'{root}/')}")
        elif named is not None and named.startswith("gsm8k:"):
            found.append(f"data.{key}=gsm8k:{root}/gsm8k@{'test' if named.endswith('@test') else 'train'}")
    if TABLE[load_config(name).algorithm].source != "rollouts":
        return [*found, *FILES]
    found += ROLLOUTS
    if load_config(name).model.reward_model is not None:
        return [*found, f"model.reward_model={root}/judge"]
    if load_config(name).env is not None:  # programs are run nowhere but in the sandbox, which not every machine has
        found.append("env.sandbox=none")
    # A tiny model never answers rightly, and groups without signal are dropped: a reward that it does get.
    return [*found, "rollouts.group_size=8", f"rewards=[{{use: '{root}/reward.py:first'}}]"]


def test_all_are_looked_at() -> None:
    rest = set(shipped_recipes()) - {*OURS, IN_ROUNDS}
    assert all(name.startswith("quickstart") for name in rest), rest


@pytest.mark.parametrize("name", [*OURS, IN_ROUNDS])
def test_it_says_what_it_is_for(name: str) -> None:
    text = resources.files("ascent").joinpath("recipes", f"{name}.yaml").read_text()
    first, second = text.splitlines()[:2]
    assert first.startswith("# ") and (first.endswith("No result measured yet.") or second.startswith("# Measured: "))
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("name", OURS)
def test_it_resolves(name: str) -> None:
    resolve(load_config(name))


def test_every_stage_of_the_rounds_resolves() -> None:
    """What they learn is measured by tests/end_to_end/test_rounds.py; only the first stage needs no other before it."""
    recipe = iterate_config(read_recipe(IN_ROUNDS), IN_ROUNDS)
    plans = [_plans(Folders(Path("folder"), recipe), number) for number in range(recipe.rounds + 1)]
    assert [list(each) for each in plans] == [["sft"], *[["reward_model", "policy"]] * recipe.rounds]


@pytest.mark.slow
def test_the_first_stage_of_the_rounds_takes_a_step() -> None:
    recipe = iterate_config(read_recipe(IN_ROUNDS), IN_ROUNDS)
    found = check(_plans(Folders(Path("folder"), recipe), 0)["sft"])
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.trained > 0


def test_tools_are_those_that_its_first_line_names() -> None:
    env = load_config("tools").env
    assert env is not None and env.options["tools"] == ["python", "calculator"]
    assert "may run Python and a calculator" in shipped_recipes()["tools"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_it_takes_a_step(name: str, data: Path) -> None:
    found = check(resolve(load_config(name, overrides(name, data))))
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.trained > 0


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ("rlvr", "prompts"),
        ("grpo_gsm8k", "prompts"),
        ("tools", "prompts"),
        ("tldr_sft", "examples"),
        ("tldr_rm", "pairs"),
        ("tldr_ppo", "prompts"),
    ],
)
def test_its_data_is_read_by_the_benchmarks_own_layout(recipe: str, kind: str, data: Path) -> None:
    """`gsm8k:` and `tldr:` in front of a name give the same records whoever published the file."""
    (name,) = [each.partition("=")[2] for each in overrides(recipe, data) if each.startswith("data.train=")]
    records = load_data(name, kind).records
    assert len(records) == 8
    if kind == "prompts" and recipe != "tldr_ppo":
        assert records[3].answer == "4" and records[3].messages[0].content.startswith("What is 3 and 1?\n")
    elif kind == "examples":
        assert records[0].messages[0].content.endswith("TL;DR:") and records[0].messages[1].content == " Rain, 0 days."


def test_the_hub_name_of_gsm8k_has_its_configuration() -> None:
    for name in ("rlvr", "grpo_gsm8k"):
        own = load_config(name).data
        assert (own.train, own.evaluate) == ("gsm8k:openai/gsm8k:main", "gsm8k:openai/gsm8k:main@test")
