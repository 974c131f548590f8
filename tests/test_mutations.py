"""Break the code on purpose, one line at a time, and require that the suite notices.

Each mutation is a mistake somebody has shipped (a dropped detach, a forgotten mask, a mean of means ...). The package
is copied, one line is changed, and the named tests must FAIL on the copy: not crash while collecting, fail.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = 2  # so that two workers share the work


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    was: str
    becomes: str
    caught_by: str


MUTATIONS = (
    Mutation(
        "a completion of other weights counts",
        "engines/fleet.py",
        "if found == stamp:",
        "if found:",
        "engines/test_fleet.py::test_a_server_that_fails_in_mid_step[given other weights by somebody]",
    ),
    Mutation(
        "new weights do not wait for running requests",
        "engines/engine_thread.py",
        "if self._swaps and self.engine.idle:",
        "if self._swaps:",
        "engines/test_serve.py::test_new_weights_wait_for_running_requests",
    ),
    Mutation(
        "log-probs of a merged adapter are taken for the trainer's",
        "setup/samplers.py",
        "numerics = None if merged else served.numerics\n    if members",
        "numerics = served.numerics\n    if members",
        "end_to_end/test_remote_rollouts.py::test_a_merged_adapter_is_said_to_differ",
    ),
    Mutation(
        "a window that is one token too long",
        "c_extension.c",
        "end > args->window ? end - args->window : 0",
        "end > args->window ? end - args->window - 1 : 0",
        "models/test_paged_attention.py::test_decode_is_dense_attention_over_each_rows_own_past",
    ),
    Mutation(
        "a token that is ruled out too early",
        "c_extension.c",
        "best * uniform[i] * 0.999999f",
        "best * uniform[i] * 1.5f",
        "engines/native/test_sampling.py::test_frequencies_are_those_of_the_softmax",
    ),
    Mutation(
        "a prompt's tokens are read before all are stored",
        "models/paged_attention_cpu.py",
        "functions.store_kv(ctypes.byref(arguments), rows)",
        "functions.store_kv(ctypes.byref(arguments), rows - 1)",
        "engines/native/test_engine.py::test_greedy_equals_transformers_generate",
    ),
    Mutation(
        "advantages keep their gradient",
        "losses/policy_losses.py",
        "masked.kept(advantages_T.detach(), loss_mask_T)",
        "masked.kept(advantages_T, loss_mask_T)",
        "losses/test_policy_losses.py::"
        "test_advantages_never_carry_a_gradient_and_nan_outside_the_mask_stays_there",
    ),
    Mutation(
        "old log-probs keep their gradient",
        "losses/ratios.py",
        "masked.kept(old_logprobs_T.detach(), loss_mask_T)",
        "masked.kept(old_logprobs_T, loss_mask_T)",
        "losses/test_ratios.py::test_the_old_policy_gets_no_gradient_and_lengths_must_match",
    ),
    Mutation(
        "CISPO's weight keeps its gradient",
        "losses/policy_losses.py",
        "ratio_T = log_ratio_T.detach().exp()\n    weight_T",
        "ratio_T = log_ratio_T.exp()\n    weight_T",
        "losses/test_policy_losses.py::test_autograd_equals_the_phi_table",
    ),
    Mutation(
        "group ids swapped",
        "maths/groups.py",
        "return x_G[self.ids_B]",
        "return x_G[self.ids_B.flip(0)]",
        "advantages/test_group_baselines.py::test_group_advantages_sum_to_zero",
    ),
    Mutation(
        "mask forgotten in the segment mean",
        "maths/segments.py",
        "kept_B = self.sum(keep_T).clamp(min=1)",
        "kept_B = self.lengths_B.clamp(min=1)",
        "maths/test_segments.py::test_sums_means_and_spread",
    ),
    Mutation(
        "an adapter of a 4-bit base is merged into the original weights",
        "models/load.py",
        'adapters.training_of(folder)["quantize"]',
        "None",
        "models/test_quantize.py::"
        "test_the_adapter_is_restored_bit_by_bit_and_merged_into_the_weights_it_was_trained_on",
    ),
    Mutation(
        "an adapter is merged into a base that has changed",
        "models/adapters.py",
        "sample_hash(base) != sample",
        "not sample",
        "models/test_adapters.py::test_a_base_that_was_trained_further_is_refused",
    ),
    Mutation(
        "replies of tools are trained",
        "data/render.py",
        'enumerate(messages) if message.role == "assistant"]\n        trained',
        'enumerate(messages) if message.role != "user"]\n        trained',
        "data/test_tools.py::test_calls_and_answers_are_trained_and_nothing_else",
    ),
    Mutation(
        "mask by multiplication, NaN leaks",
        "maths/masked.py",
        "return torch.where(keep, x, 0)",
        "return x * keep",
        "maths/test_masked.py::test_values_by_hand",
    ),
    Mutation(
        "held-out prompts are trained on",
        "data/heldout.py",
        "lambda prompt: prompt not in heldout",
        "lambda prompt: True",
        "data/test_heldout.py::test_every_record_is_on_one_side_and_no_prompt_on_both",
    ),
    Mutation(
        "an epoch of a mix counted by the records of every step",
        "data/sources.py",
        "(self._batch_size * self._share)",
        "self._batch_size",
        "data/test_sources.py::test_from_a_file_to_batches",
    ),
    Mutation(
        "mean of micro-batch means",
        "update/microbatch.py",
        "torch.stack([terms[name].numerator for terms in pieces if name in terms]).sum() / total.clamp(min=1)",
        "torch.stack([terms[name].numerator / terms[name].denominator.clamp(min=1) for terms in pieces"
        " if name in terms]).mean()",
        "update/test_microbatch.py::test_sum_of_numerators_over_sum_of_denominators",
    ),
    Mutation(
        "KL in the reward with the wrong sign",
        "advantages/reward_shaping.py",
        "return -beta * masked.kept",
        "return beta * masked.kept",
        "advantages/test_reward_shaping.py::test_golden_numbers_g3b",
    ),
    Mutation(
        "k3 with the wrong direction",
        "losses/kl.py",
        "_bregman(-differences(logprobs_T, ref_logprobs_T, loss_mask_T), guard)",
        "_bregman(differences(logprobs_T, ref_logprobs_T, loss_mask_T), guard)",
        "losses/test_kl.py::test_golden_numbers_g4",
    ),
    Mutation(
        "KL computed without gradient",
        "losses/kl.py",
        "return 0.5 * differences(logprobs_T, ref_logprobs_T, loss_mask_T) ** 2",
        "return 0.5 * differences(logprobs_T, ref_logprobs_T, loss_mask_T).detach() ** 2",
        "losses/test_kl.py::test_k2_and_straight_through_follow_the_reverse_kl",
    ),
    Mutation(
        "k3 capped at 10, gradient 0 where drift is worst",
        "losses/kl.py",
        "return x_T.clamp(max=guard).expm1() - x_T.clamp(max=guard)",
        "return (x_T.clamp(max=guard).expm1() - x_T.clamp(max=guard)).clamp(max=10)",
        "losses/test_kl.py::test_the_penalty_does_not_vanish_where_drift_is_worst",
    ),
    Mutation(
        "shift across packed borders",
        "maths/logprobs.py",
        "torch.where(inside_T, scored_T, 0)",
        "scored_T",
        "maths/test_logprobs.py::test_each_token_is_scored_by_the_position_before_it_in_its_own_segment",
    ),
    Mutation(
        "off by one: no shift at all",
        "maths/logprobs.py",
        "token_logprobs(logits_TV[:-1], tokens_T[1:], temperature=temperature)",
        "token_logprobs(logits_TV[1:], tokens_T[1:], temperature=temperature)",
        "maths/test_logprobs.py::test_each_token_is_scored_by_the_position_before_it_in_its_own_segment",
    ),
    Mutation(
        "population for sample std",
        "maths/groups.py",
        "(self.sum(valid_B) - 1).clamp(min=1)",
        "self.sum(valid_B).clamp(min=1)",
        "maths/test_groups.py::test_mean_and_sample_std",
    ),
    Mutation(
        "all-equal groups left to rounding",
        "advantages/group_baselines.py",
        "live_B = scored_B & ~groups.broadcast(alone_G | flat_G)",
        "live_B = scored_B & ~groups.broadcast(alone_G)",
        "advantages/test_group_baselines.py::test_equal_rewards_give_an_exact_zero_in_float32",
    ),
    Mutation(
        "an unscored reward counts as 0",
        "advantages/group_baselines.py",
        "return ~torch.isnan(rewards_B)",
        "return torch.ones_like(rewards_B, dtype=torch.bool)",
        "advantages/test_group_baselines.py::test_unscored_rewards_are_left_out_not_counted_as_zero",
    ),
    Mutation(
        "self in the leave-one-out baseline",
        "advantages/group_baselines.py",
        "factor_B = members_B / (members_B - 1).clamp(min=1)",
        "factor_B = members_B / members_B.clamp(min=1)",
        "advantages/test_group_baselines.py::test_golden_numbers_g1",
    ),
    Mutation(
        "GAE runs over the border of a sequence",
        "maths/reverse_scan.py",
        "return torch.where(_is_last(segments), beyond_T, shifted_T)",
        "return shifted_T",
        "advantages/test_returns.py::test_golden_numbers_g3",
    ),
    Mutation(
        "observation tokens decay credit",
        "advantages/returns.py",
        "self.whole = bool(loss_mask_T.all())",
        "self.whole = True",
        "advantages/test_returns.py::test_gae_equals_the_loop_and_steps_over_observations",
    ),
    Mutation(
        "reward behind a closing observation",
        "advantages/reward_shaping.py",
        "torch.where(segments.last(loss_mask_T), segments.broadcast(rewards_B), 0)",
        "torch.where(segments.last(torch.ones_like(loss_mask_T)), segments.broadcast(rewards_B), 0)",
        "advantages/test_reward_shaping.py::"
        "test_the_reward_sits_on_the_last_trained_token_even_behind_an_observation",
    ),
    Mutation(
        "max for min in the clip",
        "losses/policy_losses.py",
        "too_high_T = (advantages_T > 0) & (ratio_T > 1 + high)",
        "too_high_T = (advantages_T < 0) & (ratio_T > 1 + high)",
        "losses/test_policy_losses.py::test_golden_numbers_g5",
    ),
    Mutation(
        "what a mask keeps loses its weight",
        "losses/rollout_correction.py",
        "return Correction(torch.where(keep_T, weight_T, 0), old_logprobs_T.detach()",
        "return Correction(torch.where(keep_T, 1 + 0 * weight_T, 0), old_logprobs_T.detach()",
        "losses/test_rollout_correction.py::test_golden_numbers_g8",
    ),
    Mutation(
        "empty sequences are counted",
        "losses/aggregation.py",
        "return (tokens_B > 0).to(tokens_B.dtype)",
        "return torch.ones_like(tokens_B)",
        "losses/test_aggregation.py::test_group_mean_by_hand",
    ),
    Mutation(
        "prompt mean counts a group once per piece",
        "losses/aggregation.py",
        "return Weights(per_group_B, tokens_B * per_group_B)",
        "return Weights(per_group_B, torch.ones_like(tokens_B) / tokens_B.numel())",
        "test_invariance.py::test_cutting_into_micro_batches_changes_nothing[scale_rl]",
    ),
    Mutation(
        "mismatch weight on the KL term",
        "losses/objective.py",
        'terms["kl"] = aggregate(kl_T,',
        'terms["kl"] = aggregate(correction.weight_T * kl_T,',
        "losses/test_objective.py::test_mismatch_weights_scale_the_policy_term_only_and_keep_the_count",
    ),
    Mutation(
        "entropy bonus with the wrong sign",
        "losses/entropy.py",
        "return -masked.kept(entropy_T, loss_mask_T)",
        "return masked.kept(entropy_T, loss_mask_T)",
        "losses/test_values.py::test_the_entropy_bonus_is_minimized_by_more_entropy_and_has_a_gradient",
    ),
    Mutation(
        "DPO averages instead of summing",
        "losses/preferences.py",
        "losses_P = smoothed(beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha)), label_smoothing)",
        "losses_P = smoothed(beta * pairs.margin(pairs.per_token(phi(pairs.log_ratio_B, divergence, alpha))),"
        " label_smoothing)",
        "losses/test_preferences.py::test_golden_numbers_g9",
    ),
    Mutation(
        "KTO's reference point may be negative",
        "losses/kto_bco.py",
        "torch.as_tensor(mismatched_score).detach().clamp(min=0)",
        "torch.as_tensor(mismatched_score).detach()",
        "losses/test_kto_bco.py::test_kto_reference_point_is_never_negative_and_carries_no_gradient",
    ),
    Mutation(
        "BCO forgets what it has seen",
        "losses/kto_bco.py",
        "total, count = total + mean * before, count + before",
        "total, count = total, count",
        "losses/test_kto_bco.py::test_bco_shift_is_the_mean_of_everything_seen",
    ),
    Mutation(
        "AOT compares each pair with itself",
        "losses/optimal_transport.py",
        "matched_B[pairs.chosen_P[order_P]] = pairs.margin(pairs.ref_logprobs_B).sort().values.to(matched_B)",
        "matched_B[pairs.chosen_P] = pairs.margin(pairs.ref_logprobs_B).to(matched_B)",
        "losses/test_optimal_transport.py::test_worked_example",
    ),
    Mutation(
        "AOT trains one side only",
        "losses/optimal_transport.py",
        "losses_P = losses_P + mirrored_P - mirrored_P.detach()",
        "losses_P = losses_P + 0 * mirrored_P",
        "losses/test_optimal_transport.py::test_value_and_gradient_are_those_of_sorting_the_whole_step",
    ),
    Mutation(
        "robust DPO with the sign of cDPO",
        "losses/preferences.py",
        "(wrong * logsigmoid(-logits_P) - (1 - wrong) * logsigmoid(logits_P)) / (1 - 2 * wrong)",
        "(-wrong * logsigmoid(-logits_P) - (1 - wrong) * logsigmoid(logits_P)) / (1 - 2 * wrong)",
        "losses/test_preferences.py::test_worked_pair_of_the_other_margin_losses",
    ),
    Mutation(
        "EXO's target is swapped",
        "losses/preferences.py",
        "(logsigmoid(-logits_P) - math.log(label_smoothing))",
        "(logsigmoid(-logits_P) - math.log1p(-label_smoothing))",
        "losses/test_preferences.py::test_worked_pair_of_the_other_margin_losses",
    ),
    Mutation(
        "LD-DPO's tail reaches the shared part",
        "losses/length_desensitized.py",
        "trained_ranks(loss_mask_T, segments) > segments.broadcast(shared_B)",
        "trained_ranks(loss_mask_T, segments) >= segments.broadcast(shared_B)",
        "losses/test_length_desensitized.py::test_tokens_beyond_the_shared_length",
    ),
    Mutation(
        "the quantile from the wrong end",
        "losses/token_weights.py",
        "kept_N.sort().values, (1 - share) * (kept_N.numel() - 1)",
        "kept_N.sort().values, share * (kept_N.numel() - 1)",
        "losses/test_token_weights.py::test_the_floor_is_the_interpolated_quantile_of_trained_tokens",
    ),
    Mutation(
        "token weights shrink the denominator",
        "losses/objective.py",
        'terms = {"policy": aggregate(weight_T * clipped.loss_T, _ratio_metrics(known, own_T, masks))}',
        'terms = {"policy": aggregate(weight_T * clipped.loss_T, _ratio_metrics(known, own_T, masks))}\n'
        "    kept = (token_weight_T != 0).sum().to(token_weight_T.dtype)\n"
        '    terms["policy"] = terms["policy"]._replace(denominator=kept)',
        "losses/test_objective.py::test_a_focus_weighs_the_policy_term_alone_and_leaves_denominators",
    ),
    Mutation(
        "a good sample the policy has left is dropped too",
        "losses/token_weights.py",
        "return (masked.kept(advantages_T, loss_mask_T) >= 0) | (segments.broadcast(drift_B) <= max_drift)",
        "return segments.broadcast(drift_B) <= max_drift",
        "losses/test_token_weights.py::test_near_policy_drops_only_negative_samples_the_policy_has_left",
    ),
    Mutation(
        "DPPO's trust region on the wrong side",
        "losses/policy_losses.py",
        "far_T = torch.where(advantages_T > 0, moved_T > high, moved_T < -low)",
        "far_T = torch.where(advantages_T > 0, moved_T < -low, moved_T > high)",
        "losses/test_policy_losses.py::test_dppo_bounds_the_probability_and_not_the_ratio",
    ),
    Mutation(
        "FIPO looks back instead of ahead",
        "losses/sequence_policy_losses.py",
        "factor_T = reverse_scan(moved_T, gamma, segments).clamp(-GUARD, GUARD).exp()",
        "factor_T = moved_T.exp()",
        "losses/test_sequence_policy_losses.py::test_fipo_counts_what_the_policy_did_next",
    ),
    Mutation(
        "VESPO counts the sampler's weight twice",
        "losses/objective.py",
        'token_weight_T if "correction_T" in policy_loss.inputs else token_weight_T * correction.weight_T',
        "token_weight_T * correction.weight_T",
        "losses/test_sequence_policy_losses.py::"
        "test_vespo_takes_the_samplers_weight_into_the_product_and_nowhere_else",
    ),
    Mutation(
        "REAL's slope forgets its rivals",
        "losses/sequence_policy_losses.py",
        "share_B = (level_B - torch.where(right_B, log_B2[:, 1], log_B2[:, 0])).exp()",
        "share_B = level_B.sigmoid()",
        "losses/test_sequence_policy_losses.py::test_real_is_its_definition_however_groups_are_cut",
    ),
    Mutation(
        "clip-cov drops everything it may",
        "losses/covariance.py",
        "wanted = min(_number(loss_mask_T, share), int(candidates_T.sum()))",
        "wanted = int(candidates_T.sum())",
        "losses/test_covariance.py::test_clip_cov_drops_its_share_of_the_candidates_by_noise",
    ),
    Mutation(
        "GKD's ends taken for limits",
        "maths/divergence.py",
        "ends = (teacher_TV, student_TV) if beta == 0 else (student_TV, teacher_TV)",
        "ends = (student_TV, teacher_TV) if beta == 0 else (teacher_TV, student_TV)",
        "maths/test_divergence.py::test_jensen_shannon_against_sums_written_out",
    ),
    Mutation(
        "the teacher learns",
        "losses/distillation.py",
        "student_TV, teacher_TV = _trained(logits_TV, loss_mask_T), _trained(teacher_TV.detach(), loss_mask_T)\n"
        "    loss_T = divergence.jensen",
        "student_TV, teacher_TV = _trained(logits_TV, loss_mask_T), _trained(teacher_TV, loss_mask_T)\n"
        "    loss_T = divergence.jensen",
        "losses/test_distillation.py::test_gradients_and_masks",
    ),
    Mutation(
        "second best taken for best in pass@k",
        "advantages/group_baselines.py",
        "return SequenceAdvantage(torch.where(best_B, inner.advantages_B, 0), inner.metrics)",
        "return SequenceAdvantage(inner.advantages_B, inner.metrics)",
        "advantages/test_group_baselines.py::test_only_the_best_learns_and_a_tie_teaches_nothing",
    ),
    Mutation(
        "the lone tail is its own baseline",
        "advantages/token_baseline.py",
        "torch.where(position_T >= segments.broadcast(_tail(lengths_B, groups)), 0, baseline_T)",
        "baseline_T",
        "advantages/test_token_baseline.py::test_the_lone_tail_has_no_baseline_unless_asked",
    ),
    Mutation(
        "groups that were cut apart do not meet",
        "maths/batch.py",
        'Groups.concat([each["groups"] for each in pieces])',
        'Groups.from_ids(torch.cat([each["groups"].ids_B for each in pieces]))',
        "maths/test_batch.py::test_joining_pieces_gives_the_batch_back",
    ),
    Mutation(
        "refills merge groups",
        "rollouts/batch.py",
        'second["groups"].beyond(first["groups"])',
        'second["groups"]',
        "end_to_end/test_refills.py::test_groups_of_several_draws_train_like_groups_of_one",
    ),
    Mutation(
        "the entropy thermostat runs backwards",
        "losses/entropy.py",
        "step = torch.where(measured <= target, change, -change)",
        "step = torch.where(measured <= target, -change, change)",
        "losses/test_entropy.py::test_the_rule_step_by_step",
    ),
    Mutation(
        "value targets keep their gradient",
        "losses/values.py",
        "masked.kept(returns_T.detach(), loss_mask_T)",
        "masked.kept(returns_T, loss_mask_T)",
        "losses/test_values.py::test_finite_differences_masks_and_frozen_targets",
    ),
)


def compiled_copy(folder: Path) -> Path:
    """The package as it is, with the bytecode of all its files."""
    shutil.copytree(ROOT / "ascent", folder / "ascent")
    assert compileall.compile_dir(folder / "ascent", quiet=1)
    return folder


def copy_with(mutation: Mutation, unbroken: Path, folder: Path) -> Path:
    """Links to the files of `unbroken`, but the mutated one is a file of its own."""
    shutil.copytree(unbroken / "ascent", folder / "ascent", copy_function=os.link)
    target = folder / "ascent" / mutation.file
    text = target.read_text()
    assert text.count(mutation.was) == 1, (
        f"{mutation.file} holds {text.count(mutation.was)} times: {mutation.was}"
    )
    for stale in (target, *target.parent.glob(f"__pycache__/{target.stem}.*")):
        stale.unlink()
    target.write_text(text.replace(mutation.was, mutation.becomes))
    return folder


# Importing torch and transformers costs more than the tests do, so one process imports what the package imports from
# them, and forks a child for every copy. The list is made by a first child: the process itself must not know `ascent`.
DRIVER = """
import gc, importlib, json, os, sys, traceback
import anyio.pytest_plugin, hypothesis.strategies, pytest, torch
root, jobs = sys.argv[1], json.loads(sys.stdin.read())

