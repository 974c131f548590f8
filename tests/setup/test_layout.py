"""How models lie on ranks: the choice, and the memory of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ascent.config.load import merge_configs, nest_keys
from ascent.config.validate import validate
from ascent.models.load import load
from ascent.models.memory import MICROBATCH_BYTES
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import resolve
from ascent.setup.layout import (
    ONE_RANK,
    UPDATE_FRACTION,
    Layout,
    agreed_target,
    choose_layout,
    describe_layout,
    forecast_layout,
    is_sharded,
    microbatch_target,
    models_bytes,
)
from bench.scale import memory_table, time_table
from tests.setup.runs import tiny_plan


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load(create(tmp_path_factory.mktemp("model") / "tiny", seed=0))


class Eight(Ranks):
    count = 8


def test_a_layout_is_taken_as_asked_for_and_whole_on_a_cpu(model: LanguageModel) -> None:
    plan = tiny_plan()
    assert [
        is_sharded(plan, model, Eight(layout)) for layout in ("auto", "replicated", "sharded")
    ] == [
        False,
        False,
        True,
    ]
    assert describe_layout(ONE_RANK) == ()
    assert describe_layout(Layout(8)) == ("8 ranks: weights whole on each, optimizer divided",)
    assert "FSDP2" in describe_layout(Layout(8, True))[0]


def test_weights_are_gathered_once_a_step_only_where_micro_batches_stay_as_large(
    model: LanguageModel,
) -> None:
    class Unequal(Eight):
        def gather(self, value: Any, what: str) -> list[Any]:
            return [value, False]

    plan = tiny_plan(model={"dtype": "bfloat16"})
    needed = models_bytes(plan, model, Layout(8, True, True)) + MICROBATCH_BYTES
    fits, short = int(needed / UPDATE_FRACTION) + 2, int(needed / UPDATE_FRACTION) - 2
    assert choose_layout(plan, model, Eight("sharded"), memory=fits) == Layout(8, True, True)
    assert choose_layout(plan, model, Eight("sharded"), memory=short) == Layout(8, True)
    assert choose_layout(plan, model, Unequal("sharded"), memory=fits) == Layout(
        8, True
    )  # of all ranks or of none
    assert choose_layout(plan, model, Eight("replicated"), memory=fits) == Layout(8)
    assert choose_layout(plan, model, Eight("sharded")) == Layout(8, True)  # a CPU
    each, kept = (
        forecast_layout(plan, model, Layout(8, True, keeps), tokens=64) for keeps in (False, True)
    )
    assert (
        kept.gradients - each.gradients
        == kept.weights - kept.weights // model.module.config.num_hidden_layers
    )
    assert "gathered once a step" in describe_layout(Layout(8, True, True))[0]


def test_four_bits_cannot_be_divided(model: LanguageModel) -> None:
    plan = tiny_plan(model={"lora": 4, "quantize": "nf4"})
    with pytest.raises(ValueError, match="layout sharded cannot divide 4-bit weights"):
        is_sharded(plan, model, Eight("sharded"))


def test_the_optimizers_memory_is_divided_in_both_layouts(model: LanguageModel) -> None:
    plan = tiny_plan(model={"dtype": "bfloat16"})
    one, whole, divided = (
        forecast_layout(plan, model, layout, tokens=64)
        for layout in (Layout(), Layout(8), Layout(8, True))
    )
    trained = sum(each.numel() for each in model.parameters())
    assert one.moments == 8 * trained and one.masters == 4 * trained
    assert whole.moments == divided.moments == 8 * -(-trained // 8)
    assert whole.masters == divided.masters == 4 * -(-trained // 8)
    assert whole.gradients == one.gradients > divided.gradients
    assert (
        one.weights == whole.weights == divided.weights
    )  # of a divided model, the copy that samples


def test_micro_batches_leave_room_for_the_other_models(model: LanguageModel) -> None:
    def target(
        gib: float, algorithm: str = "sft", layout: Layout = ONE_RANK, **changes: Any
    ) -> int:
        recipe = {
            "algorithm": algorithm,
            "model": {"dtype": "bfloat16"},
            "update": {"tokens_per_microbatch": None},
        }
        plan = tiny_plan(**merge_configs(recipe, changes))
        return microbatch_target(plan, model, layout, cuda=True, memory=int(gib * 2**30))

    card = 0.6  # with half a GiB for the tiles of logits
    assert (
        target(0.1) == target(0.55) == 1 and target(80) == target(8) == 16384
    )  # a sequence is always run
    assert 1000 < target(card) < 16384
    assert target(card, "dpo") < target(card)  # a reference
    assert target(card, "dpo", model={"lora": 4}) == target(
        card, model={"lora": 4}
    )  # the policy without its adapter
    assert target(card, layout=Layout(8)) > target(card)  # the optimizer's state is divided
    assert target(card, model={"gradient_checkpointing": True}) > target(card)
    assert target(card, update={"tokens_per_microbatch": 700}) == 700


def test_ranks_with_different_gpus_split_a_step_in_the_same_way(model: LanguageModel) -> None:
    class Small(Eight):
        def gather(self, value: Any, what: str) -> list[Any]:
            return [value, 700]

    plan = tiny_plan(update={"tokens_per_microbatch": None})
    assert agreed_target(plan, model, Small(), Layout(8)) == 700
    assert agreed_target(plan, model, Ranks(), ONE_RANK) == 16384


def test_a_critic_of_its_own_takes_room(model: LanguageModel) -> None:
    recipe = {"algorithm": "ppo", "model.policy": "tiny:llama", "data.train": "sort_digits:64"}
    recipe |= {"rewards": [{"use": "correct"}]}
    separate, head = (
        models_bytes(
            resolve(validate(nest_keys({**recipe, "model.critic": kind}))), model, ONE_RANK
        )
        for kind in ("separate", "head")
    )
    assert separate - head == 12 * sum(
        each.numel() for each in model.parameters()
    )  # float32 weights and moments


def test_the_tables_of_the_page_are_those_of_the_forecast() -> None:
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    for table in (memory_table(), time_table()):
        assert "\n".join(table) in page, "print it with bench/scale.py"
