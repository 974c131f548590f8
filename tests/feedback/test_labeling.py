"""Several annotators at once: nothing asked twice without need, nothing lost, orders balanced, undo of one's own."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ascent.data.load import load
from ascent.feedback.agreement import agreement
from ascent.feedback.comparisons import GAP, Answer, Comparison
from ascent.feedback.labeling import (
    LEASE,
    LabelingPlan,
    LabelingSession,
    StaleQuestion,
    balanced_order,
    check_name,
    is_shared,
    make_verdict,
)
from ascent.feedback.preference_log import PreferenceLog, read
from ascent.feedback.verdicts import Verdict
from tests.feedback.made import prompt


def questions(count: int, answers: int = 2) -> list[Comparison]:
    """Answers of two models, 0 and 1, in turn."""
    return [
        Comparison(
            f"p{number}#q",
            prompt(f"p{number}", f"Question {number}?"),
            tuple(
                Answer(f"{n % 2}.{n // 2}", f"model-{n % 2}", f"answer {number}/{n}", 3)
                for n in range(answers)
            ),
        )
        for number in range(count)
    ]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts a session on the same file, as a restarted server does; the one before is closed first."""
    opened: list[PreferenceLog] = []

    def start(
        count: int = 10, *, answers: int = 2, clock: Clock | None = None, **plan: Any
    ) -> LabelingSession:
        while opened:
            opened.pop().close()
        opened.append(PreferenceLog(tmp_path / "labels.jsonl"))
        settings = LabelingPlan(**{"overlap": 0.0, "repeat": 0.0, **plan})
        return LabelingSession(opened[-1], questions(count, answers), settings, clock or Clock())

    yield start
    while opened:
        opened.pop().close()


def judge_next(
    session: LabelingSession, name: str, word: str = "first", numbers: Any = (), comment: str = ""
) -> str:
    shown = session.next(name)
    assert shown is not None
    session.judge(name, session.ticket(name, shown), word, numbers, comment)
    return shown.question.id


def finish(session: LabelingSession, *names: str) -> None:
    """The annotators take turns until nothing is left for any of them."""
    while any([session.next(name) and judge_next(session, name) for name in names]):
        pass


def rows_of(session: LabelingSession, name: str) -> list[dict[str, Any]]:
    return [row for row in read(session.log.path) if row["annotator"] == name]


@pytest.mark.parametrize(("overlap", "shared"), [(0.0, 0), (0.2, 8), (0.25, 10), (1.0, 40)])
def test_the_overlap_goes_to_everybody_and_the_rest_to_one(start, overlap, shared):
    session = start(40, overlap=overlap)
    finish(session, "ann", "bob", "eve")
    judges = Counter(row["id"] for row in session.log.rows)
    assert Counter(judges.values()) == +Counter({3: shared, 1: 40 - shared})
    each = Counter(row["annotator"] for row in session.log.rows)
    assert max(each.values()) - min(each.values()) <= 1
    between = agreement(session.log.rows).between
    assert between is None if shared == 0 else between is not None and between.units == shared
    assert all(session.progress(name).left == 0 for name in each)


@pytest.mark.parametrize("share", [0.1, 0.15, 0.3, 1 / 3, 0.7, 1.0])
def test_the_overlap_is_exact_spread_and_random(share):
    shared = [number for number in range(600) if is_shared(number, share, 0)]
    assert abs(len(shared) - 600 * share) <= 1
    assert all(b - a < 2 / share for a, b in pairwise(shared))
    if share < 0.5:  # a file whose rows alternate is not sampled from one kind alone
        odd = sum(number % 2 for number in shared) / len(shared)
        assert 0.3 < odd < 0.7 and shared != [
            number for number in range(600) if is_shared(number, share, 1)
        ]


