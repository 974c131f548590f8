"""Packed batches with the vocabulary's names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ascent.algorithms import TABLE
from ascent.data.collate import add_mismatched, collate, two_distinct_prompts
from tests.data import make

# What the learner adds to a batch, or what objectives form from it.
LATER = {
    "logprobs_T",
    "logprobs_B",
    "ref_logprobs_T",
    "ref_logprobs_B",
    "lengths_B",
    "scores_B",
    "chosen_B",
    "mismatched_score",
    "log_collision_T",
    "logits_TV",
    "teacher_TV",
    "step_logits_TC",
}
SAMPLES = {
    "examples": [make.example(4), make.example(3)],
    "pairs": [make.pair(4, 3, 0.5), make.pair(2, 5, 1.0)],
    "pairs with gold": [make.pair(4, 3, gold=2), make.pair(2, 5, gold=4)],
    "rankings": [make.ranking([3, 4, 2]), make.ranking([2, 2])],
    "steps": [make.steps(5, [2, 4], [1.0, None]), make.steps(3, [2], [0.25])],
    "unpaired": add_mismatched([make.unpaired(4), make.unpaired(5, good=False)], max_tokens=99)[0],
}


def test_one_flat_axis() -> None:
    items = SAMPLES["pairs"]
    batch = collate(items)
    sequences = [sequence for item in items for sequence in item.sequences]
    assert batch["tokens_T"].tolist() == [
        int(token) for sequence in sequences for token in sequence.tokens
    ]
    assert batch["loss_mask_T"].tolist() == [
        bool(mark) for sequence in sequences for mark in sequence.loss_mask
    ]
    assert batch["positions_T"].tolist() == [*range(4), *range(3), *range(2), *range(5)]
    assert batch["segments"].lengths_B.tolist() == [4, 3, 2, 5]
    assert batch["groups"].ids_B.tolist() == [0, 0, 1, 1]
    assert (batch["tokens_T"].dtype, batch["loss_mask_T"].dtype) == (torch.int64, torch.bool)


def test_pairs_rankings_and_thumbs() -> None:
    pairs = collate(SAMPLES["pairs"])
    assert pairs["chosen_P"].tolist() == [0, 2]
    assert pairs["rejected_P"].tolist() == [1, 3]
    assert pairs["margins_P"].tolist() == [0.5, 1.0]
    assert "margins_P" not in collate([make.pair(2, 2)])
    rankings = collate(SAMPLES["rankings"])
    assert rankings["ranks_B"].tolist() == [0, 1, 2, 0, 1]
    assert rankings["groups"].ids_B.tolist() == [0, 0, 0, 1, 1]
    assert collate(SAMPLES["unpaired"])["desirable_B"].tolist() == [True, False]


def test_judged_steps_carry_their_verdicts_at_their_ends() -> None:
    batch = collate(SAMPLES["steps"])
    assert batch["step_ends_T"].nonzero()[:, 0].tolist() == [2, 4, 7]
    assert torch.equal(batch["loss_mask_T"], batch["step_ends_T"])
    assert batch["step_labels_T"][[2, 7]].tolist() == [1.0, 0.25]
    assert batch["step_labels_T"].isnan().nonzero().tolist() == [[4]]


FROM_FILES = [row for row in TABLE.values() if not row.samples]


@pytest.mark.parametrize("row", FROM_FILES, ids=lambda row: row.name)
def test_every_row_that_trains_from_files_finds_what_it_needs(row) -> None:
    of_the_step = {name for _, cell in row.cells() for name in cell.statistics}
    items = SAMPLES["pairs with gold" if "gold_answers" in row.needs else row.source]
    assert row.inputs - LATER - of_the_step <= set(collate(items))


def test_a_gold_answer_is_the_third_of_its_pair() -> None:
    batch = collate(SAMPLES["pairs with gold"])
    assert (batch["chosen_P"].tolist(), batch["rejected_P"].tolist()) == ([0, 3], [1, 4])
    assert batch["gold_B"].tolist() == [False, False, True] * 2
    assert batch["groups"].ids_B.tolist() == [0, 0, 0, 1, 1, 1]
    assert "gold_B" not in collate(SAMPLES["pairs"])


def test_first_tokens_are_never_trained() -> None:
    for items in SAMPLES.values():
        batch = collate(items)
        for part in (batch, batch.get("mismatched", batch)):
            assert not part["loss_mask_T"][part["positions_T"] == 0].any()


def test_companions_carry_the_same_answer_behind_another_prompt() -> None:
    items, shorter = add_mismatched(
        [make.unpaired(6), make.unpaired(4), make.unpaired(5)], max_tokens=99
    )
    assert shorter == 0
    for place, item in enumerate(items):
        own, other = item.sequences[0], items[(place + 1) % 3].sequences[0]
        assert item.mismatched is not None
        expected = [*other.tokens[: other.prompt_length], *own.tokens[own.prompt_length :]]
        assert item.mismatched.tokens.tolist() == [int(token) for token in expected]
        assert item.mismatched.loss_mask.sum() == own.loss_mask.sum()
    companion = collate(items)["mismatched"]
    assert companion["segments"].lengths_B.tolist() == [6, 4, 5]


def test_companions_do_not_depend_on_the_cut() -> None:
    items, _ = add_mismatched([make.unpaired(4 + n) for n in range(5)], max_tokens=99)
    whole = collate(items)["mismatched"]["tokens_T"]
    cuts = [collate(part)["mismatched"]["tokens_T"] for part in (items[:2], items[2:3], items[3:])]
    assert torch.equal(torch.cat(cuts), whole)


def test_a_neighbour_with_the_same_prompt_is_passed_over() -> None:
    one, two = make.unpaired(4), make.unpaired(5)
    twin = make.unpaired(6)
    twin.sequences[0].tokens[:2] = one.sequences[0].tokens[:2]
    items, _ = add_mismatched([one, twin, two], max_tokens=99)
    assert items[0].mismatched is not None
    assert np.array_equal(items[0].mismatched.tokens[:2], two.sequences[0].tokens[:2])
    with pytest.raises(ValueError, match="all records have the same prompt"):
        add_mismatched([one, twin], max_tokens=99)
    with pytest.raises(ValueError, match="all records have the same prompt"):
        add_mismatched([one], max_tokens=99)


def test_where_a_whole_step_asks_the_same_a_prompt_of_the_data_stands_in() -> None:
    one, two = make.unpaired(4), make.unpaired(5)
    spare = two_distinct_prompts([one, one, two])
    assert [prompt.tolist() for prompt in spare] == [
        each.sequences[0].tokens[:2].tolist() for each in (one, two)
    ]
    items, _ = add_mismatched([one, one], max_tokens=99, spare=spare)
    for item in items:
        assert item.mismatched is not None
        assert item.mismatched.tokens.tolist() == [
            *spare[1].tolist(),
            *one.sequences[0].tokens[2:].tolist(),
        ]
    (alone,), _ = add_mismatched([two], max_tokens=99, spare=spare)
    assert (
        alone.mismatched is not None and alone.mismatched.tokens[:2].tolist() == spare[0].tolist()
    )


def test_a_companion_over_the_limit_loses_the_beginning_of_its_prompt_and_is_counted() -> None:
    long, short = make.unpaired(8, prompt=7), make.unpaired(8, prompt=2)
    items, shorter = add_mismatched([long, short], max_tokens=8)
    companion = items[1].mismatched
    assert companion is not None
    assert companion.tokens[:2].tolist() == long.sequences[0].tokens[5:7].tolist()
    assert (len(companion), companion.prompt_length, shorter) == (8, 2, 1)


def test_what_cannot_be_collated() -> None:
    with pytest.raises(ValueError, match="a micro-batch of examples, pairs"):
        collate([make.example(3), make.pair(2, 2)])
    with pytest.raises(ValueError, match="1 of 2 pairs have a margin"):
        collate([make.pair(2, 2, 1.0), make.pair(2, 2)])
