"""Rollouts of a run for the page: those of a step in groups, those that a search finds, held-out answers over time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ascent.runs import seek
from ascent.runs.folder import ANSWERS
from ascent.view.files import SAMPLES
from ascent.view.library import RunReader

Sample = dict[str, Any]
MAX_TOKENS, MAX_CHARACTERS = 1500, 12_000  # of one sample in a list; the page asks for the rest
MAX_HITS, MAX_EVALUATIONS = 60, 40
SEARCH_SECONDS = 0.5
PER_TOKEN = ("tokens", "logprobs", "advantages", "trainer_logprobs", "entropy", "ratio")


def correct(sample: Mapping[str, Any]) -> float | None:
    """1 right, 0 wrong, None unscored; the reward where a run logged no such number."""
    found = sample.get("correct", sample.get("reward"))
    return float(found) if isinstance(found, int | float) else None


def surprise(sample: Mapping[str, Any]) -> float:
    """The mean of -log-prob over tokens: what the policy itself found unlikely."""
    found = [each for each in _sequence(sample.get("logprobs")) if isinstance(each, int | float)]
    return -math.fsum(found) / len(found) if found else -math.inf


def length(sample: Mapping[str, Any]) -> int:
    return len(_sequence(sample.get("tokens"))) or len(str(sample.get("completion", "")))


FILTERS: dict[str, Callable[[Sample], bool]] = {
    "all": lambda sample: True,
    "right": lambda sample: (correct(sample) or 0.0) >= 1,
    "wrong": lambda sample: correct(sample) is not None and (correct(sample) or 0.0) < 1,
    "truncated": lambda sample: (
        sample.get("stop") == "length" or sample.get("ended") in ("turns", "tokens", "cut")
    ),
    "unscored": lambda sample: sample.get("reward") is None,
}
ORDERS: dict[str, Callable[[Sample], float]] = {
    "longest": length,
    "surprising": surprise,
    "best": lambda sample: -math.inf if sample.get("reward") is None else float(sample["reward"]),
    "worst": lambda sample: -math.inf if sample.get("reward") is None else -float(sample["reward"]),
}


class Found(NamedTuple):
    """Samples, the number of damaged lines between them, and for a search where to go on, None at the start."""

    samples: list[Sample]
    unreadable: int
    go_on: int | None = None
    steps: tuple[int, int] | None = None  # the first and the last one searched


def step_range(run: RunReader) -> tuple[int, int] | None:
    """The first and the last step with samples."""
    with run.files.open(SAMPLES) as file:
        if file is None:
            return None
        records = (seek.step_of(line) for line in seek.read_lines(file, 0, 1 << 16).lines)
        first = next((step for step in records if step is not None), None)
        last = seek.read_last(file)
    return (
        None
        if first is None or last is None or not isinstance(last.get("step"), int)
        else (first, last["step"])
    )


def samples_of(run: RunReader, step: int) -> Found:
    with run.files.open(SAMPLES) as file:
        found = list(seek.read_step(file, step)) if file is not None else []
    return Found([each for each in found if each is not None], sum(each is None for each in found))


def select(samples: Sequence[Sample], *, which: str, order: str, text: str) -> list[Sample]:
    """Filtered by outcome and text, then in an order; in the order of the file where none is named."""
    if which not in FILTERS or order not in ("", *ORDERS):
        raise ValueError(
            f"filter {which!r}, order {order!r}: filters are {list(FILTERS)}, orders {list(ORDERS)}"
        )
    found = [each for each in samples if FILTERS[which](each) and _has(each, text)]
    return sorted(found, key=ORDERS[order], reverse=True) if order else found


def search(
    run: RunReader, *, which: str, order: str, text: str, before: int | None = None
) -> Found:
    """Search all steps, the latest first, for SEARCH_SECONDS; `before` continues an earlier search."""
    hits: list[Sample] = []
    unreadable, steps = 0, list[int]()
    deadline = time.monotonic() + SEARCH_SECONDS
    with run.files.open(SAMPLES) as file:
        if file is None:
            return Found([], 0)
        start = (
            seek.last_line_end(file) if before is None else min(before, seek.last_line_end(file))
        )
        reached = start
        for offset, line in seek.read_backwards(file, start):
            reached, record = offset, seek.parse(line)
            if record is None:
                unreadable += 1
                continue
            steps += [record["step"]] if isinstance(record.get("step"), int) else []
            hits += select([record], which=which, order="", text=text)
            if time.monotonic() > deadline or (len(hits) >= MAX_HITS and not order):
                break
    ordered = select(hits, which="all", order=order, text="")[:MAX_HITS]
    return Found(ordered, unreadable, reached or None, (min(steps), max(steps)) if steps else None)


def in_groups(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples of one prompt together, in the order of the file."""
    groups: dict[tuple[Any, str], list[Sample]] = {}
    for each in samples:
        groups.setdefault((each.get("step"), str(each.get("id", each.get("prompt")))), []).append(
            each
        )
    return [
        {"step": step, "id": name, "prompt": str(group[0].get("prompt", "")), "samples": group}
        for (step, name), group in groups.items()
    ]


