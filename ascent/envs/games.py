"""Scripted games: a maze with one move per turn, and twenty questions. The reward is the part `correct`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ascent.records import Message, Prompt, Reply

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
START, GOAL, WALL = "S", "G", "#"
Place = tuple[int, int]


class MazeEpisode:
    """One episode in one maze."""

    def __init__(self, prompt: Prompt, shows: Literal["drawing", "ways"]) -> None:
        self.prompt, self.shows = prompt, shows
        self.lines = _parse_maze(prompt)
        self.here, self.goal = self._find(START), self._find(GOAL)

    def first(self) -> Prompt:
        asked = Message("user", f"{self._view()}move: ")
        return Prompt(self.prompt.id, (asked,), self.prompt.answer, self.prompt.info)

    def reply(self, text: str) -> Reply:
        move = text.strip()
        if move not in MOVES:
            return self._continue("say one of U, D, L, R\n", "not_a_move")
        there = self._next_cell(move)
        if not self._is_free(there):
            return self._continue("a wall\n", "walls")
        self.here = there
        if self.here == self.goal:
            return Reply(None, {"correct": 1.0}, {"moves": 1})
        return self._continue(self._view(), "moves")

    def _continue(self, text: str, count: str) -> Reply:
        return Reply(Message("user", f"{text}move: "), {"correct": 0.0}, {count: 1})

    def _view(self) -> str:
        if self.shows == "drawing":
            marks = {self.goal: GOAL, self.here: START}
            signs = (
                ((r, c), sign)
                for r, line in enumerate(self.lines)
                for c, sign in enumerate(f"{line}\n")
            )
            return "".join(marks.get(place, _without_marks(sign)) for place, sign in signs)
        ways = "".join(move for move in MOVES if self._is_free(self._next_cell(move)))
        down, right = self.goal[0] - self.here[0], self.goal[1] - self.here[1]
        towards = ("D" if down > 0 else "U") * abs(down) + ("R" if right > 0 else "L") * abs(right)
        return f"open {ways} goal {towards}\n"

    def _next_cell(self, move: str) -> Place:
        return self.here[0] + MOVES[move][0], self.here[1] + MOVES[move][1]

    def _is_free(self, place: Place) -> bool:
        row, column = place
        return (
            0 <= row < len(self.lines)
            and 0 <= column < len(self.lines[row])
            and self.lines[row][column] != WALL
        )

    def _find(self, sign: str) -> Place:
        places = [(r, line.index(sign)) for r, line in enumerate(self.lines) if sign in line]
        if len(places) != 1:
            raise ValueError(
                f"prompt {self.prompt.id!r}: a maze has one {sign}, this one {len(places)}"
            )
        return places[0]


class Maze:
    """The drawing is in the prompt's last message: lines of `.` and `#` with one S and one G, as in the task `maze`.

    `shows: drawing` shows the full maze before every move; `ways` only the open directions and the direction of G.
    """

    def __init__(self, *, shows: Literal["drawing", "ways"] = "drawing") -> None:
        if shows not in ("drawing", "ways"):
            raise ValueError(f"env maze: shows={shows!r}, but it must be drawing or ways")
        self.shows = shows

    def __call__(self, prompt: Prompt) -> MazeEpisode:
        return MazeEpisode(prompt, self.shows)


def _parse_maze(prompt: Prompt) -> list[str]:
    lines = [
        line for line in prompt.messages[-1].content.splitlines() if re.fullmatch(r"[.#SG]+", line)
    ]
    if len({len(line) for line in lines}) != 1:
        raise ValueError(
            f"prompt {prompt.id!r} holds no maze: lines of . and # of one length, with one S and one G"
        )
    return lines


def _without_marks(sign: str) -> str:
    return "." if sign in (START, GOAL) else sign


THINGS: dict[str, Sequence[str]] = {
    "cherry": ("fruit", "red", "small"),
    "apple": ("fruit", "red"),
    "lime": ("fruit", "green", "small"),
    "melon": ("fruit", "green"),
    "ladybird": ("animal", "red", "small"),
    "fox": ("animal", "red"),
    "frog": ("animal", "green", "small"),
    "crocodile": ("animal", "green"),
}
_QUESTION = re.compile(r"(?:is it|it is)(?: an?)? ([a-z ]+?)[?.!]?", re.IGNORECASE)


class TwentyQuestionsEpisode:
    """One episode with one secret."""

    def __init__(self, prompt: Prompt, things: Mapping[str, Sequence[str]]) -> None:
        if prompt.answer is None or prompt.answer not in things:
            raise ValueError(
                f"prompt {prompt.id!r} has the answer {prompt.answer!r}, but the things are {_first_names(things)}"
            )
        self.prompt, self.things, self.secret = prompt, things, prompt.answer
        self._known = {word for words in things.values() for word in words}

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        asked = _QUESTION.fullmatch(text.strip())
        word = asked[1].lower() if asked else ""
        if word in self.things:
            return Reply(None, {"correct": float(word == self.secret)}, {"guesses": 1})
        if word not in self._known:
            return self._continue("ask: is it ...?", "not_a_question")
        return self._continue("yes" if word in self.things[self.secret] else "no", "questions")

    def _continue(self, text: str, count: str) -> Reply:
        return Reply(Message("user", f"{text}\n"), {"correct": 0.0}, {count: 1})


class TwentyQuestions:
    """The prompt's answer is the secret. `is it red?` is answered by yes or no, and `is it a fox?` ends the game.

    `things` maps the possible secrets to their properties; default: eight fruits and animals. `max_turns: 20` limits
    the questions.
    """

    def __init__(self, *, things: Mapping[str, Sequence[str]] | None = None) -> None:
        self.things = THINGS if things is None else things
        both = set(self.things) & {word for words in self.things.values() for word in words}
        if both:
            raise ValueError(
                f"env twenty_questions: {sorted(both)[0]!r} is a thing and a property; rename one"
            )
        if len(self.things) < 2:
            raise ValueError(
                "env twenty_questions: things needs at least 2 entries, or there is nothing to guess"
            )

    def __call__(self, prompt: Prompt) -> TwentyQuestionsEpisode:
        return TwentyQuestionsEpisode(prompt, self.things)


def _first_names(things: Mapping[str, Sequence[str]]) -> str:
    return ", ".join([*things][:8]) + (", ..." if len(things) > 8 else "")
