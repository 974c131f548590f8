"""A reward model behind HTTP gives the scores that `ascent score` gives."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.api.score import score
from ascent.api.train import train_plan
from ascent.data.tools import add_tools
from ascent.models import tiny
from ascent.models.load import load
from ascent.records import Message, Prompt
from ascent.rewards import find
from ascent.rewards.serve import create_server
from ascent.rewards.steps import Answer
from ascent.setup.reward_models import ProcessRewardModel, RewardModel
from ascent.setup.rewards import ModelScorer
from ascent.tasks import TASKS
from tests.data import chat
from tests.rewards.rollouts import rollout
from tests.setup.runs import tiny_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("served") / "rm"
    train_plan(tiny_plan(algorithm="reward_model", run={"steps": 1}), run, say=lambda text: None)
    return run


def test_the_same_scores_as_from_a_file(folder: Path, tmp_path: Path) -> None:
    pairs = TASKS["arithmetic"].pairs("heldout", 3)
    file = tmp_path / "pairs.jsonl"
    rows = [
        {
            "prompt": p.prompt.messages[0].content,
            "chosen": p.chosen[0].content,
            "rejected": p.rejected[0].content,
        }
        for p in pairs
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = [each for line in score(str(folder), str(file)) for each in line.scores]
    model = RewardModel(str(folder))
    items = [
        ([{"role": "user", "content": row["prompt"]}], row[side])
        for row in rows
        for side in ("chosen", "rejected")
    ]
    assert model(items) == pytest.approx(wanted, abs=1e-6)
    serving = create_server(model, serves="rm")
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    served = find("remote", url=serving.url, batch=2).score(
        [rollout(text) for _, text in items[:3]]
    )
    serving.shutdown()
    serving.server_close()
    assert len(served) == 3 and all(isinstance(score, float) for score in served)


ODD = {
    "half a surrogate pair": ([{"role": "user", "content": "\ud800"}], "2"),
    "half a pair in the answer": ([{"role": "user", "content": "1 + 1 ="}], "\udfff"),
    "an unknown role": ([{"role": "oracle", "content": "1 + 1 ="}], "2"),
    "a role of another kind": ([{"role": 5, "content": "1 + 1 ="}], "2"),
    "a content of another kind": ([{"role": "user", "content": {"a": 1}}], "2"),
    "an extra of another kind": ([{"role": "user", "content": "1 + 1 =", "extra": 5}], "2"),
    "an extra that is not JSON": ([{"role": "user", "content": "1 + 1 =", "extra": "tools"}], "2"),
}
PLAIN = {
    "nothing said": ([{"role": "user", "content": ""}], ""),
    "zeros": ([{"role": "user", "content": "\0"}], "\0\0"),
    "only a system": ([{"role": "system", "content": "be brief"}], "2"),
    "an assistant first": (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
        "2",
    ),
    "end tokens in the text": (
        [{"role": "user", "content": "</s><|im_end|><|endoftext|>"}],
        "<|im_end|>",
    ),
    "tools that no template writes": (
        [{"role": "user", "content": "1 + 1 =", "extra": '{"tools": []}'}],
        "2",
    ),
    "other writings": ([{"role": "user", "content": "\U0001f600\u0301\u202e"}], "\ufffe\uffff"),
}


def test_odd_content_is_refused_or_scored_and_leaves_no_traceback(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    serving = create_server(RewardModel(str(folder)), serves="rm")
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    found = {}
    for name, (messages, completion) in {**ODD, **PLAIN}.items():
        body = json.dumps({"rollouts": [{"messages": messages, "completion": completion}]})
        line = http.client.HTTPConnection(*serving.server_address[:2], timeout=60)  # type: ignore[misc]
        line.request("POST", "/score", body)
        found[name] = line.getresponse().status
        line.close()
    serving.shutdown()
    serving.server_close()
    assert found == {**dict.fromkeys(ODD, 400), **dict.fromkeys(PLAIN, 200)}
    assert "Traceback" not in capfd.readouterr().err


def test_too_long_is_null(folder: Path) -> None:
    short = RewardModel(str(folder), tokens_per_microbatch=4)
    assert short([([{"role": "user", "content": "1 + 1 ="}], "2 and a lot more than fits")]) == [
        None
    ]


def test_together_they_score_as_one_by_one_however_they_are_cut(folder: Path) -> None:
    items = [([{"role": "user", "content": f"{n} + 1 ="}], "2" * n) for n in range(1, 12)]
    items.insert(
        3,
        ([{"role": "user", "content": "1 + 1 ="}], "more than fits into any of these batches " * 4),
    )
    wanted = RewardModel(str(folder), tokens_per_microbatch=40)(items)
    assert wanted.count(None) == 1 and len(set(wanted)) == len(items)
    for budget in (20, 40, 100):  # a few at a time, and all
        found = RewardModel(str(folder), tokens_per_microbatch=budget).together(items)
        assert found[3] is None
        assert found[:3] + found[4:] == pytest.approx(wanted[:3] + wanted[4:], abs=1e-6)
    assert RewardModel(str(folder)).together([]) == []


# --- a model that judges steps ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("judged") / "prm"
    train_plan(tiny_plan(algorithm="prm_soft", run={"steps": 1}), run, say=lambda text: None)
    return run


def test_a_file_is_scored_step_by_step(judge: Path, tmp_path: Path) -> None:
    """The steps of a record of steps; every answer of a pair, a conversation or a thumb, split by its line breaks."""
    rows: dict[str, list[tuple[str, list[str]]]] = {
        '{"prompt": "add 3 8 =", "completions": ["3", "11"], "labels": [true, null]}': [
            ("add 3 8 =", ["3", "11"])
        ],
        '{"prompt": "add 3 8 =", "chosen": "3\\n11", "rejected": "3"}': [
            ("add 3 8 =", ["3", "11"]),
            ("add 3 8 =", ["3"]),
        ],
        '{"prompt": "add 1 =", "completion": "1\\n\\n2\\n"}': [("add 1 =", ["1", "2"])],
        '{"prompt": "add 1 =", "completion": "1", "label": true}': [("add 1 =", ["1"])],
        '{"prompt": "add 1 =", "responses": ["1", "2"], "scores": [1, 0]}': [
            ("add 1 =", ["1"]),
            ("add 1 =", ["2"]),
        ],
    }
    model = ProcessRewardModel(str(judge))
    for line, answers in rows.items():
        (tmp_path / "rows.jsonl").write_text(line + "\n")
        (found,) = score(str(judge), str(tmp_path / "rows.jsonl"))
        assert found.record == 1 and [len(each) for each in found.scores] == [
            len(steps) for _, steps in answers
        ]
        for own, (asked, steps) in zip(found.scores, answers, strict=True):
            (wanted,) = model(
                [Answer((Message("user", asked),), "\n".join(steps))]
            )  # blank lines sway nothing
            assert own == pytest.approx([each.value for each in wanted], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '{"prompt": "add 3 =", "completions": ["3", "1\\n1"], "labels": [true, true]}',
            r":1: steps are joined by '\\n'",
        ),
        (
            '{"prompt": "add 3 =", "completion": "3 <eos> 4"}',
            r":1: the assistant's text holds '<eos>'",
        ),
        ('{"prompt": "add 3 ="}', r":1: a prompt alone has no steps to score"),
    ],
)
def test_what_cannot_be_scored_step_by_step_is_refused_with_its_place(
    judge: Path, tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=words):
        list(score(str(judge), str(tmp_path / "rows.jsonl")))


def test_it_is_no_reward_model_of_whole_answers(judge: Path) -> None:
    """So `ascent serve-reward`, whose format has one number an answer, and `reward_model` refuse it alike."""
    with pytest.raises(
        ValueError, match=r"is a process reward model: it scores steps.*use: process_reward_model"
    ):
        RewardModel(str(judge))


def test_a_model_trained_further_on_whole_answers_no_longer_judges_steps(
    judge: Path, tmp_path: Path
) -> None:
    train_plan(
        tiny_plan(algorithm="reward_model", model={"policy": str(judge)}, run={"steps": 1}),
        tmp_path / "rm",
        say=str,
    )
    assert RewardModel(str(tmp_path / "rm"))([([{"role": "user", "content": "1 + 1 ="}], "2")]) != [
        None
    ]
    with pytest.raises(ValueError, match="does not say how answers are split into steps"):
        ProcessRewardModel(str(tmp_path / "rm"))


def test_what_is_longer_than_the_models_context_is_null_and_the_others_are_scored(
    tmp_path: Path,
) -> None:
    model = load(tiny.create(tmp_path / "base", family="llama", longest=16), head="scalar")
    model.save(tmp_path / "rm")
    items = [([{"role": "user", "content": "1 + 1 ="}], "2" * n) for n in (1, 30, 3)]
    found = RewardModel(str(tmp_path / "rm")).together(items)
    assert found[1] is None and found[0] is not None and found[2] is not None


def test_tools_of_a_prompt_are_scored_too_here_and_through_a_server(tmp_path: Path) -> None:
    folder = tiny.create(
        tmp_path / "m", special=("<|start|>", "<|end|>", "<|eos|>"), chat_template=chat.TOOLS
    )
    load(folder, head="scalar").save(tmp_path / "scorer")
    tools = [{"name": "add", "parameters": {}}]
    shown = replace(
        rollout("2"), prompt=Prompt("p", add_tools((Message("user", "1 + 1 ="),), tools))
    )
    bare = replace(rollout("2"), prompt=Prompt("p", (Message("user", "1 + 1 ="),)))
    with_tools, without = ModelScorer(str(tmp_path / "scorer")).score([shown, bare])
    assert with_tools != without
    serving = create_server(RewardModel(str(tmp_path / "scorer")), serves="rm")
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    served = find("remote", url=serving.url, batch=2).score([shown, bare])
    serving.shutdown()
    serving.server_close()
    assert served == pytest.approx([with_tools, without], abs=1e-6)


def test_an_answer_whose_reasoning_the_template_leaves_out_is_scored(tmp_path: Path) -> None:
    """As the model was trained to see it; the policy that wrote it may have another template."""
    folder = tiny.create(
        tmp_path / "m", special=("<|start|>", "<|end|>"), chat_template=chat.STRIPPING
    )
    load(folder, head="scalar").save(tmp_path / "scorer")
    asked = [{"role": "user", "content": "1 + 1 ="}]
    bare, reasoned = RewardModel(str(tmp_path / "scorer"))(
        [(asked, "2"), (asked, "<think>\n1 more\n</think>2")]
    )
    assert bare is not None and bare == reasoned
