import pytest

from ascent.config.iterate import KEY as ROUNDS
from ascent.config.load import (
    merge_configs,
    nest_keys,
    parse_overrides,
    read_recipe,
    shipped_recipes,
)


def test_shipped_recipes_are_found_by_name_and_described():
    found = shipped_recipes()
    assert {"rlvr", "rlhf", "sft"} <= set(found)
    for name, line in found.items():
        assert len(line) > 20, f"{name} needs a first comment line that says what it is"
        assert {"algorithm", ROUNDS} & set(read_recipe(name))


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(
        ValueError, match=r"no recipe named 'rlvrr'; did you mean rlvr.*ends in \.yaml"
    ):
        read_recipe("rlvrr")
    with pytest.raises(ValueError, match="no recipe named 'simpoo'; did you mean simpo"):
        read_recipe("simpoo", ["simpo"])
    with pytest.raises(ValueError, match="no recipe named 'RLVR'; did you mean rlvr"):
        read_recipe("RLVR")
    with pytest.raises(
        ValueError,
        match="no recipe named 'xyzzyx'; ascent recipes and ascent show algorithms list the",
    ):
        read_recipe("xyzzyx", ["simpo"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; a recipe names at least algorithm"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n- b\n", "holds a list, but a recipe is a mapping"),
        (b"just words\n", "holds the single value 'just words'"),
        (b"algorithm: [\n", "line 2: not valid YAML"),
        (
            b"algorithm: a\nalgorithm: b\n",
            "line 2: not valid YAML: the key 'algorithm' is given twice",
        ),
        (b"algorithm: \xff\n", "line 1, is not UTF-8 text (byte 11)"),
        (b"a: b\n# caf\xe9\n", "line 2, is not UTF-8 text (byte 10)"),
        ("a: b\n".encode("utf-16"), "line 1, is not UTF-8 text (byte 0); save it as UTF-8"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_recipe(str(path))
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe file at .*none\.yaml; ascent recipes lists"):
        read_recipe(str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_recipe(f"{tmp_path}/")


def test_overrides_become_a_tree():
    assert parse_overrides(
        ["a.b=1e-6", "a.c=x y", "d=[1, {e: f}]", "g={h: 1}", "g.i=true", "j=a=b"]
    ) == {
        "a": {"b": 1e-6, "c": "x y"},
        "d": [1, {"e": "f"}],
        "g": {"h": 1, "i": True},
        "j": "a=b",
    }


def test_model_and_data_are_short_for_the_policy_and_the_training_data():
    tree = {"model": {"policy": "m", "lora": 8}, "data": {"train": "d"}}
    assert parse_overrides(["model=m", "model.lora=8", "data=d"]) == tree
    assert parse_overrides(["model={policy: m, lora: 8}", "data=d"]) == tree
    assert nest_keys({"model": "m", "model.lora": 8, "data": "d"}) == tree
    assert nest_keys({"model": {"policy": "m"}, "model.lora": 8, "data.train": "d"}) == tree
    with pytest.raises(ValueError, match=r"override model\.policy is given twice"):
        parse_overrides(["model=a", "model.policy=b"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["a"], "override 'a' must look like key=value"),
        (["=1"], "override '=1' must look like key=value"),
        (["a..b=1"], "override 'a..b=1' must look like key=value"),
        (["a=1", "a=2"], "override a is given twice"),
        (["a=1", "a.b=2"], "override 'a.b=2' clashes with another override of a"),
        (["a.b=2", "a=1"], "override 'a=1' clashes with another override inside a"),
        (["rewards.0.use=x"], "override 'rewards.0.use=x': rewards is a list; give all of it"),
        (["a=[1"], "override 'a=[1', line 1: not valid YAML"),
        (["a=" + "9" * 5000], "override 'a=999"),
        (["a=" + "[" * 3000], "override 'a=[[["),
        (["a." * 3000 + "b=1"], "override 'a.a."),
        (["a=\udcff"], "override 'a=\\udcff', line 1: not valid YAML: unacceptable character"),
    ],
)
def test_bad_overrides_are_refused(overrides, words):
    with pytest.raises(ValueError) as caught:
        parse_overrides(overrides)
    assert str(caught.value).startswith(words) and len(str(caught.value)) < 300


def test_merging_goes_section_by_section():
    base = {"model": {"policy": "p", "dtype": "float32"}, "rewards": [{"use": "a"}]}
    over = {"model": {"dtype": "bfloat16"}, "rewards": [{"use": "b"}]}
    assert merge_configs(base, over) == {
        "model": {"policy": "p", "dtype": "bfloat16"},
        "rewards": [{"use": "b"}],
    }
    assert base["model"]["dtype"] == "float32"


def test_another_function_leaves_the_old_ones_numbers_behind():
    base = {"policy_loss": {"use": "clip", "low": 0.2, "high": 0.2}}
    assert merge_configs(base, {"policy_loss": {"use": "sapo"}}) == {"policy_loss": {"use": "sapo"}}
    assert merge_configs(base, {"policy_loss": {"use": "clip", "low": 0.1}}) == {
        "policy_loss": {"use": "clip", "low": 0.1, "high": 0.2}
    }
    assert merge_configs(base, {"policy_loss": {"low": 0.1}}) == {
        "policy_loss": {"use": "clip", "low": 0.1, "high": 0.2}
    }
    assert merge_configs(base, {"policy_loss": False}) == {"policy_loss": False}
