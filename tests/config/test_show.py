import json

from ascent.config import yaml_text
from ascent.config.schema import Cells, leaves
from ascent.config.show import as_yaml, json_schema
from ascent.config.validate import validate

VOCABULARY = {
    "policy_loss": {
        "clip": {
            "description": "Clip.",
            "numbers": {"low": {"type": "number", "minimum": 0.0, "default": 0.2}},
        },
        "plain": {"description": "Nothing.", "numbers": {}},
    },
    "kl": {"k3": {"description": "k3.", "numbers": {}}},
    "reward_shaping": {
        "overlong": {"description": "Too long.", "numbers": {"cache": {"type": "integer"}}}
    },
    "extra_losses": {"nll": {"description": "NLL.", "numbers": {}}},
}


def test_yaml_holds_what_was_set_and_reads_back_as_the_same_config():
    config = validate(
        {
            "algorithm": "grpo",
            "model": {"policy": "p"},
            "data": {"train": "t"},
            "rewards": [{"use": "a", "weight": 0.5}],
            "update": {"learning_rate": 1e-6},
            "cells": {
                "policy_loss": {"use": "clip", "low": 0.1},
                "kl": False,
                "reward_shaping": {"overlong": {"cache": 3}},
            },
        }
    )
    text = as_yaml(config)
    assert validate(yaml_text.read(text, "test")) == config
    assert "seed" not in text


def test_schema_names_algorithms_functions_and_numbers():
    schema = json_schema(["grpo", "dapo"], VOCABULARY)
    assert schema["properties"]["algorithm"]["anyOf"][0]["enum"] == ["dapo", "grpo"]
    slots = schema["$defs"]["Cells"]["properties"]
    clip, plain, alone, off = slots["policy_loss"]["anyOf"]
    assert clip["properties"] == {
        "use": {"const": "clip"},
        "low": VOCABULARY["policy_loss"]["clip"]["numbers"]["low"],
    }
    assert plain["properties"] == {"use": {"const": "plain"}}
    assert set(alone["properties"]) == {"low"}
    assert alone["additionalProperties"] is False
    assert off == {"const": False}
    assert set(slots["kl"]["anyOf"][0]["properties"]) == {"use", "weight"}
    assert set(slots["reward_shaping"]["properties"]["overlong"]["anyOf"][0]["properties"]) == {
        "cache"
    }
    assert set(slots["extra_losses"]["properties"]["nll"]["anyOf"][0]["properties"]) == {"weight"}
    assert slots["policy_loss"]["description"] == Cells.model_fields["policy_loss"].description


def test_schema_describes_every_key_and_is_json():
    schema = json.loads(json.dumps(json_schema(["grpo"], {})))
    for key, field in leaves().items():
        node = schema
        for part in key.split("."):
            node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
            node = node["properties"][part]
        assert node["description"] == field.description
