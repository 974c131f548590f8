import pytest

from ascent.algorithms import TABLE
from ascent.cli.cell_text import Choice, choices
from ascent.cli.search import find_matches


def names(text):
    return [found.entry.name for found in find_matches(TABLE.values(), text)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("entropy bonus", "skywork_or1"),
        ("length normalized DPO", "dpo_norm"),
        ("thumbs up", "kto"),
        ("critic reward model KL", "rlhf"),
        ("pass@k", "grpo_passk"),
        ("process reward model", "prm"),
        ("2503.14476", "dapo"),
        ("optimal transport", "aot"),
        ("sampler rejected", "grpo_rejection"),
    ],
)
def test_words_find_the_row_they_mean(text, first):
    assert first in names(text)[:3], names(text)[:6]


def test_every_row_is_found_by_its_own_name():
    for name in TABLE:
        assert name in names(name)[:6], name


@pytest.mark.parametrize(
    ("text", "slot", "name"),
    [
        ("icepop", "rollout_correction", "token_mask"),
        ("ratio_within", "token_weights", "ratio_within"),
        ("target per sequence", "kl_controller", "ziegler_sequence"),
        ("stop-properly", "reward_shaping", "eos_scale"),
    ],
)
def test_a_cell_that_no_row_uses_is_found(text, slot, name):
    found = [each.entry for each in find_matches([*TABLE.values(), *choices()], text)]
    assert (slot, name) in [(each.slot, each.name) for each in found if isinstance(each, Choice)]


def test_every_cell_is_found_by_its_slot_and_name_behind_the_rows_that_use_it():
    for slot, name, *_ in choices():
        found = [
            each.entry for each in find_matches([*TABLE.values(), *choices()], f"{slot} {name}")
        ]
        kinds = [isinstance(each, Choice) for each in found]
        assert kinds == sorted(kinds)
        assert (slot, name) in [
            (each.slot, each.name) for each in found if isinstance(each, Choice)
        ]


def test_a_word_is_matched_from_its_start():
    assert "dpo" not in names("po")
    assert "gspo" in names("normal")


def test_rows_with_every_word_hide_those_with_some():
    every, some = names("entropy bonus"), names("entropy")
    assert set(every) < set(some)
    assert names("entropy zzzz") == some


def test_nothing_to_look_for_is_refused_and_nothing_found_is_empty():
    with pytest.raises(ValueError, match="holds no word"):
        find_matches(TABLE.values(), "  ")
    assert find_matches(TABLE.values(), "zzzz") == []
