"""A step of a run again: the same weights to the bit, everything captured, settings changed on purpose."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.api import replay as replays
from ascent.api.replay import first_step, why_bits_may_differ
from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from ascent.runs.folder import read_run
from tests.end_to_end import talking
from tests.end_to_end.studies import write
from tests.setup.runs import TINY

STEPS, MANY = 7, 12
REWARDED = Path(__file__).parents[1] / "end_to_end" / "rewarded.py"
ROLLOUTS: dict[str, Any] = {
    "data": {"batch_size": None, "max_tokens": None},
    "rewards": [{"use": f"{REWARDED}:even"}],
    "rollouts": {"prompts_per_step": 3, "group_size": 4, "max_new_tokens": 6},
    "update": {"learning_rate": 1e-3},
}
KINDS: dict[str, dict[str, Any]] = {
    "grpo": {
        "algorithm": "grpo",
        "update": {"minibatches": 2, "schedule": "linear", "warmup_steps": 2},
    },
    "ppo": {
        "algorithm": "ppo",
        "model": {"critic": "separate"},
        "rollouts": {"group_size": 1, "prompts_per_step": 8},
        "update": {"epochs": 2},
    },
    "dpo": {"algorithm": "dpo", "data": {"train": "style:64", "evaluate": "style@heldout:8"}},
    "tools": {
        "algorithm": "rlvr",
        "env": {
            "use": "tools",
            "tools": ["calculator"],
            "announce": False,
            "max_turns": 2,
            "max_tokens": 64,
        },
    },
    "refills": {"algorithm": "rlvr", "rollouts": {"dynamic_sampling_tries": 3, "group_size": 2}},
}
# With what else a step must have the run's bits.
PAIRS: dict[str, dict[str, Any]] = {
    "lora": {"model": {"lora": 4}},
    "overlap": {"rollouts": {"max_staleness": 2}},
    "head": {
        "algorithm": "ppo",
        "model": {"critic": "head"},
        "rollouts": {"group_size": 1, "prompts_per_step": 8},
    },
    "warmup": merge_configs(KINDS["ppo"], {"update": {"critic_warmup_steps": 3}}),
}


def recipe_of(kind: str, **more: Any) -> dict[str, Any]:
    recipe = TINY if kind == "dpo" else merge_configs(TINY, ROLLOUTS)
    recipe = merge_configs(merge_configs(recipe, KINDS[kind]), more)
    recipe["data"] = {key: value for key, value in recipe["data"].items() if value is not None}
    return recipe


def trained(folder: Path, kind: str, **run: Any) -> Path:
    settings = {"steps": STEPS, "save_every": 1, "keep": STEPS, "evaluate_every": 5, **run}
    ascent.train(recipe_of(kind, run=settings), run=folder, progress=False, say=lambda line: None)
    return folder


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {kind: trained(root / kind, kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_the_bits_of_the_run(runs: dict[str, Path], kind: str) -> None:
    step = random.Random(kind).randint(2, STEPS)
    found = ascent.replay(runs[kind], step, say=quiet)
    assert found.same_weights is True and found.differing == {} and found.exact
    assert found.checkpoint == step - 1


def uses(kind: str, run: Path) -> bool:
    """Whether a run did what it is here for: called a tool and read the result, refilled a batch."""
    name = {"tools": "env/turns", "refills": "sampler/dynamic_sampling_tries"}.get(kind)
    least = {"tools": 1.0, "refills": 0.0}.get(kind, 0.0)
    return name is None or any(each[name] > least for each in read_run(run).metrics if name in each)


@pytest.mark.learning
@pytest.mark.parametrize("kind", KINDS)
def test_ten_random_steps_have_the_bits_of_the_run(tmp_path: Path, kind: str) -> None:
    run, more = (
        tmp_path / "run",
        {"steps": MANY, "save_every": 1, "keep": MANY, "evaluate_every": 5},
    )
    recipe = recipe_of(kind, run=more)
    if kind == "tools":  # a policy that has seen calls
        study = talking.DIFFERENCES
        rows = [
            {"prompt": each.messages[0].content, "answer": each.answer}
            for each in talking.prompts(study, "train", 64, 0)
        ]
        data = write(tmp_path / "prompts.jsonl", rows)
        policy = talking.begin(study, tmp_path / "start", 0, steps=150)
        changed = {"model": {"policy": str(policy)}, "env": study.env, "rewards": study.rewards}
        recipe = merge_configs(
            recipe, {**changed, "rollouts": {"max_new_tokens": study.max_new_tokens}}
        )
        recipe["data"] = {"train": str(data), "evaluate": "10%"}
    ascent.train(recipe, run=run, progress=False, say=quiet)
    assert uses(kind, run)
    for step in random.Random(kind).sample(range(1, MANY + 1), 10):
        found = ascent.replay(run, step, say=quiet)
        assert found.same_weights is True and found.differing == {}, (kind, step)


@pytest.mark.parametrize("kind", ["grpo", "ppo", "dpo"])
def test_steps_between_the_checkpoint_and_the_step_are_trained_again(
    runs: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    """An evaluation of the run lies between, and leaves no trace."""
    run = tmp_path / "run"
    shutil.copytree(runs[kind], run)
    for step in (4, 5):
        shutil.rmtree(run / "checkpoints" / str(step))
    said: list[str] = []
    found = ascent.replay(run, 6, say=said.append)
    assert found.checkpoint == 3 and found.same_weights is True and found.differing == {}
    assert said == ["training steps 4 to 5 again, from checkpoint 3"]


def test_without_a_checkpoint_the_run_is_trained_from_its_start(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "grpo", save_every=4, steps=4, keep=1)
    assert ascent.replay(run, 1, say=quiet).exact
    found = ascent.replay(run, 4, say=quiet)
    assert found.checkpoint == 0 and found.same_weights is True


@pytest.mark.parametrize("pair", PAIRS)
def test_a_step_has_the_bits_of_the_run_together_with(pair: str, tmp_path: Path) -> None:
    recipe = merge_configs(recipe_of("grpo"), PAIRS[pair])
    recipe = merge_configs(
        recipe, {"run": {"steps": 6, "save_every": 2, "keep": 3, "evaluate_every": 5}}
    )
    ascent.train(recipe, run=tmp_path / "run", progress=False, say=quiet)
    for step in (2, 4, 6):  # from the start, and with a step between the checkpoint and this one
        found = ascent.replay(tmp_path / "run", step, say=quiet)
        assert found.same_weights is True and found.differing == {}, step


def test_steps_before_and_after_a_resume(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "grpo", steps=3)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("steps: 3", "steps: 6"))
    ascent.resume(run, progress=False, say=quiet)
    for step in (2, 3, 4, 6):
        assert ascent.replay(run, step, say=quiet).same_weights is True, step


def test_data_that_changed_since_is_found_out(tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"prompt": f"{a} + 1 =", "answer": str(a + 1)}) for a in range(40)]
    data.write_text("\n".join(rows) + "\n")
    recipe = merge_configs(recipe_of("grpo"), {"data": {"train": str(data)}})
    recipe = merge_configs(recipe, {"run": {"steps": 3, "save_every": 1, "keep": 3}})
    ascent.train(recipe, run=tmp_path / "run", progress=False, say=quiet)
    assert ascent.replay(tmp_path / "run", 3, say=quiet).exact
    data.write_text("\n".join([rows[0].replace("1", "2"), *rows[1:]]) + "\n")
    with pytest.raises(
        ValueError, match=r"inputs of this run changed since it was last started:\n  data.train"
    ):
        ascent.replay(tmp_path / "run", 3, say=quiet)


def test_it_says_why_bits_may_differ(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["dpo"], run)
    (start,) = json.loads((run / "environment.json").read_text())
    start["hardware"] |= {"devices": ["cuda"], "ranks": 2}
    start["packages"]["torch"] = "2.0"
    (run / "environment.json").write_text(json.dumps([start]))
    said: list[str] = []
    found = ascent.replay(run, 3, say=said.append)
    assert said == [
        f"the bits may differ from the run's: {reason}" for reason in found.not_promised
    ]
    for words in ("trained on cuda, and this is cpu", "trained by 2 ranks", "torch 2.0 -> "):
        assert any(words in reason for reason in found.not_promised), words
    own = read_run(runs["dpo"])
    plan = resolve(validate(recipe_of("dpo")))
    assert why_bits_may_differ(own, plan) == []
    monkeypatch.setattr(replays, "device", lambda: "cuda")
    assert why_bits_may_differ(own, plan) == [
        "this is cuda, where they are promised with exact arithmetic only",
        "the run was trained on cpu, and this is cuda",
    ]


def test_a_damaged_checkpoint_is_not_used(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["grpo"], run)
    (run / "checkpoints/5/state.json").write_text("{}")
    assert ascent.replay(run, 6, say=quiet).checkpoint == 4


def test_everything_is_captured(runs: dict[str, Path], tmp_path: Path) -> None:
    found = ascent.replay(runs["grpo"], 5, out=tmp_path / "five.json", say=quiet)
    assert len(found.rollouts) == 12 and all(
        each["completion"] is not None for each in found.rollouts
    )
    assert len(found.updates) == 2
    for update in found.updates:
        assert set(update.terms) == {"policy", "kl"} and all(
            each.grad_norm >= 0 for each in update.terms.values()
        )
        assert update.grad_norm == update.metrics["optim/grad_norm"]
        contributions = [each.contribution for each in update.sequences]
        assert math.fsum(each for each in contributions if each is not None) == pytest.approx(
            1, abs=1e-4
        )
        for each in update.sequences:
            assert {"old_logprobs", "logprobs", "ratio", "advantages", "ref_logprobs"} <= set(
                each.values
            )
            assert {len(values) for values in each.values.values()} == {sum(each.trained)}
    first, second = (update.sequences for update in found.updates)
    assert all(
        ratio == pytest.approx(1, abs=1e-5) for each in first for ratio in each.values["ratio"]
    )
    assert any(abs(ratio - 1) > 1e-3 for each in second for ratio in each.values["ratio"])
    assert any(abs(ratio - 1) > 1e-3 for each in first for ratio in each.values["ratio_after"])
    content = json.loads((tmp_path / "five.json").read_text())
    assert content["step"] == 5 and len(content["updates"]) == 2 and len(content["rollouts"]) == 12


def test_contributions_of_pairs_add_up(runs: dict[str, Path]) -> None:
    (update,) = ascent.replay(runs["dpo"], 3, say=quiet).updates
    shares = [each.contribution for each in update.sequences if each.contribution is not None]
    assert len(shares) == len(update.sequences) / 2
    assert math.fsum(shares) == pytest.approx(1, abs=1e-4)


def test_both_models_of_ppo_are_captured(runs: dict[str, Path]) -> None:
    found = ascent.replay(runs["ppo"], 3, say=quiet)
    assert [each.model for each in found.updates] == ["policy", "critic"] * 2
    assert "values" in found.updates[1].sequences[0].values


def test_a_setting_changed_on_purpose(runs: dict[str, Path]) -> None:
    """Only this step is changed: its rollouts are the run's own, its update is another."""
    own = ascent.replay(runs["grpo"], 6, say=quiet)
    other = ascent.replay(runs["grpo"], 6, {"update.learning_rate": 1e-2}, say=quiet)
    sampled = [
        [{**each, "ratio": None} for each in found.rollouts] for found in (own, other)
    ]  # it is of the update
    assert sampled[0] == sampled[1] and other.changed == ["update.learning_rate=0.01"]
    assert other.same_weights is None and not other.exact
    assert other.metrics["policy/update_kl"] > own.metrics["policy/update_kl"]
    assert other.differing["optim/lr"] == (own.metrics["optim/lr"], other.metrics["optim/lr"])
    assert Path(own.file).name == "6.json" and Path(other.file).name == "6-changed.json"
    with pytest.raises(ValueError, match="seed 0 -> 1 cannot be changed on resume"):
        ascent.replay(runs["grpo"], 6, {"seed": 1}, say=quiet)


