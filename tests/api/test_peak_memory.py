"""Peak memory: what was seen, the largest micro-batch, and what the shapes of models say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ascent
from ascent.api.peak_memory import forecast_peak, largest_microbatch, memory_of, watch_memory
from ascent.api.train import assemble
from ascent.config.load import merge_configs, nest_keys
from ascent.config.validate import validate
from ascent.models import memory
from ascent.models.memory import layer_bytes, shape_of
from ascent.plan.resolve import resolve
from ascent.setup.layout import UPDATE_FRACTION, Layout, models_bytes
from ascent.update.learner import LocalLearner
from tests.api.test_check import SAMPLED
from tests.setup.runs import tiny_plan


def test_a_step_that_was_smaller_than_the_largest_micro_batch_grows(tmp_path: Path) -> None:
    plan = tiny_plan()
    training = assemble(plan, tmp_path)
    most, activations = largest_microbatch(plan, training), memory_of(plan, training).activations
    with watch_memory() as watch:
        whole, even, uneven = (
            forecast_peak(plan, training, watch, [{"tokens/run": most * share} for share in shares])
            for shares in ((1.0, 1.0), (0.5, 0.5), (0.4, 0.6))
        )
        assert (
            forecast_peak(plan, training, watch, []).bytes - even.bytes == activations
        )  # nothing was trained
    assert whole == even  # records of one length do not grow
    assert uneven.bytes - even.bytes == pytest.approx(activations * (0.5 + 3 * 0.1 - 0.6), abs=2)
    assert whole.available > whole.bytes > 100 * 2**20


def test_completions_may_get_longer(tmp_path: Path) -> None:
    plan = resolve(validate(nest_keys({**SAMPLED, "algorithm": "grpo", "rollouts.group_size": 4})))
    training = assemble(plan, tmp_path)
    most, activations = largest_microbatch(plan, training), memory_of(plan, training).activations
    largest = 2 * (training.longest - 5) + 2 * 4 * 5  # two prompts, each of them run once
    assert largest < most == 2 * 4 * training.longest
    with watch_memory() as watch:
        short, long = (
            forecast_peak(plan, training, watch, [{"tokens/run": run}]) for run in (20, largest)
        )
    assert short.bytes - long.bytes == pytest.approx(activations * (largest - 20) / most, abs=2)


def test_on_a_gpu_micro_batches_have_a_target_and_kernels_keep_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {
        "algorithm": "sft",
        "model.policy": "tiny:llama",
        "data.train": "arithmetic:256",
        "data.batch_size": 256,
    }
    plan = resolve(validate(nest_keys(keys)))
    training = assemble(plan, tmp_path)
    fused, plain = (memory_of(plan, training, cuda=cuda) for cuda in (True, False))
    assert fused.activations < plain.activations == memory_of(plan, training).activations
    monkeypatch.setattr(memory, "MICROBATCH_BYTES", 2**20)
    layer = layer_bytes(shape_of(training.model.module.config, 0), 1, 4, fused=True)
    token = 2 * layer + 3 * training.model.module.config.hidden_size * 4
    assert (
        largest_microbatch(plan, training, cuda=True)
        == 2**20 // token
        < largest_microbatch(plan, training)
    )
    small = int((models_bytes(plan, training.model, Layout()) + 2**19) / UPDATE_FRACTION)
    assert largest_microbatch(plan, training, cuda=True, card=small) in (
        2**19 // token - 1,
        2**19 // token,
    )
    assert memory_of(plan, training, cuda=True, card=small).total < small


@pytest.mark.parametrize("where", ["update", "evaluation"])
def test_a_gpu_without_memory_is_explained_and_the_run_goes_on_with_less(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of"
        )

    with monkeypatch.context() as patch:
        step, calls = LocalLearner.step, list[int]()
        if where == "update":
            patch.setattr(
                LocalLearner,
                "step",
                lambda *given: calls.append(1) or (fail if len(calls) > 3 else step)(*given),
            )
        else:
            patch.setattr(LocalLearner, "evaluate", fail)
        with pytest.raises(
            ValueError, match=r"out of memory .*Tried to allocate 2\.00 GiB"
        ) as found:
            ascent.train(
                tiny_plan(run={"save_every": 1}),
                run=tmp_path / "run",
                progress=False,
                say=lambda line: None,
            )
    words = str(found.value)
    half, whole = map(
        int,
        re.findall(r"tokens_per_microbatch=(\d+) \(a micro-batch has up to (\d+) tokens", words)[0],
    )
    assert 16 < half == whole // 2 <= 256
    assert (
        "model.gradient_checkpointing=true" in words
        and "max_new_tokens" not in words
        and "\n" not in words
    )
    config = tmp_path / "run/config.yaml"
    less = {"update": {"tokens_per_microbatch": half}, "model": {"gradient_checkpointing": True}}
    config.write_text(yaml.safe_dump(merge_configs(yaml.safe_load(config.read_text()), less)))
    done = ascent.resume(tmp_path / "run", progress=False, say=lambda line: None)
    assert done.state == "finished"


@pytest.mark.parametrize("more", [{}, {"model.dtype": "bfloat16"}, {"model.lora": 4}])
def test_a_separate_critic_is_counted_as_it_is(tmp_path: Path, more: dict[str, Any]) -> None:
    """Against the bytes of its weights, masters and moments after a step; and the policy's beside it."""
    plan = resolve(validate(nest_keys({**SAMPLED, "algorithm": "ppo", **more})))
    training = assemble(plan, tmp_path)
    batches = training.source.next(1)
    for each in training.trained:
        each.learner.step(batches, each.objective)
    said = memory_of(plan, training)
    (critic,) = training.others
    for kept, learner, module in (
        (said.critic, critic.learner, critic.learner.model.model.module),
        (said.persistent, training.learner, training.model.module),
    ):
        state = {
            name: each
            for name, each in learner.optimizer.state().items()
            if not name.startswith("count.")
        }
        assert kept == bytes_of(module.parameters()) + bytes_of(state.values())
    head = resolve(
        validate(nest_keys({**SAMPLED, "algorithm": "ppo", **more, "model.critic": "head"}))
    )
    assert memory_of(head, assemble(head, tmp_path / "head")).critic == 0
    reference = (
        bytes_of(training.source.models.reference.model.module.parameters())
        if "model.lora" not in more
        else 0
    )
    assert said.reference == reference


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
