from dataclasses import replace

import pytest
import torch

from ascent.advantages import reward_shaping
from ascent.advantages.estimate import estimate
from ascent.algorithms import TABLE
from ascent.cells import cell
from ascent.config.validate import validate
from ascent.plan import resolve
from ascent.plan.cell_compatibility import check_cells
from ascent.plan.compatibility import check_rollout_lengths
from tests.batches import random_batch
from tests.recipes import least


def refusal(algorithm, **changes):
    with pytest.raises(ValueError) as caught:
        resolve(validate({**least(algorithm), **changes}))
    return str(caught.value)


@pytest.mark.parametrize(
    "algorithm",
    [name for name, row in TABLE.items() if row.advantage and "groups" in row.advantage.required],
)
def test_a_group_of_one_has_no_baseline(algorithm):
    words = refusal(algorithm, rollouts={"group_size": 1})
    assert words.startswith("rollouts.group_size=1 gives no baseline")
    assert words.endswith("use >= 2, or algorithm ppo")


def test_a_group_of_one_is_fine_without_a_group_baseline():
    for name in ("ppo", "reinforce", "remax", "reinforce_pp"):
        assert (
            resolve(
                validate({**least(name), "rollouts": {"group_size": 1}})
            ).config.rollouts.group_size
            == 1
        )


def test_a_group_filter_needs_a_group_too():
    words = refusal("reinforce", cells={"filter": {"nonzero_variance": {}}})
    assert words.startswith("rollouts.group_size=1 gives no baseline (filter nonzero_variance")


@pytest.mark.parametrize("use", ["token_truncate", "geometric_filter", "bypass"])
def test_truncated_sampling_does_not_go_with_a_mismatch_correction(use):
    cells = {"rollout_correction": {"use": use}}
    words = refusal("rlvr", rollouts={"top_p": 0.9}, cells=cells)
    assert words.startswith(f"rollouts.top_p=0.9 with cells.rollout_correction {use}")
    assert resolve(validate({**least("rlvr"), "rollouts": {"top_p": 0.9}}))
    assert resolve(validate({**least("rlvr"), "cells": cells}))


@pytest.mark.parametrize("focus", ["near_policy", "ratio_within", "distance_within"])
def test_nor_with_a_mask_that_looks_at_the_sampler(focus):
    words = refusal("grpo", rollouts={"top_p": 0.9}, cells={"token_weights": {focus: {}}})
    assert words.startswith(f"rollouts.top_p=0.9 with cells.token_weights {focus}")


@pytest.mark.parametrize(
    "credit", ["whole_return", "steps_to_go", "greedy_baseline", "optimal_token_baseline"]
)
def test_what_rescales_answers_is_not_given_tokens(credit):
    words = refusal("grpo", cells={"advantage": {"use": credit}})
    assert words.startswith(
        "cells.advantage_norm group_std rescales one advantage an answer, but cells.advantage "
        + credit
    )
    for normalize in ("whiten_token", "none"):
        cells = {"advantage": {"use": credit}, "advantage_norm": {"use": normalize}}
        assert resolve(validate({**least("grpo"), "cells": cells}))


def test_groups_that_are_compared_in_the_loss_stay_whole():
    words = refusal("real", rollouts={"prompts_per_step": 4}, update={"minibatches": 5})
    assert words.startswith("update.minibatches=5, but a step has only 4 groups (prompts_per_step)")
    assert resolve(
        validate(
            {**least("real"), "rollouts": {"prompts_per_step": 4}, "update": {"minibatches": 4}}
        )
    )


@pytest.mark.parametrize("kl", ["rho_k1", "rho_k3"])
def test_a_kl_that_multiplies_by_the_ratio_has_one(kl):
    cells = {"kl": {"use": kl, "weight": 0.1}, "kl_controller": {"use": "fixed"}}
    assert refusal("dro", cells=cells).startswith(
        f"cells.kl {kl} multiplies by the ratio, which cells.ratio none"
    )
    assert resolve(validate({**least("dro"), "cells": {**cells, "ratio": {"use": "token"}}}))
    once = {"epochs": 1, "minibatches": 1}  # then the ratio is 1
    assert resolve(validate({**least("dro"), "cells": cells, "update": once}))
    assert "max_staleness 1" in refusal(
        "dro", cells=cells, update=once, rollouts={"max_staleness": 1}
    )


