"""Where the answer stands: the last marked one, whole, with its braces matched."""

import pytest

from ascent.rewards.extract import answer_in


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{2} then #### 3", "3"),
        ("#### 3\nthen \\boxed{2}", "2"),
        (r"$\boxed{x}$.", "x"),
        (r"\boxed 5.", "5"),
        (r"\fbox{7}", "7"),
        ("#### 1,234", "1,234"),
        ("a\n#### 5 apples\nb", "5 apples"),
        ("<answer> 4 </answer>", "4"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        (r"<answer>so \boxed{9}</answer>", "9"),
        ("<ANSWER>3</ANSWER>", "3"),
        (r"\boxed{4, 5, 6}", "4, 5, 6"),
        (r"\boxed{1", None),
        (r"\boxed{}", None),
        ("<answer></answer>", None),
        ("the answer is 4", None),
        ("", None),
        (r"\boxed{a}{b}", "a"),
        (r"\boxed{\boxed{3}}", "3"),
    ],
)
def test_extraction(text, answer):
    assert answer_in(text) == answer
