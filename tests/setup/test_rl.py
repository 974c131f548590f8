"""Runs that learn from rollouts, built and trained by recipe; what cannot be built is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ascent.algorithms import TABLE
from ascent.api.train import assemble, resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from ascent.runs.folder import read_run
from tests.end_to_end import rewarded

SETTINGS = {
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:8",
    "rewards": [{"use": f"{rewarded.__file__}:shuffled"}],
    "rollouts.prompts_per_step": 2,
    "rollouts.max_new_tokens": 5,
    "run.steps": 2,
    "run.save_every": 2,
}


OVERLONG = {"soft_overlong": {"max_length": 5, "cache": 2}}


def run(folder: Path, row: str, **more: Any) -> Any:
    settings = {
        **SETTINGS,
        "algorithm": row,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    train_plan(resolve(validate(nest_keys(settings))), folder, say=lambda line: None)
    return read_run(folder)


@pytest.mark.parametrize(
    ("row", "more"),
    [
        ("rlvr", {"rollouts__group_size": 4}),
        ("grpo", {"rollouts__group_size": 4, "model__lora": 2}),
        (
            "dapo",
            {
                "rollouts__group_size": 4,
                "update__minibatches": 2,
                "cells__reward_shaping": OVERLONG,
            },
        ),
        ("remax", {}),
        ("ppo", {"model__critic": "head"}),
        ("ppo", {}),
        (
            "ppo",
            {
                "cells__reward_shaping": {"whiten_rewards": {}},
                "cells__entropy_bonus": {"use": "bonus", "weight": 0.01},
            },
        ),
        (
            "rlhf",
            {
                "rollouts__truncated_reward": "bootstrap",
                "cells__reward_shaping": {"eos_replace": False},
            },
        ),
        ("rlhf", {"cells__kl_controller": {"use": "ziegler_token"}, "rollouts__max_staleness": 1}),
        ("vpg", {"model__critic": "head"}),
        (
            "vapo",
            {"rollouts__group_size": 2, "update__minibatches": 2, "update__critic_warmup_steps": 1},
        ),
        ("ppo_penalty", {"model__critic": "head"}),
        (
            "instructgpt",
            {"data__pretraining": "arithmetic:8", "data__batch_size": 2, "update__minibatches": 2},
        ),
        ("grpo_process", {"data__train": "running_sum:8", "rewards": [{"use": "verifier"}]}),
        ("reinforce_pp", {"rollouts__engine": "hf"}),
        ("optimal_baseline", {"rollouts__group_size": 4}),
        ("rlsd", {"rollouts__group_size": 4, "model__teacher": "tiny:qwen2"}),
        (
            "grpo",
            {
                "rollouts__group_size": 4,
                "model__teacher": "tiny:qwen2",
                "cells__advantage_norm": {"use": "plus_teacher", "coefficient": 0.3},
            },
        ),
        ("a2po", {}),
        ("online_dpo", {"rollouts__group_size": 4, "rollouts__dynamic_sampling_tries": 2}),
        (
            "online_dpo",
            {
                "cells__loss": {"use": "simpo"},
                "cells__extra_losses": {"chosen_nll": {"weight": 0.1}},
            },
        ),
        ("xpo", {"rollouts__prompts_per_step": 4}),
        ("xpo", {"rollouts__prompts_per_step": 4, "model__lora": 2, "rollouts__engine": "hf"}),
        ("xpo", {"rollouts__prompts_per_step": 4, "cells__token_weights": {"own_likelihood": {}}}),
        ("nash_md", {"rollouts__group_size": 2}),
        ("nash_md", {"rollouts__group_size": 2, "model__lora": 2}),
        (
            "nash_md",
            {"rollouts__group_size": 2, "rollouts__engine": "hf", "model__reference": "tiny:qwen2"},
        ),
        (
            "nash_md",
            {
                "rollouts__group_size": 2,
                "env": {"use": f"{rewarded.__file__}:again", "max_turns": 2},
            },
        ),
        (
            "optimal_baseline",
            {"rollouts__group_size": 4, "rollouts__engine": "hf", "rollouts__max_staleness": 1},
        ),
    ],
)
def test_a_row_trains_and_leaves_its_samples(
    tmp_path: Path, row: str, more: dict[str, Any]
) -> None:
    done = run(tmp_path / "run", row, **more)
    assert done.state == "finished"
    assert len(done.metrics) == 2
    assert {
        "reward/mean",
        "completion/length_mean",
        "completion/truncated_frac",
        "optim/updates",
    } <= set(done.metrics[-1])
    assert ("policy/entropy" in done.metrics[-1]) == (TABLE[row].source == "rollouts")
    assert ("reward/zero_std_frac" in done.metrics[-1]) == (
        done.samples[-1]["sample"] > 0
    )  # where there are groups
    sample = done.samples[0]
    assert sample["step"] == 1
    assert len(sample["logprobs"]) >= 1
    assert sample["stop"] in ("eos", "length")
    assert len(sample["tokens"]) == len(sample["logprobs"])
    learnt = [each["advantages"] for each in done.samples if each["advantages"] is not None]
    assert (
        learnt or "rollouts__max_staleness" in more
    )  # what is trained on later has no advantage yet
    assert all(not isinstance(each, list) or len(each) > 1 for each in learnt)


def test_held_out_prompts_are_answered_greedily(tmp_path: Path) -> None:
    done = run(
        tmp_path / "run",
        "rlvr",
        rollouts__group_size=4,
        data__evaluate="sort_digits@heldout:4",
        run__evaluate_every=1,
    )
    assert all("eval/reward/mean" in line for line in done.metrics)
    assert [line["step"] for line in done.metrics] == [0, 1, 2]  # before training, too
    assert set(done.metrics[0]) == {
        name for name in done.metrics[1] if name.startswith("eval/")
    } | {
        "step",
        "timestamp",
    }
    assert [(each["step"], each["place"]) for each in done.answers] == [
        (step, n) for step in range(3) for n in range(4)
    ]
    assert "4 held-out prompts, step 0 against step 2" in (tmp_path / "run/answers.md").read_text()


# ALGORITHMS 1.6, under the names of docs/runs.md.
EVERY = {
    "reward/mean",
    "reward/std",
    "reward/shuffled",
    "completion/length_mean",
    "completion/length_max",
    "completion/truncated_frac",
    "policy/entropy",
    "policy/approx_kl",
    "policy/clip_frac_low",
    "policy/clip_frac_high",
    "policy/ratio_min",
    "policy/ratio_max",
    "sampler/logprob_diff",
    "sampler/logprob_diff_max",
    "sampler/unknown_frac",
    "sampler/is_weight",
    "sampler/is_ess",
    "optim/grad_norm",
    "advantage/mean",
    "advantage/std",
    "advantage/abs_max",
    "denominator/policy",
}
TO_REFERENCE = {"policy/ref_kl_k1", "policy/ref_kl"}


@pytest.mark.parametrize(
    ("row", "more", "names"),
    [
        ("rlvr", {"rollouts__group_size": 4}, {"reward/zero_std_frac"}),
        ("grpo", {"rollouts__group_size": 4}, {"reward/zero_std_frac", *TO_REFERENCE}),
        (
            "ppo",
            {"model__critic": "head"},
            {"critic/explained_variance", "denominator/value_loss", *TO_REFERENCE},
        ),
        (
            "ppo",
            {"model__critic": "head", "cells__policy_loss": {"use": "dual_clip"}},
            {"policy/clip_frac_dual"},
        ),
        (
            "grpo",
            {"rollouts__group_size": 4, "cells__rollout_correction": {"use": "token_mask"}},
            {"sampler/is_rejected_frac"},
        ),
    ],
)
def test_every_metric_that_a_policy_gradient_owes_is_logged_and_documented(
    tmp_path: Path, row: str, more: dict[str, Any], names: set[str]
) -> None:
    done = run(tmp_path / "run", row, **more)
    assert EVERY | names <= set(done.metrics[0])
    page = (Path(__file__).parents[2] / "docs/runs.md").read_text()
    for name in EVERY | names:
        shown = name if "/" not in name else f"{name.split('/')[0]}/"
        assert f"`{shown}" in page


def timeless(line: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in line.items() if not name.startswith("time")}


def test_what_is_kept_is_the_same_to_the_byte_after_a_resume(tmp_path: Path) -> None:
    more = {
        "rollouts__group_size": 4,
        "run__steps": 4,
        "run__save_every": 2,
        "run__evaluate_every": 1,
        "data__evaluate": "sort_digits@heldout:4",
        "run__keep": 2,
    }
    run(tmp_path / "whole", "grpo", **more)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/4")  # as if killed after step 4 was logged
    (tmp_path / "cut/outcome.json").unlink()
    (tmp_path / "cut/answers.md").unlink()
    resume_run(tmp_path / "cut", say=lambda line: None)
    for name in ("samples.jsonl", "answers.jsonl", "warnings.jsonl", "answers.md"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (
            name
        )
    whole, cut = (read_run(tmp_path / name).metrics for name in ("whole", "cut"))
    assert [timeless(line) for line in whole] == [timeless(line) for line in cut]
    shutil.rmtree(
        tmp_path / "cut/checkpoints"
    )  # killed before the first checkpoint: step 0 is not there twice
    (tmp_path / "cut/outcome.json").unlink()
    resume_run(tmp_path / "cut", say=lambda line: None)
    assert (tmp_path / "cut/answers.jsonl").read_bytes() == (
        tmp_path / "whole/answers.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        (
            "grpo_process",
            {"rewards": [{"use": "verifier"}]},
            "the verifier of sort_digits scores no steps",
        ),
        (
            "rlvr",
            {"rollouts__group_size": 4, "rollouts__engine": "vllm"},
            "the engine vllm needs vLLM",
        ),
        (
            "rlvr",
            {"model__routing_replay": True, "rollouts__engine": "hf"},
            "hf records no experts",
        ),
        (
            "rlvr",
            {"model__routing_replay": True},
            "LlamaForCausalLM has no known router of experts",
        ),
        (
            "rlvr",
            {"model__arithmetic": "exact", "rollouts__engine": "hf"},
            "hf samples with other kernels; use native",
        ),
        (
            "rlvr",
            {"model__arithmetic": "exact"},
            "model.arithmetic=exact: there is nothing to switch on a CPU",
        ),
    ],
)
def test_what_is_not_built_is_refused_before_anything_runs(
    tmp_path: Path, row: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "run", row, **more)
    assert not (tmp_path / "run").exists()


def test_drift_stops_the_run_with_its_reason_and_a_checkpoint(tmp_path: Path) -> None:
    """The learning rate is large; the second step's rollouts are far from the reference, and are still trained on."""
    more = {
        "run__steps": 9,
        "run__save_every": 9,
        "run__max_ref_kl": 1e-4,
        "update__learning_rate": 1e-2,
    }
    done = run(tmp_path / "run", "ppo", **more)
    assert done.state == "stopped"
    assert done.message.startswith("the policy is ") and "run.max_ref_kl=0.0001" in done.message
    assert done.checkpoints == [2]
    assert resume_run(tmp_path / "run", say=lambda line: None) == 2  # it is as far away as it was
    assert read_run(tmp_path / "run").message == done.message