@pytest.mark.parametrize("use", ["product_truncate", "product_mask", "product_normalized"])
def test_vespo_multiplies_weights_of_tokens_and_not_of_sequences(use):
    assert "each of them would be the whole sequence's" in refusal(
        "vespo", cells={"rollout_correction": {"use": use}}
    )
    assert resolve(
        validate({**least("vespo"), "cells": {"rollout_correction": {"use": "token_truncate"}}})
    )


@pytest.mark.parametrize(
    ("algorithm", "fix"), [("real", "group_mean"), ("a2po", "sequence_mean_token_mean")]
)
def test_a_loss_of_a_whole_answer_is_not_weighed_by_its_length(algorithm, fix):
    words = refusal(algorithm, cells={"aggregation": {"use": "token_mean"}})
    assert words.startswith(
        "cells.aggregation token_mean with cells.policy_loss"
    ) and words.endswith(f"use {fix}")


@pytest.mark.parametrize("algorithm", ["vespo", "dro", "real"])
def test_gates_that_form_their_own_ratio_may_lag(algorithm):
    assert resolve(validate({**least(algorithm), "rollouts": {"max_staleness": 1}}))


def test_pairs_are_not_weighed_by_tokens():
    words = refusal("dpo", cells={"token_weights": {"probability": {}}})
    assert words.startswith(
        "cells.token_weights.probability weighs tokens, but cells.loss dpo is one number per pair"
    )
    assert resolve(validate({**least("dpo"), "cells": {"token_weights": {"own_likelihood": {}}}}))


@pytest.mark.parametrize(
    "algorithm", [name for name, row in TABLE.items() if "rejected_P" in row.inputs]
)
def test_what_exceeds_the_shared_length_may_count_less_in_every_loss_of_pairs_of_log_probs(
    algorithm,
):
    cells = {"token_weights": {"length_desensitized": {"tail": 0.3}}}
    if "score_head" not in TABLE[algorithm].needs:
        assert resolve(validate({**least(algorithm), "cells": cells})).row.token_weights[
            -1
        ].numbers == {"tail": 0.3}
    else:
        words = refusal(algorithm, cells=cells)
        assert words.startswith(
            "cells.token_weights.length_desensitized weighs tokens in a response's sum of log-probs, but"
        )


@pytest.mark.parametrize(
    "algorithm", ["sft", "kto", "bco", "grpo", "gkd", "prm", "reward_model_kwise"]
)
def test_and_nowhere_else(algorithm):
    words = refusal(algorithm, cells={"token_weights": {"length_desensitized": {}}})
    assert words.startswith(
        "cells.token_weights: length_desensitized needs chosen_P, which comes with"
    )


def test_k1_in_the_loss_is_refused():
    assert refusal("grpo", cells={"kl": {"use": "k1"}}).startswith(
        "cells.kl k1 has zero expected gradient in the loss"
    )


@pytest.mark.parametrize("ratio", ["sequence_geometric", "sequence_geometric_token"])
@pytest.mark.parametrize("aggregate", ["token_mean", "token_sum", "prompt_mean"])
def test_a_geometric_ratio_is_averaged_per_sequence(ratio, aggregate):
    words = refusal("grpo", cells={"ratio": {"use": ratio}, "aggregation": {"use": aggregate}})
    assert words.startswith(f"cells.ratio {ratio} is one number per sequence")
    assert resolve(validate({**least("grpo"), "cells": {"ratio": {"use": ratio}}}))


def test_a_gate_needs_a_ratio_and_a_ratio_needs_a_gate():
    assert refusal("grpo", cells={"ratio": {"use": "none"}}).startswith(
        "cells.policy_loss clip bounds a ratio"
    )
    assert refusal("grpo", cells={"policy_loss": {"use": "plain"}}).startswith(
        "cells.ratio token has no effect"
    )
    both = {"policy_loss": {"use": "plain"}, "ratio": {"use": "none"}}
    assert resolve(validate({**least("grpo"), "cells": both})).row.policy_loss.name == "plain"
    for_kl = {"policy_loss": {"use": "plain"}, "kl": {"use": "rho_k3"}}
    assert resolve(validate({**least("grpo"), "cells": for_kl})).row.kl.name == "rho_k3"


