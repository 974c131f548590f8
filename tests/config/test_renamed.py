"""Every renamed key and value is refused with its new name, wherever a recipe is read; so is a run folder of before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascent.api.iterate import iterate
from ascent.api.train import resume_run, train_plan
from ascent.config.iterate import STAGES, iterate_config
from ascent.config.load import merge_configs, nest_keys
from ascent.config.renamed import KEYS, REWARD_OPTIONS, VALUES
from ascent.config.schema import MULTI_CELL_SLOTS, Cells, leaves
from ascent.config.validate import validate
from ascent.plan import resolve
from ascent.plan.load import load_config
from tests.end_to_end.test_rounds import recipe as rounds_recipe
from tests.setup.runs import TINY

ONE_KEY = [(key, new, 1) for key, new in KEYS.items()]
ONE_VALUE = [(key, new, old) for (key, old), new in VALUES.items()]
ENV = {"use": "tools", "tools": ["calculator"]}


def with_key(key: str, value: Any) -> dict[str, Any]:
    """The sections of a recipe that hold one old key; a list has two entries, and the second holds it."""
    if key.startswith("rewards[]."):
        use = REWARD_OPTIONS.get(key, ("exact_match",))[0]
        return {
            "rewards": [{"use": "exact_match"}, {"use": use, key.removeprefix("rewards[]."): value}]
        }
    found = nest_keys({key: value})
    return merge_configs({"env": ENV}, found) if key.startswith("env.") else found


def message(key: str, new: str, value: Any) -> str:
    if (key, value) in VALUES:
        return f"{key}: {value} is now called {new}"
    return f"{key} is now called {new}".replace("[]", "[1]")


@pytest.mark.parametrize(("key", "new", "value"), [*ONE_KEY, *ONE_VALUE])
def test_a_recipe_is_refused(key, new, value):
    with pytest.raises(ValueError) as caught:
        validate(merge_configs(TINY, with_key(key, value)))
    assert str(caught.value) == message(key, new, value)


@pytest.mark.parametrize(("key", "new", "value"), [*ONE_KEY, *ONE_VALUE])
def test_an_override_is_refused(tmp_path, key, new, value):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(merge_configs(TINY, {"env": ENV})))
    override = f"{key}={value}"
    if "[]" in key:
        override = f"rewards={json.dumps(with_key(key, value)['rewards'])}"
    with pytest.raises(ValueError) as caught:
        load_config(str(tmp_path / "recipe.yaml"), [override])
    assert str(caught.value) == message(key, new, value)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("key", "new", "value"), [*ONE_KEY, *ONE_VALUE])
def test_a_stage_of_a_recipe_of_rounds_is_refused(stage, key, new, value):
    stages = rounds_recipe()
    with pytest.raises(ValueError) as caught:
        iterate_config(
            stages | {stage: merge_configs(stages[stage], with_key(key, value))}, "r.yaml"
        )
    assert str(caught.value) == f"r.yaml: {stage}: {message(key, new, value)}"


def test_a_recipe_of_rounds_made_in_python_is_refused_before_the_first_stage(tmp_path):
    config = iterate_config(rounds_recipe(), "r.yaml")
    old = config.model_copy(
        update={"policy": merge_configs(config.policy, {"cells": {"gate": {"high": 0.3}}})}
    )
    with pytest.raises(ValueError, match=r"^policy: cells.gate is now called cells.policy_loss$"):
        iterate(old, run=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_every_old_name_below_an_old_name_gets_its_line():
    cells = {
        "credit": {"use": "centre"},
        "focus": {"shared_length": {"alpha": 0.5}},
        "filter": {"varied": {}},
    }
    with pytest.raises(ValueError) as caught:
        validate(merge_configs(TINY, {"cells": cells, "model": {"recompute": True}}))
    assert str(caught.value).splitlines() == [
        "model.recompute is now called model.gradient_checkpointing",
        "cells.credit is now called cells.advantage",
        "cells.credit.use: centre is now called group_mean_baseline",
        "cells.focus is now called cells.token_weights",
        "cells.focus.shared_length is now called cells.token_weights.length_desensitized",
        "cells.filter.varied is now called cells.filter.nonzero_variance",
    ]


def test_an_option_of_ones_own_reward_keeps_its_name():
    mine = {"rewards": [{"use": "mine.py:f", "patience": 3}]}
    assert validate(merge_configs(TINY, mine)).rewards[0].options == {"patience": 3}


def test_no_old_name_is_a_key_and_every_new_one_is():
    known = set(leaves())
    for old, new in KEYS.items():
        section = new.rpartition(".")[0]
        in_slot = section.removeprefix("cells.") in MULTI_CELL_SLOTS
        assert old not in known
        assert new in known or in_slot or new.startswith(("rewards[].", "env."))
    assert {key.rpartition(".use")[0] for key, _ in VALUES} <= {
        f"cells.{slot}" for slot in Cells.model_fields
    }


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run that was killed after its first checkpoint."""
    short = {
        "run": {"steps": 2, "save_every": 1, "evaluate_every": 2},
        "data": {"train": "arithmetic:16"},
    }
    train_plan(
        resolve(validate(merge_configs(TINY, short))), tmp_path / "run", say=lambda text: None
    )
    (tmp_path / "run/outcome.json").unlink()
    return tmp_path / "run"


def refusal(folder: Path) -> str:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        resume_run(folder, say=lambda text: None)
    return str(caught.value)


def set_manifest_format(folder: Path, number: int) -> None:
    for path in folder.glob("checkpoints/*/manifest.json"):
        content = json.loads(path.read_text()) | {"format": number}
        del content["sha256"]
        seal = hashlib.sha256(
            json.dumps(content, sort_keys=True, allow_nan=False).encode()
        ).hexdigest()
        path.write_text(json.dumps(content | {"sha256": seal}))


def test_resuming_a_run_of_before_is_refused(run_folder):
    """One part after the other is put back into the form of before; each is refused with a sentence."""
    set_manifest_format(run_folder, 1)
    assert "2: it has format 1, this version reads 2; use the version that wrote it" in refusal(
        run_folder
    )

    set_manifest_format(run_folder, 2)
    inputs = run_folder / "inputs.json"
    inputs.write_text(json.dumps(json.loads(inputs.read_text()) | {"format": 1}))
    assert (
        "inputs.json is not of format 2, which this version reads; use the version that wrote it"
        in refusal(run_folder)
    )

    config = run_folder / "config.yaml"
    old = merge_configs(
        yaml.safe_load(config.read_text()),
        {"model": {"recompute": False}, "data": {"bad_rows": "skip"}},
    )
    config.write_text(yaml.safe_dump(old))
    assert refusal(run_folder).startswith(f"{config}: ")
    assert "data.bad_rows is now called data.invalid_rows" in refusal(run_folder)
    assert "model.recompute is now called model.gradient_checkpointing" in refusal(run_folder)
