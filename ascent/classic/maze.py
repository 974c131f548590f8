"""A gridworld drawn as text: a Gymnasium environment with its exact model.

    S start   . free   # wall   G goal, +10, ends   T trap, -10, ends

The default maze is two rows of three cells: from the start, right, down, right reaches the goal; right, right the trap.

    S.T
    #.G

A move into a wall or off the map does nothing. `slip` is the probability that a move goes sideways, left or right
equally often. Rewards are paid on entering a cell, and every move adds `step_reward`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ascent.classic.exact import Model

SMALL = "S.T\n#.G"
ARROWS = "↑→↓←"
# Up, right, down, left: the two neighbours of an action in this ring are its sideways slips.
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
COLORS = {
    "S": (206, 222, 240),
    ".": (250, 250, 247),
    "#": (64, 66, 72),
    "G": (102, 178, 120),
    "T": (214, 96, 90),
}
AGENT = (52, 92, 168)


@dataclass(frozen=True)
class Grid:
    """A checked text map. Cells are numbered row by row, walls included, so a number is also a place on the map."""

    rows: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Grid:
        rows = tuple(line.strip() for line in text.strip().splitlines())
        if not rows or not rows[0]:
            raise ValueError("the map is empty; draw it with S . # G T, for example 'S.T\\n#.G'")
        for number, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"row {number} of the map, {row!r}, has {len(row)} cells and row 0 has {len(rows[0])}; "
                    "all rows must be equally long (fill up with # or .)"
                )
            unknown = sorted(set(row) - set(COLORS))
            if unknown:
                raise ValueError(
                    f"row {number} of the map, {row!r}, holds {unknown[0]!r}; use only S . # G T"
                )
        text = "".join(rows)
        if text.count("S") != 1:
            raise ValueError(f"the map has {text.count('S')} starts; mark exactly one cell with S")
        if "G" not in text:
            raise ValueError("the map has no goal; mark at least one cell with G")
        grid = cls(rows)
        if not any(text[cell] == "G" for cell in grid._reachable()):
            raise ValueError(
                "no goal can be reached from S: walls or traps are in the way; open a path of . cells"
            )
        return grid

    @property
    def height(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return len(self.rows[0])

    @property
    def cells(self) -> str:
        """All cells in one string, indexed by number."""
        return "".join(self.rows)

    @property
    def start(self) -> int:
        return self.cells.index("S")

    def after(self, cell: int, action: int) -> int:
        """The cell a move leads to; the same one at a wall or at the edge."""
        row, column = divmod(cell, self.width)
        row, column = row + MOVES[action][0], column + MOVES[action][1]
        if (
            not (0 <= row < self.height and 0 <= column < self.width)
            or self.rows[row][column] == "#"
        ):
            return cell
        return row * self.width + column

    def _reachable(self) -> set[int]:
        seen, waiting = {self.start}, [self.start]
        while waiting:
            cell = waiting.pop()
            if self.cells[cell] in "GT":
                continue
            new = {self.after(cell, action) for action in range(4)} - seen
            seen |= new
            waiting += new
        return seen


class Maze(gymnasium.Env[Any, Any]):
    """The maze; an observation is the number of the cell one stands on."""

    metadata = {  # noqa: RUF012 - Gymnasium declares it as an instance variable
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        text: str = SMALL,
        *,
        goal_reward: float = 10.0,
        trap_reward: float = -10.0,
        step_reward: float = 0.0,
        slip: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        self.grid = Grid.parse(text)
        if not 0 <= slip < 1:
            raise ValueError(
                f"slip={slip}, but it is the chance of going sideways; use 0 <= slip < 1"
            )
        if not np.isfinite([goal_reward, trap_reward, step_reward]).all():
            raise ValueError(
                f"rewards {goal_reward}, {trap_reward}, {step_reward}: every reward must be finite"
            )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode={render_mode!r}; use 'ansi', 'rgb_array' or None")
        self.render_mode = render_mode
        self.slip = slip
        paid = {"G": goal_reward, "T": trap_reward}
        self.entering = [step_reward + paid.get(kind, 0.0) for kind in self.grid.cells]
        self.ending = [kind in paid for kind in self.grid.cells]
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Discrete(len(self.grid.cells))
        self.cell = self.grid.start

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = self.grid.start
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """One move. The maze itself never truncates: time limits are Gymnasium's `TimeLimit`, and not an ending."""
        move = int(action)
        if not 0 <= move < 4:
            raise ValueError(f"action {action}; use 0 up, 1 right, 2 down or 3 left")
        if self.slip and self.np_random.random() < self.slip:
            move = (move + (1 if self.np_random.random() < 0.5 else 3)) % 4
        self.cell = self.grid.after(self.cell, move)
        return self.cell, self.entering[self.cell], self.ending[self.cell], False, {}

    def model(self) -> Model:
        """The exact transitions and rewards. Terminal cells and walls lead to themselves and pay nothing."""
        count = len(self.grid.cells)
        next_SAN, rewards_SA = np.zeros((count, 4, count)), np.zeros((count, 4))
        terminal_S = np.array(self.ending)
        for cell, kind in enumerate(self.grid.cells):
            for action in range(4):
                if self.ending[cell] or kind == "#":
                    next_SAN[cell, action, cell] = 1.0
                    continue
                sideways = self.slip / 2
                for move, chance in ((0, 1 - self.slip), (1, sideways), (3, sideways)):
                    reached = self.grid.after(cell, (action + move) % 4)
                    next_SAN[cell, action, reached] += chance
                    rewards_SA[cell, action] += chance * self.entering[reached]
        walls_S = np.array([kind == "#" for kind in self.grid.cells])
        # A wall is no state anyone is ever in; calling it terminal keeps its value at 0.
        return Model(next_SAN, rewards_SA, terminal_S | walls_S)

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return draw_text(self.grid, agent=self.cell)
        if self.render_mode == "rgb_array":
            return draw_rgb(self.grid, agent=self.cell)
        return None


def draw_text(grid: Grid, *, agent: int | None = None) -> str:
    """The map, with @ where the agent stands."""
    cells = list(grid.cells)
    if agent is not None:
        cells[agent] = "@"
    return "\n".join(
        "".join(cells[row * grid.width : (row + 1) * grid.width]) for row in range(grid.height)
    )


def draw_arrows(grid: Grid, policy_SA: NDArray[np.float64]) -> str:
    """The map with the most likely move of each free cell; the first of equals, in the order up, right, down, left."""
    cells = [
        ARROWS[policy_SA[i].argmax()] if kind in "S." else kind for i, kind in enumerate(grid.cells)
    ]
    return "\n".join(
        "".join(cells[row * grid.width : (row + 1) * grid.width]) for row in range(grid.height)
    )


def draw_rgb(grid: Grid, *, agent: int | None = None, size: int = 32) -> NDArray[np.uint8]:
    """The map as pixels (height, width, 3), `size` pixels a cell, the agent as a disc."""
    colors = np.array([COLORS[kind] for kind in grid.cells], np.uint8).reshape(
        grid.height, grid.width, 3
    )
    image: NDArray[np.uint8] = colors.repeat(size, axis=0).repeat(size, axis=1)
    image[::size], image[:, ::size] = 200, 200
    if agent is not None:
        row, column = divmod(agent, grid.width)
        down, across = np.mgrid[0:size, 0:size] - (size - 1) / 2
        image[row * size : (row + 1) * size, column * size : (column + 1) * size][
            down**2 + across**2 < (0.32 * size) ** 2
        ] = AGENT
    return image
