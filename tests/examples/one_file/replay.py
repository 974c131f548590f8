"""The one-file algorithms and the library, side by side on the same answers: what the tests beside this share.

Both sides get the same start, the same answers and the same rewards, and nothing else: log-probs, values, advantages,
losses, gradients and updates are each side's own, padded there and packed here. Measured: losses within 2.2e-7 in nine
updates, weights within 7.1e-7 in the end.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascent.records import Completion, Request, Rollout
from ascent.rollouts.generate import RenderedPrompt
from ascent.update.learner import LocalLearner
from ascent.update.optim import Adam
from ascent.update.schedule import Schedule

FOLDER = Path(__file__).parents[3] / "examples" / "one_file"
LOSS, WEIGHT = 1e-6, 5e-6  # largest difference allowed, in float32, after every update
FORBIDDEN = (
    "ascent.loop",
    "ascent.rollouts",
    "ascent.losses",
    "ascent.advantages",
    "ascent.update",
)


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"one_file_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[found.__name__] = found
    spec.loader.exec_module(found)
    torch.set_num_threads(1)
    return found


class Replayed:
    """A sampler that says what the one-file policy said: row after row, a prompt's samples beside each other."""

    def __init__(self, samples: int) -> None:
        self.samples, self.said = samples, []

    def hear(self, batch: Any, cut_B: Sequence[bool]) -> None:
        rows = zip(batch.tokens_BL, batch.loss_mask_BL, cut_B, strict=True)
        self.said = [(tokens[trained].tolist(), bool(cut)) for tokens, trained, cut in rows]

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for each in requests:
            place = int(each.prompt_id.split("/")[1])
            tokens, cut = self.said[place * self.samples + each.sample]
            unknown = (float("nan"),) * len(tokens)  # the trainer finds the log-probs by itself
            stop = "length" if cut else "eos"
            yield Completion(
                each.prompt_id, each.sample, tuple(tokens), unknown, (0,) * len(tokens), stop
            )

    def set_weights(self, version: int, weights: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Scored:
    """Gives rollouts the rewards of the step, in the order of the rows."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def __call__(self, rollouts: Iterable[Rollout]) -> list[Rollout]:
        return [
            replace(each, reward=reward)
            for each, reward in zip(rollouts, self.rewards, strict=True)
        ]


def saved(policy: Any, tokenizer: Any, folder: Path) -> Path:
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def learner_of(model: Any, learning_rate: float, eps: float = 1e-8) -> LocalLearner:
    return LocalLearner(model, Schedule(learning_rate, "constant", 0, 1000), adam=Adam(eps=eps))


def asked_of(prompts: Sequence[Any], tokenizer: Any) -> list[RenderedPrompt]:
    return [
        RenderedPrompt(prompt, tuple(tokenizer(prompt.messages[-1].content).input_ids))
        for prompt in prompts
    ]


def same_weights(ours: LocalLearner, theirs: torch.nn.Module, **renamed: str) -> float:
    """The largest difference of any weight; every weight of theirs has one of ours."""
    known = {name.removeprefix("module."): weight for name, weight in ours.weights().items()}
    worst = 0.0
    for name, weight in theirs.named_parameters():
        for old, new in renamed.items():
            name = name.replace(f"{old}.", f"{new}.", 1)
        worst = max(worst, float((known.pop(name) - weight.detach()).abs().max()))
    assert not known
    return worst


def stands_alone(name: str) -> None:
    """A reader needs no other file of ours: nothing is imported that the file is a second version of."""
    text = (FOLDER / f"{name}.py").read_text()
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not {each for each in imported if each.startswith(FORBIDDEN)}


def told(name: str) -> str:
    """What the program says when it runs, cut short."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--steps", "2", "--sft-steps", "5"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
