"""Scalar heads: how they start, where they read, and that transformers loads what we save."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ascent.models.heads import (
    VALUE_HEAD_FILE,
    Normalization,
    StepFormat,
    init_head,
    load_value_head,
    new_value_head,
    save_head,
    score_layer,
)
from ascent.models.load import load
from ascent.models.tiny import create
from tests.models.packing import FAMILIES, batch_of

LENGTHS = (7, 3, 0, 11, 3)
NUMBERS = {"hidden": 32, "layers": 2, "initializer_range": 0.25}
WANT = frozenset({"scores_B", "values_T"})


def test_a_reward_models_head_starts_normal_with_the_stated_spread():
    first, same, other = (torch.nn.Linear(9999, 1, bias=False) for _ in range(3))
    for head, seed in ((first, 0), (same, 0), (other, 1)):
        init_head(head, seed=seed)
    # The spread of 9,999 draws lies within 4 standard errors (1 / sqrt(2 n) = 0.7%) of 1 / sqrt(10,000).
    assert float(first.weight.detach().std()) == pytest.approx(0.01, rel=0.03)
    assert torch.equal(same.weight, first.weight) and not torch.equal(other.weight, first.weight)


def test_a_value_heads_values_start_at_0(tmp_path):
    model = load(create(tmp_path, **NUMBERS), head="both")
    assert not model.outputs(batch_of(LENGTHS), frozenset({"values_T"}))["values_T"].any()
    assert model.notes == ("the value head is new: all values are 0",)


WITHOUT_A_CLASSIFIER = (
    "granite",
    "cohere2",
    "olmoe",
)  # in transformers: no reward model, no critic of its own weights


@pytest.mark.parametrize("family", WITHOUT_A_CLASSIFIER)
def test_a_family_without_a_classifier_is_refused_by_name(family, tmp_path):
    create(tmp_path, family=family, **NUMBERS)
    with pytest.raises(
        ValueError, match=f"is a {family}, for which transformers has no sequence classifier"
    ):
        load(tmp_path, head="scalar")


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family not in WITHOUT_A_CLASSIFIER]
)
def test_transformers_loads_what_we_save_and_gives_the_same_scores(family, tmp_path):
    create(tmp_path / "base", family=family, **NUMBERS, **FAMILIES[family])
    model = load(tmp_path / "base", head="scalar", seed=5)
    assert "the scalar head is new (initialized from seed 5)" in model.notes
    batch = batch_of(LENGTHS)
    ours_B = model.outputs(batch, WANT)["scores_B"].detach()
    model.save(tmp_path / "saved")
    stock = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "saved", attn_implementation="eager"
    ).eval()
    assert stock.config.num_labels == 1
    pieces = batch["tokens_T"].split(list(LENGTHS))
    theirs = [stock(piece[None]).logits[0, 0].detach() for piece in pieces if piece.numel()]
    torch.testing.assert_close(ours_B[[0, 1, 3, 4]], torch.stack(theirs), rtol=0, atol=1e-5)
    assert bool(ours_B[2].isnan())  # no token, no score
    padded = AutoTokenizer.from_pretrained(tmp_path / "saved").pad(
        {"input_ids": [p.tolist() for p in pieces if len(p)]}
    )
    together = stock(
        torch.tensor(padded["input_ids"]), attention_mask=torch.tensor(padded["attention_mask"])
    ).logits[:, 0]
    torch.testing.assert_close(ours_B[[0, 1, 3, 4]], together.detach(), rtol=0, atol=1e-5)
    again = load(tmp_path / "saved", head="scalar")
    assert not any("new" in note for note in again.notes)
    assert torch.equal(again.outputs(batch, WANT)["scores_B"].nan_to_num(), ours_B.nan_to_num())


def test_values_are_read_before_each_token(tmp_path):
    """The value at a token is the score of the text that ends just before it."""
    create(tmp_path, **NUMBERS)
    model = load(tmp_path, head="scalar")
    batch = batch_of((5, 3))
    values_T = model.outputs(batch, WANT)["values_T"].detach()
    for start, length in ((0, 5), (5, 3)):
        assert float(values_T[start]) == 0
        for end in range(1, length):
            cut = batch_of((end,)) | {"tokens_T": batch["tokens_T"][start : start + end]}
            score = model.outputs(cut, WANT)["scores_B"].detach()
            torch.testing.assert_close(values_T[start + end], score[0], rtol=0, atol=1e-5)


def test_the_gradient_of_a_score_ends_at_its_own_sequence(tmp_path):
    create(tmp_path, **NUMBERS)
    model = load(tmp_path, head="scalar")
    batch = batch_of((4, 0, 3))
    embeddings = model.module.get_input_embeddings().weight
    (grad,) = torch.autograd.grad(model.outputs(batch, WANT)["scores_B"][2], embeddings)
    touched = {int(token) for token in grad.abs().sum(1).nonzero()[:, 0]}
    assert touched == set(batch["tokens_T"][4:].tolist())


def test_a_critic_on_the_policys_trunk(tmp_path):
    create(tmp_path / "base", **NUMBERS)
    model = load(tmp_path / "base", head="both")
    init_head(model.value_head, seed=2)
    both = {"logprobs_T", "entropy_T", "scores_B", "values_T"}
    assert both < model.offers
    out = model.outputs(batch_of(LENGTHS), frozenset(both))
    (out["values_T"].sum() + out["logprobs_T"].sum()).backward()
    assert "value_head.weight" in {
        name for name, each in model.named_parameters() if each.grad is not None
    }
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved", head="both")
    assert torch.equal(again.outputs(batch_of(LENGTHS), model.offers)["values_T"], out["values_T"])
    assert again.notes == ()
    policy = load(tmp_path / "saved")
    assert torch.equal(
        policy.outputs(batch_of(LENGTHS), frozenset({"logprobs_T"}))["logprobs_T"],
        out["logprobs_T"],
    )


def test_a_value_head_of_another_model_is_refused(tmp_path):
    save_head(new_value_head(8), tmp_path / VALUE_HEAD_FILE)
    with pytest.raises(ValueError, match=r"shape \(1, 8\); the model needs \(1, 16\)"):
        load_value_head(tmp_path, 16, torch.float32)
    assert load_value_head(tmp_path / "elsewhere", 16, torch.float32) is None


def test_a_classifier_of_several_labels_is_refused(tmp_path):
    create(tmp_path / "base", **NUMBERS)
    AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=3
    ).save_pretrained(tmp_path / "three")
    AutoTokenizer.from_pretrained(tmp_path / "base").save_pretrained(tmp_path / "three")
    with pytest.raises(ValueError, match=r"another shape: score\.weight"):
        load(tmp_path / "three", head="scalar")
    with pytest.raises(ValueError, match="has no linear head `score`"):
        score_layer(nn.Linear(2, 2))


def test_what_demonstrations_score_is_subtracted_and_saved_with_the_model(tmp_path):
    model = load(create(tmp_path / "base", **NUMBERS), head="scalar")
    assert model.normalization is None
    model.normalization = Normalization(mean=1.5, std=2.0, records=10)
    assert model.normalization(torch.tensor([2.0, 1.5])).tolist() == [0.5, 0.0]
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved", head="scalar")
    assert again.normalization == (1.5, 2.0, 10)
    assert torch.equal(  # what the model itself computes is raw
        again.outputs(batch_of((3, 4)), WANT)["scores_B"],
        model.outputs(batch_of((3, 4)), WANT)["scores_B"],
    )
    again.normalization = None
    again.save(tmp_path / "cleared")
    assert "score_normalization" not in (tmp_path / "cleared/config.json").read_text()


def test_how_a_process_reward_model_reads_answers_is_saved_with_it(tmp_path):
    model = load(create(tmp_path / "base", **NUMBERS), head="scalar")
    assert model.step_format is None
    model.step_format = StepFormat("\n\n")
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved", head="scalar")
    assert again.step_format == ("\n\n", "separator")
    again.step_format = None
    again.save(tmp_path / "cleared")
    assert "process_reward_model" not in (tmp_path / "cleared/config.json").read_text()


@pytest.mark.parametrize(
    "said",
    [
        {"step_separator": "\n", "score_at": "next token"},
        {"step_separator": ""},
        {"step_separator": "", "score_at": "separator"},
        {"step_separator": 3, "score_at": "separator"},
    ],
)
def test_another_way_of_reading_steps_is_refused(tmp_path, said):
    model = load(create(tmp_path / "base", **NUMBERS), head="scalar")
    model.module.config.process_reward_model = said
    model.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"which is not supported.*train it with row prm"):
        _ = load(tmp_path / "saved", head="scalar").step_format
