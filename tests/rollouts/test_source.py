"""The source of rollouts with a real tiny policy: reproducible, resumable, on-policy, and bounded in its patience."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.algorithms import TABLE, Row
from ascent.cells import cell
from ascent.checkpoints.resume import read_state
from ascent.checkpoints.save import save
from ascent.config.schema import Cells
from ascent.engines.native.engine import NativeEngine
from ascent.maths.metrics import Mean
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.plan.overrides import with_cells
from ascent.records import Message, Prompt, Rollout, StepReward
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.evaluate import Evaluation
from ascent.rollouts.generate import RenderedPrompt, SamplingParams
from ascent.rollouts.kl_control import KLController
from ascent.rollouts.source import MAX_STEPS_WITHOUT_SIGNAL, RolloutSource
from ascent.update.learner import LocalLearner
from ascent.update.objective import objective_of
from ascent.update.schedule import Schedule

PLAN = RolloutConfig(prompts_per_step=3, group_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


def asked(count: int = 8) -> list[RenderedPrompt]:
    return [
        RenderedPrompt(Prompt(f"p{n}", (Message("user", "?"),)), (5 + n, 6, 7))
        for n in range(count)
    ]


def even(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """1 where the first sampled token is even: about half of an untrained policy's."""
    return [
        replace(each, reward=float(each.turns[0].completion.tokens[0] % 2 == 0))
        for each in rollouts
    ]


