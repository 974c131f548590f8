"""Whoever reads what a policy wrote needs time linear in it, and raises nothing, whatever a collapsed policy writes.

Every reader is given every degenerate text at four lengths, each four times the one before: one opening repeated,
nested, never closed; closings alone; digits, space, commas; near misses of every pattern. docs/rewards.md has figures.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice

import pytest

from ascent.cli.samples import escape_controls
from ascent.data.render import Renderer
from ascent.data.steps import step_ends
from ascent.envs import EnvFactory, find_env
from ascent.envs.calculator import calculate
from ascent.feedback.endpoint import read_verdict
from ascent.maths.rouge import rouge_l
from ascent.models.tiny import tiny_tokenizer
from ascent.records import Message, Prompt
from ascent.rewards.answers import parse_answer, parse_number
from ascent.rewards.equality import NeedsSymbolic, compare, no_symbolic
from ascent.rewards.extract import extract_answer
from ascent.rewards.judge import parse_verdict
from ascent.rewards.programs import extract_code
from ascent.rewards.text import exact, has_tag_blocks, repetition
from ascent.runs.eval_diff import Change, Changes, markdown
from ascent.tasks import TASKS
from tests.rewards.rollouts import rollout
from tests.wall_clock import wall_clock

SIZES = (
    1_900,
    7_600,
    30_400,
    121_600,
)  # the first within what `answers.parse_answer` reads, the others beyond
SECONDS = 0.3  # of this process, for any of them
# Four times the text may take four times as long, and 2.5 times that on a busy machine; quadratic would be 16 times.
GROWTH, FLOOR = 4 * 2.5, 0.05

REPEATED = [
    *[
        r"\boxed{",
        r"\boxed",
        r"\boxed ",
        r"\fbox{a",
        r"\boxed{#### ",
        r"<answer>\boxed{",
        r"\boxed{1}",
        r"\boxed{a}{",
    ],
    *[
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        r"\{",
        r"\}",
        "\\",
        "\\\\",
        "$",
        r"\$",
        "\\(",
        "(1,",
        "{1,",
        "[1,",
        "()",
    ],
    *[
        "#",
        "#### ",
        "####\n",
        "#### 1 ",
        "<answer>",
        "</answer>",
        "<ANSWER>",
        "<answer>#### ",
        "<answer></answer>",
    ],
    *[
        "```",
        "```\n",
        "```python\n",
        "```python\nx\n```\n",
        "``",
        "<think>",
        "</think>",
        "<think></think><answer>",
    ],
    *[
        "<calculator>",
        "</calculator>",
        "<calculator>1</calculator>",
        "<calculator><search>",
        "<search></calculator>",
    ],
    *[
        "9",
        "0",
        "-",
        "--1",
        "+",
        "1+",
        "1,",
        "1,000,",
        ",",
        "1 ",
        "1 000 ",
        ".",
        "1.",
        "1.5",
        "/",
        "1/",
        "1:",
        "*",
        "**",
    ],
    *[
        " ",
        "\n",
        "\t",
        "a",
        "a ",
        "a b c ",
        "ab\n",
        "A",
        " a",
        "\u00a0",
        "\u2028",
        "\x1b[2J",
        "é",
        "東",
        "٣",
        "\x00",
    ],
    *[
        r"\frac{1}{",
        r"\frac",
        r"\frac1",
        r"\frac{1}{2}",
        "^",
        "1^",
        "^{",
        "_",
        "x_{",
        r"\sqrt{",
        "e",
        "1e",
        "1e9",
        "i",
    ],
    *[
        r"\pm ",
        r"\pm1",
        r"1\pm",
        r"\cup ",
        r"(1,2)\cup ",
        "<",
        "x<",
        r"\le ",
        r"x\le ",
        r"1\le x\le ",
        "=",
        "x=",
        "x = 1",
    ],
    *[
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        "&",
        r"1&2\\",
        "%",
        r"\%",
        "1%",
        "° ",
        "½",
        "²",
        r"^\circ",
        r"1^\circ",
        "!",
    ],
    *[
        r"\text{",
        r"\text{a}",
        r"5\text{ cm}",
        r"\mathbf{",
        r"\mathbf{a}",
        "5⟨",
        "⟩",
        "5 cm ",
        " or ",
        " and ",
        "1;",
        ":",
    ],
    *[
        "Score: 1\n",
        "Score:",
        "Score: 1",
        "Verdict: tie\n",
        "Verdict:",
        "is it a ",
        "it is ",
        "is it red?",
        "U ",
        "R",
    ],
    *["[1]", "[ ", "Anna ", "<eos>", "<", "<eos", "\n\nHuman:", "|", "1\n", '"', "'", "{}", "[]"],
]
NESTED = [
    *[
        (r"\boxed{", "}"),
        ("(", ")"),
        ("{", "}"),
        ("[", "]"),
        (r"\{", r"\}"),
        (r"\frac{", "}{2}"),
        (r"\sqrt{", "}"),
    ],
    *[
        ("<answer>", "</answer>"),
        ("<calculator>", "</calculator>"),
        ("<think>", "</think>"),
        ("```python\n", "```\n"),
    ],
    *[
        ("(1,", ")"),
        (r"\begin{pmatrix}", r"\end{pmatrix}"),
        ("{(", ")}"),
        (r"\text{", "}"),
        ("-(", ")"),
        ("( ", " )"),
    ],
]
# What stands before, what is repeated, what stands behind: a pattern gets far and fails.
ALMOST = [
    *[
        ("1^", " ", "x"),
        ("1^{", " ", r"\cir"),
        (r"1^\circ", " ", "x"),
        (r"\boxed", " ", "x"),
        (r"\boxed{", " ", "1"),
    ],
    *[
        ("#### ", " ", "\n"),
        ("####", "\t", ""),
        ("Score:", " ", "x"),
        ("Score: 1", "0", "x"),
        ("Verdict:", "\t", "x"),
    ],
    *[
        ("5", " cm", "!"),
        ("5 ", "ab ", "1"),
        ("1", ",000", "x"),
        ("1", " 000", "x"),
        ("", "9", "!"),
        ("0.", "9", "x"),
    ],
    *[
        ("is it ", "a", "#"),
        ("is it a ", "a ", "?!"),
        ("```", "a", ""),
        ("```python\n", "x\n", "``"),
        ("[", " ", "x"),
    ],
    *[
        ("[1", "0", "x]"),
        (r"\boxed{", "1,", "}"),
        (r"\boxed{", "9", "}"),
        (r"\boxed{", r"\pm ", "1}"),
        ("x=", "1", "="),
    ],
    *[
        (r"\boxed{", "(", "}"),
        ("<answer>", "1 ", "</answer"),
        ("<calculator>", "1", "</calculator"),
        ("-", "9", "/x"),
    ],
    *[
        ("1/", "9", ""),
        (r"\frac{", "9", "}{1}"),
        ("1e", "9", ""),
        ("-", " ", "1"),
        ("x<", "1", "<"),
        ("(", "1,", ")"),
    ],
    *[
        (r"\{", "1,", r"\}"),
        ("1", "!", "?"),
        ("", "\\", "{"),
        ("<think>", "a", "</think><answer>"),
        ("5⟨", "a", ""),
    ],
    *[
        (r"\begin{array}{", "c", "}"),
        (r"\begin{pmatrix}", r"1&", r"\end{bmatrix}"),
        (r"\text", " ", "a"),
        ("1 ", "i", ""),
    ],
    *[(r"1\le x", r"\le x", "="), ("", "a", "=1"), ("f(x", ")", "=1"), ("", " ", "1")],
]
# Three units, each of them repeated over a third.
MIXED = [
    *[
        (r"\boxed{", "#", "\n}"),
        (r"\boxed{", "#### ", "}\n"),
        (r"\boxed{", " ", "}"),
        (r"\boxed{#### ", "\n", "}"),
    ],
    *[
        ("<answer>", "#### ", "</answer>"),
        ("<answer>", r"\boxed{", "</answer>"),
        ("<answer>", r"\boxed{", "}"),
    ],
    *[
        ("<calculator>", "<search>", "</calculator>"),
        ("<search>", "1", "</calculator>"),
        ("(", "1,", ")"),
        ("{", " ", "}"),
    ],
    *[
        ("```python\n", "x\n", "```\n"),
        ("<think>", "<answer>", "</think>"),
        ("1 ", "a ", "1"),
        ("9", " ", "9"),
    ],
]


def texts() -> Iterator[tuple[str, Callable[[int], str]]]:
    """A name, and the text of about so many characters."""
    for unit in REPEATED:
        yield f"{unit!r} repeated", lambda size, unit=unit: unit * (size // len(unit))
    for opening, closing in NESTED:
        both = len(opening) + len(closing)
        yield (
            f"{opening!r} nested",
            lambda size, o=opening, c=closing, n=both: o * (size // n) + "1" + c * (size // n),
        )
    for before, unit, behind in ALMOST:
        yield (
            f"{before!r}, {unit!r} repeated, {behind!r}",
            lambda size, b=before, u=unit, e=behind: b + u * (size // len(u)) + e,
        )
    for units in MIXED:
        yield (
            f"{units}, each repeated",
            lambda size, units=units: "".join(unit * (size // 3 // len(unit)) for unit in units),
        )


def compared(gold: str, text: str) -> object:
    try:
        return compare(gold, text, no_symbolic)
    except NeedsSymbolic:  # a checker will say
        return None


def calculated(text: str) -> object:
    try:
        return calculate(text)
    except (ValueError, ZeroDivisionError):  # its way to say that there is no value
        return None


def rendered(text: str) -> object:
    return markdown(Changes(0, 1, [Change("p", text, text, 0.0, 1.0)])), escape_controls(text)


ASK = Prompt("p", (Message("user", "?"),), "fox")
MAZE = Prompt("m", (Message("user", "S.#\n.#G\n..."),))
REFERENCE = " ".join(f"word{n % 150} a" for n in range(200))


@cache
def renderer() -> Renderer:
    return Renderer(tiny_tokenizer())


@cache
def tools() -> EnvFactory:
    return find_env("tools", tools=["calculator", "search"], corpus=__file__)


READERS: dict[str, Callable[[str], object]] = {
    **{"answer_in": extract_answer, "read": parse_answer, "read_number": parse_number},
    **{
        f"compare with {g}": partial(compared, g)
        for g in ("42", "1, 2", r"\{1, 2\}", "(1, 2)", "x + 1", "east")
    },
    "exact": lambda text: exact(rollout(text, answer="42")),
    "repetition": lambda text: repetition(rollout(text)),
    "format": lambda text: has_tag_blocks(text, ("think", "answer")),
    **{
        "source_in": extract_code,
        "judge": lambda text: parse_verdict(text, 0, 10),
        "comparing": read_verdict,
    },
    **{"calculator": calculated, "rouge_l": partial(rouge_l, REFERENCE), "rendering": rendered},
    "tools": lambda text: tools()(ASK).reply(text),
    "search": lambda text: tools()(ASK).reply(f"<search>{text}</search>"),
    "maze": lambda text: find_env("maze")(MAZE).reply(text),
    "twenty_questions": lambda text: find_env("twenty_questions")(ASK).reply(text),
    "between turns": lambda text: renderer().escape_control_tokens(text),
    "steps": lambda text: step_ends(text, "\n"),
    **{
        f"task {name}": partial(task.verify, task.prompts("train", 1)[0])
        for name, task in TASKS.items()
    },
    **{
        f"steps of {name}": partial(task.verify_steps, task.prompts("train", 1)[0])
        for name, task in TASKS.items()
        if task.steps is not None
    },
}


def seconds(reader: Callable[[str], object], text: str) -> float:
    """The best of three; of one where there is nothing to complain about."""
    best = math.inf
    gc.disable()  # whatever else is loaded is no work of the reader's
    try:
        for _ in range(3):
            begun = time.process_time()
            reader(text)
            best = min(best, time.process_time() - begun)
            if best < FLOOR:
                break
    finally:
        gc.enable()
    return best


def complaint(reader: Callable[[str], object], make: Callable[[int], str]) -> str | None:
    """The first length that takes too long ends it: the next might take hours."""
    taken = 0.0
    for size in SIZES:
        try:
            before, taken = taken, seconds(reader, make(size))
        except Exception as error:
            return f"{type(error).__name__} at {size} characters"
        if taken > SECONDS:
            return f"{taken:.2f} s at {size} characters"
    if taken > max(FLOOR, GROWTH * before):
        return f"{before:.3f} s at {SIZES[-2]} characters, {taken:.3f} s at {SIZES[-1]}"
    return None


@wall_clock
@pytest.mark.parametrize("reader", READERS)
def test_time_is_linear_in_the_text(reader: str) -> None:
    every = ((what, complaint(READERS[reader], make)) for what, make in texts())
    assert (
        list(islice((each for each in every if each[1] is not None), 3)) == []
    )  # three say enough


def test_what_is_not_linear_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that the reader moves, so that the verdict is the same on a slow and a fast machine."""
    clock = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])

    def takes(seconds_at: Callable[[int], float]) -> Callable[[str], None]:
        def reader(text: str) -> None:
            clock[0] += seconds_at(len(text))

        return reader

    assert complaint(takes(lambda size: 1e-6 * size), "a".__mul__) is None
    assert (
        complaint(takes(lambda size: 1e-11 * size**2), "a".__mul__)
        == "0.009 s at 30400 characters, 0.148 s at 121600"
    )
    assert (
        complaint(takes(lambda size: 1e-10 * size**2), "a".__mul__) == "1.48 s at 121600 characters"
    )
    assert complaint(takes(lambda size: 1e-12 * size**2), "a".__mul__) is None  # below the floor
    assert (
        complaint(lambda text: int(text) if text else 0, "9".__mul__)
        == "ValueError at 7600 characters"
    )
