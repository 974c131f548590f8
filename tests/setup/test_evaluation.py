"""What is said of a model on held-out data, and the mean that a reward model carries with it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from ascent.api.score import score
from ascent.api.train import assemble, train_plan
from ascent.metrics import larger_is_better
from ascent.models.load import load
from ascent.parallel.ranks import SINGLE
from ascent.runs.folder import read_run
from ascent.setup import evaluation
from ascent.setup.evaluation import normalization, refuse_unknown, refuse_unreported_part
from ascent.setup.policy import load_policy
from tests.setup.runs import tiny_plan

RANKERS = ("reward_model", "reward_model_kwise", "reward_model_listwise")


def quiet(text: str) -> None: ...


class Recorded:
    """A learner whose model gives these scores, batch after batch."""

    ranks = SINGLE

    def infer(self, batch: dict[str, Any], want: frozenset[str]) -> dict[str, torch.Tensor]:
        return {"scores_B": torch.tensor(batch["scores"])}


def test_mean_and_spread_are_of_sequences_however_they_are_packed() -> None:
    """1, 2 and 6: mean 3, squared distances 4 + 1 + 9 over n - 1 = 2."""
    for cut in ([[1.0, 2.0, 6.0]], [[1.0], [2.0, 6.0]]):
        found = normalization(Recorded(), [{"scores": scores} for scores in cut])  # type: ignore[arg-type]
        assert found == pytest.approx((3.0, math.sqrt(7.0), 3))
    assert normalization(Recorded(), [{"scores": [4.0]}]) == (4.0, 0.0, 1)  # type: ignore[arg-type]


def test_less_is_better_of_losses_and_errors() -> None:
    assert not any(
        larger_is_better(name)
        for name in (
            "loss/total",
            "loss/dpo",
            "loss/nll",
            "preference/calibration_error",
            "preference/brier",
        )
    )
    assert all(larger_is_better(name) for name in ("accuracy", "margin", "reward"))


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("data") / "demonstrations.jsonl"
    rows = [{"prompt": f"{n}+{n}=", "completion": str(2 * n)} for n in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, demonstrations: str) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "rm"
    train_plan(
        tiny_plan(algorithm="reward_model", data={"centering_data": demonstrations}),
        folder,
        say=quiet,
    )
    return folder


def test_a_trained_reward_model_scores_the_demonstrations_zero_on_average(
    judge: Path, demonstrations: str
) -> None:
    center = load(judge, head="scalar").normalization
    assert center is not None and center.records == 30
    assert abs(center.mean) > 0.05 and center.std > 0
    said: list[str] = []
    scores = torch.tensor(
        [line.scores for line in score(str(judge), demonstrations, say=said.append)]
    ).flatten()
    assert float(scores.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(scores.double().std()) == pytest.approx(center.std, rel=1e-5)
    assert said[0].startswith("scores are relative to 30 demonstrations")


def test_transformers_loads_the_folder_and_its_own_scores_are_the_raw_ones(
    judge: Path, demonstrations: str
) -> None:
    model = load(judge, head="scalar")
    folder = judge / "checkpoints/4/model"
    stored = AutoConfig.from_pretrained(folder).score_normalization
    assert model.normalization is not None and stored == model.normalization._asdict()
    stock = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    row = json.loads(Path(demonstrations).read_text().splitlines()[5])
    tokens = [
        *model.tokenizer(row["prompt"]).input_ids,
        *model.tokenizer(row["completion"]).input_ids,
    ]
    with torch.no_grad():
        raw = stock(torch.tensor([[*tokens, model.tokenizer.eos_token_id]])).logits.item()
    ours = list(score(str(judge), demonstrations))[5].scores[0]
    assert ours == pytest.approx(raw - stored["mean"], abs=1e-5)


def test_a_checkpoint_from_the_middle_says_that_it_is_raw(judge: Path, demonstrations: str) -> None:
    middle = judge / "checkpoints/2"
    assert load(middle, head="scalar").normalization is None
    said: list[str] = []
    list(score(str(middle), demonstrations, say=said.append))
    assert said[0].endswith("scores are raw")


def test_training_goes_on_from_raw_scores(judge: Path, tmp_path: Path) -> None:
    plan = tiny_plan(algorithm="reward_model", model={"policy": str(judge)})
    assert load_policy(plan, tmp_path).normalization is None


@pytest.mark.parametrize("name", RANKERS)
def test_without_demonstrations_the_chosen_answers_are_the_centre(
    name: str, tmp_path: Path
) -> None:
    said: list[str] = []
    changes = {"data": {"train": "arithmetic:16"}, "run": {"steps": 2}}
    train_plan(tiny_plan(algorithm=name, **changes), tmp_path / "rm", say=said.append)
    assert any("centered on 16 chosen answers of the training data" in line for line in said)
    training = assemble(tiny_plan(algorithm=name, **changes), tmp_path / "again")
    assert sum(batch["segments"].count for batch in training.demonstrations) == 16
    model = load(tmp_path / "rm", head="scalar")
    assert model.normalization is not None
    with torch.no_grad():
        scores = [
            model.outputs(batch, frozenset({"scores_B"}))["scores_B"]
            for batch in training.demonstrations
        ]
    assert float(torch.cat(scores).mean()) == pytest.approx(model.normalization.mean, abs=1e-5)
    last = read_run(tmp_path / "rm").metrics[-1]
    for metric in ("accuracy", "calibration_error", "brier", "length_correlation"):
        assert f"eval/preference/{metric}" in last
    assert (
        0 <= last["eval/preference/calibration_error"] <= 0.5
        and 0 < last["eval/preference/brier"] < 1
    )
    assert not any("judged" in key for key in last)


def test_of_large_training_data_a_part_is_the_centre(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evenly spread, in micro-batches that are no larger than those of training."""
    changes = {"data": {"train": "arithmetic:16", "batch_size": 3}, "run": {"steps": 2}}
    whole = assemble(
        tiny_plan(algorithm="reward_model", **changes), tmp_path / "whole"
    ).demonstrations
    monkeypatch.setattr(evaluation, "MOST_CENTERED", 5)
    training = assemble(tiny_plan(algorithm="reward_model", **changes), tmp_path / "part")
    assert any("5 of 16 chosen answers of the training data" in line for line in training.notes)

    def texts(batches: Sequence[Any]) -> list[tuple[int, ...]]:
        pieces = [
            batch["tokens_T"].split(batch["segments"].lengths_B.tolist()) for batch in batches
        ]
        return [tuple(text.tolist()) for piece in pieces for text in piece]

    everything, some = texts(whole), texts(training.demonstrations)
    assert len(everything) == 16 and len(some) == 5 and set(some) <= set(everything)
    longest = max(map(len, everything))
    assert all(batch["segments"].total <= 3 * longest for batch in whole)


