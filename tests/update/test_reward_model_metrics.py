"""Figures of a reward model against numbers worked by hand, numpy's correlation, and any cut of the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ascent.algorithms import TABLE
from ascent.maths.groups import Groups
from ascent.maths.metrics import merge
from ascent.maths.segments import Segments
from ascent.update.objective import objective_of
from ascent.update.reward_model_metrics import accumulate, finalize, with_reward_model_metrics


def pairs(gaps: list[float], lengths: list[int] | None = None) -> dict[str, Any]:
    """Each pair's chosen response scores its gap, the rejected one 0."""
    scores = torch.tensor([score for gap in gaps for score in (gap, 0.0)])
    segments = Segments.from_lengths(lengths or [1 + n % 3 for n in range(len(scores))])
    count = torch.arange(len(gaps))
    return {
        "scores_B": scores,
        "chosen_P": 2 * count,
        "rejected_P": 2 * count + 1,
        "segments": segments,
        "loss_mask_T": torch.ones(segments.total, dtype=torch.bool),
    }


def test_the_worked_example() -> None:
    found = finalize(accumulate(pairs([2.0, 0.1, -1.0])))
    assert found["preference/calibration_error"] == pytest.approx(
        (0.119203 + 0.475021 + 0.731059) / 3, abs=1e-6
    )
    assert found["preference/brier"] == pytest.approx(
        (0.014209 + 0.225645 + 0.534447) / 3, abs=1e-6
    )


def test_within_a_bin_surpluses_cancel_and_between_bins_they_do_not() -> None:
    """Four pairs at probability .75 of which three are won are perfectly calibrated."""
    certain = math.log(3.0)
    found = finalize(accumulate(pairs([certain, certain, certain, -certain])))
    assert found["preference/calibration_error"] == pytest.approx(0, abs=1e-7)
    assert found["preference/brier"] == pytest.approx((3 * 0.0625 + 0.5625) / 4, abs=1e-7)
    sure = finalize(accumulate(pairs([50.0, 50.0, -50.0, -50.0])))
    assert sure["preference/calibration_error"] == pytest.approx(0.5) and sure[
        "preference/brier"
    ] == pytest.approx(0.5)


def test_bins_are_a_twentieth_wide() -> None:
    """.76 won and .74 lost lie in two bins, .7-.75 and .75-.8: the surpluses -.24 and .74 do not cancel."""
    found = finalize(accumulate(pairs([math.log(0.76 / 0.24), -math.log(0.74 / 0.26)])))
    assert found["preference/calibration_error"] == pytest.approx((0.24 + 0.74) / 2, abs=1e-6)
    same = finalize(accumulate(pairs([math.log(0.76 / 0.24), -math.log(0.78 / 0.22)])))
    assert same["preference/calibration_error"] == pytest.approx((0.78 - 0.24) / 2, abs=1e-6)


def test_a_model_that_knows_nothing_is_calibrated_and_scores_a_quarter() -> None:
    found = finalize(accumulate(pairs([0.0, 0.0, 0.0])))
    assert found["preference/calibration_error"] == 0.0
    assert found["preference/brier"] == 0.25
    assert math.isnan(found["preference/length_correlation"])


def test_length_correlation_is_numpys_and_counts_trained_tokens_only() -> None:
    gaps, lengths = [3.0, -1.0, 0.5, 2.0], [9, 2, 4, 4, 7, 3, 8, 2]
    batch = pairs(gaps, lengths)
    batch["loss_mask_T"][0] = False
    trained = [8, *lengths[1:]]
    expected = np.corrcoef(batch["scores_B"].numpy(), trained)[0, 1]
    assert finalize(accumulate(batch))["preference/length_correlation"] == pytest.approx(
        expected, abs=1e-12
    )


def test_scores_that_are_a_line_in_length_correlate_to_one() -> None:
    batch = pairs([0.0, 0.0], [1, 2, 3, 4])
    batch["scores_B"] = torch.tensor([101.0, 102.0, 103.0, 104.0])
    assert finalize(accumulate(batch))["preference/length_correlation"] == pytest.approx(
        1.0, abs=1e-9
    )


def test_cutting_the_set_changes_nothing() -> None:
    gaps = torch.linspace(-4, 6, 23).tolist()
    lengths = [1 + (n * n) % 11 for n in range(46)]
    whole = finalize(accumulate(pairs(gaps, lengths)))
    for at in (1, 7, 20):
        cut = merge(
            [
                accumulate(pairs(gaps[:at], lengths[: 2 * at])),
                accumulate(pairs(gaps[at:], lengths[2 * at :])),
            ]
        )
        assert finalize(cut) == pytest.approx(whole, abs=1e-12)


def test_a_ranking_counts_all_its_pairs() -> None:
    """Scores [2, 1, 1.5] best first: differences 1, .5 and -.5."""
    ranking = {
        "scores_B": torch.tensor([2.0, 1.0, 1.5]),
        "ranks_B": torch.tensor([0, 1, 2]),
        "groups": Groups.from_ids([0, 0, 0]),
        "segments": Segments.from_lengths([1, 2, 3]),
        "loss_mask_T": torch.ones(6, dtype=torch.bool),
    }
    same = finalize(accumulate(pairs([1.0, 0.5, -0.5])))
    found = finalize(accumulate(ranking))
    assert (
        found["preference/brier"] == pytest.approx(same["preference/brier"])
        and found["preference/calibration_error"] == same["preference/calibration_error"]
    )


def test_only_rows_that_score_are_judged() -> None:
    sft = objective_of(TABLE["sft"])
    assert with_reward_model_metrics(sft) is sft
    terms = with_reward_model_metrics(objective_of(TABLE["reward_model"])).terms(
        pairs([2.0, 0.1, -1.0])
    )
    (term,) = terms.values()
    assert finalize(term.metrics)["preference/accuracy"] == pytest.approx(2 / 3)
    assert finalize(term.metrics)["preference/calibration_error"] == pytest.approx(
        0.441761, abs=1e-6
    )
