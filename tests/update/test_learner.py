"""The learner: cutting changes nothing, resuming changes nothing, what is not finite is refused and counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.checkpoints.resume import newest, read_state
from ascent.checkpoints.save import save
from ascent.losses.loss import Loss
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.protocols import Learner
from ascent.update.learner import Diverged, LocalLearner, fingerprint
from ascent.update.objective import Objective, objective_of
from ascent.update.optim import Adam
from ascent.update.schedule import Schedule
from tests.update.toy import CUTS, Toy, batch_of, cut, with_companion

ROWS = ("sft", "dpo", "kto", "orpo", "reward_model", "grpo", "dapo")
# Rows whose step is coupled: sorted, ranked or counted as a whole, or remembering the steps before.
COUPLED = (
    "aot",
    "aot_unpaired",
    "bco",
    "kl_cov",
    "clip_cov",
    "high_entropy",
    "skywork_or1",
    "scale_rl",
    "real",
)


def learner_of(model: Toy, rate: float = 1e-2, **options: Any) -> LocalLearner:
    return LocalLearner(
        model, Schedule(rate, "cosine", warmup=2, total=50), adam=Adam(weight_decay=0.01), **options
    )


def trained(
    row: str, pieces: list[list[int]], steps: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Toy, list[Any]]:
    """A toy policy after some steps on batches cut like this, and what each step reported."""
    model = Toy(dtype=dtype)
    learner, stats = learner_of(model), []
    for step in range(steps):
        batch = with_companion(batch_of(100 * seed + step, dtype=dtype), step)
        stats.append(learner.step(cut(batch, pieces), objective_of(TABLE[row])))
    return model, stats


def largest_difference(one: Toy, other: Toy) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("row", ROWS + COUPLED)
def test_how_a_step_is_cut_changes_nothing_in_float64(row: str) -> None:
    whole, stats = trained(row, CUTS[0], 6, torch.float64)
    assert largest_difference(whole, Toy(dtype=torch.float64)) > 1e-3  # it did train
    for pieces in CUTS[1:]:
        again, others = trained(row, pieces, 6, torch.float64)
        assert largest_difference(whole, again) < 1e-12
        for expected, found in zip(stats, others, strict=True):
            assert expected.keys() == found.keys()
            for name in expected:
                assert found[name].value() == pytest.approx(
                    expected[name].value(), abs=1e-11, nan_ok=True
                ), name


@pytest.mark.parametrize("row", ROWS)
def test_in_float32_a_cut_moves_weights_by_rounding_only(row: str) -> None:
    """The figure: at most 2.4e-7 was measured after 6 steps, which move weights by 5e-2; the bound is 2e-6."""
    whole, _ = trained(row, CUTS[0], 6, torch.float32)
    for pieces in CUTS[1:]:
        assert largest_difference(whole, trained(row, pieces, 6, torch.float32)[0]) < 2e-6


def test_averaging_the_means_of_pieces_would_be_seen() -> None:
    """The same check on a loss that divides per piece fails by far: the tests above can fail."""

    class MeanOfMeans(Objective):
        def terms(self, batch: Any) -> dict[str, Loss]:
            loss = -(batch["logprobs_T"] * batch["loss_mask_T"]).sum() / batch["loss_mask_T"].sum()
            return {"nll": Loss(loss, torch.ones_like(loss), {})}

    wrong = MeanOfMeans(TABLE["sft"], {})
    models = []
    for pieces in (CUTS[0], CUTS[2]):
        models.append(Toy(dtype=torch.float64))
        learner_of(models[-1]).step(cut(batch_of(0, dtype=torch.float64), pieces), wrong)
    assert largest_difference(*models) > 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", ["sft", "kto", "bco", "skywork_or1"])
def test_ten_steps_are_five_saved_loaded_and_five_more(row: str, dtype: torch.dtype) -> None:
    def steps(learner: LocalLearner, numbers: range) -> None:
        for step in numbers:
            learner.step(
                cut(with_companion(batch_of(step), step), CUTS[1]), objective_of(TABLE[row])
            )

    straight = Toy(dtype=dtype)
    steps(learner_of(straight), range(10))
    first = Toy(dtype=dtype)
    learner = learner_of(first)
    steps(learner, range(5))
    weights, state = (
        {name: each.clone() for name, each in first.state_dict().items()},
        learner.state(),
    )
    steps(learner, range(5, 7))  # a saved state does not change afterwards

    second = Toy(seed=7, dtype=dtype)
    second.load_state_dict(weights)
    resumed = learner_of(second)
    resumed.load_state(state)
    assert resumed.steps == 5
    steps(resumed, range(5, 10))
    for name, weight in straight.named_parameters():
        assert torch.equal(weight, dict(second.named_parameters())[name]), name
    assert largest_difference(straight, Toy(dtype=dtype)) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_language_model_continues_from_its_checkpoint_with_the_same_bits(
    tmp_path: Path, dtype: str
) -> None:
    """The whole way over the disk: model folder, optimizer file, JSON; packed batches of a real architecture."""

    def steps(learner: LocalLearner, numbers: range) -> None:
        for step in numbers:
            batch = batch_of(step)
            starts_T = batch["segments"].broadcast(batch["segments"].offsets[:-1])
            batch["positions_T"] = torch.arange(batch["segments"].total) - starts_T
            learner.step(cut(batch, CUTS[1]), objective_of(TABLE["dpo"]))

    def fresh(folder: Path) -> tuple[LanguageModel, LocalLearner]:
        model = load(folder, dtype=dtype, gradient_checkpointing=True)
        return model, LocalLearner(model, Schedule(1e-2, "linear", total=20))

    start = create(tmp_path / "start", family="qwen3", seed=0, hidden=16, heads=2, intermediate=32)
    straight, learner = fresh(start)
    steps(learner, range(10))
    model, learner = fresh(start)
    steps(learner, range(5))
    save(tmp_path / "checkpoints", 5, {"policy": learner.state()}, {"model": model.save})
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    resumed, learner = fresh(found.folder / "model")
    learner.load_state(read_state(found.folder)["policy"])
    steps(learner, range(5, 10))
    expected = fingerprint(dict(straight.named_parameters()))
    assert (
        fingerprint(dict(resumed.named_parameters()))
        == expected
        != fingerprint(dict(model.named_parameters()))
    )
    pairs = zip(straight.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_state_is_not_put_on_other_weights() -> None:
    model = Toy()
    learner = learner_of(model)
    learner.step([batch_of(0)], objective_of(TABLE["sft"]))
    with pytest.raises(
        ValueError, match=r"weights are not those this state was saved with, first 'embed.weight'"
    ):
        learner_of(Toy(seed=5)).load_state(learner.state())
    assert fingerprint(dict(Toy(seed=5).named_parameters())) == fingerprint(
        dict(Toy(seed=5).named_parameters())
    )


class Poisoned(Toy):
    """Gives a loss whose gradient is NaN while `ill`."""

    ill = False

    def outputs(
        self, batch: dict[str, Any], want: frozenset[str], temperature: float
    ) -> dict[str, torch.Tensor]:
        made = super().outputs(batch, want, temperature)
        return {name: value * math.nan if self.ill else value for name, value in made.items()}


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    model = Poisoned()
    learner = learner_of(model)
    sft = objective_of(TABLE["sft"])
    learner.step([batch_of(0)], sft)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    moments = learner.optimizer.state()
    model.ill = True
    stats = learner.step([batch_of(1)], sft)
    assert stats["optim/skipped"].value() == 1.0
    assert math.isnan(stats["optim/grad_norm"].value())
    assert math.isnan(stats["loss/total"].value())
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert all(
        torch.equal(moments[name], tensor) for name, tensor in learner.optimizer.state().items()
    )
    model.ill = False
    stats = learner.step([batch_of(2)], sft)
    assert (learner.skipped, learner.skipped_in_a_row, learner.steps) == (1, 0, 3)
    assert stats["optim/skipped"].value() == 0.0
    assert math.isfinite(stats["optim/grad_norm"].value())
    assert not torch.equal(before["head.weight"], model.head.weight)
    assert (
        float(learner.optimizer.state()["count.head.weight"]) == 2.0
    )  # Adam's bias correction counts real updates


@pytest.mark.parametrize("row", ["bco", "skywork_or1"])
def test_a_step_that_is_not_finite_is_not_remembered(row: str) -> None:
    """What is carried from step to step stays as the last good one left it, and the run goes on as if without it."""
    model, healthy = Poisoned(), Poisoned()
    learner, other = learner_of(model), learner_of(healthy)
    objective = objective_of(TABLE[row])
    for each in (learner, other):
        each.step([batch_of(0)], objective)
    before = {name: value.clone() for name, value in learner.persistent.items()}
    model.ill = True
    assert learner.step([batch_of(1)], objective)["optim/skipped"].value() == 1.0
    assert before and all(
        torch.equal(before[name], value) for name, value in learner.persistent.items()
    )
    model.ill = False
    for each in (learner, other):
        each.step([batch_of(2)], objective)
    assert all(
        torch.equal(other.persistent[name], value) for name, value in learner.persistent.items()
    )
    assert all(not torch.equal(before[name], value) for name, value in learner.persistent.items())


def test_too_many_such_steps_in_a_row_end_the_run_and_a_good_one_starts_the_count_again() -> None:
    model = Poisoned()
    learner = learner_of(model, max_skipped=3)
    sft = objective_of(TABLE["sft"])
    for ill in (True, True, False, True, True):
        model.ill = ill
        learner.step([batch_of(0)], sft)
    state = learner.state()
    assert (state["skipped"], state["skipped_in_a_row"]) == (4, 2)
    resumed = learner_of(model, max_skipped=3)
    resumed.load_state(state)  # the count survives a restart
    with pytest.raises(
        Diverged,
        match=r"not finite \(nan\) in 3 optimizer steps in a row, the last being step 6; loss/nll=nan, loss/total=nan; "
        r"6 of 8 weights have a non-finite gradient, first \['embed.weight'.*a lower update.learning_rate",
    ):
        resumed.step([batch_of(0)], sft)


def test_weights_that_are_no_numbers_are_not_saved() -> None:
    """A learning rate of 1e308 ends in one step what no later step can mend."""
    learner, batch = learner_of(Toy()), batch_of(0)
    learner.step([batch], objective_of(TABLE["grpo"]))
    assert learner.state()["steps"] == 1
    with torch.no_grad():
        next(iter(learner.optimizer.masters.values())).view(-1)[0] = math.inf
    with pytest.raises(
        Diverged,
        match=r"weights are not finite, first .*nothing was saved.*lower update.learning_rate",
    ):
        learner.state()


def test_what_a_step_reports() -> None:
    batch = batch_of(0)
    learner = learner_of(Toy())
    stats = learner.step(cut(batch, CUTS[2]), objective_of(TABLE["sft"]))
    assert stats["tokens/run"].value() == batch["segments"].total
    assert stats["tokens/trained"].value() == int(batch["loss_mask_T"].sum())
    assert stats["optim/lr"].value() == pytest.approx(1e-2 / 3)
    assert stats["loss/total"].value() == pytest.approx(stats["loss/nll"].value())
    assert stats["optim/grad_norm"].value() > 0
    orpo = learner.step([batch], objective_of(TABLE["orpo"]))
    weighted = 0.1 * orpo["loss/odds_ratio"].value() + orpo["loss/chosen_nll"].value()
    assert orpo["loss/total"].value() == pytest.approx(weighted)
    kto = learner.step([with_companion(batch, 0)], objective_of(TABLE["kto"]))
    assert math.isfinite(kto["statistic/mismatched_score"].value())


def test_statistics_come_before_training_and_only_the_objectives_outputs_are_asked_for() -> None:
    model = Toy()
    learner_of(model).step(cut(with_companion(batch_of(0), 1), CUTS[1]), objective_of(TABLE["kto"]))
    logprobs = frozenset({"logprobs_T"})
    assert (
        model.calls == [(logprobs, False)] * 2 + [(logprobs, True)] * 2
    )  # denominators took no forward
    model.calls.clear()
    learner_of(model).step([batch_of(0)], objective_of(TABLE["reward_model"]))
    assert model.calls == [(frozenset({"scores_B"}), True)]


def test_a_missing_companion_is_named() -> None:
    with pytest.raises(
        ValueError, match="mismatched_score needs a second packed batch 'mismatched'"
    ):
        learner_of(Toy()).step([batch_of(0)], objective_of(TABLE["kto"]))


def test_a_denominator_that_listens_to_the_model_is_caught() -> None:
    class CountsLikelyTokens(Objective):
        def terms(self, batch: Any) -> dict[str, Loss]:
            return {"odd": Loss(batch["logprobs_T"].sum(), (batch["logprobs_T"] < -2).sum(), {})}

    with pytest.raises(AssertionError, match="term odd: denominator"):
        learner_of(Toy()).step([batch_of(0)], CountsLikelyTokens(TABLE["sft"], {}))


def test_dropout_is_off_in_training_and_evaluation() -> None:
    model, batch = Toy(), batch_of(0)
    learner = learner_of(model)
    assert model.drop.p == 0.0
    model.train()
    want = frozenset({"logprobs_T"})
    assert torch.equal(
        model.outputs(batch, want, 1.0)["logprobs_T"], model.outputs(batch, want, 1.0)["logprobs_T"]
    )
    assert torch.equal(learner.logprobs(batch), model.outputs(batch, want, 1.0)["logprobs_T"])


def test_logprobs_carry_no_gradient_and_follow_the_temperature() -> None:
    model, batch = Toy(), batch_of(0)
    cold, plain = (
        learner_of(model, temperature=0.5).logprobs(batch),
        learner_of(model).logprobs(batch),
    )
    assert not plain.requires_grad
    assert not torch.allclose(cold, plain)
    assert torch.equal(
        cold, model.outputs(batch, frozenset({"logprobs_T"}), 0.5)["logprobs_T"].detach()
    )


def test_evaluating_changes_nothing_and_reports_the_same_loss() -> None:
    model, batch = Toy(), with_companion(batch_of(0), 3)
    learner = learner_of(model)
    kto = objective_of(TABLE["kto"])
    before = fingerprint(learner.weights())
    seen = learner.evaluate(cut(batch, CUTS[3]), kto)
    assert fingerprint(learner.weights()) == before
    assert learner.steps == 0
    stats = learner.step([batch], kto)
    assert {name for name in stats if name not in seen} == {
        "optim/grad_norm",
        "optim/lr",
        "optim/skipped",
    }
    for name, tally in seen.items():
        assert tally.value() == pytest.approx(stats[name].value(), rel=1e-5, abs=1e-6), name


def test_weights_are_live_and_two_learners_do_not_touch_each_other() -> None:
    policy, critic = Toy(), Toy(seed=1)
    first, second = learner_of(policy), learner_of(critic)
    live = first.weights()
    before = live["head.weight"].clone(), fingerprint(second.weights())
    first.step([batch_of(0)], objective_of(TABLE["sft"]))
    assert not torch.equal(live["head.weight"], before[0])
    assert live["head.weight"].data_ptr() == policy.head.weight.data_ptr()
    assert fingerprint(second.weights()) == before[1]
    fits: Learner = first
    fits.close()
    assert policy.head.weight.grad is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0 would stop training"),
        ({"temperature": 0.0}, "temperature=0.0 has no log-probabilities"),
        ({"max_skipped": 0}, "max_skipped=0 steps"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        learner_of(Toy(), **options)
    with pytest.raises(ValueError, match="0 micro-batches"):
        learner_of(Toy()).step([], objective_of(TABLE["sft"]))


def test_pretraining_text_adds_its_own_gradient_at_temperature_1_however_it_is_cut() -> None:
    """The gradient of the mixture is that of the rollouts plus 27.8 times that of the text's mean NLL."""
    row = objective_of(TABLE["instructgpt"], critic=False)
    rollouts = batch_of(0, dtype=torch.float64)
    text = {name: value for name, value in batch_of(1, dtype=torch.float64).items() if name in TEXT}
    halves = tuple(cut(text, [[0, 1], [2, 3, 4, 5]]))
    gradients = []
    for pieces, texts in (([[0, 1, 2, 3, 4, 5]], (text,)), ([[0, 1, 2], [3, 4, 5]], halves)):
        learner, model = _watched()
        batches = cut(rollouts, pieces)
        batches[0]["pretraining"] = texts
        stats = learner.step(batches, row)
        gradients.append(model.seen)
        own = torch.cat(
            [(model.seen[name] - each).flatten() for name, each in _gradient(rollouts, row).items()]
        )
        assert stats["optim/grad_norm_pretraining"].value() == pytest.approx(
            float(own.norm()), rel=1e-9
        )
        assert stats["loss/pretraining_nll"].value() == pytest.approx(_nll(text), rel=1e-9)
    plain = Toy(dtype=torch.float64)
    (27.8 * _mean_nll(plain, text)).backward()
    rollouts_alone = _gradient(rollouts, row)
    for name, weight in plain.named_parameters():
        expected = rollouts_alone[name] + (0 if weight.grad is None else weight.grad)
        for found in gradients:
            assert torch.allclose(found[name], expected, atol=1e-11), name


