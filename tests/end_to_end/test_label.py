"""People judge in a browser while the server is killed; a reward model trained on the file agrees with their rule."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import ascent
from ascent.data.load import load
from ascent.feedback.preference_log import read
from ascent.runs import jsonl
from ascent.runs.folder import read_run
from tests.view.annotating import PAUSE, Annotator

COLORS = ("red", "blue", "green", "gray", "pink", "black", "white", "brown")


def answers(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Each prompt has an answer that says yes and one that says no, each model as often the one as the other."""
    return [
        {
            "prompt": f"{COLORS[n % 8]} {n}?",
            "responses": [
                f"{word} {COLORS[(n * 3) % 8]}"
                for word in (("yes", "no") if n % 2 else ("no", "yes"))
            ],
            "models": ["old", "new"],
        }
        for n in range(first, first + count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prefer_yes(texts: list[str]) -> str:
    return "1" if texts[0].startswith("yes") else "2"


class Server:
    """`ascent label` in a process of its own, always on the same port."""

    def __init__(self, *words: str, program: tuple[str, ...] = ("-m", "ascent")) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.words = [sys.executable, *program, "label", *words, "--port", str(self.port)]
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.lines = []
        while not self.lines or "http://" not in self.lines[-1]:
            self.lines.append(self.process.stderr.readline())
            assert self.lines[-1], self.lines

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def end(self, how: signal.Signals) -> str:
        self.process.send_signal(how)
        return self.process.communicate(timeout=60)[0]


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*words: str, **options: Any) -> Server:
        started.append(Server(*words, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


def forget_refused(complaints: list[str]) -> None:
    """A page whose server was killed has seen refused connections."""
    complaints[:] = [each for each in complaints if "net::ERR_" not in each]


def test_thirty_verdicts_of_two_annotators_and_a_killed_server(
    open_page: Any, serve: Any, tmp_path: Path
) -> None:
    source, out = write(tmp_path / "answers.jsonl", answers(24)), tmp_path / "labels.jsonl"
    server = serve(str(source), "--out", str(out), "--overlap", "0.25", "--repeat", "0")
    assert "24 questions; 0 verdicts so far" in "".join(server.lines)
    ann, bob = (Annotator(open_page(server.url)).enter(name) for name in ("ann", "bob"))
    for _ in range(7):
        ann.judge(prefer_yes(ann.texts()))
        bob.judge(prefer_yes(bob.texts()))
    assert len(read(out)) == 14

    shown = ann.texts()
    ann.page.wait_for_timeout(PAUSE)
    server.process.send_signal(signal.SIGSTOP)  # Ann's verdict is on its way when the server dies
    ann.press(prefer_yes(shown))
    ann.page.wait_for_timeout(100)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.communicate()
    with out.open("a") as file:
        file.write('{"prompt": "half a li')
    ann.page.wait_for_selector("text=The server does not answer")
    assert ann.texts() == shown  # not lost, not passed over
    server.start()
    assert "14 verdicts so far" in "".join(server.lines)
    ann.wait_for(8)
    bob.page.close()  # Bob's browser dies as well, and he comes back
    bob = Annotator(open_page(f"{server.url}?annotator=bob"))
    bob.page.wait_for_selector(".verdict")
    assert bob.done() == 7
    ann.judge_all(prefer_yes)
    bob.judge_all(prefer_yes)
    for each in (ann, bob):
        each.page.wait_for_selector("text=All done")
    printed = server.end(signal.SIGINT)
    forget_refused(open_page.complaints)
    assert server.process.returncode == 0 and "30 verdicts on 24 questions" in printed
    assert "agreement of 2 annotators: 100.0% of 6, Cohen's kappa 1.000" in printed

    rows = read(out)
    assert (
        len(rows) == 30
        and sorted(Counter(row["id"] for row in rows).values()) == [1] * 18 + [2] * 6
    )
    assert all(row["chosen"].startswith("yes") for row in rows)
    for name in ("ann", "bob"):
        own = [row["models"][0] for row in rows if row["annotator"] == name]
        assert (
            abs(own.count("old") - own.count("new")) <= 1
        )  # each model stands first as often as second
    assert agreement_of_a_reward_model(out, tmp_path) == 1.0
    dpo = {
        "algorithm": "dpo",
        "model.policy": "tiny:llama",
        "data.train": str(out),
        "data.batch_size": 10,
        "run.steps": 2,
    }
    ascent.train(dpo, run=tmp_path / "dpo", say=lambda line: None)
    assert read_run(tmp_path / "dpo").state == "finished"


DYING = """
import os, signal, sys
from ascent.feedback.preference_log import PreferenceLog
append = PreferenceLog.append

def append_and_die(self, row):
    append(self, row)
    if os.path.exists("die"):
        os.unlink("die")
        os.kill(os.getpid(), signal.SIGKILL)

PreferenceLog.append = append_and_die
from ascent.cli.main import app
app()
"""


def test_a_kill_between_the_write_and_the_reply_trains_on_nothing_twice(
    open_page: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "answers.jsonl", answers(6))
    out = tmp_path / "labels.jsonl"
    words = ("answers.jsonl", "--out", str(out), "--overlap", "0", "--repeat", "0")
    server = serve(*words, program=("-c", DYING))
    ann, bob = (Annotator(open_page(server.url)).enter(name) for name in ("ann", "bob"))
    open_on_bobs_page = bob.texts()
    Path("die").touch()
    ann.page.wait_for_timeout(PAUSE)
    ann.press(prefer_yes(ann.texts()))
    server.process.communicate(timeout=60)
    assert (
        server.process.returncode == -signal.SIGKILL and len(read(out)) == 1
    )  # durable, and never acknowledged
    ann.page.wait_for_selector("text=The server does not answer")
    server.start()
    ann.wait_for(1)  # sent again, and known
    assert len(read(out)) == 1
    assert sorted(ann.texts()) == sorted(
        open_on_bobs_page
    )  # the new server does not know that Bob has it open
    ann.judge(prefer_yes(ann.texts()))
    bob.judge(prefer_yes(open_on_bobs_page))
    for each in (ann, bob):
        each.judge_all(prefer_yes)
    forget_refused(open_page.complaints)
    rows = read(out)
    assert len(rows) == 7 and Counter(row["id"] for row in rows).most_common(1)[0][1] == 2
    assert Counter(row["id"] for row in rows if "set_aside" not in row) == Counter(
        {row["id"]: 1 for row in rows}
    )
    (second,) = [row for row in rows if "set_aside" in row]
    assert (second["annotator"], second["set_aside"]) == (
        "bob",
        "judged by another annotator before",
    )
    assert len(load(str(out), "pairs").records) == 6


def test_what_was_acknowledged_is_in_the_file_after_every_kill(serve: Any, tmp_path: Path) -> None:
    """Two annotators judge as fast as they can; the server is killed twice at a time it does not choose."""
    source, out = write(tmp_path / "answers.jsonl", answers(400)), tmp_path / "labels.jsonl"
    server = serve(str(source), "--out", str(out), "--overlap", "1", "--repeat", "0")
    acknowledged: dict[str, list[str]] = {"ann": [], "bob": []}

    def judge(name: str) -> None:
        with httpx.Client(
            base_url=server.url, headers={"origin": server.url.rstrip("/")}
        ) as client:
            try:
                state = client.get("/api/question", params={"annotator": name}).json()
                while state["question"]:
                    prompt = state["question"]["messages"][0]["content"]
                    sent = {
                        "annotator": name,
                        "ticket": state["question"]["ticket"],
                        "verdict": "first",
                    }
                    state = client.post("/api/judge", json=sent).json()
                    acknowledged[name].append(prompt)
            except httpx.TransportError:
                pass  # the server is gone

    for kill_after in (20, 60):  # verdicts
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(judge, name) for name in acknowledged]
            while sum(map(len, acknowledged.values())) < kill_after:
                time.sleep(0.001)
            os.kill(server.process.pid, signal.SIGKILL)
            for each in waiting:
                each.result()
        server.process.communicate()
        written = Counter((row["annotator"], row["prompt"]) for row in jsonl.read(out).records)
        asked = Counter(
            (name, prompt) for name, prompts in acknowledged.items() for prompt in prompts
        )
        assert asked <= written and set(written.values()) == {1}
        assert (
            written - asked
        ).total() <= 4  # written, and the reply was lost: at most one for each and each kill
        server.start()


def agreement_of_a_reward_model(labels: Path, folder: Path) -> float:
    """Trained on the verdicts, on how many new answers does it agree with the rule?"""
    recipe = {
        "algorithm": "reward_model",
        "model.policy": "tiny:llama",
        "data.train": str(labels),
        "data.batch_size": 10,
        "data.max_tokens": 64,
        "data.evaluate": None,
        "update.learning_rate": 3e-3,
        "run.steps": 20,
    }
    ascent.train(recipe, run=folder / "reward_model", say=lambda line: None)
    heldout = [
        {
            "prompt": row["prompt"],
            "chosen": max(row["responses"]),
            "rejected": min(row["responses"]),
        }
        for row in answers(40, first=100)
    ]
    scored = list(
        ascent.score(str(folder / "reward_model"), str(write(folder / "heldout.jsonl", heldout)))
    )
    return sum(each.scores[0] > each.scores[1] for each in scored) / len(scored)


@pytest.mark.parametrize("form", ["rankings", "ratings"])
def test_rankings_and_ratings_are_trained_on_as_pairs(tmp_path: Path, form: str) -> None:
    """Three answers give three pairs; two of them tied give two."""
    from ascent.feedback.candidates import read_file_candidates
    from ascent.feedback.comparisons import make_comparisons
    from ascent.feedback.labeling import LabelingPlan, LabelingSession
    from ascent.feedback.preference_log import PreferenceLog

    rows = [{"prompt": f"q{n}", "responses": ["a", "b", "c"]} for n in range(2)]
    found = read_file_candidates(str(write(tmp_path / "answers.jsonl", rows)))
    asked: list[Any] = make_comparisons(found.prompts, found.answers, form, seed=0)[0]  # type: ignore[arg-type]
    word, high = ("ranked", False) if form == "rankings" else ("rated", True)
    with PreferenceLog(tmp_path / "labels.jsonl") as log:
        session = LabelingSession(log, asked, LabelingPlan(form, repeat=0.0))  # type: ignore[arg-type]
        for wanted in ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 2}):
            shown = session.next("ann")
            assert shown is not None
            numbers = [
                4 - wanted[each.text] if high else wanted[each.text] for each in shown.answers
            ]
            session.judge("ann", session.ticket("ann", shown), word, numbers)
    pairs = load(str(tmp_path / "labels.jsonl"), "pairs")
    made = Counter(
        (p.prompt.messages[0].content, p.chosen[0].content, p.rejected[0].content)
        for p in pairs.records
    )
    first = {("q0", "a", "b"), ("q0", "a", "c"), ("q0", "b", "c")}
    assert set(made) == first | {("q1", "a", "b"), ("q1", "a", "c")} and set(made.values()) == {1}
    assert pairs.report.notes == {"pairs of tied answers, which hold no preference": 1}
