"""The path of a GRPO step: the files that run, what there is to read in them, and how deep our stack is.

    make path            the figures, beside those of path.json
    make path WRITE=1    the same, and the figures become those of path.json

A profile hook follows two steps of a tiny policy on the native engine. Files, lines and tokens are of the second step
alone, from `loop._update` on. Depths count frames of the package, from `ascent.train` on.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import ascent

FIGURES = Path(__file__).with_name("path.json")
PACKAGE = Path(ascent.__file__).parent
STEP = ("loop.py", "_update")
# Where the stack is measured: files, and the function, or any of the file.
PLACES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "frames at a drawn token": (
        ("engines/native/sampling.py", "engines/native/cpu_step.py", "engines/native/cpu_graph.py"),
        None,
    ),
    "frames at the optimizer's step": (("update/optim.py",), "step"),
}
RECIPE: dict[str, Any] = {
    "algorithm": "grpo",
    "model.policy": "tiny:llama",
    "model.dtype": "float32",
    "data.train": "sort_digits:12",
    "rollouts.prompts_per_step": 3,
    "rollouts.group_size": 4,
    "rollouts.max_new_tokens": 6,
    "run.steps": 2,
    "run.save_every": 10,
}
REWARD = "def length(rollout):\n    return len(rollout.text) / 10\n"
# Comprehensions have frames of their own before Python 3.12 only.
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>"}
NOT_READ = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}


class PathRecorder:
    """A profile hook."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.stacks: dict[str, list[str]] = {name: [] for name in PLACES}
        self._steps = 0
        self._inside = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(str(PACKAGE)):
            return
        place = path[len(str(PACKAGE)) + 1 :], frame.f_code.co_name
        if place == STEP:
            self._steps += event == "call"
            self._inside = event == "call" and self._steps == 2
        if event == "return" or not self._inside:
            return
        self.files.add(place[0])
        for name, (files, function) in PLACES.items():
            if place[0] in files and function in (None, place[1]):
                stack = _frames(frame)
                if len(stack) > len(self.stacks[name]):
                    self.stacks[name] = stack


def _frames(frame: FrameType | None) -> list[str]:
    """The package's frames, the innermost last."""
    stack = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(str(PACKAGE)) and frame.f_code.co_name not in COMPREHENSIONS:
            stack.append(f"{path[len(str(PACKAGE)) + 1 :]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return stack[::-1]


def record(train: Callable[..., Any] = ascent.train) -> PathRecorder:
    recorder = PathRecorder()
    with tempfile.TemporaryDirectory() as folder:
        reward = Path(folder) / "reward.py"
        reward.write_text(REWARD)
        recipe = {**RECIPE, "rewards": [{"use": f"{reward}:length"}]}
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            train(recipe, run=Path(folder) / "run", progress=False, say=lambda line: None)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return recorder


def figures_of(recorder: PathRecorder) -> dict[str, int]:
    assert recorder.files, f"no second step passed through {':'.join(STEP)}"
    lost = [name for name, stack in recorder.stacks.items() if not stack]
    assert not lost, f"nothing was measured for {lost}: PLACES names functions that have moved"
    lines, tokens = count_lines_and_tokens(recorder.files)
    depths = {name: len(stack) for name, stack in recorder.stacks.items()}
    return {"files": len(recorder.files), "lines": lines, "tokens": tokens, **depths}


def count_lines_and_tokens(files: Iterable[str]) -> tuple[int, int]:
    lines = tokens = 0
    for file in files:
        text = (PACKAGE / file).read_text()
        lines += text.count("\n")
        found = tokenize.generate_tokens(io.StringIO(text).readline)
        tokens += sum(token.type not in NOT_READ for token in found)
    return lines, tokens


def longer(figures: dict[str, int], known: dict[str, int]) -> list[str]:
    """Files and frames that the path has more of. Lines and tokens change with every commit: they are shown."""
    return [
        f"{name}: {figures[name]}, {known[name]} before"
        for name in known
        if name not in ("lines", "tokens") and figures[name] > known[name]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make these the figures of path.json")
    parser.add_argument("--verbose", action="store_true", help="print the files and the stacks")
    options = parser.parse_args()
    recorder = record()
    figures = figures_of(recorder)
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    print(f"the path of a step in {PACKAGE}")
    for name, value in figures.items():
        print(f"{value:8,}  {name}" + (f" ({known[name]:,} in path.json)" if name in known else ""))
    if options.verbose:
        print(*sorted(recorder.files), sep="\n")
        for name, stack in recorder.stacks.items():
            print(name, *stack, sep="\n    ")
    if options.write:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    elif found := longer(figures, known):
        sys.exit("the path is longer:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
