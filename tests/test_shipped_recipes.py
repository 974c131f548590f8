"""Recipes in the wheel: they say what they are for, resolve, read their data by its own layout, and take a step.

Models and data are what a user gives: a tiny model, files of a few rows in the layout that the recipe expects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ascent.api.check import check
from ascent.api.iterate import Folders, _plans
from ascent.api.train import assemble, plan_of, train
from ascent.config.iterate import iterate_config
from ascent.config.load import read_recipe, shipped_recipes
from ascent.data.load import load as load_data
from ascent.data.load import parse_name
from ascent.models.load import load
from ascent.models.tiny import create, named
from ascent.plan import resolve
from ascent.plan.load import load_config
from ascent.tasks.named import is_task

# The data of every recipe by its layout, from the folder of the fixture below.
DATA = {
    "sft": "{}/demonstrations.jsonl",
    "sort": "sort_digits:64",
    "reward_model": "{}/preferences.jsonl",
    "dpo": "{}/preferences.jsonl",
    "rlhf": "{}/prompts.jsonl",
    "rlvr": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_sft": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_grpo": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_rloo": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_dapo": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_ppo": "gsm8k:{}/gsm8k.jsonl",
    "tools": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_tools_sft": "gsm8k_calculator:{}/gsm8k.jsonl",
    "gsm8k_tools": "gsm8k:{}/gsm8k.jsonl",
    "gsm8k_dpo": "{}/preferences.jsonl",
    "digest_sft": "digest_drafts:64",
    "digest_rm": "digest_drafts:64",
    "digest_ppo": "digest_drafts:64",
    "programs": "{}/mbpp.jsonl",
    "tldr_sft": "tldr:{}/tldr.jsonl",
    "tldr_rm": "tldr:{}/tldr_comparisons.jsonl",
    "tldr_ppo": "tldr:{}/tldr.jsonl",
}
QUICKSTART = {
    "quickstart_sft": "sort_up_to_four:16",
    "quickstart_control": "sort_up_to_four:16",
    "quickstart_rlvr": "sort_long:16",
    "quickstart_demonstrations": "contrary:16",
    "quickstart_reward_model": "contrary:16",
    "quickstart_ppo": "contrary:16",
}
WITH_REWARD_MODEL = ("rlhf", "tldr_ppo", "quickstart_ppo", "digest_ppo")
OURS = tuple(DATA)
IN_ROUNDS = "rlhf_iterated"
FILES = ["data.batch_size=4", "data.max_tokens=512"]
ROLLOUTS = ["rollouts.prompts_per_step=2", "rollouts.max_new_tokens=4", "data.evaluate=null"]


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for each layout that a recipe names."""
    root = tmp_path_factory.mktemp("data")
    lines(
        root / "demonstrations.jsonl",
        ({"prompt": f"{n} + 1 =", "completion": f"{n + 1}"} for n in range(8)),
    )
    pairs = [{"prompt": f"{n} + 1 =", "chosen": f"{n + 1}", "rejected": f"{n}"} for n in range(8)]
    lines(root / "preferences.jsonl", pairs)
    lines(root / "prompts.jsonl", ({"prompt": f"{n} + 1 ="} for n in range(8)))
    asked = [
        {
            "question": f"What is {n} and 1?",
            "answer": f"It is <<{n}+1={n + 1}>>{n + 1}.\n#### {n + 1}",
        }
        for n in range(8)
    ]
    lines(root / "gsm8k.jsonl", asked)
    tasks = [
        {"task_id": n, "prompt": f"Add {n}.", "code": f"f = lambda x: x + {n}", "source_file": "-"}
        | {"test_imports": [], "test_list": [f"assert f(1) == {n + 1}"]}
        for n in range(8)
    ]
    lines(root / "mbpp.jsonl", tasks)
    post = {"subreddit": "AskReddit", "title": "A title", "post": "It rained.\nIt stopped."}
    posts = [{**post, "title": f"Title {n}"} for n in range(8)]
    lines(
        root / "tldr.jsonl",
        ({**post, "summary": f"Rain, {n} days."} for n, post in enumerate(posts)),
    )
    choices = (
        {"info": post, "summaries": [{"text": f"Rain {n}."}, {"text": "Sun."}], "choice": 0}
        for n, post in enumerate(posts)
    )
    lines(root / "tldr_comparisons.jsonl", choices)
    (root / "reward.py").write_text(
        "def first(rollout): return float(rollout.turns[0].completion.tokens[0] % 2)\n"
    )
    judge = load(create(root / "start", seed=0), head="scalar", seed=0)
    judge.save(root / "judge_of_llama")
    load(named(root / "digits", "digits", seed=0), head="scalar", seed=0).save(
        root / "judge_of_digits"
    )
    return root


