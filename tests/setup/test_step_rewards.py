"""A process reward model in a recipe: step rewards for rows that learn from them, one number for the others."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.api.train import assemble, resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models import tiny
from ascent.models.heads import StepFormat
from ascent.models.load import load
from ascent.plan.resolve import Plan, resolve
from ascent.records import Completion, Message, Prompt, Rollout, StepReward, Turn
from ascent.rewards.combine import Combination, Term
from ascent.rewards.outcome import RewardFailed, Tally, check_score
from ascent.rewards.steps import Answer, ProcessReward
from ascent.rollouts.batch import pack_rollouts, place_step_rewards
from ascent.rollouts.experience import add_advantages
from ascent.rollouts.generate import stream_of
from ascent.runs.folder import read_run
from ascent.setup.offline import Training
from ascent.setup.reward_models import ProcessRewardModel
from ascent.setup.rewards import rewards_of, scorer_of
from ascent.tasks import TASKS
from tests.setup.runs import tiny_plan, weights_of

# The policy writes bytes; what splits at "1" reads a token " 1" where the policy wrote two.
SEPARATOR = "1"
BYTES = tiny.tiny_tokenizer()


def decode(tokens: Sequence[int]) -> str:
    return str(BYTES.decode(list(tokens), skip_special_tokens=True))


def judge(folder: Path, name: str = "digits", **more: Any) -> str:
    """A model that judges steps without having learnt it: its scores are some numbers, always the same."""
    made = (
        tiny.named(folder / "base", name, seed=3)
        if not more
        else tiny.create(folder / "base", seed=3, **more)
    )
    model = load(made, head="scalar", seed=3)
    model.step_format = StepFormat(SEPARATOR)
    model.save(folder / "judge")
    return str(folder / "judge")


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return judge(tmp_path_factory.mktemp("prm"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """It has seen some totals, so it writes digits, and answers in several steps."""
    folder = tmp_path_factory.mktemp("policy") / "run"
    run = {"steps": 40, "save_every": 40, "evaluate_every": 40}
    asked = tiny_plan(data={"train": "running_sum:256"}, run=run, update={"learning_rate": 1e-2})
    train_plan(asked, folder, say=lambda line: None)
    return str(folder)


def plan(row: str, *rewards: dict[str, Any], **more: Any) -> Plan:
    settings = {
        "algorithm": row,
        "model.policy": "tiny:llama",
        "data.train": "running_sum:8",
        "rewards": list(rewards),
        "rollouts.prompts_per_step": 2,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 12,
        "run.steps": 2,
        "run.save_every": 1,
    }
    return resolve(
        validate(
            nest_keys(
                {**settings, **{key.replace("__", "."): value for key, value in more.items()}}
            )
        )
    )


def made(row: str, *rewards: dict[str, Any], **more: Any) -> Any:
    return rewards_of(plan(row, *rewards, **more), decode)


def said(text: str, *, stop: Any = "eos", prompt: Prompt | None = None) -> Rollout:
    tokens = (*BYTES.encode(text), *([BYTES.eos_token_id] if stop == "eos" else []))
    asked = prompt or Prompt("p", (Message("user", "add 3 8 ="),), "3 11", {"task": "running_sum"})
    done = Completion(asked.id, 0, tokens, (-0.5,) * len(tokens), (0,) * len(tokens), stop)
    return Rollout(asked, 0, (Turn((1,), done, text),))


def of(prm: str, **more: Any) -> dict[str, Any]:
    return {"use": "process_reward_model", "model": prm, **more}


# --- what is scored, and where it stands --------------------------------------------------------------------------


def test_each_step_is_rewarded_at_the_sampled_token_that_ends_it(prm: str) -> None:
    """ "2 1 3 1 4": ends at characters 3 and 7 and with the answer; the model's own tokens lie across those places."""
    reward = made("grpo_process", of(prm)).rewards["process_reward_model"]
    (found,) = reward.score([said("2 1 3 1 4")])
    (scores,) = ProcessRewardModel(prm)([Answer((Message("user", "add 3 8 ="),), "2 1 3 1 4")])
    assert [each.end for each in scores] == [3, 7, 10]
    assert found == [
        StepReward(token, each.value) for token, each in zip((2, 6, 9), scores, strict=True)
    ]
    assert len({each.value for each in found}) == 3 and all(0 < each.value < 1 for each in found)


