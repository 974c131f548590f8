"""Where the answer stands: the last marked one, whole, with its braces matched; also against a plain, slow search."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.rewards.extract import extract_answer


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
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{" * 5000 + "3" + "}" * 5000, "3"),
        (r"\boxed{" * 5000 + "3}", "3"),
        ("#### " * 5000 + "3", "3"),
        ("<answer>" * 5000 + "3</answer>" * 5000, "<answer>" * 4999 + "3"),
        (r"\boxed{2} " + "{" * 5000, "2"),
    ],
    ids=["boxes", "boxes left open", "hashes", "tags", "braces left open"],
)
def test_no_nesting_is_too_deep(text, answer):
    assert extract_answer(text) == answer


def slowly(text):
    """The same by looking at every place for every mark, and again inside of what was found."""
    found = []  # (end, rank, start, inner)
    for start in range(len(text)):
        rest = text[start:]
        box = re.match(r"\\(boxed|fbox)\s*", rest)
        if box and rest[box.end() :].startswith("{"):
            opened = start + box.end()
            closed = next(
                (end for end in range(opened, len(text)) if matched(text[opened : end + 1])), None
            )
            found += [] if closed is None else [(closed, 0, start, text[opened + 1 : closed])]
        elif box and (bare := re.match(r"[^\s${}\\]+", rest[box.end() :])):
            found.append((start + box.end() + bare.end(), 0, start, bare[0].rstrip(".,;")))
        line = text.rfind("\n", 0, start) + 1
        if rest.startswith("####") and "####" not in text[line : start + 3]:
            end = start + len(rest.split("\n")[0])
            found.append((end, 1, start, text[start + 4 : end].lstrip(" \t")))
        before = text[:start].lower()
        if (
            rest.lower().startswith("<answer>")
            and "<answer>" not in before[before.rfind("</answer>") + 1 :]
        ):
            size = rest.lower().find("</answer>")
            found += [] if size < 0 else [(start + size + 9, 2, start, rest[8:size])]
    if not found:
        return None
    inner = min(found, key=lambda each: (-each[0], *each[1:3]))[3]
    return slowly(inner) or inner.strip() or None


def matched(text):
    """Does the brace at the start close at the end and not before? What is escaped does not count."""
    plain = re.sub(r"(?s)\\.", "", text)
    depths = [
        plain[:size].count("{") - plain[:size].count("}") for size in range(1, len(plain) + 1)
    ]
    return text[-1:] == "}" and plain[-1:] == "}" and depths[-1] == 0 and 0 not in depths[:-1]


PIECES = [
    *(
        r"\boxed{",
        r"\boxed ",
        r"\fbox{",
        r"\boxed",
        "{",
        "}",
        "}",
        r"\{",
        r"\}",
        "\\",
        "####",
        "#### ",
        "#",
        "\n",
        "$",
    ),
    *(
        "<answer>",
        "</answer>",
        "<ANSWER>",
        "</Answer>",
        "<",
        "42",
        "x",
        ".",
        ",",
        " ",
        "so ",
        r"\frac{1}{2}",
        "\t",
    ),
]


@settings(max_examples=2000)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_the_same_as_a_plain_search(text):
    assert extract_answer(text) == slowly(text)