def test_what_is_open_on_a_page_is_not_given_to_another_until_it_is_long_ago(start):
    clock = Clock()
    session = start(3, clock=clock)
    ann, bob = session.next("ann"), session.next("bob")
    assert (ann.question.id, bob.question.id) == ("p0#q", "p1#q")
    assert session.next("ann") == ann  # a reloaded page, a second tab
    assert [judge_next(session, "bob") for _ in range(2)] == ["p1#q", "p2#q"]
    assert session.next("bob") is None and session.progress("bob") == (2, 1, 2, 1)
    clock.now = LEASE + 1
    assert judge_next(session, "bob") == "p0#q"
    session.judge(
        "ann", session.ticket("ann", ann), "second"
    )  # she was slow: her verdict is kept, and not trained on
    assert Counter(row["id"] for row in session.log.rows) == {"p0#q": 2, "p1#q": 1, "p2#q": 1}
    assert [row["annotator"] for row in session.log.rows if "set_aside" not in row] == ["bob"] * 3


@pytest.mark.parametrize(("form", "answers"), [("pairs", 2), ("rankings", 3), ("ratings", 3)])
def test_after_a_restart_one_verdict_on_a_question_is_trained_on(start, form, answers):
    given = {
        "pairs": ("first", ()),
        "rankings": ("ranked", (3, 1, 2)),
        "ratings": ("rated", (5, 1, 2)),
    }[form]
    session = start(2, answers=answers, form=form)
    ann = session.ticket("ann", session.next("ann"))
    session = start(2, answers=answers, form=form)  # it has forgotten what is open on Ann's page
    assert judge_next(session, "bob", *given) == "p0#q"
    session.judge("ann", ann, *given)
    session.judge("ann", ann, *given)  # sent again, as after a lost reply
    rows = session.log.rows
    assert [row.get("set_aside") for row in rows] == [None, "judged by another annotator before"]
    loaded = load(str(session.log.path), "pairs")
    assert len(loaded.records) == answers * (answers - 1) // 2
    assert loaded.report.notes == {"rows set aside: judged by another annotator before": 1}
    assert agreement(rows).between.units == answers * (answers - 1) // 2  # both count for agreement
    assert (
        session.undo("bob", 1).word == given[0]
    )  # the verdict that counts is taken back: the question is open again
    assert session.next("bob").question.id == "p0#q" and session.next("eve").question.id == "p1#q"
    judge_next(session, "bob", *given)
    assert [row["annotator"] for row in session.log.rows if "set_aside" not in row] == ["bob"]
    assert session.undo("ann", 1) == Verdict(given[0], tuple(map(float, given[1])))


def test_a_skipped_question_goes_to_somebody_else_and_not_back(start):
    session = start(2)
    assert judge_next(session, "ann", "skip") == "p0#q"
    assert judge_next(session, "ann") == "p1#q" and session.next("ann") is None
    assert judge_next(session, "bob") == "p0#q" and session.next("bob") is None


