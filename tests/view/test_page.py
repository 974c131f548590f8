"""The page in a real browser, over runs that were trained for it: every view, live, hostile content, accessibility."""

from __future__ import annotations

import json
import os
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from ascent.feedback.win_rate import wilson
from ascent.runs.folder import RunFolder, read_run
from ascent.view.library import Library
from ascent.view.page import page_app
from tests.view.browser import WIDTHS, find_faults, serving, wait_for
from tests.view.served import OTHER, RLVR, at, shown, texts
from tests.view.written import sample, write_run

SHOTS = os.environ.get("ASCENT_SCREENSHOTS")  # a folder, to renew those of docs/view.md

VIEWS = {
    "runs": ("", "tr[data-run] svg.spark"),
    "curves": (f"#/run?run={RLVR}", ".panel canvas"),
    "rollouts": (f"#/run?run={RLVR}&tab=rollouts&step=STEP", ".sample .token"),
    "heldout": (f"#/run?run={RLVR}&tab=heldout", ".answer"),
    "settings": (f"#/run?run={RLVR}&tab=settings", "table.settings tbody tr"),
    "diagnosis": ("#/run?run=tools&tab=diagnosis", "main section h2"),
    "log": (f"#/run?run={RLVR}&tab=log", "table.log tr"),
    "compare": (f"#/compare?run={RLVR}&run={OTHER}", ".panel canvas"),
    "tools": ("#/run?run=tools&tab=rollouts&step=3", ".sample .observation"),
}


