"""Mazes: walking the answer on the drawing leads from S to G, and nothing else does without turning back."""

from __future__ import annotations

import pytest

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.maze import MAZE, MOVES, draw, parts


def drawing(question: str) -> dict[tuple[int, int], str]:
    lines = question.removeprefix("maze\n").removesuffix("\nmoves:").split("\n")
    return {(r, c): mark for r, line in enumerate(lines) for c, mark in enumerate(line)}


def walked(question: str, moves: str) -> tuple[int, int] | None:
    """Where the moves lead; None through a wall."""
    marks = drawing(question)
    at = next(place for place, mark in marks.items() if mark == "S")
    for move in moves.split(" "):
        at = (at[0] + MOVES[move][0], at[1] + MOVES[move][1])
        if marks.get(at, "#") == "#":
            return None
    return at


def test_the_answer_leads_to_the_goal_and_the_open_places_are_a_tree() -> None:
    for index in range(300):
        problem = draw(KeyedRandom("walk", index))
        marks = drawing(problem.question)
        end = walked(problem.question, problem.answer)
        assert end is not None and marks[end] == "G"
        open_ = {place for place, mark in marks.items() if mark != "#"}
        doors = sum((r + dr, c + dc) in open_ for r, c in open_ for dr, dc in MOVES.values()) // 2
        assert (
            doors == len(open_) - 1
        )  # with every room reached, this many doors make a tree: one way only
        rooms = {(r, c) for r, c in marks if r % 2 == 0 and c % 2 == 0}
        assert rooms <= open_


def test_the_key_is_the_drawing_without_its_ends() -> None:
    problem = draw(KeyedRandom("key", 1))
    assert problem.key == problem.question[5:-7].replace("S", ".").replace("G", ".")


@pytest.mark.parametrize(
    ("text", "correct", "shape", "progress"),
    [
        ("D D R R", 1, 1, 1),
        (" D D R R\n", 1, 1, 1),
        ("D D", 0, 1, 1 / 2),
        ("D D R R R", 0, 1, 4 / 5),
        ("D R R D", 0, 1, 1 / 4),
        ("R D D R R", 0, 1, 0),
        ("D D then R R", 0, 0, 2 / 5),
        ("DDRR", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_partial_credit(text: str, correct: float, shape: float, progress: float) -> None:
    assert parts("D D R R", text) == pytest.approx(
        {"correct": correct, "format": shape, "progress": progress}
    )


def test_an_attempt_is_correct_just_when_it_walks_the_shortest_way_to_the_goal() -> None:
    for ranking in MAZE.rankings("heldout", 200):
        question = ranking.prompt.messages[0].content
        for (answer,) in ranking.answers:
            end = walked(question, answer.content)
            there = end is not None and drawing(question)[end] == "G"
            short = len(answer.content) == len(str(ranking.prompt.answer))
            assert MAZE.verify(ranking.prompt, answer.content)["correct"] == (there and short)