@pytest.mark.parametrize("answers", [2, 3, 5])
def test_every_answer_is_at_every_position_equally_often(start, answers):
    session = start(60, answers=answers, form="pairs" if answers == 2 else "rankings")
    numbers = () if answers == 2 else tuple(range(1, answers + 1))
    for done in range(1, 61):
        judge_next(session, "ann", "first" if answers == 2 else "ranked", numbers)
        if done % answers == 0:  # at every whole block, so never more than one block out of balance
            for position in range(answers):
                counts = Counter(row["shown"][position] for row in session.log.rows)
                assert set(counts.values()) == {done // answers}
    orders = [tuple(row["shown"]) for row in session.log.rows]
    assert len(set(orders)) >= answers and orders != [
        orders[i % answers] for i in range(60)
    ]  # not one fixed cycle
    assert balanced_order(answers, 7, "x", 1) != balanced_order(answers, 7, "x", 2) or answers == 2


def test_two_annotators_see_orders_of_their_own(start):
    session = start(40, overlap=1.0)
    finish(session, "ann", "bob")
    ann, bob = (
        {row["id"]: row["shown"] for row in rows_of(session, name)} for name in ("ann", "bob")
    )
    assert 8 <= sum(ann[key] == bob[key] for key in ann) <= 32


def test_repeats_come_later_in_the_other_order_and_only_where_there_was_a_verdict(start):
    session = start(40, repeat=0.5)
    total = session.progress("ann").left
    while shown := session.next("ann"):
        judge_next(
            session, "ann", "skip" if shown.question.id < "p2" and not shown.repeat else "first"
        )
    rows = session.log.rows
    place = {(row["id"], row.get("repeat", 0)): index for index, row in enumerate(rows)}
    again = [row for row in rows if row.get("repeat")]
    assert len(again) >= 5 and len(rows) < total
    for row in again:
        first = rows[place[row["id"], 0]]
        assert row["shown"] == first["shown"][::-1] and first["verdict"] != "skip"
        later = place[row["id"], 1] - place[row["id"], 0]
        assert later >= GAP or place[row["id"], 1] >= 40
        assert row["set_aside"] == "asked again"
    assert agreement(rows).self_agreement["ann"].units == len(again)


def test_progress_counts_down_to_nothing(start):
    session = start(20, repeat=0.5)
    done, left, *_ = session.progress("ann")
    total = left
    while session.next("ann"):
        judge_next(session, "ann")
        done, left, *_ = session.progress("ann")
        assert done + left == total
    assert left == 0 and total > 20


def test_undo_is_of_ones_own_and_asks_the_same_again(start):
    session = start(6)
    first = session.next("ann")
    judge_next(session, "ann", comment="  a reason\n")
    judge_next(session, "bob")
    assert session.undo("ann", 1) == Verdict("first", (), "a reason")
    assert session.next("ann") == first  # the same order too
    assert [row["annotator"] for row in read(session.log.path)] == ["bob"]
    with pytest.raises(ValueError, match="you have no verdict that could be taken back"):
        session.undo("ann", 0)
    judge_next(session, "ann", "second")
    assert [row["verdict"] for row in read(session.log.path)] == ["first", "second"]


def test_undo_reaches_back_before_a_restart(start):
    session = start(6)
    order = [judge_next(session, "ann") for _ in range(3)]
    session = start(6)
    for done in (3, 2, 1):
        session.undo("ann", done)
        assert session.next("ann").question.id == order[done - 1]
    assert session.log.path.read_bytes() == b""


def test_an_undo_that_is_sent_twice_takes_back_one(start):
    session = start(6)
    judge_next(session, "ann")
    judge_next(session, "ann")
    session.undo("ann", 2)
    with pytest.raises(StaleQuestion, match="nothing was taken back"):
        session.undo("ann", 2)
    assert len(session.log.rows) == 1


def test_a_verdict_that_is_sent_twice_is_written_once_also_after_a_restart(start):
    session = start(6, form="ratings", answers=3)
    shown = session.next("ann")
    sent = ("ann", session.ticket("ann", shown), "rated", (5, 1, 5), "fine")
    session.judge(*sent)
    session.judge(*sent)
    session = start(6, form="ratings", answers=3)
    session.judge(*sent)
    assert len(read(session.log.path)) == 1
    with pytest.raises(StaleQuestion, match="you have judged this question already"):
        session.judge(*sent[:3], (5, 1, 4), "fine")
    assert read(session.log.path)[0]["ratings"] == [5, 1, 5]


def test_a_second_tab_cannot_judge_in_an_order_that_is_not_recorded(start):
    session = start(12, overlap=1.0)
    first = session.next("ann")
    stale = session.ticket("ann", first)
    judge_next(session, "ann")
    with pytest.raises(StaleQuestion):
        session.judge("ann", stale, "second")
    second = session.next("ann")
    ticket = session.ticket("ann", second)
    session.undo("ann", 1)
    with pytest.raises(
        StaleQuestion, match="the order of the answers"
    ):  # it would now be shown the other way round
        session.judge("ann", ticket, "first")
    assert session.next("ann") == first
    for wrong in ("", "x", "99.0.ab", "0.2.ab", "-1.0.ab", stale[:-1] + "g"):
        with pytest.raises(StaleQuestion):
            session.judge("bob", wrong, "first")
    assert session.log.rows == []


def test_many_at_once_lose_nothing(start):
    session = start(60, overlap=0.5)
    names = [f"annotator {number}" for number in range(6)]
    threads = [Thread(target=finish, args=(session, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read(session.log.path)
    assert rows == session.log.rows
    assert Counter(Counter(row["id"] for row in rows).values()) == {6: 30, 1: 30}
    assert len({(row["id"], row["annotator"]) for row in rows}) == len(rows)


def test_names(start):
    session = start(4, annotators=("Ann Lee", "Bob"))
    assert session.annotator("  ann   LEE ") == "Ann Lee"
    with pytest.raises(ValueError, match="'Eve' is none of the annotators: Ann Lee, Bob"):
        session.annotator("Eve")
    session = start(4)
    judge_next(session, session.annotator("Zoë"))
    assert session.annotator("zoe\u0308") == "Zoë"
    for bad in ("", "  ", "x" * 65, "a\x00b", "a\u202eb"):
        with pytest.raises(ValueError, match="printable characters"):
            check_name(bad)


@pytest.mark.parametrize(
    ("form", "word", "numbers", "problem"),
    [
        ("pairs", "ranked", (1, 2, 3), "none of first, second, tie, both_bad, skip"),
        ("pairs", "first", (1,), "first needs 0 numbers"),
        ("rankings", "tie", (), "none of ranked, both_bad, skip"),
        ("rankings", "ranked", (1, 2), "ranked needs 3 numbers from 1 to 3"),
        ("rankings", "ranked", (0, 1, 2), "from 1 to 3"),
        ("ratings", "rated", (1, 6, 2), "rated needs 3 numbers from 1 to 5"),
        ("ratings", "rated", (1, float("nan"), 2), "from 1 to 5"),
    ],
)
def test_a_verdict_that_does_not_fit_is_refused(form, word, numbers, problem):
    with pytest.raises(ValueError, match=problem):
        make_verdict(LabelingPlan(form), 3, word, numbers)


def test_ranks_are_counted_as_in_the_terminal_and_comments_are_kept():
    plan = LabelingPlan("rankings")
    assert make_verdict(plan, 3, "ranked", (2, 1, 1)).numbers == (3, 1, 1)
    assert make_verdict(plan, 3, "skip", (), " half \ud83d ").comment == "half ?"
    with pytest.raises(ValueError, match="shorten it to 10000"):
        make_verdict(plan, 3, "skip", (), "x" * 10_001)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"form": "thumbs"}, "must be one of pairs, rankings, ratings"),
        ({"overlap": 1.5}, "overlap=1.5, but it is a share"),
        ({"repeat": -1}, "repeat=-1, but it is a share"),
        ({"scale": 10}, "use 2 to 9"),
        ({"annotators": ("ann", "Ann")}, "'ann' is named twice"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan, problem):
    with pytest.raises(ValueError, match=problem):
        LabelingPlan(**plan)


def test_verdicts_on_other_questions_are_refused(start, tmp_path):
    session = start(4)
    judge_next(session, "ann")
    judge_next(session, "ann")
    with pytest.raises(ValueError, match=r"holds verdicts on other questions \(p1#q\)"):
        start(1)
    with pytest.raises(ValueError, match="holds verdicts of the form pairs"):
        start(4, form="ratings")
    path = tmp_path / "labels.jsonl"
    rows = read(path)
    rows[0]["chosen"] = "something else"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"holds verdicts on other answers \(p0#q\)"):
        start(4)
