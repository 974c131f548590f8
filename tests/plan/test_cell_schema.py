import json
import re

from ascent.algorithms import TABLE, VOCABULARY
from ascent.cells import recipe_numbers
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS, Cells, MixEntry, Reward, leaves
from ascent.config.show import json_schema
from ascent.plan.cell_schema import cell_schema


def test_ranges_become_json_schema():
    low = cell_schema()["policy_loss"]["clip"]["numbers"]["low"]
    assert low == {"type": "number", "minimum": 0.0, "default": 0.2}
    length = cell_schema()["aggregation"]["sequence_mean_token_scaled"]["numbers"]["length"]
    assert length == {"type": "integer", "minimum": 1.0}


def test_every_function_is_described():
    for slot, functions in cell_schema().items():
        for name, each in functions.items():
            assert len(each["description"]) > 10, f"{slot}.{name}"


def test_config_and_table_agree_on_the_slots():
    assert tuple(Cells.model_fields) == tuple(VOCABULARY)


def test_the_schema_of_recipes_is_whole():
    text = json.dumps(json_schema(TABLE, cell_schema()))
    schema = json.loads(text)
    assert {name.rpartition("/")[2] for name in re.findall(r'"\$ref": "([^"]+)"', text)} <= set(
        schema["$defs"]
    )
    gates = schema["$defs"]["Cells"]["properties"]["policy_loss"]["anyOf"]
    assert {"const": "clip"} in [
        each["properties"]["use"] for each in gates if "use" in each.get("properties", {})
    ]


def test_at_most_160_keys_with_every_number_of_every_cell():
    """Every dotted key a recipe can write; a function that takes no numbers is itself a key in the slots of several."""
    lists = {"rewards": Reward, "data.mix": MixEntry}
    keys = {
        key
        for key in leaves()
        if key not in lists and key.removeprefix("cells.") not in MULTI_CELL_SLOTS
    }
    keys |= {f"{key}.{name}" for key, entry in lists.items() for name in entry.model_fields}
    for slot, known in VOCABULARY.items():
        weight = ["weight"] if slot in (*TERM_SLOTS, "extra_losses") else []
        for name, function in known.items():
            path = f"cells.{slot}.{name}" if slot in MULTI_CELL_SLOTS else f"cells.{slot}"
            keys |= {f"{path}.{number}" for number in (*recipe_numbers(function), *weight)} or {
                path
            }
    assert "cells.reward_shaping.soft_overlong.cache" in keys
    assert "cells.policy_loss.low" in keys
    assert 100 < len(keys) <= 160  # 150 before servers (5 keys) and the optimizer in host memory
