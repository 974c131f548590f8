"""Hand-checked pairs, the answers of GSM8K, and comparisons that never end."""

import json
import logging
import os
import time
import warnings
from pathlib import Path

import pytest

from ascent.rewards import Unscored
from ascent.rewards.calls import score_all
from ascent.rewards.mathematics import Mathematics
from ascent.rewards.outcome import Tally
from tests.rewards.rollouts import rollout
from tests.rewards.tallies import counters
from tests.wall_clock import wall_clock

PAIRS = [
    json.loads(line)
    for line in (Path(__file__).parent / "maths_pairs.jsonl").read_text().splitlines()
]
# Right answers that are refused: degrees inside a function, and Euler's identity.
MISSED = {(r"\sin(30^\circ)", r"\frac12"), (r"\tan 45^\circ", "1"), (r"e^{i\pi}", "-1")}


@pytest.fixture(scope="module")
def maths():
    reward = Mathematics(workers=1, seconds=60.0)
    yield reward
    reward.close()


@pytest.fixture(scope="module")
def verdicts(maths):
    """True, False or None for each pair, in order."""
    scores = maths.score(
        [rollout(rf"\boxed{{{pair['answer']}}}", answer=pair["gold"]) for pair in PAIRS]
    )
    return [bool(score["correct"]) if isinstance(score, dict) else None for score in scores]


def rates(found):
    """(false positives, wrong pairs, false negatives, right pairs, bad golds that got a score)."""
    both = list(zip(PAIRS, found, strict=True))
    wrong = [verdict for pair, verdict in both if pair["equal"] is False]
    right = [verdict for pair, verdict in both if pair["equal"] is True]
    bad = [verdict for pair, verdict in both if pair["equal"] is None]
    return (
        sum(v is True for v in wrong),
        len(wrong),
        sum(v is not True for v in right),
        len(right),
        sum(v is not None for v in bad),
    )


def test_there_are_enough_pairs():
    assert len({(pair["gold"], pair["answer"]) for pair in PAIRS}) == len(PAIRS) >= 300
    assert {pair["category"] for pair in PAIRS} >= {
        *(
            "fractions",
            "units",
            "percent",
            "thousands",
            "tuples_and_intervals",
            "lists_and_sets",
            "matrices",
        ),
        *("equivalent_forms", "wrong_but_close", "adversarial", "bad_gold"),
    }


@pytest.mark.parametrize("category", sorted({pair["category"] for pair in PAIRS}))
def test_hand_checked_pairs(category, verdicts):
    wrong = [
        (pair["gold"], pair["answer"], verdict)
        for pair, verdict in zip(PAIRS, verdicts, strict=True)
        if pair["category"] == category
        and verdict is not pair["equal"]
        and (pair["gold"], pair["answer"]) not in MISSED
    ]
    assert wrong == []


def test_rates_beside_math_verify_alone(verdicts):
    from math_verify import parse, verify

    def alone(gold, answer):
        want = parse(rf"\boxed{{{gold}}}", parsing_timeout=None)
        got = parse(rf"\boxed{{{answer}}}", parsing_timeout=None)
        return bool(verify(want, got, timeout_seconds=None)) if want else None

    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A tower of nines would take this process with it.
        theirs = [None if "9^{9" in p["answer"] else alone(p["gold"], p["answer"]) for p in PAIRS]
    logging.disable(logging.NOTSET)
    ours_fp, wrong, ours_fn, right, ours_bad = rates(verdicts)
    theirs_fp, _, theirs_fn, _, theirs_bad = rates(theirs)
    print(
        f"false positives {ours_fp}/{wrong} (math-verify {theirs_fp}), false negatives {ours_fn}/{right} ({theirs_fn})"
    )
    assert (ours_fp, ours_fn, ours_bad) == (0, len(MISSED), 0)
    assert theirs_fp > 15 and theirs_fn > 15 and theirs_bad > 5


@pytest.mark.parametrize(
    ("gold", "text", "parts"),
    [
        ("1, 2, 3", r"\boxed{1, 2, 4}", (0.0, 2 / 3, 1.0)),
        ("1, 2, 3", r"\boxed{1, 2, 3, 4}", (0.0, 3 / 4, 1.0)),
        ("(1, 2)", r"\boxed{(1, 2)}", (1.0, 1.0, 1.0)),
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
            r"\boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}",
            (0.0, 0.75, 1.0),
        ),
        (
            r"\begin{pmatrix}1&2\end{pmatrix}",
            r"\boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}",
            (0.0, 0.5, 1.0),
        ),
        ("72", "no answer here", (0.0, 0.0, 0.0)),
        ("some working #### 72", r"\boxed{72}", (1.0, 1.0, 1.0)),
    ],
)
def test_partial_credit_is_a_part_of_its_own(gold, text, parts, maths):
    (score,) = maths.score([rollout(text, answer=gold)])
    assert (score["correct"], score["partial"], score["answered"]) == pytest.approx(parts)
    assert (
        maths.weights == {"partial": 0.0, "answered": 0.0, "oversized": 0.0}
        and score["oversized"] == 0.0
    )


