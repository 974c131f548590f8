"""Split a state into JSON and tensors, and join them again, without pickle.

A state is nested dicts, lists, numbers, strings, booleans, None and tensors. In the JSON a tensor is
{"$tensor": "its/path"}, and a non-finite float is {"$float": "nan"}. A tensor of which every rank has a piece is
{"$tensor": "its/path", "shape": [...]}; its pieces are called "its/path@START".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ascent.checkpoints.tensor_pieces import TensorPiece


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(JSON value, tensors by their path in the state)."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = _split(state, (), tensors)
    return plain, tensors


def _split(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    where = "/".join(path)
    if isinstance(value, Tensor):
        if where in tensors:
            raise ValueError(
                f"two tensors of the state would both be called {where!r}; rename one of the keys"
            )
        tensors[where] = value.detach().cpu().contiguous()
        return {"$tensor": where}
    if isinstance(value, TensorPiece):
        if value.values.numel():
            tensors[f"{where}@{value.start}"] = value.values.detach().cpu().contiguous()
        return {"$tensor": where, "shape": list(value.shape)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                raise ValueError(
                    f"key {key!r} at {where or 'the top'!r} of the state; keys are strings without a leading $"
                )
        return {key: _split(each, (*path, key), tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_split(each, (*path, str(index)), tensors) for index, each in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{where!r} in the state is a {type(value).__name__}; a state holds numbers, strings, booleans, None, "
        "tensors, and lists and dicts of them, so that it can be saved without pickle"
    )


def join(plain: Any, tensors: Mapping[str, Any]) -> Any:
    """The inverse of split; tuples come back as lists. A tensor in pieces is given as a function of its shape."""
    if isinstance(plain, dict):
        if "$tensor" in plain:
            found = tensors[plain["$tensor"]]
            return found(tuple(plain["shape"])) if "shape" in plain else found
        if plain.keys() == {"$float"}:
            return float(plain["$float"])
        return {key: join(value, tensors) for key, value in plain.items()}
    return [join(value, tensors) for value in plain] if isinstance(plain, list) else plain
