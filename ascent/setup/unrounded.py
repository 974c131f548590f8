"""The float32 values that a model's bfloat16 weights are roundings of, where its files have them.

A master that starts at a rounded value is in the middle of those that round to it, so that the first steps, which are
smaller than the spacing of bfloat16 numbers, change few weights: one step of 1e-4 takes SmolLM2's loss on GSM8K from
2.31 to 1.97, and from unrounded masters to 1.70.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ascent.models.locate import ADAPTER_CONFIG, local_folder
from ascent.models.model import LanguageModel
from ascent.update.optim import Unrounded

MASTER = "optimizer/master."  # in the files of a checkpoint (ascent.checkpoints.save), behind the learner's name


def unrounded_weights(model: LanguageModel) -> Unrounded:
    """By the names of its parameters: from files in float32, or from the masters of the run's checkpoint that its
    folder belongs to. Nothing is read before it is called; an adapter's base is not asked."""
    folder = None if model.module.dtype == torch.float32 else local_folder(model.origin)
    if folder is None or (folder / ADAPTER_CONFIG).is_file():
        return {}
    found: dict[str, Callable[[], Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, dtype in _names(path):
            if dtype == "F32":
                found[f"module.{name}"] = partial(_read, [(path, name)])
    learners = {"learner/", f"learners/{'policy' if folder.name == 'model' else folder.name}/"}
    pieces: dict[str, list[tuple[int, Path, str]]] = {}
    for path in sorted(folder.parent.glob("optimizer*.safetensors")):
        for name, _ in _names(path):
            learner, mark, rest = name.partition(MASTER)
            if mark and learner in learners:
                whole, _, start = rest.partition("@")  # of several ranks each wrote its piece
                pieces.setdefault(whole, []).append((int(start or 0), path, name))
    return found | {
        whole: partial(_read, [(path, name) for _, path, name in sorted(own)]) for whole, own in pieces.items()
    }


def _names(path: Path) -> Iterator[tuple[str, str]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_slice(name).get_dtype()


def _read(places: list[tuple[Path, str]]) -> Tensor:
    found = []
    for path, name in places:
        with safe_open(path, framework="pt") as file:
            found.append(file.get_tensor(name))
    return found[0] if len(found) == 1 else torch.cat([each.reshape(-1) for each in found])
