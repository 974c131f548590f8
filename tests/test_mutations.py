"""Break the code on purpose, one place at a time, and require that the suite notices.

Each mutation is a mistake somebody has shipped (a dropped detach, a forgotten mask, a mean of means ...). The package
is copied, one place is changed, and the named test must FAIL on the copy: not crash while collecting, fail.
tests/regression/test_mutants.py checks, in `make check`, that every place and every test is still there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.regression.anchors import AnchorError, change_function, find_definitions
from tests.regression.broken_copies import ROOT, ForkingPytest, compiled_copy, copy_with

PARTS = 2  # so that two workers share the work


@dataclass(frozen=True)
class Mutation:
    """`was` and `becomes` are expressions or statements; how they are broken into lines does not matter.

    `was` occurs once in the function. The files may be those of an earlier layout: what has moved is found by its name
    (tests/regression/anchors.py).
    """

    name: str
    function: str
    was: str
    becomes: str
    caught_by: str


MUTATIONS = (
    Mutation(
        "a completion of other weights counts",
        "engines/fleet.py::ServerFleet._complete",
        "found == stamp",
        "found",
        "engines/test_fleet.py::"
        "test_a_server_that_fails_in_mid_step[given other weights by somebody]",
    ),
    Mutation(
        "new weights do not wait for running requests",
        "engines/engine_thread.py::EngineThread._admit",
        "self._swaps and self.engine.idle",
        "self._swaps",
        "engines/test_serve.py::test_new_weights_wait_for_running_requests",
    ),
    Mutation(
        "log-probs of a merged adapter are taken for the trainer's",
        "setup/samplers.py::fleet_of",
        "None if merged else served.numerics",
        "served.numerics",
        "end_to_end/test_remote_rollouts.py::test_a_merged_adapter_is_said_to_differ",
    ),
    Mutation(
        "a window that is one token too long",
        "c_extension.c::one_row",
        "end > args->window ? end - args->window : 0",
        "end > args->window ? end - args->window - 1 : 0",
        "models/test_paged_attention.py::test_decode_is_dense_attention_over_each_rows_own_past",
    ),
    Mutation(
        "a token that is ruled out too early",
        "c_extension.c::gumbel_argmax",
        "best * uniform[i] * 0.999999f",
        "best * uniform[i] * 1.5f",
        "engines/native/test_sampling.py::test_frequencies_are_those_of_the_softmax",
    ),
    Mutation(
        "a prompt's tokens are read before all are stored",
        "models/paged_attention_cpu.py::CompiledDecode.attend",
        "functions.store_kv(ctypes.byref(arguments), rows)",
        "functions.store_kv(ctypes.byref(arguments), rows - 1)",
        "engines/native/test_engine.py::test_greedy_equals_transformers_generate",
    ),
    Mutation(
        "advantages keep their gradient",
        "losses/policy_losses.py::_frozen",
        "masked.kept(advantages_T.detach(), loss_mask_T)",
        "masked.kept(advantages_T, loss_mask_T)",
        "losses/test_policy_losses.py::"
        "test_advantages_never_carry_a_gradient_and_nan_outside_the_mask_stays_there",
    ),
    Mutation(
        "old log-probs keep their gradient",
        "losses/ratios.py::differences",
        "masked.kept(old_logprobs_T.detach(), loss_mask_T)",
        "masked.kept(old_logprobs_T, loss_mask_T)",
        "losses/test_ratios.py::test_the_old_policy_gets_no_gradient_and_lengths_must_match",
    ),
    Mutation(
        "CISPO's weight keeps its gradient",
        "losses/policy_losses.py::cispo",
        "log_ratio_T.detach().exp()",
        "log_ratio_T.exp()",
        "losses/test_policy_losses.py::test_autograd_equals_the_phi_table",
    ),
    Mutation(
        "group ids swapped",
        "maths/groups.py::Groups.broadcast",
        "x_G[self.ids_B]",
        "x_G[self.ids_B.flip(0)]",
        "advantages/test_group_baselines.py::test_group_advantages_sum_to_zero",
    ),
    Mutation(
        "mask forgotten in the segment mean",
        "maths/segments.py::Segments.mean",
        "self.sum(keep_T).clamp(min=1)",
        "self.lengths_B.clamp(min=1)",
        "maths/test_segments.py::test_sums_means_and_spread",
    ),
    Mutation(
        "an adapter of a 4-bit base is merged into the original weights",
        "models/load.py::_module",
        'adapters.training_of(folder)["quantize"]',
        "None",
        "models/test_quantize.py::"
        "test_the_adapter_is_restored_bit_by_bit_and_merged_into_the_weights_it_was_trained_on",
    ),
    Mutation(
        "an adapter is merged into a base that has changed",
        "models/adapters.py::check_base",
        "sample_hash(base) != sample",
        "not sample",
        "models/test_adapters.py::test_a_base_that_was_trained_further_is_refused",
    ),
    Mutation(
        "replies of tools are trained",
        "data/render.py::Renderer.example",
        'message.role == "assistant"',
        'message.role != "user"',
        "data/test_tools.py::test_calls_and_answers_are_trained_and_nothing_else",
    ),
    Mutation(
        "mask by multiplication, NaN leaks",
        "maths/masked.py::kept",
        "torch.where(keep, x, 0)",
        "x * keep",
        "maths/test_masked.py::test_values_by_hand",
    ),
    Mutation(
        "held-out prompts are trained on",
        "data/heldout.py::split",
        "lambda prompt: prompt not in heldout",
        "lambda prompt: True",
        "data/test_heldout.py::test_every_record_is_on_one_side_and_no_prompt_on_both",
    ),
    Mutation(
        "an epoch of a mix counted by the records of every step",
        "data/sources.py::FileSource.steps_per_epoch",
        "self._batch_size * self._share",
        "self._batch_size",
        "data/test_sources.py::test_from_a_file_to_batches",
    ),
    Mutation(
        "mean of micro-batch means",
        "update/microbatch.py::step_of",
        "torch.stack([terms[name].numerator for terms in pieces if name in terms]).sum() / "
        "total.clamp(min=1)",
        "torch.stack([terms[name].numerator / terms[name].denominator.clamp(min=1) for terms in "
        "pieces if name in terms]).mean()",
        "update/test_microbatch.py::test_sum_of_numerators_over_sum_of_denominators",
    ),
    Mutation(
        "KL in the reward with the wrong sign",
        "advantages/reward_shaping.py::kl_penalty",
        "-beta",
        "beta",
        "advantages/test_reward_shaping.py::test_golden_numbers_g3b",
    ),
    Mutation(
        "k3 with the wrong direction",
        "losses/kl.py::k3",
        "_bregman(-differences(logprobs_T, ref_logprobs_T, loss_mask_T), guard)",
        "_bregman(differences(logprobs_T, ref_logprobs_T, loss_mask_T), guard)",
        "losses/test_kl.py::test_golden_numbers_g4",
    ),
    Mutation(
        "KL computed without gradient",
        "losses/kl.py::k2",
        "0.5 * differences(logprobs_T, ref_logprobs_T, loss_mask_T) ** 2",
        "0.5 * differences(logprobs_T, ref_logprobs_T, loss_mask_T).detach() ** 2",
        "losses/test_kl.py::test_k2_and_straight_through_follow_the_reverse_kl",
    ),
    Mutation(
        "k3 capped at 10, gradient 0 where drift is worst",
        "losses/kl.py::_bregman",
        "x_T.clamp(max=guard).expm1() - x_T.clamp(max=guard)",
        "(x_T.clamp(max=guard).expm1() - x_T.clamp(max=guard)).clamp(max=10)",
        "losses/test_kl.py::test_the_penalty_does_not_vanish_where_drift_is_worst",
    ),
    Mutation(
        "shift across packed borders",
        "maths/logprobs.py::next_token_logprobs",
        "torch.where(inside_T, scored_T, 0)",
        "scored_T",
        "maths/test_logprobs.py::"
        "test_each_token_is_scored_by_the_position_before_it_in_its_own_segment",
    ),
    Mutation(
        "off by one: no shift at all",
        "maths/logprobs.py::next_token_logprobs",
        "token_logprobs(logits_TV[:-1], tokens_T[1:], temperature=temperature)",
        "token_logprobs(logits_TV[1:], tokens_T[1:], temperature=temperature)",
        "maths/test_logprobs.py::"
        "test_each_token_is_scored_by_the_position_before_it_in_its_own_segment",
    ),
    Mutation(
        "population for sample std",
        "maths/groups.py::Groups.std",
        "(self.sum(valid_B) - 1).clamp(min=1)",
        "self.sum(valid_B).clamp(min=1)",
        "maths/test_groups.py::test_mean_and_sample_std",
    ),
    Mutation(
        "all-equal groups left to rounding",
        "advantages/group_baselines.py::_minus_baseline",
        "scored_B & ~groups.broadcast(alone_G | flat_G)",
        "scored_B & ~groups.broadcast(alone_G)",
        "advantages/test_group_baselines.py::test_equal_rewards_give_an_exact_zero_in_float32",
    ),
    Mutation(
        "an unscored reward counts as 0",
        "advantages/group_baselines.py::scored",
        "~torch.isnan(rewards_B)",
        "torch.ones_like(rewards_B, dtype=torch.bool)",
        "advantages/test_group_baselines.py::"
        "test_unscored_rewards_are_left_out_not_counted_as_zero",
    ),
    Mutation(
        "self in the leave-one-out baseline",
        "advantages/group_baselines.py::leave_one_out",
        "members_B / (members_B - 1).clamp(min=1)",
        "members_B / members_B.clamp(min=1)",
        "advantages/test_group_baselines.py::test_golden_numbers_g1",
    ),
    Mutation(
        "GAE runs over the border of a sequence",
        "maths/reverse_scan.py::next_in_segment",
        "torch.where(_is_last(segments), beyond_T, shifted_T)",
        "shifted_T",
        "advantages/test_returns.py::test_golden_numbers_g3",
    ),
    Mutation(
        "observation tokens decay credit",
        "advantages/returns.py::PolicyTokens.__init__",
        "bool(loss_mask_T.all())",
        "True",
        "advantages/test_returns.py::test_gae_equals_the_loop_and_steps_over_observations",
    ),
    Mutation(
        "reward behind a closing observation",
        "advantages/reward_shaping.py::on_last_token",
        "torch.where(segments.last(loss_mask_T), segments.broadcast(rewards_B), 0)",
        "torch.where(segments.last(torch.ones_like(loss_mask_T)), segments.broadcast(rewards_B), "
        "0)",
        "advantages/test_reward_shaping.py::"
        "test_the_reward_sits_on_the_last_trained_token_even_behind_an_observation",
    ),
    Mutation(
        "max for min in the clip",
        "losses/policy_losses.py::clip",
        "(advantages_T > 0) & (ratio_T > 1 + high)",
        "(advantages_T < 0) & (ratio_T > 1 + high)",
        "losses/test_policy_losses.py::test_golden_numbers_g5",
    ),
    Mutation(
        "what a mask keeps loses its weight",
        "losses/rollout_correction.py::_masked",
        "torch.where(keep_T, weight_T, 0)",
        "torch.where(keep_T, 1 + 0 * weight_T, 0)",
        "losses/test_rollout_correction.py::test_golden_numbers_g8",
    ),
    Mutation(
        "empty sequences are counted",
        "losses/aggregation.py::_counted",
        "(tokens_B > 0).to(tokens_B.dtype)",
        "torch.ones_like(tokens_B)",
        "losses/test_aggregation.py::test_group_mean_by_hand",
    ),
    Mutation(
        "prompt mean counts a group once per piece",
        "losses/aggregation.py::prompt_mean",
        "Weights(per_group_B, tokens_B * per_group_B)",
        "Weights(per_group_B, torch.ones_like(tokens_B) / tokens_B.numel())",
        "test_invariance.py::test_cutting_into_micro_batches_changes_nothing[scale_rl]",
    ),
    Mutation(
        "mismatch weight on the KL term",
        "losses/objective.py::policy_terms",
        'aggregate(kl_T, {"policy/kl_loss": mean_of(kl_T, loss_mask_T)})',
        'aggregate(correction.weight_T * kl_T, {"policy/kl_loss": mean_of(kl_T, loss_mask_T)})',
        "losses/test_objective.py::"
        "test_mismatch_weights_scale_the_policy_term_only_and_keep_the_count",
    ),
    Mutation(
        "entropy bonus with the wrong sign",
        "losses/entropy.py::bonus",
        "-masked.kept(entropy_T, loss_mask_T)",
        "masked.kept(entropy_T, loss_mask_T)",
        "losses/test_values.py::"
        "test_the_entropy_bonus_is_minimized_by_more_entropy_and_has_a_gradient",
    ),
    Mutation(
        "DPO averages instead of summing",
        "losses/preferences.py::dpo",
        "smoothed(beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha)), label_smoothing)",
        "smoothed(beta * pairs.margin(pairs.per_token(phi(pairs.log_ratio_B, divergence, "
        "alpha))), label_smoothing)",
        "losses/test_preferences.py::test_golden_numbers_g9",
    ),
    Mutation(
        "KTO's reference point may be negative",
        "losses/kto_bco.py::kto",
        "torch.as_tensor(mismatched_score).detach().clamp(min=0)",
        "torch.as_tensor(mismatched_score).detach()",
        "losses/test_kto_bco.py::"
        "test_kto_reference_point_is_never_negative_and_carries_no_gradient",
    ),
    Mutation(
        "BCO forgets what it has seen",
        "losses/kto_bco.py::rewards_so_far",
        "total, count = total + mean * before, count + before",
        "total, count = total, count",
        "losses/test_kto_bco.py::test_bco_shift_is_the_mean_of_everything_seen",
    ),
    Mutation(
        "AOT compares each pair with itself",
        "losses/optimal_transport.py::matched_margins",
        "matched_B[pairs.chosen_P[order_P]] = "
        "pairs.margin(pairs.ref_logprobs_B).sort().values.to(matched_B)",
        "matched_B[pairs.chosen_P] = pairs.margin(pairs.ref_logprobs_B).to(matched_B)",
        "losses/test_optimal_transport.py::test_worked_example",
    ),
    Mutation(
        "AOT trains one side only",
        "losses/optimal_transport.py::aot_unpaired",
        "losses_P + mirrored_P - mirrored_P.detach()",
        "losses_P + 0 * mirrored_P",
        "losses/test_optimal_transport.py::"
        "test_value_and_gradient_are_those_of_sorting_the_whole_step",
    ),
    Mutation(
        "robust DPO with the sign of cDPO",
        "losses/preferences.py::robust",
        "(wrong * logsigmoid(-logits_P) - (1 - wrong) * logsigmoid(logits_P)) / (1 - 2 * wrong)",
        "(-wrong * logsigmoid(-logits_P) - (1 - wrong) * logsigmoid(logits_P)) / (1 - 2 * wrong)",
        "losses/test_preferences.py::test_worked_pair_of_the_other_margin_losses",
    ),
    Mutation(
        "EXO's target is swapped",
        "losses/preferences.py::exo",
        "logsigmoid(-logits_P) - math.log(label_smoothing)",
        "logsigmoid(-logits_P) - math.log1p(-label_smoothing)",
        "losses/test_preferences.py::test_worked_pair_of_the_other_margin_losses",
    ),
    Mutation(
        "LD-DPO's tail reaches the shared part",
        "losses/length_desensitized.py::beyond_shared",
        "trained_ranks(loss_mask_T, segments) > segments.broadcast(shared_B)",
        "trained_ranks(loss_mask_T, segments) >= segments.broadcast(shared_B)",
        "losses/test_length_desensitized.py::test_tokens_beyond_the_shared_length",
    ),
    Mutation(
        "the quantile from the wrong end",
        "losses/token_weights.py::entropy_floor",
        "(1 - share) * (kept_N.numel() - 1)",
        "share * (kept_N.numel() - 1)",
        "losses/test_token_weights.py::"
        "test_the_floor_is_the_interpolated_quantile_of_trained_tokens",
    ),
    Mutation(
        "token weights shrink the denominator",
        "losses/objective.py::policy_terms",
        'terms = {"policy": aggregate(weight_T * clipped.loss_T, _ratio_metrics(known, own_T, '
        "masks))}",
        'terms = {"policy": aggregate(weight_T * clipped.loss_T, _ratio_metrics(known, own_T, masks))}\n'
        "kept = (token_weight_T != 0).sum().to(token_weight_T.dtype)\n"
        'terms["policy"] = terms["policy"]._replace(denominator=kept)',
        "losses/test_objective.py::"
        "test_a_focus_weighs_the_policy_term_alone_and_leaves_denominators",
    ),
    Mutation(
        "a good sample the policy has left is dropped too",
        "losses/token_weights.py::near_policy",
        "(masked.kept(advantages_T, loss_mask_T) >= 0) | (segments.broadcast(drift_B) <= "
        "max_drift)",
        "segments.broadcast(drift_B) <= max_drift",
        "losses/test_token_weights.py::"
        "test_near_policy_drops_only_negative_samples_the_policy_has_left",
    ),
    Mutation(
        "DPPO's trust region on the wrong side",
        "losses/policy_losses.py::dppo_tv",
        "torch.where(advantages_T > 0, moved_T > high, moved_T < -low)",
        "torch.where(advantages_T > 0, moved_T < -low, moved_T > high)",
        "losses/test_policy_losses.py::test_dppo_bounds_the_probability_and_not_the_ratio",
    ),
    Mutation(
        "FIPO looks back instead of ahead",
        "losses/sequence_policy_losses.py::fipo",
        "reverse_scan(moved_T, gamma, segments).clamp(-GUARD, GUARD).exp()",
        "moved_T.exp()",
        "losses/test_sequence_policy_losses.py::test_fipo_counts_what_the_policy_did_next",
    ),
    Mutation(
        "VESPO counts the sampler's weight twice",
        "losses/objective.py::policy_terms",
        'token_weight_T if "correction_T" in policy_loss.inputs else token_weight_T * '
        "correction.weight_T",
        "token_weight_T * correction.weight_T",
        "losses/test_sequence_policy_losses.py::"
        "test_vespo_takes_the_samplers_weight_into_the_product_and_nowhere_else",
    ),
    Mutation(
        "REAL's slope forgets its rivals",
        "losses/sequence_policy_losses.py::real_slope",
        "(level_B - torch.where(right_B, log_B2[:, 1], log_B2[:, 0])).exp()",
        "level_B.sigmoid()",
        "losses/test_sequence_policy_losses.py::test_real_is_its_definition_however_groups_are_cut",
    ),
    Mutation(
        "clip-cov drops everything it may",
        "losses/covariance.py::draining",
        "min(_number(loss_mask_T, share), int(candidates_T.sum()))",
        "int(candidates_T.sum())",
        "losses/test_covariance.py::test_clip_cov_drops_its_share_of_the_candidates_by_noise",
    ),
    Mutation(
        "GKD's ends taken for limits",
        "maths/divergence.py::jensen_shannon",
        "(teacher_TV, student_TV) if beta == 0 else (student_TV, teacher_TV)",
        "(student_TV, teacher_TV) if beta == 0 else (teacher_TV, student_TV)",
        "maths/test_divergence.py::test_jensen_shannon_against_sums_written_out",
    ),
    Mutation(
        "the teacher learns",
        "losses/distillation.py::gkd",
        "teacher_TV.detach()",
        "teacher_TV",
        "losses/test_distillation.py::test_gradients_and_masks",
    ),
    Mutation(
        "second best taken for best in pass@k",
        "advantages/group_baselines.py::best_of_group",
        "SequenceAdvantage(torch.where(best_B, inner.advantages_B, 0), inner.metrics)",
        "SequenceAdvantage(inner.advantages_B, inner.metrics)",
        "advantages/test_group_baselines.py::test_only_the_best_learns_and_a_tie_teaches_nothing",
    ),
    Mutation(
        "the lone tail is its own baseline",
        "advantages/token_baseline.py::optimal_token_baseline",
        "torch.where(position_T >= segments.broadcast(_tail(lengths_B, groups)), 0, baseline_T)",
        "baseline_T",
        "advantages/test_token_baseline.py::test_the_lone_tail_has_no_baseline_unless_asked",
    ),
    Mutation(
        "groups that were cut apart do not meet",
        "maths/batch.py::concat",
        'Groups.concat([each["groups"] for each in pieces])',
        'Groups.from_ids(torch.cat([each["groups"].ids_B for each in pieces]))',
        "maths/test_batch.py::test_joining_pieces_gives_the_batch_back",
    ),
    Mutation(
        "refills merge groups",
        "rollouts/batch.py::concat_draws",
        'second["groups"].beyond(first["groups"])',
        'second["groups"]',
        "end_to_end/test_refills.py::test_groups_of_several_draws_train_like_groups_of_one",
    ),
    Mutation(
        "the entropy thermostat runs backwards",
        "losses/entropy.py::thermostat",
        "torch.where(measured <= target, change, -change)",
        "torch.where(measured <= target, -change, change)",
        "losses/test_entropy.py::test_the_rule_step_by_step",
    ),
    Mutation(
        "value targets keep their gradient",
        "losses/values.py::_error",
        "masked.kept(returns_T.detach(), loss_mask_T)",
        "masked.kept(returns_T, loss_mask_T)",
        "losses/test_values.py::test_finite_differences_masks_and_frozen_targets",
    ),
)


def changed_file(mutation: Mutation) -> tuple[Path, str]:
    """The mutated file, relative to the package, and its text."""
    try:
        path, text = change_function(
            ROOT / "ascent", mutation.function, mutation.was, mutation.becomes
        )
    except AnchorError as error:
        raise AnchorError(f"{mutation.name}: {error}") from error
    return path.relative_to(ROOT / "ascent"), text


def caught_by(mutation: Mutation) -> str:
    """The test's name for pytest, from tests/ on."""
    _, _, case = mutation.caught_by.partition("::")
    files = find_definitions(ROOT / "tests", mutation.caught_by.partition("[")[0])
    if len(files) != 1:
        raise AnchorError(f"{mutation.name}: {len(files)} files hold {mutation.caught_by}")
    return f"{files[0].relative_to(ROOT / 'tests')}::{case}"


