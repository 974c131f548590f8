"""Maze: a drawing with one way from S to G; the answer is that way, in moves U D L R of one character each.

    .....
    .#.##
    .#S#G    ->    U U L L D D D D R R R R U U
    .###.
    .....

Rooms lie on the even rows and columns, and the passages between them form a tree. So there is exactly one way that
never turns back, and an answer is judged by comparing it with that way. Problems on the same drawing share a key,
wherever S and G stand: a held-out maze was never seen.
"""

from __future__ import annotations

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task

SMALLEST, LARGEST = 3, 4  # rooms along a side
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
Place = tuple[int, int]


def draw(noise: Noise) -> Problem:
    rows, columns = noise.whole(SMALLEST, LARGEST), noise.whole(SMALLEST, LARGEST)
    rooms = [(2 * row, 2 * column) for row in range(rows) for column in range(columns)]
    open_ = _passages(rooms, noise)
    start = rooms.pop(noise.whole(0, len(rooms) - 1))
    goal = noise.choice(rooms)
    lines = ["".join(".#"[(r, c) not in open_] for c in range(2 * columns - 1)) for r in range(2 * rows - 1)]
    marks = {start: "S", goal: "G"}
    shown = "\n".join("".join(marks.get((r, c), mark) for c, mark in enumerate(line)) for r, line in enumerate(lines))
    return Problem(f"maze\n{shown}\nmoves:", " ".join(_way(open_, start, goal)), "\n".join(lines))


def _passages(rooms: list[Place], noise: Noise) -> set[Place]:
    """Every place one can stand on: rooms, and what a walk that enters each of them once broke through."""
    walk = [noise.choice(rooms)]
    found, left = set(walk), set(rooms) - set(walk)
    while walk:
        row, column = walk[-1]
        ways = [(dr, dc) for dr, dc in MOVES.values() if (row + 2 * dr, column + 2 * dc) in left]
        if not ways:
            walk.pop()
            continue
        dr, dc = noise.choice(ways)
        walk.append((row + 2 * dr, column + 2 * dc))
        left.remove(walk[-1])
        found |= {(row + dr, column + dc), walk[-1]}
    return found


def _way(open_: set[Place], start: Place, goal: Place) -> list[str]:
    """The moves of the one way there is; a search from the start, each place entered once."""
    ways: dict[Place, list[str]] = {start: []}
    edge = [start]
    while goal not in ways:
        row, column = edge.pop()
        for move, (dr, dc) in MOVES.items():
            place = (row + dr, column + dc)
            if place in open_ and place not in ways:
                ways[place] = [*ways[row, column], move]
                edge.append(place)
    return ways[goal]


def parts(answer: str, text: str) -> dict[str, float]:
    """correct; format: moves with one space between; progress: share of the way walked before the first wrong move."""
    want, got = answer.split(" "), text.strip().split(" ")
    right = 0
    for wanted, made in zip(want, got, strict=False):
        if wanted != made:
            break
        right += 1
    return {
        "correct": float(want == got),
        "format": float(all(move in MOVES for move in got)),
        "progress": right / max(len(want), len(got)),
    }


def attempt(problem: Problem, noise: Noise) -> str:
    """The way, or one with a wrong turn, cut short, or walked on too far."""
    moves = problem.answer.split(" ")
    mistake = noise.choice(("none", "turn", "short", "far"))
    if mistake == "turn":
        moves[noise.whole(0, len(moves) - 1)] = noise.choice(tuple(MOVES))
    elif mistake == "short":
        del moves[noise.whole(1, len(moves) - 1) :]
    elif mistake == "far":
        moves += [noise.choice(tuple(MOVES)) for _ in range(noise.whole(1, 3))]
    return " ".join(moves)


def demonstrate(problem: Problem, noise: Noise) -> str:
    return problem.answer


MAZE = Task(
    name="maze",
    summary=f"the way through a drawn maze of {SMALLEST} to {LARGEST} rooms a side",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "progress": 1.0},
)
