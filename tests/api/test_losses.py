"""A loss by name with options, or a plain function: which cells it becomes, how it is averaged, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ascent
from ascent.api.losses import function_loss, objective_of_loss, row_of, with_options
from ascent.losses.loss import ItemLosses
from ascent.maths.segments import Segments
from ascent.update.objective import LOSS_SLOTS


def objective(loss: Any, head: Any = "tokens", /, **options: Any) -> Any:
    return objective_of_loss(loss, options, head=head, max_new_tokens=64, single_microbatch=True)


def test_options_are_the_cells_of_a_recipe() -> None:
    row = objective("grpo", policy_loss={"high": 0.28}, kl=0.01, aggregation="token_mean").row
    assert row.policy_loss.numbers == {"low": 0.2, "high": 0.28}
    assert (row.kl.name, row.weights["kl"], row.aggregation.name) == ("k3", 0.01, "token_mean")
    assert objective("grpo", kl=False).row.kl is None
    assert (
        objective("dpo", beta=0.3, loss={"label_smoothing": 0.1}).row.loss.numbers[
            "label_smoothing"
        ]
        == 0.1
    )
    assert objective("grpo", token_weights="top_entropy").row.token_weights[0].name == "top_entropy"
    assert (
        objective("grpo", token_weights={"top_entropy": {"share": 0.5}})
        .row.token_weights[0]
        .numbers["share"]
        == 0.5
    )


def test_the_constant_of_dr_grpo_is_the_token_budget() -> None:
    assert objective("dr_grpo").row.aggregation.numbers["length"] == 64
    assert objective("dr_grpo", length=10).row.aggregation.numbers["length"] == 10


def test_a_loss_function_of_the_vocabulary_is_a_loss() -> None:
    assert objective("ipo_sum", beta=0.5).row.loss.numbers["beta"] == 0.5
    assert objective(ascent.TABLE["dpo"]).row.name == "dpo"


def test_which_terms_a_model_trains_depends_on_its_head() -> None:
    assert [objective("ppo", head).part for head in ("tokens", "scalar", "both")] == [
        "policy",
        "critic",
        "all",
    ]
    assert objective("reward_model", "scalar").want == {"scores_B"}


@pytest.mark.parametrize("name", ascent.TABLE)
def test_every_row_is_a_loss(name: str) -> None:
    row = ascent.TABLE[name]
    head = "scalar" if "score_head" in row.needs else "tokens"
    if "step_head" in row.needs:
        with pytest.raises(ValueError, match="trains a process reward model, which needs a recipe"):
            objective(name, head)
    else:
        assert objective(name, head).want


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("grpo", {"hihg": 0.3}, "grpo has no option 'hihg'; did you mean high"),
        ("grpo", {"advantage": "gae"}, "advantage has no effect here; the slots of this call are"),
        ("grpo", {"policy_loss": "cipso"}, "no function named 'cipso'; did you mean cispo"),
        (
            "grpo",
            {"policy_loss": {"high": -1.0}},
            "cells.policy_loss: clip: high=-1.0, but it must be at least 0",
        ),
        ("grpo", {"loss": "dpo"}, "cells.loss has no effect"),
        ("dpo", {"beta": "small"}, "beta='small', but it must be a number"),
        ("dpo", {"kl": False}, "cells.kl has no effect"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_options(row_of(name), options, LOSS_SLOTS)


def test_a_number_of_two_cells_needs_its_slot() -> None:
    row = with_options(
        row_of("grpo"), {"token_weights": {"ratio_within": {}, "distance_within": {}}}, LOSS_SLOTS
    )
    with pytest.raises(
        ValueError, match=r"write policy_loss=\{'high': 2.0\} or token_weights=\{'ratio_within': \{"
    ):
        with_options(row, {"high": 2.0}, LOSS_SLOTS)


SEGMENTS = Segments.from_lengths([3, 2])
MASK_T = torch.tensor([False, True, True, False, True])
LOGPROBS_T = torch.tensor([0.0, -1.0, -2.0, 0.0, -4.0], requires_grad=True)


def items(
    function: Any, single: bool = False, batch: dict[str, Any] | None = None, **options: Any
) -> ItemLosses:
    given = {"segments": SEGMENTS, "loss_mask_T": MASK_T, "logprobs_T": LOGPROBS_T, **(batch or {})}
    found = function_loss(function, options, single_microbatch=single)(given)
    assert isinstance(found, ItemLosses)
    return found


def mean(found: ItemLosses) -> float:
    return float(found.losses.detach()[found.counted].mean())


def test_a_function_gives_losses_per_token_sequence_or_pair() -> None:
    def per_token(logprobs_T: Tensor, *, scale: float = 1.0) -> Tensor:
        return -scale * logprobs_T

    def per_sequence(logprobs_T: Tensor, segments: Segments) -> Tensor:
        return -segments.sum(logprobs_T)

    def per_pair(logprobs_B: Tensor, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
        return logprobs_B[rejected_P] - logprobs_B[chosen_P]

    assert mean(items(per_token)) == pytest.approx(7 / 3)
    assert mean(items(per_token, scale=3.0)) == pytest.approx(7)
    assert mean(items(per_sequence)) == pytest.approx(3.5)
    pair = {
        "chosen_P": torch.tensor([0]),
        "rejected_P": torch.tensor([1]),
        "logprobs_B": torch.tensor([-3.0, -4.0]),
    }
    assert mean(items(per_pair, batch=pair)) == -1


def test_what_a_function_logs_is_averaged_over_what_counts() -> None:
    def logged(logprobs_T: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return -logprobs_T, {"own/size": logprobs_T.abs(), "own/one": 1.0}

    metrics = items(logged).metrics
    assert metrics["own/size"].value() == pytest.approx(7 / 3) and metrics["own/one"].value() == 1


def test_one_number_is_a_loss_where_the_batch_is_not_cut() -> None:
    def scalar(logprobs_T: Tensor) -> Tensor:
        return -logprobs_T.sum()

    assert mean(items(scalar, single=True)) == 7
    with pytest.raises(
        ValueError,
        match="scalar returns one number for 5 tokens of 2 sequences; return one loss per",
    ):
        items(scalar)


def wrong_shape(logprobs_T: Tensor) -> Tensor:
    return logprobs_T[:-1]


def detached(logprobs_T: Tensor) -> Tensor:
    return -logprobs_T.detach()


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (wrong_shape, {}, r"wrong_shape returns shape \(4,\) for 5 tokens of 2 sequences"),
        (detached, {}, "detached returns a loss without a gradient"),
        (lambda logprobs_T: 3.0, {}, "returns float; return a tensor"),
        (
            wrong_shape,
            {"beta": 1},
            "wrong_shape has no option 'beta'; options are its keyword-only parameters",
        ),
    ],
)
def test_wrong_functions(function: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        items(function, **options)


def test_a_function_that_reads_no_model_output_is_refused() -> None:
    with pytest.raises(ValueError, match="read no model output"):
        objective(lambda rewards_B: rewards_B)


def test_a_function_gives_the_step_of_the_table_however_the_batch_is_cut() -> None:
    """DPO as a plain function: the same loss and metrics as the table's, on one micro-batch and on several."""

    def dpo(
        logprobs_B: Tensor,
        ref_logprobs_B: Tensor,
        chosen_P: Tensor,
        rejected_P: Tensor,
        *,
        beta: float,
    ) -> Tensor:
        margin_B = logprobs_B - ref_logprobs_B
        return -torch.nn.functional.logsigmoid(beta * (margin_B[chosen_P] - margin_B[rejected_P]))

    pairs = ascent.load_data("sort_digits:12", "pairs")
    found = []
    for tokens in (10_000, 90):
        policy = ascent.Policy("tiny:llama", learning_rate=1e-2, tokens_per_microbatch=tokens)
        batch = policy.pack(pairs)
        batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
        for _ in range(2):
            table, own = policy.evaluate(batch, "dpo", beta=0.5), policy.step(batch, dpo, beta=0.5)
            assert own["loss/total"] == table["loss/total"]
        found.append(own["loss/total"])
    assert found[0] == pytest.approx(found[1], abs=1e-5) and found[0] < 0.68