def test_a_critic_is_trained_or_absent():
    assert refusal("ppo", cells={"value_loss": False}).startswith(
        "cells.advantage gae needs a critic, but no cells.value_loss"
    )
    words = refusal("grpo", cells={"value_loss": {"use": "mse", "weight": 1.0}})
    assert words.startswith(
        "cells.value_loss has no effect: cells.advantage group_mean_baseline uses no critic"
    )
    assert "'bootstrap' asks a critic" in refusal(
        "grpo", rollouts={"truncated_reward": "bootstrap"}
    )
    bootstrapped = {"rollouts": {"truncated_reward": "bootstrap"}}
    assert resolve(validate({**least("vpg"), **bootstrapped}))
    assert "cells.reward_shaping.eos_replace scores it; use one of them" in refusal(
        "ppo", **bootstrapped
    )
    assert resolve(
        validate(
            {**least("ppo"), **bootstrapped, "cells": {"reward_shaping": {"eos_replace": False}}}
        )
    )


def test_a_critic_does_not_warm_up_for_the_whole_run():
    words = refusal("ppo", update={"critic_warmup_steps": 5}, run={"steps": 5})
    assert words.startswith(
        "update.critic_warmup_steps=5 of run.steps=5 leaves no step for the policy"
    )


def test_old_rollouts_need_a_ratio():
    assert "reinforce has no ratio to account for that" in refusal(
        "reinforce", rollouts={"max_staleness": 1}
    )
    assert resolve(validate({**least("ppo"), "rollouts": {"max_staleness": 1}}))


def test_partial_rollouts_must_be_able_to_wait() -> None:
    partial = {"max_staleness": 1, "partial_rollouts": True}
    assert resolve(validate({**least("grpo"), "rollouts": partial}))
    assert "max_staleness=0" in refusal("grpo", rollouts={"partial_rollouts": True})
    assert "engine hf cannot interrupt" in refusal("grpo", rollouts={**partial, "engine": "hf"})
    assert "an environment cannot wait" in refusal("grpo", rollouts=partial, env={"use": "maze"})
    replaying = {**least("grpo")["model"], "routing_replay": True}
    assert "set one of them to false" in refusal("grpo", rollouts=partial, model=replaying)


@pytest.mark.parametrize(
    ("algorithm", "cells", "words"),
    [
        (
            "ppo",
            {"kl_controller": {"use": "ppo_penalty"}},
            "looks at KL to the sampling policy, but ppo penalizes KL to the",
        ),
        (
            "ppo_penalty",
            {"kl_controller": {"use": "ziegler_token"}},
            "looks at KL to the reference, but ppo_penalty penalizes",
        ),
        ("grpo", {"kl_controller": {"use": "ppo_penalty"}}, "use ziegler_sequence"),
        (
            "ppo",
            {"kl_controller": {"use": "ziegler_sequence"}, "kl": {"use": "k2", "weight": 0.1}},
            "steers one coefficient, but ppo has KL in the reward",
        ),
        (
            "ppo",
            {
                "kl_controller": {"use": "ziegler_sequence"},
                "reward_shaping": {"kl_penalty": {"beta": 0.0}},
            },
            "0 stays 0; give cells.reward_shaping.kl_penalty.beta a start above 0",
        ),
        ("ppo_penalty", {"kl": {"weight": 0.0}}, "0 stays 0; give cells.kl.weight a start above 0"),
    ],
)
def test_a_controller_steers_the_kl_it_looks_at(algorithm, cells, words):
    assert words in refusal(algorithm, cells=cells)


def test_controllers_that_steer_something():
    for algorithm, use in (
        ("ppo", "ziegler_sequence"),
        ("grpo", "ziegler_token"),
        ("ppo_penalty", "ppo_penalty"),
    ):
        assert (
            resolve(
                validate({**least(algorithm), "cells": {"kl_controller": {"use": use}}})
            ).row.kl_controller.name
            == use
        )


