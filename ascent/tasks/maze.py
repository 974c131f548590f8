"""Maze: a drawing with one path from S to G; the answer is that path, in moves U D L R of one character each.

    .....
    .#.##
    .#S#G    ->    U U L L D D D D R R R R U U
    .###.
    .....

Rooms lie on the even rows and columns, and the passages between them form a tree, so exactly one path leads from S to
G. Problems on the same drawing share a key, wherever S and G are.
"""

from __future__ import annotations

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task

SMALLEST, LARGEST = 3, 4  # rooms along a side
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
Place = tuple[int, int]


def draw(rng: KeyedRandom) -> Problem:
    rows, columns = rng.integer(SMALLEST, LARGEST), rng.integer(SMALLEST, LARGEST)
    rooms = [(2 * row, 2 * column) for row in range(rows) for column in range(columns)]
    open_ = _passages(rooms, rng)
    start = rooms.pop(rng.integer(0, len(rooms) - 1))
    goal = rng.choice(rooms)
    lines = [
        "".join(".#"[(r, c) not in open_] for c in range(2 * columns - 1))
        for r in range(2 * rows - 1)
    ]
    marks = {start: "S", goal: "G"}
    shown = "\n".join(
        "".join(marks.get((r, c), mark) for c, mark in enumerate(line))
        for r, line in enumerate(lines)
    )
    return Problem(f"maze\n{shown}\nmoves:", " ".join(_path(open_, start, goal)), "\n".join(lines))


def _passages(rooms: list[Place], rng: KeyedRandom) -> set[Place]:
    """The open cells: rooms and the passages of a random depth-first walk through all of them."""
    walk = [rng.choice(rooms)]
    found, left = set(walk), set(rooms) - set(walk)
    while walk:
        row, column = walk[-1]
        ways = [(dr, dc) for dr, dc in MOVES.values() if (row + 2 * dr, column + 2 * dc) in left]
        if not ways:
            walk.pop()
            continue
        dr, dc = rng.choice(ways)
        walk.append((row + 2 * dr, column + 2 * dc))
        left.remove(walk[-1])
        found |= {(row + dr, column + dc), walk[-1]}
    return found


def _path(open_: set[Place], start: Place, goal: Place) -> list[str]:
    """The moves of the only path, by a search from the start."""
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
    """correct; format: moves with one space between; progress: share of the path before the first wrong move."""
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


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """The path, perhaps with a wrong turn, too short or too long."""
    moves = problem.answer.split(" ")
    mistake = rng.choice(("none", "turn", "short", "far"))
    if mistake == "turn":
        moves[rng.integer(0, len(moves) - 1)] = rng.choice(tuple(MOVES))
    elif mistake == "short":
        del moves[rng.integer(1, len(moves) - 1) :]
    elif mistake == "far":
        moves += [rng.choice(tuple(MOVES)) for _ in range(rng.integer(1, 3))]
    return " ".join(moves)


MAZE = Task(
    name="maze",
    summary=f"the path through a drawn maze of {SMALLEST} to {LARGEST} rooms a side",
    draw=draw,
    parts=parts,
    attempt=attempt,
    utility={"correct": 1.0, "progress": 1.0},
)
