"""The recipe and the inputs of a run, recorded when it starts and compared when it resumes.

`inputs.json` holds both as of the start and is never rewritten. Each later change is a line of `changes.jsonl` with the
first step it applies to. A run resumed from an earlier checkpoint gets the inputs and the recipe of that step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from ascent.config import changes as recipes
from ascent.config.changes import Change, Flat, flatten
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.plan.resolve import Plan
from ascent.runs import jsonl
from ascent.runs.folder import CHANGES, CONFIG, INPUTS, read_json
from ascent.setup.early_checks import check_names
from ascent.setup.fingerprints import (
    FingerprintReader,
    Input,
    InputName,
    difference,
    find_inputs,
    unchecked,
)
from ascent.setup.objects import describe_unchecked

FORMAT = 2
Say = Callable[[str], None]
Compared = tuple[list[Input], list[dict[str, Any]]]


class RecordedInputs(NamedTuple):
    """A run's recipe and inputs at a step."""

    recipe: Flat
    inputs: dict[str, Input]


def record_inputs(
    plan: Plan, folder: Path, *, say: Say, ranks: Ranks = SINGLE
) -> tuple[Plan, list[Input]]:
    """For a new run: its plan with pinned models, and its inputs, which rank 0 reads."""
    found = ranks.broadcast(
        _read_inputs(plan, folder, say) if ranks.is_first else [], "the inputs of the run"
    )
    return pin_models(plan, found, say=say), found


def _read_inputs(plan: Plan, folder: Path, say: Say) -> list[Input]:
    check_names(plan)
    reader = FingerprintReader(folder, plan.config.seed, objects=plan.objects)
    found = [reader(each) for each in find_inputs(plan)]
    for line in (*reader.hashing.words(), *describe_unchecked(plan.objects)):
        say(line)
    return found


def inputs_text(plan: Plan, found: Sequence[Input]) -> str:
    """The text of inputs.json; `plan` has the names of models as the recipe gives them."""
    recipe = flatten(plan.config)
    origins = {
        key: plan.origins[key] for key in recipe if key in plan.origins
    }  # for people; resume does not read it
    inputs = [each.record() for each in found]
    content = {"format": FORMAT, "recipe": recipe, "origins": origins, "inputs": inputs}
    return json.dumps(content, indent=1) + "\n"


def check_inputs(
    plan: Plan,
    folder: Path,
    done: int,
    *,
    started: bool,
    accept: bool,
    say: Say,
    ranks: Ranks = SINGLE,
) -> tuple[Plan, list[dict[str, Any]]]:
    """For a run resumed after step `done`: its plan with pinned models, and the new lines of changes.jsonl.

    Raises ValueError where the recipe changed in a way that is not allowed, or where inputs changed and `accept` is
    False. `started` means that there is a checkpoint, so inputs that only a start reads are not compared. Rank 0 reads.
    """
    own = (
        _compare_inputs(plan, folder, done, started=started, accept=accept, say=say)
        if ranks.is_first
        else None
    )
    found, record = cast(Compared, ranks.broadcast(own, "the inputs of the run"))
    return pin_models(plan, found, say=say), record


def _compare_inputs(
    plan: Plan, folder: Path, done: int, *, started: bool, accept: bool, say: Say
) -> Compared:
    before, now = read(folder, done + 1), flatten(plan.config)
    edits = recipes.find_changes(before.recipe, now)
    recipes.check_changes(edits, before.recipe, str(folder / CONFIG))
    names = find_inputs(plan)
    skipped = {each.key for each in names if started and each.start_only}
    if started:
        _refuse_late(edits, plan, folder)
    reader = FingerprintReader(folder, plan.config.seed, before.inputs, plan.objects)
    found = {
        each.key: reader(each)
        for each in names
        if each.key not in skipped and not _written_since(each, before)
    }
    pairs = [
        (before.inputs.get(key), found.get(key))
        for key in dict.fromkeys((*before.inputs, *found))
        if key not in skipped
    ]
    changed = [(*pair, words) for pair in pairs if (words := difference(*pair))]
    if started and before.recipe.get("rollouts.partial_rollouts"):
        _refuse_other_prompts(changed, folder)
    if changed and not accept:
        raise ValueError(_refusal([words for *_, words in changed], folder, done + 1))
    for line in (
        *(each.describe(done + 1) for each in edits),
        *_schedules(edits, now),
        *reader.hashing.words(),
    ):
        say(line)
    for *_, words in changed:
        say(f"{words}: accepted, from step {done + 1} on")
    for words in unchecked(list(found.values())):
        say(words)
    record = [{"step": done + 1, **each.record()} for each in edits]
    record += [{"step": done + 1, **_input_line(was, now)} for was, now, _ in changed]
    return list(found.values()), record