def test_a_controller_needs_something_to_steer():
    words = refusal("dapo", cells={"kl_controller": {"use": "ziegler_token"}})
    assert words.startswith("cells.kl_controller has no effect: dapo has no KL to steer")
    assert refusal("grpo", cells={"kl": False}).startswith("cells.kl_controller has no effect")
    assert resolve(
        validate({**least("rloo"), "cells": {"kl_controller": {"use": "ziegler_sequence"}}})
    )


def test_soft_overlong_must_be_reachable():
    words = refusal("dapo", rollouts={"max_new_tokens": 16384})
    assert words.startswith(
        "cells.reward_shaping.soft_overlong has no effect: it starts at 16384 tokens"
    )
    assert resolve(validate({**least("dapo"), "rollouts": {"max_new_tokens": 16385}}))


def test_in_several_turns_soft_overlong_counts_all_of_them():
    cells = {"reward_shaping": {"soft_overlong": {"max_length": 64, "cache": 32}}}

    def given(**limits):
        return {
            "rollouts": {"max_new_tokens": 16},
            "env": {"use": "maze", **limits},
            "cells": cells,
        }

    assert resolve(validate({**least("rlvr"), **given()}))  # 8 turns by default
    assert resolve(validate({**least("rlvr"), **given(max_turns=3, max_tokens=33)}))
    words = refusal("rlvr", **given(max_turns=2))
    assert (
        "it starts at 32 tokens" in words
        and "but env.max_turns=2 times rollouts.max_new_tokens=16 ends" in words
    )
    assert "but env.max_tokens=32 ends every completion before" in refusal(
        "rlvr", **given(max_tokens=32)
    )


SHAPING = [
    cell(reward_shaping.eos_replace),
    cell(reward_shaping.eos_subtract),
    cell(reward_shaping.eos_scale),
    cell(reward_shaping.soft_overlong, max_length=4, cache=3),
    cell(reward_shaping.clip, low=0.25, high=1.5),
    cell(reward_shaping.kl_penalty, beta=0.1),
    cell(reward_shaping.whiten_rewards),
]
# What no shaping reaches, or what is compared with a reward that is not shaped.
UNSHAPED = {"gdpo", "grpo_process", "nash_md", "a2po"}


@pytest.mark.parametrize("shaping", SHAPING, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "algorithm", [name for name, row in TABLE.items() if row.source == "rollouts"]
)
def test_reward_shaping_changes_the_advantages_or_is_refused(algorithm, shaping):
    plain = replace(TABLE[algorithm], reward_shaping=(), kl_controller=None)
    shaped = replace(plain, reward_shaping=(shaping,))
    if algorithm in UNSHAPED or (algorithm, shaping.name) == ("remax", "whiten_rewards"):
        with pytest.raises(
            ValueError, match=rf"^cells\.reward_shaping\.{shaping.name} .*{shaping.name}=false, or "
        ):
            check_cells(shaped)
        return
    check_cells(shaped)
    slots = {"advantage": plain.advantage, "advantage_norm": plain.advantage_norm}
    before, after = (
        estimate(random_batch(0), reward_shaping=row.reward_shaping, **slots).advantages_T
        for row in (plain, shaped)
    )
    assert before.any() and not torch.equal(before, after)


def kl_of_sequence(rewards_B, old_logprobs_T, ref_logprobs_T, segments):
    return rewards_B - segments.sum(old_logprobs_T - ref_logprobs_T)


def rank_in_group(rewards_B, groups):
    return rewards_B - groups.broadcast(groups.mean(rewards_B))


@pytest.mark.parametrize("shaping", [kl_of_sequence, rank_in_group])
def test_a_greedy_completion_has_neither_model_outputs_nor_a_group(shaping):
    row = replace(TABLE["remax"], reward_shaping=(cell(shaping),))
    with pytest.raises(
        ValueError,
        match=f"^cells.reward_shaping.{shaping.__name__} with cells.advantage greedy_base",
    ):
        check_cells(row)
    check_cells(replace(TABLE["reinforce"], reward_shaping=(cell(shaping),)))