# Columns that got so little room that their text stands letter by letter.
SQUEEZED = """[...document.querySelectorAll("main td, main th, main dd, main p, main li")]
  .filter((each) => each.offsetWidth > 0 && each.offsetWidth < 48 && each.offsetHeight > 70)
  .map((each) => each.textContent).filter(Boolean)"""


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_opens_at_every_width_without_a_serious_fault(
    name: str, url: str, open_page: Any, tmp_path: Path, trained: Path
) -> None:
    path, ready = VIEWS[name]
    first = next(
        each["step"]
        for each in read_run(trained / RLVR).samples
        if each.get("sample") == 0 and "ratio" in each
    )
    path = path.replace("STEP", str(first))  # a step whose first groups are trained on
    page = open_page(url + path)
    page.wait_for_selector(ready)
    for width, scheme in ((WIDTHS[0], "light"), (WIDTHS[1], "dark"), (WIDTHS[2], "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        wait_for(page, "document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(SQUEEZED) == [], width
        assert width == WIDTHS[0] or find_faults(page) == []
        page.screenshot(
            path=Path(SHOTS or tmp_path)
            / f"{name}-{width}{'-dark' if scheme == 'dark' else ''}.png"
        )


def test_runs_are_searched_sorted_and_grouped(url: str, open_page: Any, trained: Path) -> None:
    page = open_page(url)
    page.wait_for_selector(f"tr[data-run='{RLVR}'] .last .muted")
    assert texts(page, "section.group h2") == [
        "rlvr 3",
        "sft 1",
    ]  # started from Python: by algorithm
    run, row = read_run(trained / RLVR), f"tr[data-run='{RLVR}']"
    scores = [each["eval/reward/mean"] for each in run.metrics if "eval/reward/mean" in each]
    last = [each["reward"] for each in run.answers if each["step"] == 14]
    low, high = wilson(sum(last), len(last))[1:3]
    half = shown(max(high - scores[-1], scores[-1] - low), 2)
    assert page.inner_text(f"{row} .last") == f"{shown(scores[-1], 3)} ±{half}\nreward/mean"
    assert page.inner_text(f"{row} .best").startswith(f"{shown(max(scores), 3)} ±")
    assert (
        page.inner_text(f"{row} .meter") == "14 / 14"
        and page.inner_text(f"{row} .badge") == "finished"
    )
    assert page.get_attribute(f"{row} svg.spark", "aria-label") == "reward/mean over the run"
    page.fill("input[type=search]", "seed-")
    assert page.locator("tr[data-run]").count() == 2 and "2 of 4" in page.inner_text("main")
    page.fill("input[type=search]", "nothing like it")
    assert "No run matches" in page.inner_text("main")
    page.fill("input[type=search]", "")
    page.click("text=By folder")
    assert texts(page, "section.group h2") == [". 1", "sort 1", "sort/rlvr 2"]
    assert (
        page.get_attribute("section a:has-text('Compare')", "href")
        == f"#/compare?run={quote(RLVR, '')}&run={quote(OTHER, '')}"
    )
    page.click("text=One list")
    page.click("th.id button")
    assert page.get_attribute("th.id", "aria-sort") == "descending"
    assert texts(page, "td.id a") == ["tools", "sort/sft", "sort/rlvr/seed-2", "sort/rlvr/seed-1"]


def test_log_checkpoints_and_environment(url: str, open_page: Any) -> None:
    page = open_page(at(url, RLVR, tab="log"))
    page.wait_for_selector("table.log tbody tr")
    rows = [each.split("\t") for each in texts(page, "table.log tbody tr")]
    assert [row[1] for row in rows if row[1] not in ("warning",)] == [
        "start",
        "checkpoint",
        "checkpoint",
        "finished",
    ]
    assert [row[2] for row in rows if row[1] == "checkpoint"] == [
        "Checkpoint of step 7",
        "Checkpoint of step 14",
    ]
    assert all(row[3] for row in rows if row[1] != "warning")  # when
    page = open_page(at(url, RLVR, tab="settings"))
    page.wait_for_selector("dl.pairs")
    assert f"torch {metadata.version('torch')}" in page.inner_text("dl.pairs")
    page.click("text=config.yaml")
    assert "algorithm: rlvr" in page.inner_text("pre.text")


def test_settings_say_where_they_came_from(url: str, open_page: Any) -> None:
    page = open_page(at(url, RLVR, tab="settings"))
    page.wait_for_selector("table.settings tbody tr")
    rows = {
        row.split("\t")[0]: row.split("\t")[1:] for row in texts(page, "table.settings tbody tr")
    }
    assert rows["seed"] == ["1", "command line"] and rows["rollouts.group_size"] == ["6", "recipe"]
    assert rows["run.keep"] == ["2", "default"] and rows["cells.policy_loss.use"][1] == "row"


def test_a_live_run_grows_within_two_seconds(tmp_path: Path, open_page: Any) -> None:
    inputs = json.dumps({"recipe": {"run.steps": 100}})
    stop, logged = threading.Event(), dict[int, float]()

    def write() -> None:
        with RunFolder.create(
            tmp_path / "live", "x: 1\n", {}, inputs=inputs, say=lambda line: None
        ) as run:
            for step in range(1, 100):
                run.log(step, {"reward/mean": step / 10, "eval/reward/mean": step / 10})
                run.log_samples(step, [sample(completion=f"answer {step}")], of=1)
                logged[step] = time.time()
                if stop.wait(0.5):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with serving(page_app(Library([tmp_path]))) as url:
            page = open_page(at(url, "live"))
            page.wait_for_selector(".panel canvas")
            assert page.inner_text(".badge") == "running"
            for _ in range(3):
                seen = max(logged) + 1
                label = (
                    "document.querySelector('.plot').getAttribute('aria-label')"
                    f".match(/step (\\d+)/)?.[1] >= {seen}"
                )
                wait_for(page, label)
                assert time.time() - logged[seen] < 2
            runs = open_page(url)
            runs.wait_for_selector("tr[data-run=live] svg.spark")
            seen = max(logged) + 1
            wait_for(
                runs,
                f"Number(document.querySelector('.meter .number').textContent.split(' ')[0]) >= {seen}",
            )
            assert time.time() - logged[seen] < 2
            wait_for(
                runs, "/ (s|min)$/.test(document.querySelector('td.left').textContent)"
            )  # of 100 steps
            assert (
                runs.inner_text("td.last").startswith("0.")
                or float(runs.inner_text("td.last").split()[0]) > 0
            )
            page.click("text=Rollouts")
            wait_for(page, f"Number(document.querySelector('input.step')?.value) > {seen}")
            stop.set()
            writer.join()
            wait_for(page, "document.querySelector('.badge').textContent === 'killed'")
    finally:
        stop.set()
        writer.join()


HOSTILE = [
    "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>",
    "</div></main><style>* { display: none }</style>",
    "שלום עולם \u202e dlrow \u2066 \u200f مرحبا",
    "\x00\x1b[31m\x07 \ud800 \U0001f600 null\u0000",
    "javascript:alert(1) ${alert(1)} {{7*7}}",
]


def test_hostile_and_long_text_and_damaged_lines_do_no_harm(tmp_path: Path, open_page: Any) -> None:
    said = []
    for place, text in enumerate(HOSTILE):
        numbers = {
            "tokens": list(text),
            "logprobs": [-1.0] * len(text),
            "parts": {text: 1.0},
            "failures": {text: text},
        }
        said.append(sample(place, id=text, prompt=text, completion=text, **numbers))
    words = ["word "] * 20_000
    said.append(
        sample(
            9,
            completion="".join(words),
            tokens=words,
            logprobs=[-0.5] * len(words),
            advantages=-1.0,
        )
    )
    run = write_run(
        tmp_path / "runs" / "<img src=x onerror=alert(1)>", samples=[(1, each) for each in said]
    )
    with (run / "samples.jsonl").open("ab") as file:
        file.write(
            b'{"step": 1, "broken\n\xff\xfe\n[]\n{"step": 1, "reward": {"a": 1}}\n{"step": 2'
        )
    (run / "warnings.jsonl").write_text(
        json.dumps({"step": 1, "name": HOSTILE[0], "why": HOSTILE[0], "reads": "reward/mean"})
    )
    with serving(page_app(Library([tmp_path / "runs"]))) as url:
        page = open_page(url)
        page.wait_for_selector("td.id a")
        assert texts(page, "td.id a") == ["<img src=x onerror=alert(1)>"]
        page = open_page(at(url, run.name, tab="rollouts", step=1))
        page.wait_for_selector(".sample .token")
        assert texts(page, ".rollout-group .prompt")[0] == HOSTILE[0]
        assert "damaged lines left out" in page.inner_text("main")
        shown_text = page.locator(".sample").first.locator(".tokens").text_content()
        assert shown_text == HOSTILE[0]
        started = time.monotonic()
        page.click("text=Show 19,780 more tokens")
        wait_for(page, "document.querySelectorAll('.token').length > 20000")
        assert time.monotonic() - started < 20
        for tab, ready in (
            ("diagnosis", ".warning"),
            ("settings", "table.settings"),
            ("log", "table.log"),
            ("heldout", ".message"),
            ("curves", ".panel canvas"),
        ):
            page.goto(at(url, run.name, tab=tab))
            page.wait_for_selector(ready)
            assert page.evaluate("window.harmed") is None
        assert find_faults(page) == []


def test_empty_error_and_lost_server_are_said(tmp_path: Path, open_page: Any) -> None:
    (tmp_path / "runs").mkdir()
    with serving(page_app(Library([tmp_path / "runs"]))) as url:
        page = open_page(
            f"{url}static/icon.svg"
        )  # the same origin; the page itself answers after a while
        page.route("**/api/runs?*", lambda route: held.append(route))
        held: list[Any] = []
        page.goto(url)
        page.wait_for_selector(".loading[role=status]")
        assert find_faults(page) == []
        wait_for_route(page, held).continue_()
        page.unroute("**/api/runs?*")
        page.wait_for_selector("text=No runs here yet")
        assert find_faults(page) == []
        write_run(tmp_path / "runs/a")
        page.wait_for_selector("td.id a")
        gone = open_page(at(url, "gone"))
        gone.wait_for_selector("text=there is no run 'gone' here")
        bare = open_page(at(url, "a", tab="rollouts"))
        bare.wait_for_selector("text=This run has no samples")
    page.wait_for_selector("text=The server does not answer")
    open_page.complaints[:] = [each for each in open_page.complaints if "404" not in each]


def wait_for_route(page: Any, held: list[Any]) -> Any:
    while not held:
        page.wait_for_timeout(20)
    return held.pop()


def test_another_address_needs_the_token_and_hides_it(tmp_path: Path, open_page: Any) -> None:
    write_run(tmp_path / "a")
    app = page_app(Library([tmp_path]), host="0.0.0.0", token="secret-token")
    with serving(app, token="secret-token") as url:
        bare = open_page(url.partition("?")[0])
        assert "open the link that the command printed" in bare.inner_text("body")
        bare.context.close()  # or the message of a late request, for its icon, would come after the next line
        open_page.complaints[:] = [each for each in open_page.complaints if "403" not in each]
        page = open_page(url)
        page.wait_for_selector("td.id a")
        assert "token" not in page.url and page.evaluate("document.cookie") == ""


def test_the_theme_can_be_chosen(url: str, open_page: Any) -> None:
    page = open_page(url)
    page.click("[aria-label='Theme: system']")
    page.click("[aria-label='Theme: light']")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


WRONG = [
    "curves?run=sort/sft&axis=odd",
    "curves?run=sort/sft&points=x",
    "compare?run=tools",
    "rollouts?run=tools&which=x",
    "rollout?run=tools&step=1&sample=99&id=x",
    "heldout?run=tools&place=-1",
    "run?run=../x",
    "run",
]


@pytest.mark.parametrize("path", WRONG)
def test_wrong_requests_get_one_clear_error(path: str, url: str) -> None:
    answer = httpx.get(f"{url}api/{path}")
    assert answer.status_code in (400, 404) and answer.json()["error"]
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (
            httpx.request(method, f"{url}api/run", headers={"origin": url.rstrip("/")}).status_code
            == 405
        )


def test_nothing_is_written(trained: Path, url: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    for path in (
        "runs",
        f"run?run={RLVR}",
        f"rollouts?run={RLVR}",
        f"heldout?run={RLVR}",
        f"curves?run={RLVR}&name=loss/total",
    ):
        assert httpx.get(f"{url}api/{path}").status_code == 200
    assert {
        path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()
    } == before