def two(name: str, root: Path) -> list[str]:
    """A model and data: what a user gives. A reward model is a second model, which no recipe can guess."""
    kind = "llama" if name in DATA else "digits"
    found = [f"model=tiny:{kind}", f"data={(DATA | QUICKSTART)[name].format(root)}"]
    if name in WITH_REWARD_MODEL:
        found.append(f"model.reward_model={root}/judge_of_{kind}")
    # Programs are run nowhere but in the sandbox, which not every machine has.
    return [*found, "env.sandbox=none"] if name == "tools" else found


def small(name: str, root: Path) -> list[str]:
    """The same in a size that trains in a second, with a reward that a tiny model does get."""
    if not resolve(load_config(name, two(name, root))).row.samples:
        return [*two(name, root), *FILES]
    found = [*two(name, root), *ROLLOUTS]
    if name == "gsm8k_dapo":  # its penalty begins after the four tokens
        found.append("cells.reward_shaping.soft_overlong={max_length: 4, cache: 2}")
    if name in WITH_REWARD_MODEL:
        return found
    return [*found, "rollouts.group_size=8", f"rewards=[{{use: '{root}/reward.py:first'}}]"]


def test_all_are_looked_at() -> None:
    assert set(shipped_recipes()) == {*OURS, *QUICKSTART, IN_ROUNDS}


def test_none_names_a_file_that_only_its_author_has() -> None:
    """Models and data are on the hub or built in; the quick start's own runs are made by the command."""
    for name in OURS:
        recipe = read_recipe(name)
        found = [recipe.get("model", {}).get(key) for key in ("policy", "reward_model")]
        found += [recipe["data"].get(key) for key in ("train", "evaluate")]
        for each in [each for each in found if isinstance(each, str)]:
            place = parse_name(each).path
            assert (
                is_task(each)
                or each.endswith("%")
                or place.startswith("tiny:")
                or place.count("/") == 1
            ), each
            assert not place.startswith(("data/", "runs/", ".", "/")), f"{name}: {each}"


@pytest.mark.parametrize("name", [*OURS, *QUICKSTART])
def test_model_and_data_are_all_that_it_needs(name: str, data: Path, tmp_path: Path) -> None:
    """Every part of the run is built, and what is held out is not trained on."""
    training = assemble(plan_of(name, two(name, data)), tmp_path)
    try:
        assert training.steps >= 1
        assert bool(training.heldout or training.evaluate) == (
            read_recipe(name)["data"].get("evaluate") is not None
        )
        assert not [line for line in training.notes if "also trained on" in line]
    finally:
        training.close()


@pytest.mark.parametrize("name", [*OURS, *QUICKSTART])
def test_its_evaluation_can_be_switched_off(name: str, data: Path) -> None:
    config = resolve(load_config(name, [*two(name, data), "data.evaluate=null"])).config
    assert (
        config.data.evaluate is None
        and not {"evaluate_every", "best_metric"} & config.run.model_fields_set
    )


@pytest.mark.parametrize("name", ["sft", "dpo", "reward_model", "tldr_sft", "tldr_rm"])
def test_one_that_learns_from_files_trains_to_its_end_on_model_and_data_alone(
    name: str, data: Path, tmp_path: Path
) -> None:
    run = train(name, two(name, data), run=tmp_path / "run", progress=False, say=lambda line: None)
    assert run.state == "finished" and math.isfinite(run.metrics[-1]["eval/loss/total"])