def test_an_advantage_that_no_shaping_reaches_takes_the_place_of_one_that_it_does():
    cells = {"advantage": {"use": "decoupled_parts"}}
    assert "soft_overlong has no effect" in refusal("dapo", cells=cells)
    assert resolve(
        validate({**least("dapo"), "cells": {**cells, "reward_shaping": {"soft_overlong": False}}})
    )


def test_a_pair_takes_two_answers():
    assert "a pair takes two answers to a prompt; use >= 2" in refusal(
        "online_dpo", rollouts={"group_size": 1}
    )
    words = refusal("xpo", rollouts={"group_size": 4})
    assert words.startswith(
        "rollouts.group_size=4, but xpo compares one answer of the policy with one of the"
    )
    assert resolve(validate({**least("online_dpo"), "rollouts": {"group_size": 4}}))
    assert resolve(validate(least("xpo"))).config.rollouts.group_size == 2


def test_an_opponent_is_drawn_like_the_policy_and_compared_by_unshaped_rewards():
    words = refusal("nash_md", rollouts={"top_p": 0.9})
    assert words.startswith(
        "rollouts.top_p=0.9 with cells.advantage against_opponent: the opponent is drawn from"
    )
    words = refusal("nash_md", cells={"reward_shaping": {"kl_penalty": {"beta": 0.1}}})
    assert words.startswith(
        "cells.reward_shaping.kl_penalty has no effect: cells.advantage against_opponent learns from the"
    )
    assert resolve(validate({**least("nash_md"), "rollouts": {"group_size": 4}})).row.needs >= {
        "opponent_samples"
    }
    cells = {"advantage": {"use": "against_opponent"}, "advantage_norm": {"use": "none"}}
    assert "opponent_samples" in resolve(validate({**least("grpo"), "cells": cells})).row.needs


def test_fresh_pairs_take_every_loss_of_pairs_and_nothing_that_only_files_have():
    cells = {
        "loss": {"use": "ipo_sum"},
        "extra_losses": {"chosen_nll": {"weight": 0.1}},
        "token_weights": {"own_likelihood": {}},
    }
    assert resolve(validate({**least("xpo"), "cells": cells})).row.needs >= {
        "reference_samples",
        "collision",
    }
    gold = refusal("online_dpo", cells={"extra_losses": {"gold_nll": {"weight": 1.0}}})
    assert (
        "gold_nll needs gold_B, which comes with pairs, but online_dpo learns from fresh_pairs"
        in gold
    )
    assert "bradley_terry needs scores_B" in refusal(
        "online_dpo", cells={"loss": {"use": "bradley_terry"}}
    )
    theirs = refusal("dpo", cells={"extra_losses": {"reference_likelihood": {"weight": 1.0}}})
    assert (
        "needs from_reference_B, which comes with fresh_pairs, but dpo learns from pairs" in theirs
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollouts": {"max_staleness": 1}}, "no ratio to who sampled them"),
        ({"rollouts": {"truncated_reward": "bootstrap"}}, "it has no critic"),
        ({"update": {"target_kl": 0.1}}, "no ratio to who sampled them"),
        ({"data": {"train": "t", "batch_size": 4}}, "samples its batches"),
        (
            {"cells": {"policy_loss": {"use": "clip"}}},
            "learns from fresh_pairs and has only the slots loss, token_weights and",
        ),
        ({"rewards": []}, "xpo learns from rewards; add rewards or model.reward_model"),
        (
            {"rollouts": {"prompts_per_step": 4}, "update": {"minibatches": 5}},
            "only 4 pairs at most",
        ),
    ],
)
def test_fresh_pairs_refuse_what_has_no_effect(changes, words):
    assert words in refusal("xpo", **changes)


def test_minibatches_are_not_empty():
    few = {"prompts_per_step": 2, "group_size": 4}
    assert "only 8 completions" in refusal("grpo", rollouts=few, update={"minibatches": 9})
    assert resolve(validate({**least("grpo"), "rollouts": few, "update": {"minibatches": 8}}))


def test_rewards_come_from_somewhere():
    assert refusal("grpo", rewards=[]).startswith("rewards is empty: grpo learns from rewards")
    words = refusal("grpo", rewards=[{"use": "reward_model"}])
    assert words == "rewards uses reward_model, but model.reward_model is not set; name the model"
    scored = {"model": {"policy": "p", "reward_model": "m"}, "rewards": []}
    assert resolve(validate({**least("grpo"), **scored})).config.model.reward_model == "m"


