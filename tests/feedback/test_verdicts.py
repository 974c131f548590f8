"""Every line can be trained on as it is, or is set aside with a reason; read back by the loader itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.data.load import load
from ascent.feedback.comparisons import Comparison, ShownComparison
from ascent.feedback.verdicts import Verdict, ranks_of, verdict_row
from ascent.records import Message, Pair, Prompt, Ranking
from tests.feedback.made import answers, shown


def row(each: ShownComparison, verdict: Verdict, form="pairs"):
    return verdict_row(each, verdict, form=form, annotator="ann", time="now")


def written(folder: Path, *rows) -> str:
    path = folder / "verdicts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


def test_a_choice_names_who_was_shown_where():
    found = row(shown("x", "y", swapped=True), Verdict("first"))
    assert (found["chosen"], found["rejected"]) == ("y", "x")
    assert found["shown"] == ["0.1", "0.0"] and found["models"] == ["m", "m"]
    assert found["annotator"] == "ann" and found["time"] == "now" and found["verdict"] == "first"


def test_what_training_reads_and_what_it_leaves_out_with_a_count(tmp_path, caplog):
    rows = [
        *(row(shown("x", "y", name=f"t{n}"), Verdict("tie")) for n in range(3)),
        row(shown("x", "y"), Verdict("both_bad")),
        row(shown("x", "y"), Verdict("skip")),
        row(shown("x", "y", swapped=True, repeat=1), Verdict("first")),
        row(shown("x", "y"), Verdict("second")),
    ]
    found = load(written(tmp_path, *rows), "pairs")
    assert [
        (p.chosen[0].content, p.rejected[0].content) for p in found.records if isinstance(p, Pair)
    ] == [("y", "x")]
    assert found.report.rows == 7
    assert found.report.notes == {
        "rows set aside: tie": 3,
        "rows set aside: both bad": 1,
        "rows set aside: skipped": 1,
        "rows set aside: asked again": 1,
    }
    assert "3 rows set aside: tie" in caplog.text


def test_a_file_of_ties_alone_says_why_there_is_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"1 rows set aside: tie\nno valid row is left"):
        load(written(tmp_path, row(shown("x", "y"), Verdict("tie"))), "pairs")


def test_rankings_and_ratings_are_read_best_first(tmp_path):
    ranked = row(shown("x", "y", "z"), Verdict("ranked", (3.0, 1.0, 2.0)), "rankings")
    rated = row(shown("x", "y", "z"), Verdict("rated", (1.0, 4.0, 1.0)), "ratings")
    for each, best in ((ranked, ["y", "z", "x"]), (rated, ["y", "x", "z"])):
        (record,) = load(written(tmp_path, each), "rankings").records
        assert isinstance(record, Ranking)
        assert [answer[0].content for answer in record.answers] == best
        assert record.ranks == ((0, 1, 1) if each is rated else (0, 1, 2))
    tied = row(shown("x", "y"), Verdict("rated", (4.0, 4.0)), "ratings")
    assert tied["set_aside"] == "tie" and tied["numbers"] == [4.0, 4.0]


@pytest.mark.parametrize(
    ("form", "word", "numbers"),
    [("rankings", "ranked", (2, 1, 4, 3)), ("ratings", "rated", (3, 4, 1, 2))],
)
@pytest.mark.parametrize("count", [3, 4])
def test_all_bad_is_left_out_of_rankings_and_ratings_with_a_count(
    tmp_path, form, word, numbers, count
):
    texts = "wxyz"[:count]
    bad = row(shown(*texts, name="q"), Verdict("both_bad"), form)
    file = written(tmp_path, bad, row(shown(*texts), Verdict(word, numbers[:count]), form), bad)
    best = [text for text in "xwzy" if text in texts]
    (record,) = load(file, "rankings").records
    assert isinstance(record, Ranking)
    assert [answer[0].content for answer in record.answers] == best
    pairs = load(file, "pairs")
    assert (
        len(pairs.records) == {3: 3, 4: 6}[count]
        and pairs.report.notes["rows set aside: both bad"] == 2
    )
    with pytest.raises(ValueError, match=r"1 rows set aside: both bad\nno valid row is left"):
        load(written(tmp_path, bad), "pairs")


def test_a_conversation_and_an_answer_that_looks_like_a_transcript_survive(tmp_path):
    messages = (
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Yes?"),
        Message("user", "?"),
    )
    texts = "\n\nHuman: no\n\nAssistant: yes", "fine"
    asked = ShownComparison(
        Comparison("p#q", Prompt("p", messages), tuple(answers(*texts))), (0, 1)
    )
    (pair,) = load(written(tmp_path, row(asked, Verdict("first"))), "pairs").records
    assert isinstance(pair, Pair)
    assert pair.prompt.messages == messages
    assert [each[0].content for each in (pair.chosen, pair.rejected)] == list(texts)


def test_every_file_algorithm_reads_the_same_file(tmp_path):
    file = written(tmp_path, row(shown("x", "y"), Verdict("first")))
    assert [
        len(load(file, want).records) for want in ("pairs", "rankings", "unpaired", "examples")
    ] == [1, 1, 2, 1]


def test_order_of_shares_ranks():
    assert ranks_of([3, 9, 9], high_is_good=True) == (3, 1, 1)
    assert ranks_of([3, 9, 9], high_is_good=False) == (1, 2, 2)