def test_figures_are_those_of_the_scores_the_command_gives(judge: Path) -> None:
    """Held-out accuracy and Brier score, worked again from `ascent score` on the same file of records."""
    pairs = [line.scores for line in score(str(judge), "arithmetic@heldout:8")]
    last = read_run(judge).metrics[-1]
    gaps = [won - lost for won, lost in pairs]
    assert last["eval/preference/accuracy"] == pytest.approx(sum(gap > 0 for gap in gaps) / 8)
    assert last["eval/preference/brier"] == pytest.approx(
        sum((1 + math.exp(gap)) ** -2 for gap in gaps) / 8, abs=1e-5
    )


@pytest.mark.parametrize("row", ["aot", "aot_unpaired", "kto", "bco", "gkd"])
def test_the_best_can_be_kept_where_a_loss_reads_statistics_of_the_step(
    row: str, tmp_path: Path
) -> None:
    run = {"steps": 1, "save_every": 1, "evaluate_every": 1, "keep_best": 1}
    train_plan(tiny_plan(algorithm=row, run=run), tmp_path / "run", say=lambda line: None)
    assert math.isfinite(read_run(tmp_path / "run").metrics[-1]["eval/loss/total"])


def test_a_number_that_is_not_evaluated_cannot_decide_what_is_best(tmp_path: Path) -> None:
    training = assemble(tiny_plan(algorithm="reward_model"), tmp_path)
    for name in (
        "loss/total",
        "preference/accuracy",
        "preference/calibration_error",
        "loss/bradley_terry",
    ):
        refuse_unknown(name, training.heldout, training.objective)
    with pytest.raises(
        ValueError, match=r"run\.best_metric='acuracy' is no number of this evaluation; use one of "
    ):
        refuse_unknown("acuracy", training.heldout, training.objective)


def test_a_part_is_known_once_its_reward_has_scored_something() -> None:
    found = {"eval/reward/mean": 0.5, "eval/reward/judge/tone": 0.5, "eval/reward/exact": 1.0}
    for name in (
        "reward/mean",
        "reward/judge/tone",
        "reward/exact",
        "reward/silent",
        "reward/silent/part",
    ):
        refuse_unreported_part(name, found)
    for name in ("reward/judge", "reward/judge/wit", "reward/exact/part"):
        with pytest.raises(
            ValueError,
            match=f"run.best_metric='{name}' is no number .* reward/exact, reward/judge/",
        ):
            refuse_unreported_part(name, found)
    refuse_unreported_part(
        "reward/judge/wit", {**found, "eval/reward/failures/judge/wit/none": 2.0}
    )