def test_steps_are_rewarded_at_their_own_tokens(tmp_path: Path) -> None:
    """Two answers that begin alike and part later get other advantages at their first token than at their last."""
    plan = resolve(
        validate(
            nest_keys(
                {
                    **SETTINGS,
                    "algorithm": "grpo_process",
                    "data.train": "running_sum:8",
                    "rewards": [{"use": "verifier"}],
                    "rollouts.group_size": 4,
                }
            )
        )
    )
    training = assemble(plan, tmp_path)
    batches = training.source.next(1)
    assert (
        sum(int(batch["step_ends_T"].sum()) for batch in batches) >= 8
    )  # every answer has at least one step
    assert all(bool((batch["loss_mask_T"] | ~batch["step_ends_T"]).all()) for batch in batches)


@pytest.mark.parametrize("row", ["grpo", "online_dpo"])
def test_a_rollout_that_fits_into_no_micro_batch_is_refused_before_the_run(
    tmp_path: Path, row: str
) -> None:
    """The answer alone would fit; with the longest prompt it does not."""
    more = {
        "rollouts__group_size": 2,
        "rollouts__max_new_tokens": 20,
        "update__tokens_per_microbatch": 44,
    }
    if row == "grpo":
        more["update__tokens_per_microbatch"] = 22
    with pytest.raises(
        ValueError,
        match=r"prompts of up to \d+, answers of up to 20 .*update.tokens_per_microbatch=\d+",
    ):
        run(tmp_path / "run", row, **more)
    assert not (tmp_path / "run").exists()