@pytest.mark.parametrize(
    ("text", "stop", "tokens"),
    [
        ("22", "eos", [2]),  # no separator: one step, which ends with the answer
        (
            "2212",
            "length",
            [2, 3],
        ),  # cut off: the unfinished step is judged as it stands, at the last token
        ("221", "eos", [3]),  # a separator at the end adds no step
        ("", "eos", [0]),
        (" 1 ", "length", [2]),
    ],
)
def test_answers_at_the_edge(prm: str, text: str, stop: str, tokens: list[int]) -> None:
    """Every answer has a step, and its last is at the last token; one without text holds nothing that is right."""
    (found,) = (
        made("grpo_process", of(prm)).rewards["process_reward_model"].score([said(text, stop=stop)])
    )
    assert [each.token for each in found] == tokens
    assert (found[-1].value == 0.0) == (not text.strip("1 "))


def test_what_the_model_cannot_read_is_unscored_by_name(tmp_path: Path) -> None:
    """Context 24: one answer fits, one does not; a control token in the text is not for this tokenizer to read."""
    short = judge(tmp_path, family="llama", longest=24)
    tally = Tally()
    scorer = scorer_of(plan("grpo_process", of(short)), tally, decode)
    fits, long, strange, fits_too = scorer(
        stream_of(
            [
                said("212"),
                said("2" * 30),
                said("2<eos>2"),
                said("2"),
                said("22"),
                said("23"),
                said("24"),
            ]
        )
    )[:4]
    assert fits.scored and fits_too.scored and not long.scored and not strange.scored
    assert long.failures == {"process_reward_model": "too_long"}
    assert strange.failures == {"process_reward_model": "unreadable"}
    lines = tally.lines()
    assert "tokens, but the model reads 24 at most" in lines[0] and "control token" in lines[1]
    with pytest.raises(
        RewardFailed,
        match=r"2 of 3 rollouts could not be scored \(2 process_reward_model: too_long\)",
    ):
        scorer(stream_of([said("2" * 30), said("2" * 31), said("2")]))


def test_scores_do_not_depend_on_how_answers_are_packed(prm: str) -> None:
    answers = [Answer((Message("user", "add 3 8 ="),), "2 1 " * n + "3") for n in (3, 1, 7, 2, 5)]
    answers.insert(2, Answer(answers[0].messages, ""))
    wanted = [ProcessRewardModel(prm)([each])[0] for each in answers]
    for budget in (64, 100, 16384):
        found = ProcessRewardModel(prm, tokens_per_microbatch=budget)(answers)
        assert [len(each) for each in found] == [4, 2, 1, 8, 3, 6]
        for one, other in zip(found, wanted, strict=True):
            assert [each.end for each in one] == [each.end for each in other]
            assert [each.value for each in one] == pytest.approx(
                [each.value for each in other], abs=1e-6
            )


def test_scores_are_those_of_the_models_own_evaluation(tmp_path: Path) -> None:
    """The held-out loss and accuracy that training reports, worked out again from the rewards of the same answers."""
    run = tmp_path / "prm"
    more = {"steps": 2, "save_every": 2, "evaluate_every": 2}
    train_plan(
        tiny_plan(algorithm="prm", run=more, data={"step_separator": " "}),
        run,
        say=lambda line: None,
    )
    assert load(run, head="scalar").step_format == StepFormat(" ")
    records = TASKS["running_sum"].stepwise("heldout", 8)
    reward = made("grpo_process", of(str(run))).rewards["process_reward_model"]
    found = reward.score([said(" ".join(each.steps), prompt=each.prompt) for each in records])
    pairs = [
        (step.value, right)
        for each, steps in zip(records, found, strict=True)
        for step, right in zip(steps, each.right, strict=True)
    ]
    losses = [-math.log(value if right else 1 - value) for value, right in pairs]
    last = read_run(run).metrics[-1]
    assert math.fsum(losses) / len(losses) == pytest.approx(last["eval/loss/total"], abs=1e-5)
    accuracy = sum((value > 0.5) == bool(right) for value, right in pairs) / len(pairs)
    assert accuracy == pytest.approx(last["eval/steps/accuracy"])


