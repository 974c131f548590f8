"""Golden cases: reading a folder of them, and comparing our numbers with a peer's.

A case says what a peer was given (`inputs`, `params`) and what it answered (`expected`). The first two remember what
was read: an option or an input that no adapter looked at would be a convention we never expressed, so it is an error,
and so is an expected number that nothing was compared with.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VECTORS = Path(__file__).parent / "vectors"
REPRODUCED, BY_CONVENTION = "reproduced", "reproduced by a peer's convention"
DIFFERING, NOT_APPLICABLE = "differing on purpose", "not applicable"


@dataclass(frozen=True)
class Tolerance:
    """|ours - theirs| <= absolute + relative |theirs| + of_largest max|theirs|; `absolute` may be one per row."""

    relative: float
    absolute: float | Tensor
    of_largest: float = 0.0


EXACT = Tolerance(1e-9, 1e-12)
# The peer divides by (count + 1e-8): every number is off by up to one part in 1e8 of the terms it was summed from.
COUNT_PLUS_1E8 = Tolerance(1e-8, 1e-12, of_largest=1e-8)
FLOAT32 = Tolerance(2e-5, 1e-5)
# Peers cast indicator tensors to float32 before averaging them.
METRIC = Tolerance(1e-6, 1e-9)


class Recorded(Mapping[str, Any]):
    """A mapping that knows which of its entries were looked at."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries, self.seen = dict(entries), set[str]()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def unread(self) -> list[str]:
        """Entries that hold something and that nobody looked at."""
        return sorted(
            name
            for name, value in self.entries.items()
            if value is not None and name not in self.seen
        )


@dataclass(frozen=True)
class Case:
    """One answer of a peer. `kind` is its estimator, op or topic; `function` is "" where several peers answer.

    An adapter asks `follows` before it does what a peer does and no recipe of ours gives (`conventions.Convention`).
    """

    file: str
    name: str
    family: str
    function: str
    kind: str
    inputs: Recorded
    params: Recorded
    expected: Mapping[str, Any]
    dtype_words: str
    where: str | None
    without: frozenset[Enum] = frozenset()
    asked: set[Enum] = field(default_factory=set)

    @property
    def id(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def in_float32(self) -> bool:
        """True when the peer computed any part in float32."""
        return "float32" in self.dtype_words or "float32" in str(self.expected.get("dtype", ""))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype_words == "float32" else torch.float64

    @property
    def tolerance(self) -> Tolerance:
        return FLOAT32 if self.in_float32 else EXACT

    def has(self, name: str) -> bool:
        return self.inputs.get(name) is not None

    def tensor(self, name: str) -> Tensor:
        return as_tensor(self.inputs[name], self.dtype)

    def leaf(self, name: str) -> Tensor:
        """An input that gradients are taken with respect to."""
        return self.tensor(name).requires_grad_()

    def flags(self, name: str) -> Tensor:
        return torch.tensor(self.inputs[name]) > 0

    def ids(self, name: str) -> Tensor:
        """Labels of any kind (numbers or words) as integers, equal exactly where the labels are equal."""
        labels = list(self.inputs[name])
        order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        return torch.tensor([order[label] for label in labels])

    def peer_ignores(self, *names: str) -> None:
        """The peer's code does not read these for this case (the golden README and ALGORITHMS say so)."""
        self.params.seen.update(names)
        self.inputs.seen.update(names)

    def fresh(self, without: frozenset[Enum] = frozenset()) -> Case:
        """The same case with nothing read yet, to be answered without some conventions of the peer's."""
        inputs, params = Recorded(self.inputs.entries), Recorded(self.params.entries)
        return replace(self, inputs=inputs, params=params, without=without, asked=set())

    def follows(self, convention: Enum) -> bool:
        """Whether to do as the peer does; remembers that somebody asked."""
        self.asked.add(convention)
        return convention not in self.without

    def expects(self, **options: Any) -> None:
        """These options, where given, must have these values: anything else is not expressed by the adapter."""
        for name, value in options.items():
            if self.params.get(name, value) != value:
                raise ValueError(
                    f"{name}={self.params[name]!r}; this adapter expresses only {name}={value!r}"
                )


@dataclass
class Ours:
    """Our numbers under the peer's names.

    `where` limits a comparison to a mask, `tolerances` loosens one with a reason at the place of use, and `not_ours`
    names expected numbers that none of our functions computes, with the reason.
    """

    values: Mapping[str, Any]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Tensor] = field(default_factory=dict)
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    not_ours: Mapping[str, str] = field(default_factory=dict)


def folder() -> Path:
    return Path(os.environ.get("ASCENT_GOLDEN") or VECTORS)


