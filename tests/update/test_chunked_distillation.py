"""Distillation piece by piece is distillation: the cells on whole matrices of logits give the same."""

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.losses.objective import file_terms
from ascent.models.chunked_logits import LIVE_TILES, ChunkedLogits
from ascent.models.head import Head
from ascent.update import microbatch
from ascent.update.chunked_distillation import chunked_distillation
from ascent.update.objective import objective_of

TRAINED = torch.tensor([False, True, True, False, True, True, True])


def two(vocabulary=9, theirs=9, at_once=2):
    rng = torch.Generator().manual_seed(0)
    student_ND, teacher_ND = (
        torch.randn(5, 4, generator=rng, dtype=torch.float64) for _ in range(2)
    )
    weight_VD = torch.randn(vocabulary, 4, generator=rng, dtype=torch.float64).requires_grad_()
    others_VD = torch.randn(theirs, 4, generator=rng, dtype=torch.float64)
    budget = at_once * LIVE_TILES * vocabulary * 8
    return ChunkedLogits(student_ND, Head(weight_VD), 1.0, budget), ChunkedLogits(
        teacher_ND, Head(others_VD)
    )


def matrix(of, vocabulary):
    logits_TV = torch.full((7, vocabulary), torch.nan, dtype=torch.float64)
    return logits_TV.index_copy(
        0, TRAINED.nonzero()[:, 0], (of.hidden_ND @ of.head.weight_VD.mT)[:, :vocabulary]
    )


@pytest.mark.parametrize("name", ["gkd", "kd"])
@pytest.mark.parametrize(("ours", "theirs"), [(9, 9), (9, 7), (7, 9)])
def test_pieces_give_what_whole_matrices_give(name, ours, theirs):
    student, teacher = two(ours, theirs)
    row, shared = TABLE[name], min(ours, theirs)
    weight_VD = student.head.weight_VD
    known = {"loss_mask_T": TRAINED, "logits_TV": student, "teacher_TV": teacher}
    plain = {
        "loss_mask_T": TRAINED,
        "logits_TV": matrix(student, shared),
        "teacher_TV": matrix(teacher, shared),
    }
    found = file_terms(known, loss=row.loss, evaluate=chunked_distillation)[row.loss.name]
    wanted = file_terms(plain, loss=row.loss)[row.loss.name]
    assert float(found.denominator) == float(wanted.denominator) == 5
    torch.testing.assert_close(found.numerator, wanted.numerator, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(each.numerator, weight_VD)[0] for each in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)
    for metric, tally in wanted.metrics.items():
        assert found.metrics[metric].value() == pytest.approx(tally.value(), abs=1e-12)


def test_the_learner_counts_without_a_model_and_asks_for_whole_distributions():
    objective, (_, teacher) = objective_of(TABLE["gkd"]), two()
    assert objective.want == {"logits_TV"}
    stand_in = torch.full((7, 1), -1.0)
    terms = objective.terms({"loss_mask_T": TRAINED, "logits_TV": stand_in, "teacher_TV": teacher})
    assert float(microbatch.denominators([terms])["gkd"]) == 5


def test_two_models_that_saw_other_tokens_are_refused():
    student, teacher = two()
    known = {
        "loss_mask_T": torch.ones(4, dtype=torch.bool),
        "logits_TV": student,
        "teacher_TV": teacher,
    }
    with pytest.raises(
        ValueError, match="5 distributions of the student and 5 of the teacher for 4 trained tokens"
    ):
        chunked_distillation(TABLE["gkd"].loss, known)