def shorten(sample: Sample) -> Sample:
    """A sample that a page can show in a list; `cut` says how much of it that is not."""
    count, text = len(_sequence(sample.get("tokens"))), str(sample.get("completion", ""))
    if count <= MAX_TOKENS and len(text) <= MAX_CHARACTERS:
        return sample
    lists = {
        name: sample[name][:MAX_TOKENS] for name in PER_TOKEN if isinstance(sample.get(name), list)
    }
    return {
        **sample,
        **lists,
        "completion": text[:MAX_CHARACTERS],
        "cut": {"tokens": count, "characters": len(text)},
    }


def heldout_prompts(run: RunReader) -> dict[str, Any]:
    """Every held-out prompt with its first and its last answer, and the steps of the evaluations between."""
    steps = evaluation_steps(run)
    first, last = (
        {each.get("place"): each for each in run.answers(step)}
        for step in ((steps[0], steps[-1]) if steps else (0, 0))
    )
    first = {
        place: each for place, each in first.items() if _same_prompt(each, last.get(place, {}))
    }
    prompts = [
        {
            "place": place,
            "prompt": answer.get("prompt", ""),
            "before": correct(first.get(place, {})),
            "after": correct(answer),
            "changed": first.get(place, answer).get("completion") != answer.get("completion"),
        }
        for place, answer in last.items()
    ]
    return {"steps": steps, "prompts": prompts}


def heldout_answers(run: RunReader, place: int) -> list[Sample]:
    """The answers to one held-out prompt, by step; of many evaluations some, evenly spread."""
    steps = evaluation_steps(run)
    stride = max(math.ceil(len(steps) / MAX_EVALUATIONS), 1)
    chosen = sorted({*steps[::stride], *steps[-1:]})
    found = [each for step in chosen for each in run.answers(step) if each.get("place") == place]
    return [shorten(each) for each in found if _same_prompt(each, found[-1])]


def _same_prompt(one: Sample, other: Sample) -> bool:
    """Held-out data may have changed while a run was stopped; then a place has another prompt."""
    return one.get("prompt") == other.get("prompt")


def evaluation_steps(run: RunReader) -> list[int]:
    """The steps that have held-out answers: each is found by a search for the step after the one before it."""
    steps: list[int] = []
    with run.files.open(ANSWERS) as file:
        while file is not None:
            file.seek(seek.find_step(file, steps[-1] + 1 if steps else 0))
            step = next(
                (found for found in map(seek.step_of, _lines(file)) if found is not None), None
            )
            if step is None or (steps and step <= steps[-1]):
                break
            steps.append(step)
    return steps


def _lines(file: Any) -> Iterator[bytes]:
    return (line for line in file if line.endswith(b"\n"))


def _has(sample: Mapping[str, Any], text: str) -> bool:
    wanted = text.casefold()
    return not wanted or any(
        wanted in str(sample.get(name, "")).casefold() for name in ("completion", "prompt")
    )


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
