"""A reward model behind HTTP gives the scores that `ascent score` gives."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path

import pytest

from ascent.build import use
from ascent.build.serving import RewardModel
from ascent.build.training import train
from ascent.rewards import find
from ascent.rewards.serve import server
from ascent.tasks import TASKS
from tests.build.runs import tiny_plan
from tests.rewards.rollouts import rollout

pytestmark = pytest.mark.slow  # it trains a tiny reward model first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("served") / "rm"
    train(tiny_plan(algorithm="reward_model", run={"steps": 1}), run, say=lambda text: None)
    return run


def test_the_same_scores_as_from_a_file(folder: Path, tmp_path: Path) -> None:
    pairs = TASKS["arithmetic"].pairs("heldout", 3)
    file = tmp_path / "pairs.jsonl"
    rows = [
        {"prompt": p.prompt.messages[0].content, "chosen": p.chosen[0].content, "rejected": p.rejected[0].content}
        for p in pairs
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = [score for line in use.score(str(folder), str(file)) for score in line.scores]
    model = RewardModel(str(folder))
    items = [
        ([{"role": "user", "content": row["prompt"]}], row[side]) for row in rows for side in ("chosen", "rejected")
    ]
    assert model(items) == pytest.approx(wanted, abs=1e-6)
    serving = server(model, serves="rm")
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    served = find("remote", url=serving.url, batch=2).score([rollout(text) for _, text in items[:3]])
    serving.shutdown()
    serving.server_close()
    assert len(served) == 3 and all(isinstance(score, float) for score in served)


ODD = {
    "half a surrogate pair": ([{"role": "user", "content": "\ud800"}], "2"),
    "half a pair in the answer": ([{"role": "user", "content": "1 + 1 ="}], "\udfff"),
    "an unknown role": ([{"role": "oracle", "content": "1 + 1 ="}], "2"),
    "a role of another kind": ([{"role": 5, "content": "1 + 1 ="}], "2"),
    "a content of another kind": ([{"role": "user", "content": {"a": 1}}], "2"),
}
PLAIN = {
    "nothing said": ([{"role": "user", "content": ""}], ""),
    "zeros": ([{"role": "user", "content": "\0"}], "\0\0"),
    "only a system": ([{"role": "system", "content": "be brief"}], "2"),
    "an assistant first": ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "2"),
    "end tokens in the text": ([{"role": "user", "content": "</s><|im_end|><|endoftext|>"}], "<|im_end|>"),
    "other writings": ([{"role": "user", "content": "\U0001f600\u0301\u202e"}], "\ufffe\uffff"),
}


def test_odd_content_is_refused_or_scored_and_leaves_no_traceback(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    serving = server(RewardModel(str(folder)), serves="rm")
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
    assert short([([{"role": "user", "content": "1 + 1 ="}], "2 and a lot more than fits")]) == [None]


def test_together_they_score_as_one_by_one_however_they_are_cut(folder: Path) -> None:
    items = [([{"role": "user", "content": f"{n} + 1 ="}], "2" * n) for n in range(1, 12)]
    items.insert(3, ([{"role": "user", "content": "1 + 1 ="}], "more than fits into any of these batches " * 4))
    wanted = RewardModel(str(folder), tokens_per_microbatch=40)(items)
    assert wanted.count(None) == 1 and len(set(wanted)) == len(items)
    for budget in (20, 40, 100):  # a few at a time, and all
        found = RewardModel(str(folder), tokens_per_microbatch=budget).together(items)
        assert found[3] is None
        assert found[:3] + found[4:] == pytest.approx(wanted[:3] + wanted[4:], abs=1e-6)
    assert RewardModel(str(folder)).together([]) == []