@pytest.mark.parametrize("name", ["grpo", "ppo", "online_dpo", "ipo", "kto", "dft"])
def test_an_algorithm_by_its_name_takes_a_step(name: str, data: Path) -> None:
    """One of each kind; tests/plan/test_load.py resolves all of them."""
    file = {"dft": "demonstrations"}.get(name, "preferences")
    overrides = ["model=tiny:llama", f"data={data}/{file}.jsonl"]
    if resolve(load_config(name, overrides)).row.samples:
        overrides += [*ROLLOUTS, f"rewards=[{{use: '{data}/reward.py:first'}}]"]
    found = check(name, overrides, progress=False)
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.trained > 0


@pytest.mark.parametrize("name", [*OURS, IN_ROUNDS])
def test_it_says_what_it_is_for(name: str) -> None:
    text = resources.files("ascent").joinpath("recipes", f"{name}.yaml").read_text()
    first, second = text.splitlines()[:2]
    assert first.startswith("# ") and (
        first.endswith("No result measured yet.") or second.startswith("# Measured: ")
    )
    assert max(map(len, text.splitlines())) <= 130


def test_every_stage_of_the_rounds_resolves() -> None:
    """What they learn is measured by tests/end_to_end/test_rounds.py; only the first stage needs no other before it."""
    recipe = iterate_config(read_recipe(IN_ROUNDS), IN_ROUNDS)
    plans = [_plans(Folders(Path("folder"), recipe), number) for number in range(recipe.rounds + 1)]
    assert [list(each) for each in plans] == [
        ["sft"],
        *[["reward_model", "policy"]] * recipe.rounds,
    ]


def test_the_first_stage_of_the_rounds_takes_a_step() -> None:
    recipe = iterate_config(read_recipe(IN_ROUNDS), IN_ROUNDS)
    found = check(_plans(Folders(Path("folder"), recipe), 0)["sft"])
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.trained > 0


def test_tools_are_those_that_its_first_line_names() -> None:
    env = load_config("tools").env
    assert env is not None and env.options["tools"] == ["python", "calculator"]
    assert "may run Python and a calculator" in shipped_recipes()["tools"]


@pytest.mark.parametrize("name", OURS)
def test_it_takes_a_step(name: str, data: Path) -> None:
    found = check(name, small(name, data), progress=False)
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.trained > 0


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ("rlvr", "prompts"),
        ("gsm8k_grpo", "prompts"),
        ("gsm8k_sft", "examples"),
        ("tools", "prompts"),
        ("tldr_sft", "examples"),
        ("tldr_rm", "pairs"),
        ("tldr_ppo", "prompts"),
    ],
)
def test_its_data_is_read_by_the_benchmarks_own_layout(recipe: str, kind: Any, data: Path) -> None:
    """`gsm8k:` and `tldr:` in front of a name give the same records whoever published the file."""
    assert read_recipe(recipe)["data"]["train"].partition(":")[0] == DATA[recipe].partition(":")[0]
    records = load_data(DATA[recipe].format(data), kind).records
    assert len(records) == 8
    if kind == "prompts" and recipe != "tldr_ppo":
        assert records[3].answer == "4" and records[3].messages[0].content.startswith(
            "What is 3 and 1?\n"
        )
    elif kind == "examples":
        question, answer = (each.content for each in records[0].messages)
        assert (question.endswith("TL;DR:") and answer == " Rain, 0 days.") == (
            recipe == "tldr_sft"
        )
        assert (question.startswith("What is 0 and 1?\n") and answer == "It is 1.\n#### 1") == (
            recipe == "gsm8k_sft"
        )


def test_the_hub_name_of_gsm8k_has_its_configuration() -> None:
    for name in ("rlvr", "gsm8k_sft", "gsm8k_grpo"):
        assert load_config(name).data.train == "gsm8k:openai/gsm8k:main"