@pytest.mark.parametrize("gold", ["", None, r"\frac{1}{", "?", r"\text{}"])
def test_a_bad_gold_is_unscored_whatever_the_text(gold, maths):
    for text in (rf"\boxed{{{gold}}}", r"\boxed{1}", "nothing"):
        (score,) = maths.score([rollout(text, answer=gold)])
        assert isinstance(score, Unscored) and score.kind in ("bad_gold", "no_gold")


@wall_clock
def test_a_comparison_that_hangs_is_cut_off_and_the_next_one_works():
    """An expansion with tens of thousands of terms; the checker is killed, the count says so, nothing is 0."""
    maths = Mathematics(workers=1, seconds=4.0)
    hanging = rollout(
        r"\boxed{(a+b+c+d+e+f+g+h)^{90}(a-b+c-d+e-f+g-h)^{90}-1}", answer=r"(a+b+c+d+e+f+g+h)^{91}"
    )
    fine = rollout(r"\boxed{1+x}", answer="x+1")
    tally, start = Tally(), time.monotonic()
    found = score_all({"m": maths}, [hanging, fine], timeout=60, tally=tally)
    assert time.monotonic() - start < 30
    assert counters(tally) == {"rewards/m/scored": 1, "rewards/m/unscored/timeout": 1}
    assert found[1]["m"].parts["correct"] == 1.0
    maths.close()


@wall_clock
def test_what_a_collapsed_policy_writes_is_wrong_at_once_and_counted(maths):
    """Computer algebra would take minutes for the first: a time-out, unscored, and after enough of them a dead run."""
    braces = "{" * 20 + "x" + "}" * 20
    written = [f"1+{braces}", "x+" * 300 + "1", r"\frac{1}{" * 300, "9" * 5000, "1," * 5000]
    start = time.process_time(), time.monotonic()
    scores = maths.score([rollout(rf"\boxed{{{text}}}", answer="x+2") for text in written])
    assert time.process_time() - start[0] < 1 and time.monotonic() - start[1] < 30
    assert [score["correct"] for score in scores] == [0.0] * 5
    assert [score["oversized"] for score in scores] == [
        1.0,
        1.0,
        0.0,
        1.0,
        1.0,
    ]  # the third is not closed: no answer
    assert [score["answered"] for score in scores] == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_without_math_verify_the_reward_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'ascent-posttrain\[math\]'"):
        Mathematics()


DATA = os.environ.get("ASCENT_DATA")


@pytest.mark.skipif(DATA is None, reason="ASCENT_DATA names no folder with gsm8k/train.parquet")
def test_all_answers_of_gsm8k(maths):
    """7,473 golds: reformatted five ways they score 1, one more scores 0."""
    import datasets

    rows = datasets.Dataset.from_parquet(str(Path(str(DATA)) / "gsm8k" / "train.parquet"))
    texts = [
        row["answer"] for row in (rows["extra_info"] if "extra_info" in rows.column_names else rows)
    ]
    golds = [text.rpartition("####")[2].strip() for text in texts]
    assert len(golds) == 7473
    plain = [gold.replace(",", "") for gold in golds]
    ways = {
        "hashes": [f"so\n#### {gold}" for gold in golds],
        "box": [rf"thus $\boxed{{{number}}}$." for number in plain],
        "money": [f"<answer>{'-' * (n < '0')}${n.lstrip('-')}</answer>" for n in plain],
        "decimals": [rf"\boxed{{{number}{'0' if '.' in number else '.00'}}}" for number in plain],
        "unit": [rf"\boxed{{{_grouped(number)} \text{{ apples}}}}" for number in plain],
        "fraction": [
            rf"\boxed{{\frac{{{round(float(number) * 200)}}}{{200}}}}" for number in plain
        ],
    }
    for way, answers in ways.items():
        scores = maths.score(
            [rollout(text, answer=gold) for text, gold in zip(answers, texts, strict=True)]
        )
        assert [s["correct"] for s in scores] == [1.0] * 7473, way
    more = [f"{float(n) + 1:.10g}" if "." in n else str(int(n) + 1) for n in plain]
    scores = maths.score(
        [rollout(rf"\boxed{{{n}}}", answer=gold) for n, gold in zip(more, texts, strict=True)]
    )
    assert [s["correct"] for s in scores] == [0.0] * 7473


def _grouped(number):
    return f"{float(number):,.10g}" if "." in number else f"{int(number):,}"
