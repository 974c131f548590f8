"""How models lie on ranks: the choice, and the memory of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.parallel.ranks import Ranks
from ascent.setup.layout import Layout, describe_layout, forecast_layout, is_sharded
from bench.scale import memory_table, time_table
from tests.setup.runs import tiny_plan


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load(create(tmp_path_factory.mktemp("model") / "tiny", seed=0))


class Eight(Ranks):
    count = 8


def test_a_layout_is_taken_as_asked_for_and_whole_on_a_cpu(model: LanguageModel) -> None:
    plan = tiny_plan()
    assert [is_sharded(plan, model, Eight(layout)) for layout in ("auto", "replicated", "sharded")] == [
        False,
        False,
        True,
    ]
    assert describe_layout(Ranks(), sharded=False) == ()
    assert describe_layout(Eight(), sharded=False) == ("8 ranks: weights whole on each, optimizer divided",)
    assert "FSDP2" in describe_layout(Eight(), sharded=True)[0]


def test_four_bits_cannot_be_divided(model: LanguageModel) -> None:
    plan = tiny_plan(model={"lora": 4, "quantize": "nf4"})
    with pytest.raises(ValueError, match="layout sharded cannot divide 4-bit weights"):
        is_sharded(plan, model, Eight("sharded"))


def test_the_optimizers_memory_is_divided_in_both_layouts(model: LanguageModel) -> None:
    plan = tiny_plan(model={"dtype": "bfloat16"})
    one, whole, divided = (
        forecast_layout(plan, model, layout, tokens=64) for layout in (Layout(), Layout(8), Layout(8, True))
    )
    trained = sum(each.numel() for each in model.parameters())
    assert one.moments == 8 * trained and one.masters == 4 * trained
    assert whole.moments == divided.moments == 8 * -(-trained // 8)
    assert whole.masters == divided.masters == 4 * -(-trained // 8)
    assert whole.gradients == one.gradients > divided.gradients
    assert one.weights == whole.weights == divided.weights  # of a divided model, the copy that samples


def test_the_tables_of_the_page_are_those_of_the_forecast() -> None:
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    for table in (memory_table(), time_table()):
        assert "\n".join(table) in page, "print it with bench/scale.py"
