from typing import get_args

import pytest
from annotated_types import Le, Lt
from pydantic import BaseModel

from ascent.config import iterate, schema
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS, Cells, Config, Section, leaves

SECTIONS = [
    each for each in vars(schema).values() if isinstance(each, type) and issubclass(each, BaseModel)
]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_one_sentence(section):
    for name, field in section.model_fields.items():
        text = field.description or ""
        assert text.endswith("."), f"{section.__name__}.{name} needs a sentence"
        assert text.count(". ") == 0, f"{section.__name__}.{name} has more than one sentence"


NUMBERS = [
    (section, name)
    for section in [
        *SECTIONS,
        *(each for each in vars(iterate).values() if each in Section.__subclasses__()),
    ]
    for name, field in section.model_fields.items()
    if {int, float}
    & {
        field.annotation,
        *(get_args(each)[0] for each in get_args(field.annotation) if get_args(each)),
    }
]


@pytest.mark.parametrize(("section", "name"), NUMBERS, ids=str)
def test_every_number_has_an_upper_bound(section, name):
    """Beyond it nothing is meant, and something would overflow."""
    assert [each for each in section.model_fields[name].metadata if isinstance(each, Le | Lt)]


def test_no_number_was_overlooked():
    named = {name for _, name in NUMBERS}
    assert {
        "seed",
        "lora",
        "lora_alpha",
        "batch_size",
        "share",
        "target_kl",
        "steps",
        "rounds",
        "per_prompt",
    } <= named


def test_leaves_are_dotted_keys_down_to_the_last_section():
    found = leaves()
    assert {
        "algorithm",
        "seed",
        "model.policy",
        "rollouts.group_size",
        "rewards",
        "cells.policy_loss",
    } <= set(found)
    assert "model" not in found
    assert found["rollouts.temperature"].default == 1.0


def test_slots_are_classed_as_their_fields_are_declared():
    for slot, field in Cells.model_fields.items():
        declared = str(field.annotation)
        assert ("dict[str" in declared) == (slot in MULTI_CELL_SLOTS)
        assert ("TermOverride" in declared) == (slot in TERM_SLOTS)


def test_a_config_cannot_be_changed_behind_ones_back():
    config = Config.model_validate(
        {"algorithm": "sft", "model": {"policy": "p"}, "data": {"train": "t"}}
    )
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1
