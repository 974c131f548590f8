"""The process that compares: relative tolerances, bad golds, and a text that must not be run."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def ask():
    words = [sys.executable, "-m", "ascent.rewards.checker"]
    checker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert checker.stdin is not None and checker.stdout is not None
    assert json.loads(checker.stdout.readline()) == {"ready": True}

    def asked(gold, answer):
        checker.stdin.write(json.dumps({"op": "compare", "gold": gold, "answer": answer}) + "\n")
        checker.stdin.flush()
        return json.loads(checker.stdout.readline())

    yield asked
    checker.kill()
    checker.wait()
    checker.stdin.close()
    checker.stdout.close()


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        *[(r"\sqrt{2}", "1.414214", True), (r"\sqrt{2}", "1.41421", False)],
        # Both round to zero at six places; relative to their size they are far apart.
        *[
            (r"\pi \times 10^{-9}", "0.000000001", False),
            (r"\frac{\sqrt{2}}{10^{8}}", "0.0", False),
        ],
        *[("x^2-1", "(x-1)(x+1)", True), ("x^2-1", "x^2+1", False)],
        # All below 1e-15.
        *[
            (r"\frac{1}{2004!}", r"\frac{1}{2005!}", False),
            (r"\frac{1}{2004!}", r"\frac{1}{2003! \cdot 2004}", True),
        ],
        *[
            (r"\frac{1}{20!}", r"-\frac{1}{20!}", False),
            (r"\frac{1}{20!}", r"\frac{2}{20!}", False),
        ],
        *[
            (r"\frac{1}{20!}", r"\frac{1}{20 \cdot 19!}", True),
            (r"(\frac{5}{6})^{200}", r"(\frac{5}{6})^{201}", False),
        ],
        *[
            (r"(\frac{5}{6})^{200}", r"\frac{5^{200}}{6^{200}}", True),
            (r"\sin 0", r"\sqrt{3+2\sqrt2}-1-\sqrt2", True),
            (r"\sqrt{3+2\sqrt2}-1-\sqrt2", r"\sqrt{2}-\sqrt{2}", True),
        ],
        *[
            (r"\frac{\pi}{2}", r"\frac\pi2", True),
            (r"\frac{x}{2}", r"\frac x 2", True),
            (r"2+\frac\pi 2", r"\frac{\pi}{2}+2", True),
        ],
    ],
)
def test_symbolic(gold, answer, right, ask):
    assert ask(gold, answer)["right"] is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        *[
            (r"\pi r^2 h", r"\pi r^2", False),
            ("t^2+3t", "t^2+3", False),
            ("3t", "3", False),
            ("4h", "2h+2h", True),
        ],
        *[
            ("c+2x", "2x + c", True),
            ("t + 1", "1 + t", True),
            ("n + t", "t + n", True),
            ("2t", "t + t", True),
        ],
        *[
            (r"2\sqrt{3} \text{ cm}", r"2\sqrt{3} \text{ km}", False),
            (r"36\pi", r"36\pi \text{ cm}^2", True),
        ],
        *[
            (r"36\pi \text{ cm}^2", r"36\pi", True),
            (r"36\pi \text{ cm}^2", r"36\pi \text{ cm}^3", False),
        ],
        *[
            (r"36\pi \text{ cm}^2", r"\pi \cdot 6^2 \text{ square cm}", True),
            (r"\sqrt2", r"\sqrt2\text{ cm}", True),
        ],
        *[
            (r"36 \text{ cm}", r"\sqrt{1296} \text{ km}", False),
            (r"2\sqrt{3}", r"2\sqrt{3} inches", True),
        ],
    ],
)
def test_units_are_not_variables(gold, answer, right, ask):
    assert ask(gold, answer)["right"] is right


def test_no_letter_is_a_unit_without_space(ask):
    for letter in "abcdefghijklmnopqrstuvwxyz":
        for gold in ("42", "x^2+3"):
            assert ask(gold, gold + letter)["right"] is False, (gold, letter)
            assert ask(gold + letter, gold)["right"] is False, (gold, letter)
            assert ask(gold + letter, gold + letter)["right"] is True, (gold, letter)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        *[
            ("-221_3", "-221_4", False),
            ("-221_3", "-221_{3}", True),
            ("-221_3", "221_3", False),
            ("-221_3", "-221", False),
        ],
        *[
            ("0.0011_{2}", "0.0011_{3}", False),
            ("121_3+1", "121_4+1", False),
            ("121_3+1", "1+121_{3}", True),
        ],
        *[
            ("A_1+x", "x+A_1", True),
            (r"\log_{10} 5+x", r"x+\log_{10} 5", True),
            ("2x_1+x_2", "x_2+2x_1", True),
        ],
        *[("2B_{16}", "2B_{13}", False), ("2B_{16}", "2B_{16}", True)],
        *[
            ("3", r"3 \approx 4", False),
            (r"\sqrt2", r"\sqrt2 \approx 3", False),
            ("4", r"3 \approx 4", False),
        ],
        *[
            (r"\sqrt2", r"\sqrt{2} ≈ 1.41", True),
            (r"\frac34", r"\frac{3}{4} \approx 0.8", True),
            ("8.24", r"\approx 8.24", True),
        ],
        *[
            (r"36\pi", r"36\pi \approx 113.1 \text{ cm}^2", True),
            (r"\approx 8.24 \text{ mph}", "8.24", True),
        ],
        *[
            ("1.41", r"\sqrt{2} \approx 1.41", False),
            (r"\frac{10^6}{7}", r"\frac{10^6}{7} \approx 143000", True),
        ],
    ],
)
def test_bases_and_rounded_values(gold, answer, right, ask):
    assert ask(gold, answer)["right"] is right


def test_a_bad_gold_has_a_name(ask):
    assert ask(r"\frac{}{}", "1")["unscored"] == "bad_gold"


def test_answers_are_read_and_never_run(ask, tmp_path):
    """Parsers that go through eval would create the file."""
    mark = tmp_path / "mark"
    for text in (
        f"__import__('pathlib').Path('{mark}').touch()",
        rf"x + open('{mark}', 'w')",
        rf"\text{{open('{mark}','w')}}",
    ):
        ask("x+1", text)
        ask("y", text)
    assert not mark.exists()