def test_a_recipe_that_changed_later_is_taken_back(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "grpo", steps=3)
    config = run / "config.yaml"
    config.write_text(
        config.read_text()
        .replace("learning_rate: 0.001", "learning_rate: 0.01")
        .replace("steps: 3", "steps: 5")
    )
    ascent.resume(run, progress=False, say=quiet)
    for step in (2, 5):
        assert ascent.replay(run, step, say=quiet).exact, step
    for step in (2, 3, 4):
        shutil.rmtree(run / "checkpoints" / str(step))
    with pytest.raises(ValueError, match=r"changed .* between step 2 and step 5"):
        ascent.replay(run, 5, say=quiet)


def test_a_step_that_was_not_trained_is_refused(runs: dict[str, Path]) -> None:
    for step in (0, STEPS + 1):
        with pytest.raises(ValueError, match=f"step={step}, but .* has trained steps 1 to {STEPS}"):
            ascent.replay(runs["grpo"], step, say=quiet)


def test_bisect_replays_the_first_step_that_meets_the_condition(runs: dict[str, Path]) -> None:
    values = {
        int(each["step"]): each["policy/entropy"]
        for each in read_run(runs["grpo"]).metrics
        if each["step"]
    }
    bound = sorted(values.values())[3]
    first = min(step for step, value in values.items() if value <= bound)
    found = ascent.bisect(runs["grpo"], f"policy/entropy <= {bound!r}", say=quiet)
    assert (found.name, found.step, found.value) == ("policy/entropy", first, values[first])
    assert found.before == values.get(first - 1)
    assert found.replay.step == first and found.replay.exact


def test_conditions(runs: dict[str, Path]) -> None:
    run = read_run(runs["grpo"])
    assert first_step(run, "optim/lr>0")[1] == 1
    assert first_step(run, "optim/updates >= 2", consecutive=3)[1] == 1
    with pytest.raises(ValueError, match="never held"):
        first_step(run, "optim/lr > 1")
    with pytest.raises(ValueError, match="never held"):
        first_step(run, "optim/updates >= 2", consecutive=STEPS + 1)
    with pytest.raises(ValueError, match="reward/men was not logged"):
        first_step(run, "reward/men < 1")
    for bad in ("reward/mean", "reward/mean < high", "< 1"):
        with pytest.raises(ValueError, match="is no condition"):
            first_step(run, bad)
