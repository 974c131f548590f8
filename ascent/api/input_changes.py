"""The inputs and the recipe of a run, written down when it starts and compared when it goes on.

`inputs.json` holds both as they were at the start and is never written again. What a person changed since is a line of
`changes.jsonl`, with the first step that it counts for. A run that is taken back to an earlier checkpoint is taken back
to the inputs and the recipe of that step, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ascent.config import changes as recipes
from ascent.config.changes import Change, Flat, flat
from ascent.config.validate import validate
from ascent.plan.resolve import Plan
from ascent.runs import jsonl
from ascent.runs.folder import CHANGES, CONFIG, INPUTS, read_json
from ascent.setup.fingerprints import FingerprintReader, Input, InputName, difference, find_inputs, unchecked

FORMAT = 2
Say = Callable[[str], None]


class Begun(NamedTuple):
    """A plan whose models are held to where they were found, and what there is to write down about it."""

    plan: Plan
    record: list[dict[str, Any]]


class Before(NamedTuple):
    """A run's recipe and inputs up to a step."""

    recipe: Flat
    inputs: dict[str, Input]


def begin(plan: Plan, folder: Path, *, say: Say) -> tuple[Plan, str]:
    """A run that starts: its plan, and the text of its inputs.json."""
    reading = FingerprintReader(folder, plan.config.seed)
    found = [reading(each) for each in find_inputs(plan)]
    for line in reading.hashing.words():
        say(line)
    content = {"format": FORMAT, "recipe": flat(plan.config), "inputs": [each.record() for each in found]}
    return held(plan, found, say=say), json.dumps(content, indent=1) + "\n"


def go_on(plan: Plan, folder: Path, done: int, *, started: bool, accept: bool, say: Say) -> Begun:
    """A run that goes on after step `done`: its plan, and the lines of changes.jsonl that are new.

    Every change is said. ValueError where the recipe changed in a way that cannot be, or where inputs changed and
    nobody accepted that. `started` says that there is a checkpoint, so what only a start needs is not looked at.
    """
    before, now = read(folder, done + 1), flat(plan.config)
    edits = recipes.changes(before.recipe, now)
    recipes.refuse(edits, before.recipe, str(folder / CONFIG))
    asked = [each for each in find_inputs(plan) if not (started and each.start_only)]
    if started:
        _refuse_late(edits, plan, folder)
    reading = FingerprintReader(folder, plan.config.seed, before.inputs)
    found = {each.key: reading(each) for each in asked if not _written_since(each, before)}
    started_only = {each.key for each in find_inputs(plan)} - {each.key for each in asked}
    pairs = [
        (before.inputs.get(key), found.get(key))
        for key in dict.fromkeys((*before.inputs, *found))
        if key not in started_only
    ]
    other = [(*pair, words) for pair in pairs if (words := difference(*pair))]
    if other and not accept:
        raise ValueError(_refusal([words for *_, words in other], folder, done + 1))
    for line in (*(each.words(done + 1) for each in edits), *_schedules(edits, now), *reading.hashing.words()):
        say(line)
    for *_, words in other:
        say(f"{words}: accepted, from step {done + 1} on")
    for words in unchecked(list(found.values())):
        say(words)
    record = [{"step": done + 1, **each.record()} for each in edits]
    record += [{"step": done + 1, **_input_line(was, now)} for was, now, _ in other]
    return Begun(held(plan, list(found.values()), say=say), record)


def read(folder: Path, step: int) -> Before:
    """What the run depended on in `step`, by what is written down."""
    path = folder / INPUTS
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {INPUTS}: it was made by a version of Ascent that did not write down what a run depends "
            "on, so nobody can say whether it would go on with the same; start a new run with its last checkpoint as "
            "model.policy"
        )
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not of format {FORMAT}, which this version reads; use the version that wrote it")
    recipe = dict(content["recipe"])
    inputs = {each["key"]: Input(**each) for each in content["inputs"]}
    for line in jsonl.read(folder / CHANGES).records:
        if line["step"] > step:
            continue
        values: dict[str, Any] = inputs if line.get("input") else recipe
        values.pop(line["key"], None)
        if "now" in line:
            values[line["key"]] = Input(**line["now"]) if line.get("input") else line["now"]
    return Before(recipe, inputs)


def held(plan: Plan, found: Sequence[Input], *, say: Say) -> Plan:
    """The plan with every model at the place where it was found, and with the marks of all inputs."""
    models = {each.key for each in find_inputs(plan) if each.kind == "model"}
    places = {
        each.key: each.at
        for each in found
        if each.key in models and each.content and each.at != each.name and not each.name.startswith("tiny:")
    }
    values = plan.config.model_dump(mode="json", exclude_unset=True)
    for key, at in places.items():
        if Path(at).is_dir():
            _put(values, key, at)
    for each in found:
        if each.key in places and Path(each.at) != Path(each.name).expanduser().absolute():
            say(f"{each.key} {each.name} is {each.at}")
    return replace(plan, config=validate(values), inputs={each.key: each.fingerprint for each in found})


def _put(values: Any, key: str, value: str) -> None:
    """Set rewards[0].model or model.policy in a tree."""
    *path, last = key.replace("[", ".").replace("]", "").split(".")
    for part in path:
        values = values[int(part)] if isinstance(values, list) else values[part]
    values[last] = value


def _refuse_late(edits: Sequence[Change], plan: Plan, folder: Path) -> None:
    late = {each.key for each in find_inputs(plan) if each.start_only}
    for each in edits:
        if each.key in late:
            raise ValueError(
                f"{each.key} {each.was} -> {each.now} has no effect: the run has started from it, and goes on from its "
                f"last checkpoint; put it back in {folder / CONFIG}, or start a new run"
            )


def _written_since(each: InputName, before: Before) -> bool:
    """A file that an option of a reward names, and that was not there at the start: the reward may have written it."""
    return each.kind == "file" and each.key not in before.inputs and before.recipe.get(each.key) == each.name


def _refusal(words: Sequence[str], folder: Path, step: int) -> str:
    head = f"{folder}: {len(words)} of what this run depends on changed since it was last started:"
    fix = (
        f"put it back; or go on with it from step {step} on: ascent resume {folder} --accept-changes (in Python "
        "accept_changes=True), which is written down"
    )
    return "\n".join([head, *(f"  {each}" for each in words), fix])


def _schedules(edits: Sequence[Change], now: Mapping[str, Any]) -> list[str]:
    """A longer run is another schedule of the learning rate: from here on, as if it had been the length all along."""
    shape = now["update.schedule"]
    if shape == "constant" or not any(each.key == "run.steps" for each in edits):
        return []
    return [
        f"update.schedule {shape} now falls over {now['run.steps']} steps; the learning rate jumps to its place there"
    ]


def _input_line(was: Input | None, now: Input | None) -> dict[str, Any]:
    found = {"was": was, "now": now}
    records = {name: each.record() for name, each in found.items() if each is not None}
    return {"key": (was or now).key, "input": True, **records}  # type: ignore[union-attr] # one of them is there
