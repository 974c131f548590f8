"""What a run says of itself on data it does not train on, and what a finished reward model carries with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from ascent.data.prepare import Item
from ascent.data.render import Renderer
from ascent.data.sources import single_pass
from ascent.maths.batch import PackedBatch
from ascent.maths.metrics import merge
from ascent.models.heads import Normalization
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.setup.data import prepare_records
from ascent.update.device import dummy_outputs
from ascent.update.learner import LocalLearner
from ascent.update.objective import MISMATCHED_SCORE, Objective
from ascent.update.reward_model_metrics import finalize, with_reward_model_metrics
from ascent.update.term_sums import LOSS_NAMES

Batches = Sequence[PackedBatch]
MOST_CENTERED = (
    2048  # chosen answers that a reward model is centered on, unless data for that is named
)
# What every evaluation by sampling reports, whatever the rewards.
OF_ANSWERS = frozenset(
    {
        "reward/correct",
        "reward/mean",
        "reward/std",
        "reward/failure_frac",
        "completion/length_mean",
        "completion/length_max",
        "completion/truncated_frac",
    }
)


def evaluated(learner: LocalLearner, heldout: Batches, objective: Objective) -> dict[str, float]:
    """The loss and metrics on held-out data, without a gradient; of a reward model also how far it can be trusted."""
    found = finalize(learner.evaluate(heldout, with_reward_model_metrics(objective)))
    return {f"eval/{name}": value for name, value in found.items()}


def refuse_unknown(name: str, heldout: Batches, objective: Objective) -> None:
    """ValueError, before the first step, if the evaluation has no such number; the model is not asked."""
    batch = heldout[0]
    known = {MISMATCHED_SCORE: torch.zeros(())} if objective.wants_mismatched else {}
    outputs = dummy_outputs(batch, objective.want | objective.statistics_want, torch.float32)
    inputs = {**batch, **known, **outputs}
    terms = with_reward_model_metrics(objective).terms(
        {**inputs, **objective.step_statistics(inputs)}
    )
    names = {
        "loss/total",
        *(LOSS_NAMES.get(term, f"loss/{term}") for term in terms),
        *finalize(merge(each.metrics for each in terms.values())),
    }
    if name not in names:
        raise _unknown(name, names)


def refuse_unreported(name: str, rewards: Sequence[str], *, talks: bool) -> None:
    """The same for what samples. Of a reward only its name is known before it has scored something, not its parts."""
    known = OF_ANSWERS | ({"env/turns"} if talks else set())
    if name not in known and not any(
        name == f"reward/{each}" or name.startswith(f"reward/{each}/") for each in rewards
    ):
        raise _unknown(name, {*known, *(f"reward/{each}[/PART]" for each in rewards)})


def refuse_unreported_part(name: str, found: Mapping[str, float]) -> None:
    """The same again, of `reward/REWARD/PART`, by what an evaluation did report before the first step.

    Of a reward that scored nothing, and of a part that it left open, there is still nothing to know.
    """
    if not name.startswith("reward/") or name in OF_ANSWERS:
        return
    names = {key.removeprefix("eval/") for key in found}
    whole = "/".join(name.split("/")[:2])
    scored = {each for each in names if each == whole or each.startswith(f"{whole}/")}
    left_open = f"{name.replace('reward', 'reward/failures', 1)}/none" in names
    if scored and not left_open and name not in scored:
        raise _unknown(
            name, {each for each in names if each in OF_ANSWERS or each.startswith("reward/")}
        )


def _unknown(name: str, names: Iterable[str]) -> ValueError:
    return ValueError(
        f"run.best_metric={name!r} is no number of this evaluation; use one of {', '.join(sorted(names))}"
    )


def demonstrations(
    plan: Plan, train: Sequence[Item], renderer: Renderer, ranks: Ranks
) -> tuple[list[PackedBatch], str]:
    """What a reward model is centered on, as packed batches, and in words.

    Of large training data a part, evenly spread. A micro-batch is no larger than those of training.
    """
    data = plan.config.data
    if data.centering_data is not None:
        items = prepare_records(data.centering_data, plan, renderer, want="examples").items
        words = f"{len(items)} demonstrations from {data.centering_data}"
    else:
        count = min(len(train), MOST_CENTERED)
        some = [train[place * len(train) // count] for place in range(count)]
        items = tuple(
            replace(each, kind="examples", sequences=each.sequences[:1], margin=None)
            for each in some
        )
        of_all = f" of {len(train)}" if count < len(train) else ""
        words = (
            f"{count}{of_all} chosen answers of the training data (data.centering_data names none)"
        )
    longest = max(len(sequence.tokens) for each in items for sequence in each.sequences)
    budget = min(plan.config.update.max_microbatch_tokens, data.batch_size * longest)
    batches = single_pass(
        items, tokens_per_microbatch=budget, max_tokens=data.max_tokens, ranks=ranks.count
    )
    return batches, words


def normalization(learner: LocalLearner, batches: Batches) -> Normalization:
    """Mean and standard deviation (n - 1) of the scores, in float64."""
    want = frozenset({"scores_B"})
    scores = learner.ranks.map(
        lambda batch: learner.infer(batch, want)["scores_B"].double().cpu(), batches, "the scores"
    )
    scores_B = torch.cat(scores)
    spread = float(scores_B.std()) if scores_B.numel() > 1 else 0.0
    return Normalization(float(scores_B.mean()), spread, scores_B.numel())