def test_tests_that_cannot_be_read_are_told_by_their_lines_before_anything_is_sampled(
    tmp_path: Path,
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "1+1=", "tests": {"stdio": [["4", "8"]]}},
        {"prompt": "1+2=", "tests": {"stdio": [[4, "8"]]}},
        {"prompt": "1+3=", "tests": {"asserts": {"a": 1}}},
        {"prompt": "1+4="},
    ]
    file = tmp_path / "code.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prompts(reward: dict[str, Any], **more: Any) -> int:
        programs = {"use": "programs", "sandbox": "none", "workers": 1, **reward}
        data = {
            "data.train": str(file),
            "data.evaluate": str(file),
            "rewards": [programs],
            "algorithm": "rlvr",
        }
        training = assemble(resolve(validate(nest_keys({**SETTINGS, **data, **more}))), tmp_path)
        training.close()
        (found,) = [
            int(note.split()[0]) for note in training.notes if re.match(r"\d+ prompts from", note)
        ]
        return found

    with pytest.raises(ValueError, match="3 invalid rows of 4") as refused:
        prompts({})
    told = str(refused.value)
    assert (
        "code.jsonl:2: reward programs: bad_tests: the input of case 0 is 4 (int), but it must be text"
        in told
    )
    assert (
        "code.jsonl:3: reward programs: bad_tests: asserts is {'a': 1} (dict), but it is a list"
        in told
    )
    assert "code.jsonl:4: reward programs: no_tests" in told and "data.invalid_rows=skip" in told
    assert prompts({}, **{"data.invalid_rows": "skip"}) == 1
    assert prompts({"on_error": "never"}) == 4