def find_unnoticed(mutations: Sequence[Mutation], folder: Path) -> list[str]:
    """The names of the mutations whose tests pass; first, all those tests must pass without any."""
    unbroken = compiled_copy(folder / "unbroken")
    unnoticed = []
    with ForkingPytest() as pytest_process:
        passed = pytest_process.run(unbroken, sorted({caught_by(each) for each in mutations}))
        assert passed.status == 0, (
            f"the unbroken copy: exit {passed.status}, {passed.failed}\n"
            + (unbroken / "output").read_text()[-2000:]
        )
        for number, mutation in enumerate(mutations):
            copy = copy_with(*changed_file(mutation), unbroken, folder / str(number))
            if pytest_process.run(copy, [caught_by(mutation)]).status != 1:
                unnoticed.append(mutation.name)
    return unnoticed


@pytest.mark.parametrize("part", range(PARTS))
def test_the_suite_notices_every_mutation_and_passes_without_one(part: int, tmp_path: Path) -> None:
    mutations = MUTATIONS[part::PARTS]
    unnoticed = find_unnoticed(mutations, tmp_path)
    assert not unnoticed, (
        f"{len(unnoticed)} of {len(mutations)} mutations went unnoticed: {unnoticed}"
    )


def list_changed_files(revision: str) -> set[str]:
    """The package's files that differ from those of the revision; none where git does not know it."""
    command = ["git", "diff", "--name-only", "--relative=ascent", revision, "--", "ascent"]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split())


def main() -> None:
    parser = argparse.ArgumentParser(description="The mutations of changed files alone.")
    parser.add_argument("--since", default="HEAD~1", metavar="REVISION")
    options = parser.parse_args()
    changed = list_changed_files(options.since)
    mutations = [each for each in MUTATIONS if str(changed_file(each)[0]) in changed]
    print(
        f"{len(mutations)} of {len(MUTATIONS)} mutations are in files changed since {options.since}"
    )
    if not mutations:
        return
    with tempfile.TemporaryDirectory() as folder:
        unnoticed = find_unnoticed(mutations, Path(folder).resolve())
    if unnoticed:
        sys.exit(f"unnoticed: {', '.join(unnoticed)}")
    print("all of them are noticed")


if __name__ == "__main__":
    main()
