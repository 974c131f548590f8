"""Where float32 masters start: at the values that a model's bfloat16 weights are roundings of.

Files in float32 and the checkpoints of runs have them. Where only bfloat16 is left, masters are dithered: each starts
somewhere among the values that round to its weight. Both leave the weights as they are. A master that started at its
weight would be in the middle of these values, and the first steps, which are smaller than the spacing of bfloat16
numbers, would change few weights (docs/decisions/0020).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ascent.maths.splitmix import shift_right, splitmix64
from ascent.models.locate import ADAPTER_CONFIG, local_folder
from ascent.models.model import LanguageModel
from ascent.setup.policy import device
from ascent.update.optim import Unrounded

MASTER = "optimizer/master."  # in the files of a checkpoint (ascent.checkpoints.save), behind the learner's name
CHUNK = 2**24  # weights at a time: their hashes take 8 bytes each


def unrounded_weights(model: LanguageModel) -> Unrounded:
    """By the names of its trained bfloat16 parameters: the values of files, then dithered ones. Nothing is read or
    computed before it is called."""
    weights, place = _rounded_weights(model), torch.device(device())
    known = _values_in_files(model) if weights else {}
    return {
        name: [*([known[name]] if name in known else []), partial(dithered, name, weight, place)]
        for name, weight in weights.items()
    }


def _rounded_weights(model: LanguageModel) -> dict[str, Tensor]:
    return {
        name: each.detach()
        for name, each in model.named_parameters()
        if each.dtype == torch.bfloat16
    }


def describe_masters(model: LanguageModel) -> tuple[str, ...]:
    """How many weights have no float32 values in files."""
    weights = _rounded_weights(model)
    count = len(weights.keys() - _values_in_files(model).keys()) if weights else 0
    return (
        (f"float32 masters of {count} bfloat16 weights are dithered (docs/models.md)",)
        if count
        else ()
    )


def dithered(name: str, weight: Tensor, on: torch.device | None = None) -> Tensor:
    """Float32 values that round to a bfloat16 weight, spread evenly over all that do; 0 stays 0. A function of name,
    place and weight alone, so that they depend neither on how a model is divided nor on the device. They are computed
    `on` a device, the weight's own by default: a CPU takes some 10 ns for each."""
    key = int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True
    )
    flat = weight.reshape(-1)
    values = torch.empty(flat.shape, dtype=torch.float32, device=on or flat.device)
    for start in range(0, len(flat), CHUNK):
        part = flat[start : start + CHUNK].to(values.device)
        places = torch.arange(start, start + len(part), device=values.device)
        # A bfloat16 number is the upper half of a float32 one; adding less than half of the lower half rounds back.
        noise = (shift_right(splitmix64(places ^ key), 48) - 2**15).clamp_(min=1 - 2**15)
        bits = part.view(torch.int16).to(torch.int32) << 16
        moved = torch.where((part == 0) | ~part.isfinite(), bits, bits + noise.to(torch.int32))
        values[start : start + CHUNK] = moved.view(torch.float32)
    return values.view(weight.shape)


def _values_in_files(model: LanguageModel) -> dict[str, Callable[[], Tensor]]:
    """From files in float32, or from the masters of the run's checkpoint that the model's folder belongs to; an
    adapter's base is not asked."""
    folder = local_folder(model.origin)
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
        whole: partial(_read, [(path, name) for _, path, name in sorted(own)])
        for whole, own in pieces.items()
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