@pytest.mark.parametrize("algorithm", ["rlsd", "gkd", "kd"])
def test_a_teacher_is_named(algorithm):
    words = refusal(algorithm, model={"policy": "p"})
    assert (
        words
        == f"model.teacher is missing: {algorithm} learns from a frozen teacher; name the model"
    )


def test_own_answers_are_the_last_ones():
    words = refusal("gkd", data={"train": "t", "train_on": "assistant"})
    assert words.startswith(
        "data.on_policy_fraction=0.5 with data.train_on=assistant: the student answers the last question"
    )
    assert resolve(
        validate(
            {
                **least("gkd"),
                "data": {"train": "t", "train_on": "assistant", "on_policy_fraction": 0.0},
            }
        )
    )


def test_pretraining_text_is_named():
    assert refusal("instructgpt", data={"train": "t"}).startswith(
        "data.pretraining is missing: instructgpt mixes"
    )


@pytest.mark.parametrize(
    ("algorithm", "cells", "words"),
    [
        (
            "grpo",
            {"extra_losses": {"chosen_nll": {"weight": 1.0}}},
            "cells.extra_losses: chosen_nll needs chosen_B, which comes",
        ),
        (
            "dpo",
            {"extra_losses": {"correct_nll": {"weight": 1.0}}},
            "cells.extra_losses: correct_nll needs correct_B, which",
        ),
        ("dpo", {"loss": {"use": "kto"}}, "cells.loss: kto needs "),
        ("kto", {"loss": {"use": "dpo"}}, "cells.loss: dpo needs "),
        ("sft", {"loss": {"use": "dpo"}}, "cells.loss: dpo needs "),
    ],
)
def test_a_cell_must_fit_the_kind_of_data(algorithm, cells, words):
    assert refusal(algorithm, cells=cells).startswith(words)


def test_losses_of_one_kind_of_data_can_be_swapped():
    assert (
        resolve(validate({**least("dpo"), "cells": {"loss": {"use": "hinge"}}})).row.loss.name
        == "hinge"
    )


def test_shares_leave_room_for_the_training_data():
    data = {"train": "t", "mix": [{"use": "a", "share": 0.5}, {"use": "b", "share": 0.5}]}
    assert refusal("sft", data=data).startswith(
        "data.mix takes 1 of every step, which leaves nothing for data.train"
    )
    twice = {"train": "t", "mix": [{"use": "t", "share": 0.5}]}
    assert refusal("sft", data=twice).startswith("data.mix: 't' is named twice")


def test_a_best_checkpoint_is_one_that_was_evaluated():
    changes = {
        "data": {"train": "t", "evaluate": "e"},
        "run": {"keep_best": 1, "save_every": 20, "evaluate_every": 15},
    }
    words = refusal("sft", **changes)
    assert words.startswith(
        "run.keep_best=1, but run.save_every=20 is no multiple of run.evaluate_every=15"
    )


@pytest.mark.parametrize(
    "algorithm", [name for name, row in TABLE.items() if row.source != "rollouts"]
)
def test_pretraining_text_is_mixed_into_rollouts_only(algorithm):
    cells = {"extra_losses": {"pretraining_nll": {"weight": 1.0}}}
    words = refusal(algorithm, cells=cells)
    assert words.startswith("cells.extra_losses: pretraining_nll needs pretraining_")
    assert "which comes with rollouts" in words


WITHOUT_RATIO = ["reinforce", "vpg", "opo", "remax", "rloo"]


@pytest.mark.parametrize("algorithm", WITHOUT_RATIO)
def test_several_passes_need_a_ratio(algorithm):
    words = refusal(algorithm, update={"epochs": 2})
    assert words.startswith(
        f"update.epochs=2 trains on every rollout 2 times, but {algorithm} has no ratio"
    )
    assert resolve(validate({**least(algorithm), "update": {"epochs": 1, "minibatches": 2}}))