def read(folder: Path, step: int) -> RecordedInputs:
    """The recipe and the inputs of `step`, as recorded."""
    path = folder / INPUTS
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {INPUTS}: the version of Ascent that made it recorded no inputs, so they cannot be "
            "compared; start a new run with its last checkpoint as model.policy"
        )
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not of format {FORMAT}, which this version reads; use the version that wrote it"
        )
    recipe = dict(content["recipe"])
    inputs = {each["key"]: Input(**each) for each in content["inputs"]}
    for line in jsonl.read(folder / CHANGES).records:
        if line["step"] > step:
            continue
        values: dict[str, Any] = inputs if line.get("input") else recipe
        values.pop(line["key"], None)
        if "now" in line:
            values[line["key"]] = Input(**line["now"]) if line.get("input") else line["now"]
    return RecordedInputs(recipe, inputs)


def pin_models(plan: Plan, found: Sequence[Input], *, say: Say) -> Plan:
    """The plan with every model name replaced by the folder it resolves to, and with the fingerprints of all inputs."""
    models = {each.key for each in find_inputs(plan) if each.kind == "model"}
    places = {
        each.key: each.at
        for each in found
        if each.key in models
        and each.content
        and each.at != each.name
        and not each.name.startswith("tiny:")
    }
    values = plan.config.model_dump(mode="json", exclude_unset=True)
    for key, at in places.items():
        if Path(at).is_dir():
            _put(values, key, at)
    for each in found:
        if each.key in places and Path(each.at) != Path(each.name).expanduser().absolute():
            say(f"{each.key} {each.name} is {each.at}")
    return replace(
        plan, config=validate(values), inputs={each.key: each.fingerprint for each in found}
    )


def _put(values: Any, key: str, value: Any) -> None:
    """Set rewards[0].model or model.policy in a tree; NOT_SET removes it."""
    *path, last = key.replace("[", ".").replace("]", "").split(".")
    for part in path:
        values = values[int(part)] if isinstance(values, list) else values.setdefault(part, {})
    if value is recipes.NOT_SET:
        del values[last]
    else:
        values[last] = value


def _refuse_late(edits: Sequence[Change], plan: Plan, folder: Path) -> None:
    late = {each.key for each in find_inputs(plan) if each.start_only}
    for each in edits:
        if each.key in late:
            raise ValueError(
                f"{each.key} {each.was} -> {each.now} has no effect: it is read at the start only, and the run resumes "
                f"from its last checkpoint; put it back in {folder / CONFIG}, or start a new run"
            )


def _refuse_other_prompts(
    changed: Sequence[tuple[Input | None, Input | None, str]], folder: Path
) -> None:
    """An unfinished rollout would go on behind another prompt than it was begun with."""
    for was, now, words in changed:
        if "data.train" in (each.key for each in (was, now) if each is not None):
            raise ValueError(
                f"{folder}: {words}, and the checkpoint holds unfinished rollouts of its prompts (rollouts."
                "partial_rollouts); put it back, or start a new run with the last checkpoint as its model.policy"
            )


def _written_since(each: InputName, before: RecordedInputs) -> bool:
    """Whether a file that a reward option names was absent at the start: the reward may have written it."""
    return (
        each.kind == "file"
        and each.key not in before.inputs
        and before.recipe.get(each.key) == each.name
    )


def _refusal(words: Sequence[str], folder: Path, step: int) -> str:
    head = f"{folder}: {len(words)} inputs of this run changed since it was last started:"
    fix = (
        f"put them back, or accept them from step {step} on: ascent resume {folder} --accept-changes (in Python "
        "accept_changes=True); the change is recorded"
    )
    return "\n".join([head, *(f"  {each}" for each in words), fix])


def _schedules(edits: Sequence[Change], now: Mapping[str, Any]) -> list[str]:
    """A new run.steps rescales the learning-rate schedule: from here on as if it had been the length all along."""
    shape = now["update.schedule"]
    if shape == "constant" or not any(each.key == "run.steps" for each in edits):
        return []
    return [
        f"update.schedule {shape} now falls over {now['run.steps']} steps; the learning rate jumps to its place there"
    ]


def _input_line(was: Input | None, now: Input | None) -> dict[str, Any]:
    found = {"was": was, "now": now}
    records = {name: each.record() for name, each in found.items() if each is not None}
    return {"key": (was or now).key, "input": True, **records}  # type: ignore[union-attr] # at least one is there


def recipe_at(folder: Path, step: int) -> dict[str, Any]:
    """The recipe that `step` was trained with: config.yaml, with the values of that step where it has changed since."""
    values: dict[str, Any] = read_yaml(
        (folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG)
    )
    for each in recipes.find_changes(flatten(validate(values)), read(folder, step).recipe):
        _put(values, each.key, each.now)
    return values