TEXT = ("segments", "groups", "tokens_T", "loss_mask_T", "chosen_P", "rejected_P")


class Watched(Toy):
    """Remembers the gradient that its optimizer was given."""

    seen: dict[str, torch.Tensor]


def _watched() -> tuple[LocalLearner, Watched]:
    model = Watched(dtype=torch.float64)
    learner = LocalLearner(model, Schedule(1e-2), temperature=0.7)
    step = learner.optimizer.step

    def watch(*given: Any, **named: Any) -> None:
        model.seen = {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            for name, weight in learner.optimizer.weights.items()
        }
        step(*given, **named)

    learner.optimizer.step = watch  # type: ignore[method-assign]
    return learner, model


def _gradient(batch: dict[str, Any], objective: Objective) -> dict[str, torch.Tensor]:
    learner, model = _watched()
    learner.step([batch], objective)
    return model.seen


def _mean_nll(model: Toy, text: dict[str, Any]) -> torch.Tensor:
    logprobs_T = model.eval().outputs(text, frozenset({"logprobs_T"}), 1.0)["logprobs_T"]
    return -(logprobs_T * text["loss_mask_T"]).sum() / text["loss_mask_T"].sum()


def _nll(text: dict[str, Any]) -> float:
    with torch.no_grad():
        return float(_mean_nll(Toy(dtype=torch.float64), text))