def equal(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [replace(each, reward=0.0) for each in rollouts]


def make(
    folder: Path, row: str | Row = "rlvr", plan: RolloutConfig = PLAN, score: Any = even
) -> tuple[RolloutSource, LocalLearner]:
    model: LanguageModel = load(folder)
    learner = LocalLearner(model, Schedule(1e-2, "constant", 0, 100))
    engine = NativeEngine(model, {1}, max_num_seqs=16, max_model_len=64)
    frozen = LocalLearner(load(folder), Schedule(1e-2, "constant", 0, 100))
    models = Models(learner, frozen, None, trust_sampler_logprobs=True)
    settings = SamplingParams(max_new_tokens=6, seed=3)
    text = lambda tokens: " ".join(map(str, tokens))  # noqa: E731
    row = TABLE[row] if isinstance(row, str) else row
    return RolloutSource(asked(), engine, score, models, row, plan, settings, decode=text), learner


def train(
    source: RolloutSource, learner: LocalLearner, steps: range
) -> list[list[tuple[int, ...]]]:
    """What the loop does; returns the tokens of every step's rollouts."""
    objective, seen = objective_of(source.row), []
    for step in steps:
        batches = source.next(step)
        while batches:
            batches = source.more(learner.step(batches, objective))
        source.refresh(learner.weights())
        seen.append([each.turns[0].completion.tokens for each in source.rollouts])
    return seen


def weights(learner: LocalLearner) -> dict[str, list[float]]:
    return {name: weight.flatten().tolist() for name, weight in learner.weights().items()}


def assert_goes_on(
    whole: tuple[RolloutSource, LocalLearner], other: tuple[RolloutSource, LocalLearner]
) -> None:
    """`other`, put where `whole` stands after two steps, takes the next two to the same bits."""
    (whole_source, whole_learner), (source, learner) = whole, other
    train(*whole, range(1, 3))
    state, held = (whole_source.state(), whole_learner.state()), weights(whole_learner)
    rest = train(*whole, range(3, 5))
    with torch.no_grad():
        for name, weight in learner.model.named_parameters():
            weight.copy_(torch.tensor(held[name]).view(weight.shape))
    learner.load_state(state[1])
    source.load_state(state[0])
    assert train(*other, range(3, 5)) == rest
    assert weights(learner) == weights(whole_learner) != held


def test_the_same_seed_gives_the_same_samples_and_the_same_weights(folder: Path) -> None:
    one, two = make(folder), make(folder)
    assert train(*one, range(1, 4)) == train(*two, range(1, 4))
    assert weights(one[1]) == weights(two[1])


@pytest.mark.parametrize(
    "row", ["rlvr", "grpo", "dapo", "rloo", "remax", "reinforce", "gspo", "cispo"]
)
def test_every_kind_of_row_takes_a_step_with_a_ratio_of_one(folder: Path, row: str) -> None:
    source, learner = make(folder, row)
    before = weights(learner)
    train(source, learner, range(1, 3))  # `more` raises where the first ratio is not 1
    assert weights(learner) != before


def test_a_restored_source_goes_on_to_the_same_bits(folder: Path) -> None:
    assert_goes_on(*(make(folder, plan=replace(PLAN, epochs=2, minibatches=2)) for _ in range(2)))


def test_passes_and_minibatches_cover_every_rollout_once_a_pass(folder: Path) -> None:
    source, _ = make(folder, "grpo", replace(PLAN, epochs=2, minibatches=3))
    batches, seen = source.next(1), []
    while batches:
        seen.append(sum(batch["segments"].count for batch in batches))
        batches = source.more({})
    assert seen == [4, 4, 4, 4, 4, 4]
    assert source.report()["optim/updates"].value() == 6


@pytest.mark.parametrize(("row", "whole"), [("real", True), ("grpo", False)])
def test_groups_that_the_loss_compares_stay_whole_in_minibatches(
    folder: Path, row: str, whole: bool
) -> None:
    """Three groups in two minibatches of one and two; micro-batches, of 20 tokens at most, may cut through them."""
    source, learner = make(
        folder, row, replace(PLAN, epochs=2, minibatches=2, tokens_per_microbatch=20), score=in_turn
    )
    batches, seen = source.next(1), []
    while batches:
        seen.append(
            torch.cat([batch["groups"].uids_B for batch in batches]).bincount(minlength=3).tolist()
        )
        split = len(batches) > sum(map(bool, seen[-1]))
        batches = source.more(learner.step(batches, objective_of(source.row)))
    assert [sum(both) for both in zip(*seen[:2], strict=True)] == [4, 4, 4]
    assert all(count in (0, 4) for each in seen for count in each) == whole
    assert split or not whole


def in_turn(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Every group has both kinds of answers."""
    return [replace(each, reward=float(place % 2)) for place, each in enumerate(rollouts)]


def test_the_token_budget_changes_no_bit_of_the_samples_and_only_rounding_of_the_weights(
    folder: Path,
) -> None:
    one, two = make(folder), make(folder, plan=replace(PLAN, tokens_per_microbatch=20))
    assert train(*one, range(1, 2)) == train(*two, range(1, 2))
    for name, weight in one[1].weights().items():
        assert torch.allclose(weight, two[1].weights()[name], atol=1e-4)


def test_kl_to_the_sampling_policy_ends_the_passes(folder: Path) -> None:
    source, _ = make(folder, "grpo", replace(PLAN, epochs=4, target_kl=0.01))
    assert source.next(1)
    one = torch.ones(())
    assert source.more({"policy/approx_kl": Mean(0.005 * one, one)})
    assert source.more({"policy/approx_kl": Mean(0.02 * one, one)}) == []


def test_a_ratio_that_is_not_one_is_a_bug_and_said(folder: Path) -> None:
    source, _ = make(folder)
    source.next(1)
    one = torch.ones(())
    with pytest.raises(RuntimeError, match=r"off by 0\.2"):
        source.more({"policy/ratio_max": Mean(1.2 * one, one), "policy/ratio_min": Mean(one, one)})


@pytest.mark.parametrize(
    ("row", "half", "ratio", "kl", "wrong"),
    [
        ("grpo", False, 1.2, 0.0, "ratio"),
        ("grpo_v32", False, 1.2, 0.0, "ratio"),
        ("grpo", False, 1.0009, 0.0, None),
        ("grpo", True, 1.2, 1e-4, None),  # a single token's ratio says little in half precision
        ("grpo", True, 1.0, 3e-3, "KL"),
    ],
)
def test_so_it_is_where_log_probs_are_computed_again(
    folder: Path, row: str, half: bool, ratio: float, kl: float, wrong: str | None
) -> None:
    source, _ = make(folder, row)
    source.models = replace(source.models, trust_sampler_logprobs=False, half_precision=half)
    source.next(1)
    one = torch.ones(())
    numbers = {"policy/ratio_max": ratio, "policy/ratio_min": 1.0, "policy/approx_kl": kl}
    stats = {name: Mean(number * one, one) for name, number in numbers.items()}
    said = f"{wrong} to itself .* computed after sampling"
    with pytest.raises(RuntimeError, match=said) if wrong else contextlib.nullcontext():
        source.more(stats)


@pytest.mark.parametrize(
    ("ratio", "wrong"),
    [(1.0, False), (1.0 + 2**-23, True), (1.0 - 2**-24, True), (math.inf, True), (math.nan, False)],
)
def test_in_exact_arithmetic_the_first_ratio_is_one_to_the_last_bit(
    folder: Path, ratio: float, wrong: bool
) -> None:
    """NaN is that of no tokens."""
    source, _ = make(folder, "grpo")
    source.models = replace(source.models, exact=True, half_precision=True)
    source.next(1)
    one = torch.ones(())
    numbers = {"policy/ratio_max": ratio, "policy/ratio_min": 1.0, "policy/approx_kl": 0.0}
    with (
        pytest.raises(RuntimeError, match="ratio to itself") if wrong else contextlib.nullcontext()
    ):
        source.more({name: Mean(number * one, one) for name, number in numbers.items()})


def test_a_ratio_to_the_sampler_need_not_be_one(folder: Path) -> None:
    source, _ = make(folder, "grpo")
    source.row = with_cells(
        source.row, Cells.model_validate({"rollout_correction": {"use": "bypass"}})
    )
    source.next(1)
    one = torch.ones(())
    source.more({"policy/ratio_max": Mean(1.2 * one, one), "policy/ratio_min": Mean(one, one)})


def test_no_signal_trains_nothing_and_stops_the_run_in_the_end(folder: Path) -> None:
    source, _ = make(folder, score=equal)
    for step in range(1, MAX_STEPS_WITHOUT_SIGNAL):
        assert source.next(step) == []
        assert source.report()["reward/zero_std_frac"].value() == 1
    with pytest.raises(ValueError, match="nothing to learn from"):
        source.next(MAX_STEPS_WITHOUT_SIGNAL)


def test_a_policy_that_is_always_right_has_nothing_left_to_learn_and_no_fault(folder: Path) -> None:
    source, _ = make(
        folder, score=lambda rollouts: [replace(each, reward=1.0) for each in rollouts]
    )
    for step in range(1, MAX_STEPS_WITHOUT_SIGNAL + 3):
        assert source.next(step) == []


def test_refilling_replaces_groups_without_signal(folder: Path) -> None:
    def only_p0(rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [
            r if r.prompt.id.endswith("/p0") else replace(r, reward=1.0) for r in even(rollouts)
        ]

    source, _ = make(folder, "dapo", replace(PLAN, dynamic_sampling_tries=5), score=only_p0)
    batches = source.next(1)
    assert (
        source.report()["sampler/dynamic_sampling_tries"].value() == 5
    )  # one prompt of eight never fills three groups
    kept = sum(batch["segments"].count for batch in batches)
    assert 0 < kept <= 12 and kept % 4 == 0


FINISHED = {"filter": {"not_truncated": {}}}


def cut(rollout: Rollout, truncated: bool = True) -> Rollout:
    """The same rollout, ended by the token limit or by itself."""
    turn = rollout.turns[0]
    completion = replace(turn.completion, stop="length" if truncated else "eos")
    return replace(rollout, turns=(replace(turn, completion=completion),))


def test_answers_that_are_all_filtered_out_are_no_signal(folder: Path) -> None:
    """After a step that trained, momentum would move the weights in every step with an update."""
    calls: list[int] = []

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        calls.append(len(calls))
        return [cut(each, truncated=len(calls) > 1) for each in even(rollouts)]

    source, learner = make(
        folder, with_cells(TABLE["rlvr"], Cells.model_validate(FINISHED)), score=score
    )
    start = weights(learner)
    train(source, learner, range(1, 2))
    trained = weights(learner)
    assert trained != start
    with pytest.raises(ValueError, match=r"nothing to learn from; .* 100% were truncated"):
        train(source, learner, range(2, MAX_STEPS_WITHOUT_SIGNAL + 2))
    assert weights(learner) == trained and source.state()["last_update"][0] == 1
    assert source.report()["optim/updates"].value() == 0


@pytest.mark.parametrize("masked", ["truncated", "unscored"])
def test_a_minibatch_without_a_trained_token_is_no_update(folder: Path, masked: str) -> None:
    """Every second answer is masked, and each of 12 minibatches has one answer."""

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = [cut(each, truncated=False) for each in even(rollouts)]
        found[::2] = [
            cut(each) if masked == "truncated" else replace(each, reward=None)
            for each in found[::2]
        ]
        return found

    row = with_cells(TABLE["grpo"], Cells.model_validate(FINISHED))
    source, learner = make(folder, row, replace(PLAN, minibatches=12), score=score)
    train(source, learner, range(1, 2))
    assert source.report()["optim/updates"].value() == learner.steps == 6


def test_a_filter_that_reads_the_whole_step_decides_once(folder: Path) -> None:
    """Half of the answers are above the median; the group of the lowest loses all of its own. Without that group the
    median would be higher."""
    kept: list[int] = []

    def best_half(rewards_B: Tensor) -> Tensor:
        keep_B = rewards_B >= rewards_B.median()
        kept.append(int(keep_B.sum()))
        return keep_B

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [replace(each, reward=float(index)) for index, each in enumerate(rollouts)]

    source, _ = make(folder, replace(TABLE["grpo"], filter=(cell(best_half),)), score=score)
    batches = source.next(1)
    trained = sum(int((batch["segments"].sum(batch["loss_mask_T"]) > 0).sum()) for batch in batches)
    assert kept == [7] and trained == 7 and sum(batch["segments"].count for batch in batches) == 12


def test_refilling_replaces_groups_of_which_filters_leave_nothing(folder: Path) -> None:
    """Of the first draw's three groups one is unscored and one truncated; a second and a third draw fill the step."""
    draws: list[int] = []

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = [cut(each, truncated=False) for each in in_turn(rollouts)]
        found[:4] = [replace(each, reward=None) for each in found[:4]]
        draws.append(len(draws))
        return [*found[:4], *map(cut, found[4:8]), *found[8:]]

    row = with_cells(
        TABLE["dapo"],
        Cells.model_validate({"filter": {"nonzero_variance": {}, **FINISHED["filter"]}}),
    )
    source, _ = make(folder, row, replace(PLAN, dynamic_sampling_tries=5), score=score)
    batches = source.next(1)
    assert len(draws) == 3
    assert sum(batch["segments"].count for batch in batches) == 12
    assert all(bool((batch["segments"].sum(batch["loss_mask_T"]) > 0).all()) for batch in batches)


def test_a_greedy_baseline_is_under_the_rules_of_the_answers_that_it_is_for(folder: Path) -> None:
    """All answers are truncated and earn 1, the greedy ones too: -1 less -1."""
    row = with_cells(
        TABLE["remax"],
        Cells.model_validate({"reward_shaping": {"eos_replace": {}, "kl_penalty": False}}),
    )
    source, _ = make(
        folder, row, score=lambda rollouts: [cut(replace(each, reward=1.0)) for each in rollouts]
    )
    batches = source.next(1)
    assert all(
        (batch["greedy_rewards_B"] == -1).all() and not batch["advantages_T"].any()
        for batch in batches
    )
    assert source.report()["reward/mean"].value() == 1


def in_parts(
    rollouts: Sequence[Rollout], *, fails: bool = False, steps: bool = False
) -> list[Rollout]:
    """`even` as a reward of three parts, of which one is only shown and one counts half; where it fails, for all."""
    rollouts = list(rollouts)  # they are still arriving
    if fails:
        return [
            replace(each, reward=None, parts={"check": None}, failures={"check": "timeout"})
            for each in rollouts
        ]
    parts = [
        {
            "check/correct": each.reward,
            "check/form": float(len(each.turns[0].completion.tokens) % 2),
            "check/seen": n,
        }
        for n, each in enumerate(even(rollouts))
    ]
    given = {"weights": {"check/correct": 1.0, "check/form": 0.5}}
    given |= {"steps": (StepReward(0, 1.0),)} if steps else {}
    pairs = zip(rollouts, parts, strict=True)
    return [replace(each, reward=own["check/correct"], parts=own, **given) for each, own in pairs]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("row", ["dapo", "rlvr"])
def test_refilling_where_a_reward_failed_in_one_draw_alone(
    folder: Path, row: str, which: int
) -> None:
    """One of two draws has all the parts, and steps that nobody asked for; the other has neither."""
    draws: list[int] = []

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        draws.append(len(draws))
        rollouts = list(rollouts)
        found = in_parts(rollouts, steps=draws[-1] % 2 == which)
        half = (
            len(found) // 2
        )  # the first two groups or so: something is left of every draw, and something missing
        return [*in_parts(rollouts[:half], fails=draws[-1] % 2 != which), *found[half:]]

    source, learner = make(folder, row, replace(PLAN, dynamic_sampling_tries=3), score=score)
    train(source, learner, range(1, 3))
    assert len(draws) > 2
    assert (
        source.report()["reward/check/form"].value() <= 1 and "reward/check" not in source.report()
    )


def test_parts_count_as_their_rewards_do(folder: Path) -> None:
    source, _ = make(folder, "gdpo", score=in_parts)
    batches = source.next(1)
    assert all(
        batch["reward_components_BK"].shape[1] == 2 for batch in batches
    )  # not the one that is only shown
    assert all((batch["component_weights_BK"] == torch.tensor([1, 0.5])).all() for batch in batches)


def test_a_part_keeps_its_place_while_its_reward_fails(folder: Path) -> None:
    failing = [False, True]
    source, _ = make(
        folder,
        "gdpo",
        replace(PLAN, max_staleness=1),
        score=lambda r: in_parts(r, fails=failing.pop(0)),
    )
    failing += [False] * 8
    for step in (1, 2, 3):  # the second draw scored nothing
        assert all(batch["reward_components_BK"].shape[1] == 2 for batch in source.next(step))
        source.refresh({})


def test_the_same_prompt_gets_other_noise_in_the_next_step(folder: Path) -> None:
    source, learner = make(folder, plan=replace(PLAN, prompts_per_step=8), score=equal)
    first, second = train(source, learner, range(1, 3))
    assert sorted(first) != sorted(second)  # the policy has not moved


def test_steps_follow_each_other(folder: Path) -> None:
    with pytest.raises(ValueError, match="step 3 after step 0"):
        make(folder)[0].next(3)


def test_evaluation_is_greedy_and_repeatable(folder: Path) -> None:
    source, _ = make(folder)
    judge = Evaluation(asked(), source.sampler, even, source.params, source.decode)
    assert judge(1) == judge(2)
    assert judge(1)["eval/reward/mean"] == sum(each.reward or 0 for each in judge.rollouts) / 8


def lagging(folder: Path, staleness: int) -> tuple[RolloutSource, LocalLearner]:
    return make(folder, "grpo", replace(PLAN, max_staleness=staleness))


def test_with_staleness_a_step_trains_on_what_an_older_policy_sampled(folder: Path) -> None:
    """Step k trains on rollouts of version max(0, k - 1 - n); their own log-probs stay the ratio's denominator."""
    source, learner = lagging(folder, 2)
    objective, lags, sampled = objective_of(source.row), [], []
    for step in range(1, 6):
        batches = source.next(step)
        sampled.append(len(source.rollouts))
        lags.append(source.report()["sampler/staleness"].value())
        versions = {
            int(each) for batch in batches for each in batch["versions_T"][batch["loss_mask_T"]]
        }
        assert versions == {max(0, step - 3)}
        assert all(batch["old_logprobs_T"].equal(batch["sampler_logprobs_T"]) for batch in batches)
        stats = learner.step(batches, objective)
        away = stats["policy/ratio_max"].value() - 1
        assert (
            away < 1e-5 if step == 1 else away > 1e-3
        )  # only the first policy has not moved since
        assert source.more(stats) == []
        source.refresh(learner.weights())
    assert lags == [0, 1, 2, 2, 2]
    assert sampled == [36, 12, 12, 12, 12]


def test_where_the_samplers_log_probs_will_not_do_they_are_computed_before_the_policy_moves(
    folder: Path,
) -> None:
    source, learner = lagging(folder, 1)
    source.models = replace(source.models, trust_sampler_logprobs=False)
    objective = objective_of(source.row)
    for step in (1, 2):
        batches = source.next(step)
        for batch in batches:
            assert torch.allclose(batch["old_logprobs_T"], batch["sampler_logprobs_T"], atol=1e-5)
            now_T = learner.logprobs(batch)[batch["loss_mask_T"]]
            assert torch.allclose(
                now_T, batch["old_logprobs_T"][batch["loss_mask_T"]], atol=1e-5
            ) == (step == 1)
        learner.step(batches, objective)
        source.refresh(learner.weights())


def test_what_waits_is_restored_with_the_rest(folder: Path, tmp_path: Path) -> None:
    whole_source, whole_learner = lagging(folder, 2)
    train(whole_source, whole_learner, range(1, 3))
    save(tmp_path, 2, {"source": whole_source.state(), "learner": whole_learner.state()}, {})
    held = weights(whole_learner)
    rest = train(whole_source, whole_learner, range(3, 7))
    source, learner = lagging(folder, 2)
    with torch.no_grad():
        for name, weight in learner.model.named_parameters():
            weight.copy_(torch.tensor(held[name]).view(weight.shape))
    state = read_state(tmp_path / "2")
    learner.load_state(state["learner"])
    source.load_state(state["source"])
    assert train(source, learner, range(3, 7)) == rest
    assert weights(learner) == weights(whole_learner)


def test_drift_from_the_reference_ends_the_run_and_is_remembered(folder: Path) -> None:
    source, learner = make(folder, "grpo", replace(PLAN, max_ref_kl=1e-4))
    assert source.stop_reason == ""
    train(source, learner, range(1, 2))
    assert source.stop_reason == ""  # sampled by the reference itself
    train(source, learner, range(2, 3))
    assert (
        "nats per token from its reference, more than run.max_ref_kl=0.0001; raise it"
        in source.stop_reason
    )
    again, _ = make(folder, "grpo", replace(PLAN, max_ref_kl=1e-4))
    again.load_state(source.state())
    assert again.stop_reason == source.stop_reason
    further, _ = make(folder, "grpo", replace(PLAN, max_ref_kl=1.0))
    further.load_state(source.state())
    assert further.stop_reason == ""


def test_a_controller_moves_the_coefficient_after_each_step_and_it_is_restored(
    folder: Path,
) -> None:
    row = with_cells(
        TABLE["grpo"],
        Cells.model_validate({"kl_controller": {"use": "ziegler_sequence", "horizon": 60}}),
    )
    source, learner = make(folder, "grpo")
    source.row, source.kl_controller = row, KLController(row)
    train(source, learner, range(1, 3))
    # Twelve sequences, far below 6 nats each: 1 - .2 * 12 / 60 a step.
    assert source.kl_controller.value == pytest.approx(
        TABLE["grpo"].weights["kl"] * 0.96**2, rel=1e-12
    )
    assert source.report()["policy/kl_coef"].value() == pytest.approx(
        TABLE["grpo"].weights["kl"] * 0.96, rel=1e-12
    )
    again, _ = make(folder, "grpo")
    again.kl_controller = KLController(row)
    again.load_state(source.state())
    assert again.kl_controller.value == source.kl_controller.value


def half_done(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Nobody is right, and the part that says so counts for nothing: the fraction alone is trained on."""
    return [
        replace(
            each,
            reward=place % 4 / 4,
            parts={"programs/correct": 0.0, "programs/fraction": place % 4 / 4},
            weights={"programs/correct": 0.0, "programs/fraction": 1.0},
        )
        for place, each in enumerate(rollouts)
    ]


@pytest.mark.parametrize("row", ["rlvr", "dapo", "scale_rl"])
def test_zero_variance_is_that_of_the_reward_that_is_trained_on(folder: Path, row: str) -> None:
    source, _ = make(folder, row, score=half_done)
    batches = source.next(1)
    assert (
        sum(batch["segments"].count for batch in batches) == PLAN.prompts_per_step * PLAN.group_size
    )
    assert source.report()["reward/zero_std_frac"].value() == 0
    assert source.report()["reward/correct"].value() == 0


def test_losses_that_choose_tokens_get_noise_by_place(folder: Path) -> None:
    """Not by log-probs, whose last bits differ between machines and numbers of ranks."""
    drawn = []
    for scale in (1.0, 1.001):
        source, learner = make(folder, "clip_cov")
        with torch.no_grad():
            for weight in learner.model.parameters():
                weight *= scale
        source.next(1)
        drawn.append(source.current.batch["noise_T"][:8].tolist())
    assert (
        drawn[0] == drawn[1] and all(0 <= each < 1 for each in drawn[0]) and len(set(drawn[0])) == 8
    )
    source, _ = make(folder, "grpo")
    source.next(1)
    assert "noise_T" not in source.current.batch
