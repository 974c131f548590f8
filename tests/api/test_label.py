"""Where questions come from, how they go on at the terminal and in rounds, what is refused before anybody is asked."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import ascent
from ascent.api.collect import collect
from ascent.api.iterate import iterate
from ascent.api.label import LabelResult, label
from ascent.api.stages import StageStopped
from ascent.config.iterate import iterate_config
from ascent.feedback.preference_log import PreferenceLog, read
from ascent.feedback.verdicts import Verdict
from ascent.models.tiny import create
from tests.api.test_collect import Person
from tests.end_to_end.test_rounds import recipe
from tests.view.browser import serving

SERVER = importlib.import_module("ascent.view.server")


class Browser:
    """In place of the server's loop: annotators who judge `most` questions each, then Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, most: int = 1000) -> None:
        self.names, self.most, self.said = names, most, list[str]()
        monkeypatch.setattr(SERVER, "serve", self)

    def __call__(self, app: Any, sock: Any) -> None:
        with (
            serving(app) as url,
            httpx.Client(base_url=url, headers={"origin": url.rstrip("/")}) as client,
        ):
            for name in self.names:
                state = client.get("/api/question", params={"annotator": name}).json()
                for _ in range(self.most):
                    if state["question"] is None:
                        break
                    sent = {
                        "annotator": name,
                        "ticket": state["question"]["ticket"],
                        "verdict": "first",
                    }
                    state = client.post("/api/judge", json=sent).json()
        raise KeyboardInterrupt

    def label(self, sources: Any, **options: Any) -> LabelResult:
        return label(sources, port=0, say=self.said.append, **options)


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Browser]:
    return lambda *names, **options: Browser(monkeypatch, *names, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(create(tmp_path_factory.mktemp("models") / "tiny", seed=0))


def write_answers(path: Path, count: int = 5) -> str:
    rows = [{"prompt": f"q{n}", "responses": ["a", "b", "", "a"]} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_into_the_default_file(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_answers(tmp_path / "some.answers.jsonl")
    monkeypatch.chdir(tmp_path)
    page = browser("ann", most=4)
    found = page.label(source, overlap=0.0, repeat=0.0)
    assert found.out == Path("some.answers.labels.jsonl") and (found.questions, found.verdicts) == (
        5,
        4,
    )
    assert found.left_out == {"empty answers": 5, "duplicate answers": 5}
    assert "not asked about: 5 empty answers" in page.said and page.said[-1].startswith(
        "open http://127.0.0.1:"
    )
    again = browser("bob")
    found = again.label(source, overlap=0.0, repeat=0.0)
    assert "5 questions; 4 verdicts so far" in again.said[-2]
    assert found.agreement.verdicts == {"ann": {"first": 4}, "bob": {"first": 1}}
    with pytest.raises(
        ValueError, match=r"holds verdicts of the form pairs .*; give the same arguments as before"
    ):
        again.label(source, form="ratings")


def test_everybody_has_a_link_and_another_address_a_token(browser: Any, tmp_path: Path) -> None:
    page = browser()
    source, out = write_answers(tmp_path / "a.jsonl"), tmp_path / "o.jsonl"
    page.label(source, out=out, annotators=["Ann Lee", "bob"], host="0.0.0.0")
    ann, bob = page.said[-2:]
    assert (
        ann.startswith("Ann Lee: http://")
        and ann.endswith("&annotator=Ann%20Lee")
        and "?token=" in ann
    )
    assert bob.endswith("&annotator=bob")


def test_the_rollouts_of_a_run(browser: Any, tmp_path: Path) -> None:
    grpo = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "data.train": "style:8",
        "rewards": [{"use": "exact"}],
        "rollouts": {"prompts_per_step": 2, "group_size": 3, "max_new_tokens": 6},
        "run.steps": 2,
    }
    ascent.train(grpo, run=tmp_path / "grpo", say=lambda line: None)
    out = tmp_path / "labels.jsonl"
    found = browser("ann").label(str(tmp_path / "grpo"), out=out, repeat=0.0, step=2)
    assert found.questions == 2 and all(
        "@2#" in row["id"] and row["models"][0] == "grpo" for row in read(out)
    )
    with pytest.raises(ValueError, match=r"step 3 of .* has no logged rollouts"):
        browser().label(str(tmp_path / "grpo"), step=3, out=out)


def test_models_answer_prompts_and_the_terminal_goes_on(
    browser: Any, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "labels.jsonl"
    sampling: dict[str, Any] = {"samples": 2, "max_new_tokens": 5, "seed": 3, "repeat": 0.0}
    found = browser("ann", most=2).label(model, prompts="style:6", out=out, **sampling)
    assert found.verdicts == 2 and (tmp_path / "labels.samples.jsonl").is_file()
    person = Person(*[Verdict("tie")] * 4)
    more = collect(
        model, "style:6", out=out, annotator="ann", person=person, say=lambda line: None, **sampling
    )
    assert more.finished and [row["verdict"] for row in read(out)] == ["first"] * 2 + ["tie"] * 4
    assert browser("ann").label(model, prompts="style:6", out=out, **sampling).verdicts == 6


def test_rounds_go_on_with_what_several_people_judged_on_the_page(
    browser: Any, model: str, tmp_path: Path
) -> None:
    dpo = {"algorithm": "dpo", "data": {"max_tokens": 64, "batch_size": 2}, "run": {"steps": 1}}
    asked = {"prompts": "style:6", "samples": 2, "max_new_tokens": 5}
    tree = recipe(rounds=1, reward_model=None, sft=model, policy=dpo, collect=asked, measure=None)
    rounds, folder = iterate_config(tree, "r"), tmp_path / "rounds"
    with pytest.raises(StageStopped, match="1 of 6 questions") as stopped:
        iterate(rounds, run=folder, person=Person(Verdict("first"), "quit"), say=lambda line: None)
    words = str(stopped.value).partition("ascent label ")[2].split()
    options = {
        name[2:].replace("-", "_"): value
        for name, value in zip(words[1::2], words[2::2], strict=True)
    }
    for name in ("samples", "per_prompt", "max_new_tokens", "seed"):
        options[name] = int(options[name])
    options["temperature"] = float(options["temperature"])
    found = browser("ann", "bob", most=3).label(words[0], **options)
    assert found.verdicts >= 6 and set(found.agreement.verdicts) == {"person", "ann", "bob"}
    (done,) = iterate(
        rounds, run=folder, person=Person(), say=lambda line: None
    )  # nobody is asked again
    assert done.policy == folder / "round-1/policy"
    assert (folder / "round-1/comparisons.jsonl").read_text() == Path(options["out"]).read_text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"out": "labels.json"}, "name a file that ends in .jsonl"),
        ({"limit": 0}, "limit=0, but at least 1 prompt"),
        ({"step": 3}, "step=3 chooses among the logged rollouts of a run"),
        ({"form": "thumbs"}, "must be one of pairs, rankings, ratings"),
        ({"guidelines": "absent.md"}, "absent.md"),
        (
            {"sources": ["a.jsonl", "b.jsonl"]},
            "2 sources, but without --prompts one run or one file is judged",
        ),
        ({"sources": ["a", "b"], "prompts": "style", "out": None}, "give --out labels.jsonl"),
        ({"sources": "absent.jsonl"}, "no file or folder at absent.jsonl"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    browser: Any, tmp_path: Path, options: Any, problem: str
) -> None:
    given = {"sources": write_answers(tmp_path / "a.jsonl"), "out": tmp_path / "o.jsonl", **options}
    with pytest.raises((ValueError, OSError), match=problem):
        browser().label(given.pop("sources"), **given)


def test_answers_that_are_all_equal_and_a_file_in_use_are_refused(
    browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "same.jsonl").write_text('{"prompt": "q", "responses": ["a", "a"]}\n')
    with pytest.raises(ValueError, match="no two different answers to one prompt"):
        browser().label(str(tmp_path / "same.jsonl"), out=tmp_path / "o.jsonl")
    with pytest.raises(ValueError, match="is the file that is judged; give another --out"):
        browser().label(str(tmp_path / "same.jsonl"), out=tmp_path / "same.jsonl")
    source = write_answers(tmp_path / "a.jsonl")
    with (
        PreferenceLog(tmp_path / "o.jsonl"),
        pytest.raises(ValueError, match="being written by another process"),
    ):
        browser().label(source, out=tmp_path / "o.jsonl")