def test_rows_with_a_ratio_or_a_gate_of_their_own_take_several_passes():
    for name, row in TABLE.items():
        if row.source == "rollouts" and name not in WITHOUT_RATIO:
            resolved = _passes(name)
            assert (resolved is None) == (
                row.ratio.name == "none" and "old_logprobs_T" not in row.policy_loss.required
            ), name


def _passes(name):
    try:
        return resolve(validate({**least(name), "update": {"epochs": 3}}))
    except ValueError as error:
        assert "has no ratio" in str(error)
        return None


@pytest.mark.parametrize("kl", ["rho_k1", "rho_k3"])
@pytest.mark.parametrize("algorithm", ["gspo", "gspo_token"])
def test_a_kl_that_multiplies_by_the_ratio_wants_each_tokens_own(algorithm, kl):
    words = refusal(algorithm, cells={"kl": {"use": kl, "weight": 0.01}})
    assert words.startswith(
        f"cells.kl {kl} multiplies by a token's own ratio, but cells.ratio sequence_geometric"
    )
    assert resolve(validate({**least(algorithm), "cells": {"kl": {"use": "k2", "weight": 0.01}}}))


@pytest.mark.parametrize(
    "use", ["token_mean", "token_sum", "prompt_mean", "sequence_mean_token_sum"]
)
def test_gmpos_one_number_an_answer_counts_once(use):
    words = refusal("gmpo", cells={"aggregation": {"use": use}})
    assert (
        words.startswith(f"cells.aggregation {use} with cells.policy_loss gmpo")
        and "sequence_mean_token_mean" in words
    )


@pytest.mark.parametrize("row", ["wpo", "mpo", "cpo"])
def test_a_loss_of_scores_has_no_terms_of_log_probs(row):
    words = refusal(row, cells={"loss": {"use": "bradley_terry"}})
    assert "of a language model, but cells.loss bradley_terry trains a reward model" in words
    assert resolve(validate({**least("dpo"), "cells": {"loss": {"use": "bradley_terry"}}}))


def test_the_hf_engine_cannot_truncate():
    words = refusal("grpo", rollouts={"engine": "hf", "top_p": 0.5})
    assert words == (
        "rollouts.top_p=0.5, but rollouts.engine=hf samples from the whole distribution; use top_p=1, or engine=native"
    )


def test_gmpo_clips_tokens():
    assert refusal("gmpo", cells={"ratio": {"use": "sequence_geometric"}}).startswith(
        "cells.policy_loss gmpo clips each token"
    )


def test_an_answer_fits_into_a_micro_batch():
    words = refusal("grpo", rollouts={"max_new_tokens": 16384})
    assert (
        words.startswith("a rollout can have 16385 tokens")
        and "tokens_per_microbatch=16384" in words
    )
    words = refusal("online_dpo", rollouts={"max_new_tokens": 8192})
    assert words.startswith("the two rollouts of a pair can have 16386 tokens")
    plan = resolve(validate({**least("grpo"), "rollouts": {"max_new_tokens": 16383}}))
    with pytest.raises(
        ValueError, match=r"answers of up to 20000 by env.max_tokens.*; give env.max_tokens a lower"
    ):
        check_rollout_lengths(plan.config, plan.row, 1, 20000)  # of several turns


def test_every_row_fits_into_its_own_micro_batch_with_the_longest_prompt():
    for name, row in TABLE.items():
        if row.samples:
            config = resolve(validate(least(name))).config
            check_rollout_lengths(
                config, row, config.data.max_prompt_tokens, config.rollouts.max_new_tokens
            )


def test_dapo_updates_on_as_many_answers_as_its_authors():
    config = resolve(validate(least("dapo"))).config
    answers = config.rollouts.prompts_per_step * config.rollouts.group_size
    assert (answers, answers // config.update.minibatches) == (8192, 512)


def test_a_quantized_base_needs_an_adapter():
    words = refusal("sft", model={"policy": "p", "quantize": "nf4"})
    assert words == (
        "model.quantize=nf4 freezes the weights, so without LoRA nothing could be trained; set model.lora (16, say), "
        "or model.quantize=null"
    )
    model = {"policy": "p", "quantize": "nf4", "lora": 16}
    assert resolve(validate({**least("sft"), "model": model}))
