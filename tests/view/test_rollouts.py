"""Samples of a step, of a search over all steps, and held-out answers over time: read, and shown in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.runs.folder import RunFolder, read_run
from ascent.view import rollouts
from ascent.view.library import Library, RunReader
from ascent.view.page import page_app
from tests.view.browser import serving, wait_for
from tests.view.served import RLVR, at, shown, texts
from tests.view.written import sample, write_run

SAMPLES = [
    (1, sample(0)),
    (1, sample(1, reward=0.0, completion="Wrong ÄÖ", stop="length", logprobs=[-3.0])),
    (1, sample(0, id="q", reward=None, failures={"verifier": "timeout"})),
    (2, sample(0, correct=0.0, reward=0.9, tokens=["2"] * 9)),
    (2, sample(1, ended="turns")),
]


@pytest.fixture
def run(tmp_path: Path) -> RunReader:
    path = write_run(tmp_path / "a", samples=SAMPLES)
    with (path / "samples.jsonl").open("ab") as file:
        file.write(b'{"step": 2, broken\n{"step": 3, "half')
    return RunReader("a", path)


def names(found: list[dict[str, Any]]) -> list[tuple[int, str, int]]:
    return [(each["step"], each["id"], each["sample"]) for each in found]


def test_samples_of_a_step(run: RunReader) -> None:
    assert rollouts.step_range(run) == (1, 2)
    found = rollouts.samples_of(run, 1)
    assert names(found.samples) == [(1, "p", 0), (1, "p", 1), (1, "q", 0)] and found.unreadable == 0
    assert rollouts.samples_of(run, 2).unreadable == 1 and rollouts.samples_of(run, 7).samples == []
    groups = rollouts.in_groups(found.samples)
    assert [(group["id"], len(group["samples"])) for group in groups] == [("p", 2), ("q", 1)]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("right", [(2, 1), (1, 0)]),
        ("wrong", [(2, 0), (1, 1)]),
        ("truncated", [(2, 1), (1, 1)]),
        ("unscored", [(1, 0)]),
    ],
)
def test_filters_over_all_steps(
    run: RunReader, which: str, expected: list[tuple[int, int]]
) -> None:
    found = rollouts.search(run, which=which, order="", text="")
    assert [(each["step"], each["sample"]) for each in found.samples] == expected
    assert (found.unreadable, found.go_on, found.steps) == (1, None, (1, 2))


def test_orders_and_text(run: RunReader) -> None:
    everything = {"which": "all", "text": ""}
    assert names(rollouts.search(run, order="longest", **everything).samples)[0] == (2, "p", 0)
    assert names(rollouts.search(run, order="surprising", **everything).samples)[0] == (1, "p", 1)
    assert rollouts.search(run, order="worst", **everything).samples[0]["reward"] == 0.0
    assert names(rollouts.search(run, which="all", order="", text="wrong äö").samples) == [
        (1, "p", 1)
    ]
    with pytest.raises(ValueError, match="filter 'odd'"):
        rollouts.search(run, which="odd", order="", text="")


def test_a_search_goes_on_where_it_ended(run: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "SEARCH_SECONDS", -1)  # one line at a time
    found, before, seen = None, None, []
    for _ in range(20):
        found = rollouts.search(run, which="all", order="", text="", before=before)
        seen += names(found.samples)
        before = found.go_on
        if before is None:
            break
    assert seen == names([{"step": step, **each} for step, each in reversed(SAMPLES)])


def test_a_long_sample_is_cut_for_lists() -> None:
    long = sample(tokens=["x"] * 5000, logprobs=[-1.0] * 5000, completion="x" * 100_000)
    cut = rollouts.shorten(long)
    assert cut["cut"] == {"tokens": 5000, "characters": 100_000} and cut["advantages"] == 0.5
    assert len(cut["tokens"]) == len(cut["logprobs"]) == 1500 and len(cut["completion"]) == 12_000
    assert rollouts.shorten(sample()) == sample()


def test_samples_of_another_shape_do_no_harm(tmp_path: Path) -> None:
    odd = [
        {},
        {"tokens": 3, "logprobs": "x", "parts": None, "reward": 1},
        {"reward": "NaN", "completion": None},
    ]
    run = RunReader("a", write_run(tmp_path / "a", samples=[(1, each) for each in odd]))
    for order in ("", *rollouts.ORDERS):
        for which in rollouts.FILTERS:
            rollouts.search(run, which=which, order=order, text="x")
    assert len(rollouts.in_groups(rollouts.samples_of(run, 1).samples)) == 1


def test_no_samples(tmp_path: Path) -> None:
    run = RunReader("a", write_run(tmp_path / "a"))
    (tmp_path / "a/samples.jsonl").unlink()
    assert rollouts.step_range(run) is None and rollouts.samples_of(run, 1).samples == []
    assert rollouts.heldout_prompts(run) == {"steps": [], "prompts": []}


def test_held_out_answers_over_steps(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", "x: 1\n", {}) as folder:
        for step in range(0, 100, 2):
            right = float(step > 40)
            said = [
                {"prompt": f"p{n}", "completion": str(step * n), "correct": right, "place": n}
                for n in range(3)
            ]
            folder.log_answers(step, said, of=3)
    run = RunReader("a", tmp_path / "a")
    found = rollouts.heldout_prompts(run)
    assert found["steps"] == list(range(0, 100, 2))
    assert found["prompts"][1] == {
        "place": 1,
        "prompt": "p1",
        "before": 0.0,
        "after": 1.0,
        "changed": True,
    }
    assert not found["prompts"][0]["changed"]
    shown = rollouts.heldout_answers(run, 2)
    assert len(shown) <= 41 and (shown[0]["step"], shown[-1]["step"]) == (0, 98)
    assert all(json.loads(each["completion"]) == each["step"] * 2 for each in shown)


def test_tokens_show_their_numbers(url: str, open_page: Any, trained: Path) -> None:
    records = [each for each in read_run(trained / RLVR).samples if "ratio" in each]
    step = records[0]["step"]
    page = open_page(at(url, RLVR, tab="rollouts", step=step))
    number = [each for each in read_run(trained / RLVR).samples if each["step"] == step].index(
        records[0]
    )
    token = page.locator(".sample").nth(number).locator(".token").nth(1)
    token.hover()
    tip = page.inner_text(".tip").split("\n")
    found = dict(zip(tip[1:-1:2], tip[2:-1:2], strict=False))
    assert json.loads(tip[0]) == records[0]["tokens"][1]
    assert found["Log-prob"] == shown(records[0]["logprobs"][1])
    assert found["Entropy"] == shown(records[0]["entropy"][1])
    assert found["Ratio"] == shown(records[0]["ratio"][1])
    assert found["Advantage"] == shown(records[0]["advantages"])
    assert abs(float(found["Sampler − trainer"].replace("−", "-"))) < 1e-3
    colors = set()
    for label in ("Advantage", "Log-prob", "Entropy", "Ratio"):  # the fifth is 0 here: no color
        page.click(f".segmented >> text='{label}'")
        colors.add(
            page.locator(".sample")
            .nth(number)
            .locator(".token")
            .nth(1)
            .evaluate("each => each.style.background")
        )
    assert len(colors) == 4
    box = page.locator(".sample").nth(number).locator(".tokens")
    box.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert shown(records[0]["entropy"][1]) in page.locator("#announce").text_content()


def test_rollouts_are_filtered_and_searched(url: str, open_page: Any, trained: Path) -> None:
    samples = read_run(trained / RLVR).samples
    page = open_page(at(url, RLVR, tab="rollouts", step=4))
    of_step = [each for each in samples if each["step"] == 4]
    page.wait_for_selector(".sample")
    assert (
        page.locator(".sample").count() == len(of_step) == 36
        and page.locator(".rollout-group").count() == 6
    )
    tops = page.eval_on_selector_all(
        ".rollout-group:first-of-type .sample", "all => all.map((each) => each.offsetTop)"
    )
    assert len(tops) == 6 and len(set(tops)) < 6  # samples of a prompt side by side
    right = sum(each["correct"] == 1 for each in of_step)
    truncated = sum(each["stop"] == "length" for each in of_step)
    for which, expected in (
        ("right", right),
        ("wrong", 36 - right),
        ("truncated", truncated),
        ("unscored", 0),
    ):
        page.select_option("select[aria-label=Filter]", which)
        wait_for(page, f"document.querySelectorAll('.sample').length === {expected}")
    page.select_option("select[aria-label=Filter]", "all")
    page.select_option("select[aria-label=Order]", "longest")
    longest = max(len(each["tokens"]) for each in of_step)
    first = "document.querySelector('.sample .facts-row').textContent"
    wait_for(
        page,
        f"document.querySelectorAll('.sample').length === 36 && {first}.includes('{longest} tokens')",
    )
    page.select_option("select[aria-label=Order]", "surprising")
    rare = max(of_step, key=rollouts.surprise)
    wait_for(page, f"document.querySelector('.sample').dataset.sample === '{rare['sample']}'")
    assert page.inner_text(".rollout-group .prompt >> nth=0") == rare["prompt"]
    page.check("text=all steps")
    page.fill("input[aria-label='Search text']", of_step[0]["prompt"])
    wait_for(page, "document.querySelectorAll('.rollout-group').length === 1")
    assert page.inner_text(".rollout-group .prompt") == of_step[0]["prompt"]
    page.uncheck("text=all steps")
    page.fill("input[aria-label='Search text']", "")
    page.click("[aria-label='Next step']")
    wait_for(page, "location.hash.includes('step=5')")


def test_turns_show_tools_and_what_they_said(url: str, open_page: Any, trained: Path) -> None:
    turns = [
        turn
        for each in read_run(trained / "tools").samples
        for turn in each["turns"]
        if "reply" in turn
    ]
    page = open_page(at(url, "tools", tab="rollouts", everywhere="true"))
    page.wait_for_selector(".observation")
    assert set(texts(page, ".observation div")) == {turn["reply"] for turn in turns}
    assert "tool" in page.inner_text(".observation")


def test_how_a_held_out_answer_changed(url: str, open_page: Any, trained: Path) -> None:
    answers = read_run(trained / RLVR).answers
    page = open_page(at(url, RLVR, tab="heldout", place=3))
    page.wait_for_selector(".answer")
    own = [each["completion"] for each in answers if each["place"] == 3]
    kept = [text for place, text in enumerate(own) if place == 0 or text != own[place - 1]]
    assert texts(page, ".answer .tokens") == kept
    assert page.locator(".prompts li").count() == 24


def test_what_sampler_and_trainer_disagree_on_is_colored(tmp_path: Path, open_page: Any) -> None:
    """No exact run has such a difference: +0.5 is blue, -0.25 orange and half as strong, 0 has no color."""
    numbers = {
        "tokens": ["a", "b", "c"],
        "logprobs": [-1.0, -1.25, -2.0],
        "trainer_logprobs": [-1.5, -1.0, -2.0],
    }
    parts = {"verifier": 0.75, "format": 0.25}
    write_run(
        tmp_path / "a", samples=[(1, sample(**numbers, advantages=[0.5, -1.0, 0.0], parts=parts))]
    )
    with serving(page_app(Library([tmp_path]))) as url:
        page = open_page(at(url, "a", tab="rollouts", color="difference"))
        page.wait_for_selector(".token")
        colors = page.eval_on_selector_all(
            ".token", "all => all.map((each) => each.style.background)"
        )
        assert (
            "--above" in colors[0]
            and "66%" in colors[0]
            and "--below" in colors[1]
            and "35%" in colors[1]
        )
        assert colors[2] == ""
        page.hover(".token >> nth=1")
        assert "Sampler − trainer\n−0.25" in page.inner_text(".tip")
        assert texts(page, ".parts li") == ["verifier 0.75", "format 0.25"]
        page.click(".segmented >> text='Advantage'")
        colors = page.eval_on_selector_all(
            ".token", "all => all.map((each) => each.style.background)"
        )
        assert "--above" in colors[0] and "--below" in colors[1] and colors[2] == ""