@functools.cache
def load(path: Path) -> tuple[Case, ...]:
    """Every case of every file in the folder, in a fixed order."""
    files = sorted(path.glob("*.json"))
    if not files:
        raise FileNotFoundError(
            f"no golden vectors in {path}; set ASCENT_GOLDEN to a folder of *.json files, or unset it"
        )
    return tuple(
        _case(file.stem, raw) for file in files for raw in json.loads(file.read_text())["cases"]
    )


def _case(file: str, raw: Mapping[str, Any]) -> Case:
    return Case(
        file=file,
        name=raw["name"],
        family=raw.get("family", ""),
        function=raw.get("source", {}).get("function", ""),
        kind=raw.get("estimator") or raw.get("op") or raw.get("topic") or "",
        inputs=Recorded(raw["inputs"]),
        params=Recorded(raw["params"]),
        expected=_by_step(raw["expected"]),
        dtype_words=raw.get("dtype", "float64"),
        where=raw.get("compare_where"),
    )


def _by_step(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Answers of several calls in a row, a list of mappings, as one mapping: "steps" 0's "loss" is "steps.0.loss"."""
    flat: dict[str, Any] = {}
    for name, value in expected.items():
        if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            flat |= {
                f"{name}.{place}.{key}": x
                for place, each in enumerate(value)
                for key, x in each.items()
            }
        else:
            flat[name] = value
    return flat


def as_tensor(value: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Nested lists as a tensor; the words nan, inf and -inf are numbers."""
    return torch.tensor(_numbers(value), dtype=dtype)


def _numbers(value: Any) -> Any:
    return [_numbers(item) for item in value] if isinstance(value, list) else float(value)


def unread(case: Case) -> list[str]:
    """Options and inputs that the adapter never looked at, in words."""
    wrong = [
        f"option {name!r} was never read: the adapter does not know it"
        for name in case.params.unread()
    ]
    return wrong + [
        f"input {name!r} was never read: the adapter does not know it"
        for name in case.inputs.unread()
    ]


def differences(case: Case, ours: Ours) -> list[str]:
    """What is wrong with our numbers for a case, in words; empty when they agree."""
    wrong: list[str] = []
    answered = {name for name in case.expected if name not in ("metrics", "dtype")}
    for name in sorted(answered - set(ours.values) - set(ours.not_ours)):
        wrong.append(f"expected[{name!r}] was not compared with anything")
    for name in sorted(answered & set(ours.values)):
        tolerance = ours.tolerances.get(name, case.tolerance)
        wrong += _compare(
            name, ours.values[name], case.expected[name], tolerance, _where(case, ours, name)
        )
    for name, value in ours.metrics.items():
        if name in case.expected.get("metrics", {}):
            tolerance = ours.tolerances.get(name, FLOAT32 if case.in_float32 else METRIC)
            wrong += _compare(
                f"metrics[{name}]", value, case.expected["metrics"][name], tolerance, None
            )
    return wrong


def compared(case: Case, ours: Ours) -> int:
    """How many of the peer's numbers were compared."""
    values = [case.expected[name] for name in ours.values if name in case.expected]
    metrics = [name for name in ours.metrics if name in case.expected.get("metrics", {})]
    return sum(as_tensor(value).numel() for value in values if value is not None) + len(metrics)


def _where(case: Case, ours: Ours, name: str) -> Tensor | None:
    if name in ours.where:
        return ours.where[name]
    return case.flags(case.where) if case.where else None


def _compare(
    name: str, ours: Any, theirs: Any, tolerance: Tolerance, where: Tensor | None
) -> list[str]:
    if ours is None or theirs is None:
        return [] if ours is None and theirs is None else [f"{name}: ours {ours}, theirs {theirs}"]
    mine = ours.detach().double() if isinstance(ours, Tensor) else as_tensor(ours)
    yours = as_tensor(theirs)
    if mine.shape != yours.shape:
        return [f"{name}: ours has shape {tuple(mine.shape)}, theirs {tuple(yours.shape)}"]
    absolute = torch.as_tensor(tolerance.absolute, dtype=torch.float64)
    absolute = absolute.reshape(
        absolute.shape + (1,) * (yours.ndim - absolute.ndim if absolute.ndim else 0)
    )
    absolute = absolute.expand(yours.shape)
    if where is not None and where.shape == yours.shape:
        mine, yours, absolute = mine[where], yours[where], absolute[where]
    finite = yours[yours.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    bound = absolute + tolerance.relative * yours.abs() + tolerance.of_largest * largest
    near = yours.isfinite() & ((mine - yours).abs() <= bound)
    close = near | (mine == yours) | (mine.isnan() & yours.isnan())
    if bool(close.all()):
        return []
    worst = (mine - yours).abs().nan_to_num(nan=math.inf).masked_fill(close, -1.0).argmax()
    return [
        f"{name}: {int((~close).sum())} of {close.numel()} differ; worst: ours {float(mine.reshape(-1)[worst])!r}, "
        f"theirs {float(yours.reshape(-1)[worst])!r}, allowed {float(bound.reshape(-1)[worst]):.1e}"
    ]
