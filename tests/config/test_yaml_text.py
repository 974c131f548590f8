import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ascent.config import yaml_text

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
)
words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(words, inner), max_leaves=20
)


@example("\x85")
@example({"key": "a\u2028b"})
@given(trees)
def test_what_is_written_reads_back_the_same(value):
    assert yaml_text.read(yaml_text.write(value), "test") == value


@given(st.text(alphabet="0123456789.eE+-:_xonyaf~tru", max_size=8))
def test_words_that_look_like_other_things_stay_words(text):
    assert yaml_text.read(yaml_text.write({"key": text}), "test") == {"key": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E6", 1e6),
        ("-2.5e3", -2500.0),
        ("3.", 3.0),
        (".5", 0.5),
        ("7", 7),
        ("010", 10),
        ("-3", -3),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0x1f", "0x1f"),
        ("2026-01-01", "2026-01-01"),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e-6'", "1e-6"),
        (".inf", math.inf),
        ("e5", "e5"),
        (".", "."),
        ("-", None),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text, value):
    found = yaml_text.read(text, "test")
    found = found[0] if text == "-" else found
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "there.yaml, line 3: not valid YAML: the key 'a' is given twice"),
        ("a:\n  b: 1\n  b: 1\n", "there.yaml, line 3: not valid YAML: the key 'b' is given twice"),
        ("1: a\n", "there.yaml, line 1: not valid YAML: the key 1 must be a word"),
        ("? [a]\n: 1\n", "there.yaml, line 1: not valid YAML: the key ['a'] must be a word"),
        ("a: [1\n", "there.yaml, line 2: not valid YAML: expected ',' or ']'"),
        ("a: 1\n---\nb: 2\n", "there.yaml, line 2: not valid YAML: but found another document"),
        (
            "a: !!python/object:os.system x\n",
            "there.yaml, line 1: not valid YAML: could not determine a constructor",
        ),
        ("a: 1\nb: \x00\n", "there.yaml, line 2: not valid YAML: unacceptable character #x0000"),
        (f"a: 1\nb: {'9' * 5000}\n", "there.yaml, line 2: not valid YAML: a number of 5000 digits"),
        (
            "a: 1\nb: " + "[" * 5000,
            "there.yaml, line 2: not valid YAML: nested more than 100 deep; write it flat",
        ),
        (
            "".join(" " * n + "a:\n" for n in range(2000)),
            "there.yaml, line 100: not valid YAML: nested more than 100",
        ),
        (
            "a: &a [*a]\n",
            "there.yaml, line 1: not valid YAML: found unconstructable recursive node",
        ),
        (
            "a: &a {b: 1}\nc:\n  <<: *a\n",
            "there.yaml, line 3: not valid YAML: merge keys (<<) are not read",
        ),
    ],
)
def test_invalid_text_names_file_line_and_reason(text, words):
    with pytest.raises(ValueError) as caught:
        yaml_text.read(text, "there.yaml")
    assert str(caught.value).startswith(words)


def test_aliases_are_read_until_they_stand_for_too_much():
    assert yaml_text.read("a: &a [1, 2]\nb: [*a, *a]\n", "there.yaml")["b"] == [[1, 2], [1, 2]]
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
    )
    with pytest.raises(
        ValueError,
        match="line 6: not valid YAML: its aliases expand to more than 100000 values; write",
    ):
        yaml_text.read(bomb, "there.yaml")