def forked(work):
    child = os.fork()
    if child == 0:
        code = 98
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def list_modules():
    sys.path.insert(0, root)
    import ascent.api.train
    shared = ("torch", "transformers", "numpy", "sympy", "tokenizers", "matplotlib")
    print(*(name for name in list(sys.modules) if name.partition(".")[0] in shared), file=open(listed, "w"))
    return 0

def test(package, targets):
    output = open(os.path.join(package, "output"), "w")
    os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
    # The project's own settings put the checkout first on the path; here the copy must come before it.
    path = ["-c", root + "/pyproject.toml", "--rootdir", root, "-o", "pythonpath=" + package + " " + root]
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    result = pytest.main(["-q", "-x", *plain, *path, *targets])
    import ascent
    return int(result) if ascent.__file__.startswith(package) else 99

listed = os.path.join(jobs[0][0], "modules")
assert forked(list_modules) == 0
for name in open(listed).read().split():
    try:
        importlib.import_module(name)
    except ImportError:  # a name that another module put there
        pass
gc.collect()
gc.freeze()  # pytest collects garbage several times as it ends: not all of torch each time
print(json.dumps([forked(lambda: test(*job)) for job in jobs]))
"""


def exit_codes(jobs: list[tuple[Path, list[str]]]) -> list[int]:
    """Run the named tests against each copy; pytest's exit codes (98: it crashed, 99: another copy was imported)."""
    named = [
        (str(package), [str(ROOT / "tests" / target) for target in targets])
        for package, targets in jobs
    ]
    # Bytecode is written, so that a test file is compiled by its first child alone.
    variables = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(ROOT)],
        input=json.dumps(named),
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**variables, "OMP_NUM_THREADS": "1"},
        timeout=900,
        check=True,
    )
    codes: list[int] = json.loads(done.stdout.splitlines()[-1])
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_suite_notices_every_mutation_and_passes_without_one(part: int, tmp_path: Path) -> None:
    mutations = MUTATIONS[part::PARTS]
    unbroken = compiled_copy(tmp_path / "unbroken")
    copies = [
        copy_with(mutation, unbroken, tmp_path / str(number))
        for number, mutation in enumerate(mutations)
    ]
    jobs = [(unbroken, sorted({mutation.caught_by for mutation in mutations}))]
    jobs += [(copy, [mutation.caught_by]) for copy, mutation in zip(copies, mutations, strict=True)]
    codes = exit_codes(jobs)
    assert codes[0] == 0, (
        f"the unbroken copy: exit {codes[0]}\n" + (unbroken / "output").read_text()[-2000:]
    )
    unnoticed = [
        mutation.name for mutation, code in zip(mutations, codes[1:], strict=True) if code != 1
    ]
    assert not unnoticed, (
        f"{len(unnoticed)} of {len(mutations)} mutations went unnoticed: {unnoticed}"
    )