# --- what the rows make of it -------------------------------------------------------------------------------------


def test_process_supervision_by_hand(prm: str) -> None:
    """DeepSeekMath 4.1.3: step rewards .2 and .6 of one answer and 1 of the other have mean .6 and std .4, so they
    become -1, 0 and 1; the advantage of a token is the sum of those at or after it. Half a reward of 1 for the second
    answer's correctness raises its step to 1.5: then the mean is .7667, the std .6658, and so on."""
    first, second = said("2 1 4"), said("22")
    steps = [[StepReward(2, 0.2), StepReward(5, 0.6)], [StepReward(2, 1.0)]]
    row = plan("grpo_process", of(prm)).row

    def advantages(*terms: Term, correct: Sequence[float] = (0.0, 0.0)) -> list[float]:
        outcomes = [
            {
                "prm": check_score(each, rollout),
                "verifier": check_score({"correct": right}, rollout),
            }
            for each, rollout, right in zip(steps, (first, second), correct, strict=True)
        ]
        scored = [
            Combination(terms).apply(r, o) for r, o in zip((first, second), outcomes, strict=True)
        ]
        whole = pack_rollouts(scored)
        batch, _ = add_advantages(whole | place_step_rewards(scored, whole), row)
        return [round(float(each), 3) for each in batch["advantages_T"][batch["loss_mask_T"]]]

    shown = Term("verifier", 0.0)
    assert advantages(Term("prm"), shown) == [-1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    mean, std = (
        2.3 / 3,
        (((0.2 - 2.3 / 3) ** 2 + (0.6 - 2.3 / 3) ** 2 + (1.5 - 2.3 / 3) ** 2) / 2) ** 0.5,
    )
    low, middle, high = ((each - mean) / (std + 1e-4) for each in (0.2, 0.6, 1.5))
    wanted = [low + middle] * 3 + [middle] * 3 + [high] * 3
    assert advantages(Term("prm"), Term("verifier", 0.5), correct=(0, 1)) == pytest.approx(
        wanted, abs=1e-3
    )


def gathered(folder: Path, asked: Plan) -> tuple[Training, list[dict[str, Any]]]:
    training = assemble(asked, folder)
    return training, training.source.next(1)


def test_ppo_values_a_token_by_the_steps_that_end_at_or_after_it(
    tmp_path: Path, prm: str, policy: str
) -> None:
    """With lam 1, and as long as the policy is its own reference, value targets are plain sums of step rewards."""
    cells = {"advantage": {"use": "gae", "lam": 1.0}, "reward_shaping": {"eos_replace": False}}
    asked = plan(
        "ppo",
        of(prm),
        rollouts__group_size=1,
        rollouts__prompts_per_step=8,
        cells=cells,
        model__policy=policy,
    )
    training, batches = gathered(tmp_path, asked)
    rollouts = training.source.rollouts
    assert max(len(each.steps) for each in rollouts) > 1
    found = {
        tuple(tokens[trained].tolist()): returns[trained]
        for batch in batches
        for tokens, trained, returns in zip(
            *(
                batch[name].split(batch["segments"].lengths_B.tolist())
                for name in ("tokens_T", "loss_mask_T", "returns_T")
            ),
            strict=True,
        )
    }
    for each in rollouts:
        to_go = [
            sum(step.value for step in each.steps if step.token >= token)
            for token in range(each.length)
        ]
        assert found[each.turns[0].completion.tokens].tolist() == pytest.approx(to_go, abs=1e-5)
        assert each.reward == pytest.approx(to_go[0])
    training.close()


def test_one_number_for_rows_that_learn_from_one(tmp_path: Path, prm: str, policy: str) -> None:
    asked = plan(
        "grpo",
        of(prm, aggregate="min", weight=2.0),
        {"use": "verifier", "weight": 0.0},
        model__policy=policy,
    )
    training, _ = gathered(tmp_path, asked)
    reward = ProcessReward(ProcessRewardModel(prm), decode)
    for each, steps in zip(
        training.source.rollouts, reward.score(training.source.rollouts), strict=True
    ):
        assert each.steps == ()
        assert each.reward == pytest.approx(2 * min(step.value for step in steps))
    training.close()


def test_beside_it_a_verifier_judges_the_whole_answer(prm: str) -> None:
    """Half a point for being right stands at the last token, with the last step's score; gates and clips work too."""
    prompt = Prompt("p", (Message("user", "add 2 ="),), "2 1 4", {"task": "running_sum"})
    answers = [said("2 1 4", prompt=prompt), said("2 1 5", prompt=prompt)]

    def scored(*rewards: dict[str, Any]) -> list[Rollout]:
        return scorer_of(plan("grpo_process", *rewards), Tally(), decode)(stream_of(answers))

    (right, wrong), (alone, _) = (
        scored(of(prm), {"use": "verifier", "weight": 0.5}),
        scored(of(prm)),
    )
    assert right.parts["verifier/correct"] == 1.0 and wrong.parts["verifier/correct"] == 0.0
    assert [each.token for each in right.steps] == [each.token for each in alone.steps] == [2, 5]
    more = [
        after.value - before.value for after, before in zip(right.steps, alone.steps, strict=True)
    ]
    assert more == pytest.approx([0, 0.5])
    assert right.reward == pytest.approx((alone.reward or 0) + 0.5)
    gate = {"gate": {"part": "verifier/correct", "at_least": 1}}
    open_, shut = scored(of(prm, **gate), {"use": "verifier"})
    assert [each.value for each in shut.steps] == [0, 0] and open_.reward == pytest.approx(
        (alone.reward or 0) + 1
    )


def test_steps_of_several_turns_are_judged_behind_what_was_said_before(prm: str) -> None:
    first, second = said("2 1 4").turns[0], said("212").turns[0]
    talked = replace(
        said("2"), turns=(first, replace(second, observed=(7,), reply="go on", reply_role="user"))
    )
    (found,) = made("grpo_process", of(prm)).rewards["process_reward_model"].score([talked])
    asked = talked.prompt.messages
    later = (*asked, Message("assistant", "2 1 4"), Message("user", "go on"))
    scores = ProcessRewardModel(prm)([Answer(asked, "2 1 4"), Answer(later, "212")])
    values = [each.value for turn in scores for each in turn]
    assert [each.token for each in found] == [2, 5, 7, 9]  # turns of six tokens and of four
    assert [each.value for each in found] == pytest.approx(values, abs=1e-6)
    (alone,) = ProcessRewardModel(prm)([Answer(asked, "212")])
    assert abs(alone[0].value - values[2]) > 1e-4  # it is not the same without what came before


# --- runs ---------------------------------------------------------------------------------------------------------

SAME = """
import json
from pathlib import Path
from ascent.records import StepReward
KNOWN = json.loads(Path(__file__).with_name("known.json").read_text())
def known(rollout):
    return [StepReward(*each) for each in KNOWN[f"{rollout.prompt.id}/{rollout.sample}"]]
"""


@pytest.mark.parametrize("row", ["grpo_process", "ppo"])
def test_a_run_equals_one_whose_steps_a_function_rewards_to_the_bit(
    tmp_path: Path, prm: str, policy: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, list[tuple[int, float]]] = {}
    score = ProcessReward.score

    def noted(self: ProcessReward, rollouts: Sequence[Rollout]) -> Any:
        found = score(self, rollouts)
        for rollout, steps in zip(rollouts, found, strict=True):
            known[f"{rollout.prompt.id}/{rollout.sample}"] = [
                (each.token, each.value) for each in steps
            ]
        return found

    monkeypatch.setattr(ProcessReward, "score", noted)
    train_plan(plan(row, of(prm), model__policy=policy), tmp_path / "model", say=lambda line: None)
    assert len(known) == 16 and max(map(len, known.values())) > 2
    (tmp_path / "known.json").write_text(json.dumps(known))
    (tmp_path / "same.py").write_text(SAME)
    same = {"use": f"{tmp_path / 'same.py'}:known"}
    train_plan(plan(row, same, model__policy=policy), tmp_path / "function", say=lambda line: None)
    assert weights_of(tmp_path / "model", 2) == weights_of(tmp_path / "function", 2)


@pytest.mark.parametrize("row", ["grpo_process", "ppo"])
def test_resume_ends_in_the_same_bits(tmp_path: Path, prm: str, policy: str, row: str) -> None:
    asked = plan(row, of(prm), {"use": "verifier", "weight": 0.0}, model__policy=policy)
    train_plan(asked, tmp_path / "whole", say=lambda line: None)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/2")  # as if killed after step 2 was logged
    (tmp_path / "cut/outcome.json").unlink()
    resume_run(tmp_path / "cut", say=lambda line: None)
    assert weights_of(tmp_path / "whole", 2) == weights_of(tmp_path / "cut", 2)
    assert (tmp_path / "whole/samples.jsonl").read_bytes() == (
        tmp_path / "cut/samples.jsonl"
    ).read_bytes()


@pytest.mark.parametrize("row", ["grpo_process", "ppo"])
def test_the_cut_into_micro_batches_changes_rounding_alone(
    tmp_path: Path, prm: str, policy: str, row: str
) -> None:
    found = []
    for budget in (48, 16384):
        asked = plan(row, of(prm), model__policy=policy, update__tokens_per_microbatch=budget)
        training, batches = gathered(tmp_path / str(budget), asked)
        training.learner.step(batches, training.objective)
        found.append(
            (
                len(batches),
                {name: each.detach().clone() for name, each in training.model.named_parameters()},
            )
        )
        training.close()
    (many, cut), (one, whole) = found
    assert many > one
    assert all(torch.allclose(cut[name], whole[name], atol=1e-6) for name in whole)


# --- what does not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        (
            "grpo",
            {},
            r"grpo learns from one number for an answer.*aggregate: min, product, mean, last",
        ),
        ("online_dpo", {}, r"online_dpo learns from one number"),
        (
            "grpo_process",
            {"aggregate": "min"},
            r"aggregate=min makes one number.* grpo_process learns from the steps",
        ),
        (
            "grpo",
            {"aggregate": "max"},
            r"aggregate='max', but it must be one of min, product, mean, last",
        ),
        ("grpo", {"aggregate": ["min"]}, r"aggregate=\['min'\], but it must be one of"),
        ("grpo_process", {"model": ""}, r"model='', but it names the process reward model"),
        ("grpo_process", {"model": 3}, r"model=3, but it names"),
        (
            "grpo_process",
            {"model": "no/such/folder/here"},
            r"model='no/such/folder/here' does not exist",
        ),
        (
            "grpo_process",
            {"separator": "\n"},
            r"reward process_reward_model has no option separator; it has model",
        ),
        ("grpo_process", {"clip": [1, 0]}, r"clip=\[1, 0\], but the lower bound"),
    ],
)
def test_what_does_not_fit_is_refused(
    prm: str, row: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=rf"rewards\[0\]\.?:? ?{words}"):
        made(row, {**of(prm), **options})


def test_the_model_must_be_named() -> None:
    with pytest.raises(
        ValueError, match=r"rewards\[0\]: reward process_reward_model needs the option model"
    ):
        made("grpo_process", {"use": "process_reward_model"})


def test_models_of_other_kinds_are_refused_by_what_they_are(tmp_path: Path, prm: str) -> None:
    policy = tiny.named(tmp_path / "policy", "llama")
    with pytest.raises(
        ValueError, match="policy has no scalar head, so its scores would be random"
    ):
        made("grpo_process", of(str(policy)))
    model = load(policy, head="scalar")
    model.save(tmp_path / "reward")
    with pytest.raises(
        ValueError,
        match=r"reward does not say how answers are split into steps.* row prm or prm_soft",
    ):
        made("grpo_process", of(str(tmp_path / "reward")))
    whole = plan("grpo", {"use": "reward_model"}, model__reward_model=prm)
    with pytest.raises(
        ValueError, match=r"is a process reward model: it scores steps.*use: process_reward_model"
    ):
        rewards_of(whole, decode)
