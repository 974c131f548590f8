"""The labeling page: what it shows and hides, every kind of question by keys alone, two tabs, a server that is away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from ascent.feedback.comparisons import Answer, Comparison
from ascent.feedback.labeling import LabelingPlan, LabelingSession
from ascent.feedback.preference_log import PreferenceLog, read
from ascent.records import Message, Prompt
from ascent.view.label import label_app, read_guidelines
from tests.view.annotating import PAUSE, Annotator
from tests.view.browser import WIDTHS, find_faults, serving

SHOTS = os.environ.get("ASCENT_SCREENSHOTS")  # a folder, to renew those of docs/label.md
HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(2)> </div></article> &lt;b&gt; <!-- ",
    "\u202eمرحبا بالعالم\u202c hello\n\nשלום, second paragraph\u0007\u0000 end",
]
RAINBOWS = [
    "Sunlight enters a raindrop, is bent, reflects off the back and is bent again on the way out. Red leaves at about "
    "42°, violet at 40°: each drop sends you one color, and the sky sorts them into bands.",
    "Rain splits light.\n\n1. It enters the drop and slows down.\n2. It reflects inside.\n3. It leaves, spread into "
    "colors.\n\nSo you always see a rainbow with the sun behind you.",
    "It is magic, mostly. Also water.",
    "Because of refraction (n = 1.33) and one internal reflection.",
]
RULES = """# Rules

Prefer the **true** answer. <script>alert(3)</script> <img src=x onerror=alert(4)>

[good](https://example.org) [bad](javascript:alert(5)) ![image](https://example.org/x.png) <b onclick="x">bold</b>

| case | verdict |
|---|---|
| both wrong | both bad |
"""


def questions(count: int, *texts: str, ask: str = "Question {}?") -> list[Comparison]:
    """Without texts: two answers, one good, one bad."""
    made = texts or ("good {}", "bad {}")
    return [
        Comparison(
            f"p{number}#0.0-1.0",
            Prompt(
                f"p{number}", (Message("system", "Be brief."), Message("user", ask.format(number)))
            ),
            tuple(
                Answer(f"{n}.0", f"secret-{n}", text.format(number), 3)
                for n, text in enumerate(made)
            ),
        )
        for number in range(count)
    ]


class Labeling:
    def __init__(self, url: str, path: Path, session: LabelingSession) -> None:
        self.url, self.path, self.session = url, path, session

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read(self.path)

    def get(self, annotator: str = "ann") -> httpx.Response:
        return httpx.get(f"{self.url}api/question", params={"annotator": annotator})

    def post(self, path: str, content: Any, annotator: str = "ann") -> httpx.Response:
        body = {"annotator": annotator, **content} if isinstance(content, dict) else content
        return httpx.post(
            f"{self.url}api/{path}", json=body, headers={"origin": self.url.rstrip("/")}
        )


@pytest.fixture
def labeling(tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def label(asked: list[Comparison], *, guidelines: str = "", **plan: Any) -> Iterator[Labeling]:
        path = tmp_path / "labels.jsonl"
        with PreferenceLog(path) as log:
            session = LabelingSession(
                log, asked, LabelingPlan(**{"overlap": 1.0, "repeat": 0.0, **plan})
            )
            with serving(label_app(session, guidelines=guidelines)) as url:
                yield Labeling(url, path, session)

    return label


def prefer_good(texts: list[str]) -> str:
    return "1" if texts[0].startswith("good") else "2"


def test_no_response_names_a_model_or_an_answer(labeling: Any) -> None:
    with labeling(questions(3)) as served:
        state = served.get().json()
        assert set(state["question"]) == {"ticket", "messages", "answers"}
        assert state["question"]["messages"][1] == {"role": "user", "content": "Question 0?"}
        sent = {"ticket": state["question"]["ticket"], "verdict": "first"}
        replies = [served.get(), served.post("judge", sent), served.post("undo", {"done": 1})]
        assert all(reply.status_code == 200 for reply in replies)
        text = "".join(reply.text for reply in replies) + httpx.get(f"{served.url}api/session").text
        assert "secret" not in text and "0.0" not in text.replace(state["question"]["ticket"], "")


def test_a_verdict_is_in_the_file_when_the_reply_comes(
    labeling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), sync(handle))
    )
    with labeling(questions(3)) as served:
        question = served.get().json()["question"]
        reply = served.post(
            "judge", {"ticket": question["ticket"], "verdict": "second", "comment": "why not"}
        )
        assert synced[-1] == served.path.stat().st_size > 0
        assert (
            reply.json()["done"] == 1 and reply.json()["question"]["ticket"] != question["ticket"]
        )
        (row,) = served.rows
        assert (row["chosen"], row["comment"]) == (question["answers"][1], "why not")
        assert served.path.read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        ("judge", {"verdict": "best"}, 400, "the verdict 'best' is none of first"),
        ("judge", {"verdict": "first", "numbers": "1"}, 400, "numbers must be a list"),
        ("judge", {"verdict": "first", "numbers": [None]}, 400, "numbers must be a list"),
        ("judge", {"verdict": 7}, 400, "verdict must be text"),
        ("judge", {"verdict": "first", "ticket": "9.0.x"}, 409, "not among those"),
        ("judge", {"verdict": "first", "comment": "x" * 10_001}, 400, "shorten it"),
        ("judge", {"verdict": "first", "comment": "x" * 70_000}, 400, "at most 65536 bytes"),
        ("judge", [1], 400, "must be a JSON object"),
        ("judge", {"verdict": "first", "annotator": "\u0000"}, 400, "printable characters"),
        ("undo", {"done": "1"}, 400, "done must be the number"),
        ("undo", {"done": 0}, 400, "no verdict that could be taken back"),
        ("undo", {"done": 3}, 409, "nothing was taken back"),
    ],
)
def test_what_does_not_fit_is_refused_in_words_and_not_written(
    labeling: Any, path: str, content: Any, status: int, words: str
) -> None:
    with labeling(questions(2)) as served:
        ticket = served.get().json()["question"]["ticket"]
        reply = served.post(
            path, {"ticket": ticket, **content} if isinstance(content, dict) else content
        )
        assert reply.status_code == status and words in reply.json()["error"], reply.text
        assert served.rows == []


def test_only_the_page_itself_may_write(labeling: Any) -> None:
    with labeling(questions(2)) as served:
        sent = {
            "annotator": "ann",
            "ticket": served.get().json()["question"]["ticket"],
            "verdict": "first",
        }
        for headers in ({}, {"origin": "http://evil.example"}):
            assert (
                httpx.post(f"{served.url}api/judge", json=sent, headers=headers).status_code == 403
            )
        assert served.rows == []


def test_guidelines_are_text_and_structure(tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text(RULES)
    html = read_guidelines(tmp_path / "rules.md")
    assert (
        "<strong>true</strong>" in html
        and "<table>" in html
        and '<a href="https://example.org">' in html
    )
    for word in ("<script", "<img", "<b ", 'href="javascript'):
        assert word not in html
    assert "&lt;script&gt;" in html
    (tmp_path / "rules.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not UTF-8 at byte 0"):
        read_guidelines(tmp_path / "rules.md")
    with pytest.raises(FileNotFoundError):
        read_guidelines(tmp_path / "absent.md")


def test_pairs_by_keys_alone(labeling: Any, open_page: Any) -> None:
    with labeling(questions(7)) as served:
        ann = Annotator(open_page(served.url)).enter("Ann Lee")
        assert "annotator=Ann+Lee" in ann.page.url
        ann.judge(prefer_good(ann.texts()))
        ann.judge("t")
        ann.judge(
            "c", "n", "o", " ", "1", "Enter", "b"
        )  # keys of verdicts are letters in the comment
        ann.judge("s")
        assert [row["verdict"] for row in served.rows][1:] == ["tie", "both_bad", "skip"]
        assert served.rows[0]["chosen"] == "good 0" and served.rows[2]["comment"] == "no 1"
        texts = ann.texts()
        ann.undo()
        ann.undo()
        assert ann.page.input_value("textarea") == "no 1"  # taken back with its comment
        assert len(served.rows) == 2
        ann.judge("b")
        ann.judge("s")
        assert ann.texts() == texts and len(served.rows) == 4
        assert ann.judge_all(prefer_good) == 3
        assert (
            "All done" in ann.page.inner_text("main") and ann.page.inner_text("#count") == "7 of 7"
        )
        ann.undo()
        assert ann.texts()[0].endswith("6")
    rows = served.rows
    assert {row["annotator"] for row in rows} == {"Ann Lee"} and len(rows) == 6


def test_rankings_with_ties_by_keys_and_by_clicks(labeling: Any, open_page: Any) -> None:
    with labeling(questions(3, "a", "b", "c", "d"), form="rankings") as served:
        ann = Annotator(open_page(served.url)).enter("ann")
        ann.press(
            "2", "3", "Backspace", "1", "=", "4", "Enter"
        )  # answer 3 is missing: nothing is saved
        assert ann.page.inner_text(".order") == "2  ›  1 = 4" and ann.done() == 0
        ann.judge("3", "Enter")
        assert served.rows[0]["ranks"] == [2, 1, 4, 2]
        ann.page.wait_for_timeout(PAUSE)
        for number in (4, 3, 2, 1):
            ann.page.click(f".answer:nth-child({number}) .rank")
        ann.page.click("text=Save ranking")
        ann.wait_for(2)
        assert served.rows[1]["ranks"] == [4, 3, 2, 1]
        ann.undo()
        assert ann.page.inner_text(".order") == "4  ›  3  ›  2  ›  1"
        ann.judge("Enter")
        ann.judge("1", "=", "2", "=", "3", "=", "4", "Enter")
        assert served.rows[2]["set_aside"] == "tie"


def test_ratings_by_keys_and_by_clicks(labeling: Any, open_page: Any) -> None:
    with labeling(questions(2, "a", "b", "c"), form="ratings", scale=7) as served:
        ann = Annotator(open_page(served.url)).enter("ann")
        ann.press("7", "1", "8", "Enter")
        assert ann.page.inner_text(".order") == "1 of 3 not rated"
        ann.judge("ArrowUp", "2", "5", "Enter")  # up again to the second answer
        assert served.rows[0]["ratings"] == [7, 2, 5]
        ann.page.wait_for_timeout(PAUSE)
        for number, rating in ((1, 3), (3, 4), (2, 3)):
            ann.page.click(f".answer:nth-child({number}) [data-value='{rating}']")
        ann.page.click("text=Save ratings")
        ann.wait_for(2)
        assert served.rows[1]["ratings"] == [3, 3, 4]


def test_model_text_is_text(labeling: Any, open_page: Any) -> None:
    """No script runs (a dialog or an error would fail the test), directions follow the text, long answers scroll."""
    long = "long line " * 10_000
    with labeling(questions(1, *HOSTILE, long), form="ratings") as served:
        page = open_page(f"{served.url}?annotator=ann")
        page.wait_for_selector(".verdict")
        shown = page.eval_on_selector_all(
            ".answer .text", "all => all.map(each => each.textContent)"
        )
        assert sorted(shown) == sorted([*HOSTILE, long])
        assert (
            page.locator(".text *").count() == 0
            and page.locator("main script, main img").count() == 0
        )
        where = next(index for index, text in enumerate(shown) if "שלום" in text)
        assert (
            page.locator(".answer .text")
            .nth(where)
            .evaluate("each => getComputedStyle(each).unicodeBidi")
            == "plaintext"
        )
        tall = page.locator(".text.long")
        assert tall.count() == 1 and tall.evaluate("each => each.clientHeight < innerHeight")
        page.click("text=Show all 100,000 characters")
        assert tall.evaluate("each => each.clientHeight > 5 * innerHeight")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert find_faults(page) == []


def test_guidelines_come_first_and_do_no_harm(
    labeling: Any, open_page: Any, tmp_path: Path
) -> None:
    (tmp_path / "rules.md").write_text(RULES)
    with labeling(questions(3), guidelines=read_guidelines(tmp_path / "rules.md")) as served:
        ann = Annotator(open_page(served.url)).enter("ann")
        ann.page.wait_for_selector("#guidelines[open]")
        assert ann.page.inner_text("#guidelines h1") == "Rules" and find_faults(ann.page) == []
        assert ann.page.get_attribute("#guidelines a", "rel") == "noopener noreferrer"
        ann.page.wait_for_timeout(PAUSE)
        ann.press("1")  # behind the dialog nothing is judged
        ann.press("Escape")
        assert served.rows == []
        ann.judge("1")
        ann.press("g")
        assert ann.page.locator("#guidelines[open]").count() == 1
        ann.press("g", "?")
        assert ann.page.locator("dialog[open]").get_attribute("id") == "keys"


def test_names_are_asked_and_chosen(labeling: Any, open_page: Any) -> None:
    with labeling(questions(2), annotators=("Ann", "Bob")) as served:
        page = open_page(served.url)
        assert (
            page.locator(".ask-name button").all_inner_texts() == ["Ann", "Bob"]
            and find_faults(page) == []
        )
        page.click("text=Bob")
        page.wait_for_selector(".verdict")
        assert page.inner_text(".name") == "Bob"
        complaints = open_page.complaints
        other = open_page(f"{served.url}?annotator=Eve")
        other.wait_for_selector(".ask-name")
        assert "'Eve' is none of the annotators: Ann, Bob" in other.inner_text("[role=alert]")
        complaints[:] = [each for each in complaints if "400" not in each]


def test_two_tabs_of_one_annotator(labeling: Any, open_page: Any) -> None:
    with labeling(questions(4)) as served:
        one, two = (Annotator(open_page(f"{served.url}?annotator=ann")) for _ in range(2))
        one.page.wait_for_selector(".verdict")
        two.page.wait_for_selector(".verdict")
        assert one.texts() == two.texts()
        one.judge("1")
        two.judge("2")  # too late: the first verdict stays, and the tab goes on
        assert "in another tab" in two.page.inner_text("[role=alert]")
        assert [row["verdict"] for row in served.rows] == ["first"] and two.texts() == one.texts()
        two.judge("2")
        assert two.done() == 2 and len(served.rows) == 2
        open_page.complaints[:] = [each for each in open_page.complaints if "409" not in each]


def test_a_second_press_does_not_judge_a_question_that_was_not_seen(
    labeling: Any, open_page: Any
) -> None:
    with labeling(questions(4)) as served:
        ann = Annotator(open_page(f"{served.url}?annotator=ann"))
        ann.page.wait_for_selector(".verdict")
        ann.page.wait_for_timeout(PAUSE)
        ann.page.dblclick("text=Answer 1 is better")
        ann.wait_for(1)
        ann.page.wait_for_timeout(2 * PAUSE)
        assert len(served.rows) == 1


def test_a_lost_reply_writes_one_verdict_and_takes_back_one(labeling: Any, open_page: Any) -> None:
    with labeling(questions(4)) as served:
        ann = Annotator(open_page(f"{served.url}?annotator=ann"))
        ann.page.wait_for_selector(".verdict")
        lost: list[str] = []

        def lose_first(route: Any) -> None:
            if route.request.url in lost:
                route.continue_()
            else:
                lost.append(route.request.url)
                route.fetch()  # the server has it, the page never hears of it
                route.abort()

        ann.page.route("**/api/judge", lose_first)
        ann.page.route("**/api/undo", lose_first)
        ann.judge("1")
        assert len(served.rows) == 1
        ann.judge("2")
        ann.press("u")
        ann.page.wait_for_selector("text=nothing was taken back")
        assert len(served.rows) == 1 and ann.done() == 1 and len(lost) == 2
        open_page.complaints[:] = [
            each for each in open_page.complaints if "ERR_FAILED" not in each and "409" not in each
        ]


def test_a_full_disk_keeps_the_question_and_says_so(
    labeling: Any, open_page: Any, monkeypatch: Any
) -> None:
    with labeling(questions(4)) as served:
        ann = Annotator(open_page(f"{served.url}?annotator=ann"))
        ann.page.wait_for_selector(".verdict")
        ann.judge("1")
        texts, append = ann.texts(), PreferenceLog.append

        def fail(self: PreferenceLog, row: Any) -> None:
            raise OSError(f"{self.path}: the disk is full; the last verdict was not written")

        monkeypatch.setattr(PreferenceLog, "append", fail)
        ann.page.fill("textarea", "kept")
        ann.page.keyboard.press("Escape")
        ann.page.wait_for_timeout(PAUSE)
        ann.press("2")
        assert "the disk is full" in ann.page.inner_text("[role=alert]")
        assert ann.texts() == texts and ann.done() == 1 and find_faults(ann.page) == []
        monkeypatch.setattr(PreferenceLog, "append", append)
        ann.judge("2")
        assert served.rows[1]["comment"] == "kept"
        open_page.complaints[:] = [each for each in open_page.complaints if "507" not in each]


def test_what_was_not_sent_survives_a_closed_page(labeling: Any, open_page: Any) -> None:
    with labeling(questions(3, "a", "b", "c"), form="rankings") as served:
        ann = Annotator(open_page(f"{served.url}?annotator=ann"))
        ann.page.wait_for_selector(".verdict")
        ann.page.fill("textarea", "half a comment")
        ann.press("Escape", "3", "1")
        ann.page.close()
        again = Annotator(ann.page.context.new_page())
        again.page.goto(f"{served.url}?annotator=ann")
        again.page.wait_for_selector(".verdict")
        assert again.page.inner_text(".order") == "3  ›  1"
        assert again.page.input_value("textarea") == "half a comment"
        again.judge("2", "Enter")
        assert served.rows[0]["ranks"] == [2, 3, 1] and again.page.input_value("textarea") == ""


def test_waiting_for_what_another_has_open(labeling: Any, open_page: Any) -> None:
    with labeling(questions(2), overlap=0.0) as served:
        ann, bob = (
            Annotator(open_page(f"{served.url}?annotator={name}")) for name in ("ann", "bob")
        )
        for each in (ann, bob):
            each.page.wait_for_selector(".verdict")
        assert ann.texts() != bob.texts()
        ann.judge("1")
        assert "open on other annotators' pages" in ann.page.inner_text("main")
        bob.judge("2")
        assert "All done" in bob.page.inner_text("main")
        ann.page.wait_for_selector("text=All done", timeout=7000)
        assert find_faults(ann.page) == []


@pytest.mark.parametrize("form", ["pairs", "rankings", "ratings"])
def test_every_width_and_theme(labeling: Any, open_page: Any, tmp_path: Path, form: str) -> None:
    asked = questions(
        9,
        *RAINBOWS[: 2 if form == "pairs" else 4],
        ask="Why are rainbows always in the same order?",
    )
    with labeling(asked, form=form, seed=1) as served:
        page = open_page(f"{served.url}?annotator=ann")
        page.wait_for_selector(".verdict")
        Annotator(page).judge("s")
        Annotator(page).press(
            *{"pairs": (), "rankings": ("2", "1", "=", "4"), "ratings": ("4",)}[form]
        )
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            bar = page.locator(".verdict").bounding_box()
            assert bar["y"] + bar["height"] <= 900 and bar["height"] < 200
            rows = page.eval_on_selector_all(
                ".answer", "all => all.map((e) => [e.offsetTop, e.offsetHeight])"
            )
            tops = sorted({top for top, _ in rows})
            for one, other in pairwise(tops):  # rows follow each other without a hole
                assert other - one - max(height for top, height in rows if top == one) <= 12
            page.screenshot(path=Path(SHOTS or tmp_path) / f"label-{form}-{width}.png")
        assert find_faults(page) == []
        page.emulate_media(color_scheme="dark")
        assert find_faults(page) == []


def test_a_page_needs_only_small_replies(labeling: Any) -> None:
    with labeling(questions(200, "x" * 2000, "y" * 2000)) as served:
        assert len(json.dumps(served.get().json())) < 5000
