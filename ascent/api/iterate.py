"""Iterated learning from feedback as one recipe: `ascent rounds`.

    FOLDER/rounds.yaml              the recipe
    FOLDER/sft/                     a run: the first policy
    FOLDER/round-1/feedback.jsonl   verdicts on the newest policy's answers (answers in feedback.samples.jsonl)
    FOLDER/round-1/comparisons.jsonl  the verdicts of all rounds so far: what is trained on
    FOLDER/round-1/reward_model/    a run, from the first policy
    FOLDER/round-1/policy/          a run, from the newest policy, held near the first one where the row has a reference
    FOLDER/round-1/measured.json    the policy against the first one

Every stage is finished, unfinished or absent, and its folder says which. So the same command again, after a kill at
any instant, skips what is finished, resumes what is not, and ends in the same weights.

What a later stage would refuse is refused before the first one, while the recipe can still be corrected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.api.collect import CollectOptions, Person, collect
from ascent.api.compare import compare
from ascent.api.evaluate import prompts_of
from ascent.api.stages import Say, StageStopped, stage
from ascent.config import yaml_text
from ascent.config.iterate import IterateConfig, iterate_config
from ascent.config.load import merged
from ascent.config.validate import validate
from ascent.feedback.comparisons import Form
from ascent.plan.resolve import Plan, resolve
from ascent.records import Prompt
from ascent.runs.folder import CONFIG, read_run
from ascent.runs.lock import Lock
from ascent.setup.data import load_records, refuse_absent_files
from ascent.setup.judges import SIMULATED, judge_of

RECIPE, FEEDBACK, COMPARISONS, MEASURED = "rounds.yaml", "feedback.jsonl", "comparisons.jsonl", "measured.json"
PERSON = "person"
# Keys of a stage's recipe that the rounds themselves decide.
OURS = ("seed", "model.policy", "model.reward_model", "model.reference")

Tree = dict[str, Any]


@dataclass(frozen=True)
class RoundResult:
    """The policy of one round, by its folder, and how it compares with the first."""

    policy: Path
    figures: Mapping[str, Any] | None


class Folders:
    """Where the stages of a recipe lie."""

    def __init__(self, root: Path, recipe: IterateConfig) -> None:
        self.root, self.recipe = root, recipe

    def of(self, number: int) -> Path:
        return self.root / f"round-{number}"

    def policy(self, number: int) -> str:
        """The policy after that many rounds; after none, the first one."""
        if number:
            return str(self.of(number) / "policy")
        return self.recipe.sft if isinstance(self.recipe.sft, str) else str(self.root / "sft")


def iterate(
    recipe: IterateConfig, folder: Path, *, person: Person | None = None, say: Say = print
) -> list[RoundResult]:
    """All rounds, or what is left of them; Stopped when asked to stop."""
    folders = Folders(folder, recipe)
    plans = {number: _plans(folders, number) for number in range(recipe.rounds + 1)}  # refuses what cannot work
    if recipe.collect.annotator == PERSON and person is None:
        raise ValueError("collect.annotator is a person, but nobody is there to be asked; run ascent rounds")
    _refuse_absent_data(folders, plans)
    _refuse_collect(folders)
    _refuse_measure(folders)
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder, say=say):
        _same_recipe(folder / RECIPE, recipe, say)
        for name, plan in plans[0].items():
            stage(plan, folder / name, say)
        found = []
        for number in range(1, recipe.rounds + 1):
            say(f"round {number} of {recipe.rounds}")
            _collect(folders, number, person, say)
            for name, plan in plans[number].items():
                stage(plan, folders.of(number) / name, say)
            found.append(RoundResult(Path(folders.policy(number)), _measure(folders, number, say)))
        return found


def _plans(folders: Folders, number: int) -> dict[str, Plan]:
    """What round `number` trains, in its order, by the folder's name; 0 is what comes before the first."""
    recipe, here = folders.recipe, folders.of(number)
    seed: Tree = {"seed": recipe.seed + number}
    if number == 0:
        return {} if isinstance(recipe.sft, str) else {"sft": resolve(validate(recipe.sft | seed))}
    data: Tree = {"data": {"train": str(here / COMPARISONS)}}
    start = {"model": {"policy": folders.policy(number - 1)}}
    plans = {}
    if recipe.reward_model is not None:
        first = {"model": {"policy": folders.policy(0)}}
        plans["reward_model"] = _plan("reward_model", recipe.reward_model, [seed, first, data])
        start["model"]["reward_model"] = str(here / "reward_model")
    own = [seed, start] if recipe.reward_model is not None else [seed, start, data]
    plan = _plan("policy", recipe.policy, own)
    if recipe.reward_model is not None and "reference" in plan.row.needs:
        plan = _plan("policy", recipe.policy, [*own, {"model": {"reference": folders.policy(0)}}])
    return plans | {"policy": plan}


def _plan(owner: str, tree: Tree, own: list[Tree]) -> Plan:
    """A stage's recipe with what the rounds decide; whoever sets that too would be overruled in silence."""
    for key in (*OURS, *(["data.train"] if any("data" in each for each in own) else [])):
        section, _, name = key.rpartition(".")
        if name in (tree.get(section) or {} if section else tree):
            raise ValueError(f"{owner}.{key} is decided by the rounds; remove it")
    for each in own:
        tree = merged(tree, each)
    with _said_of(owner):
        return resolve(validate(tree))


def _refuse_absent_data(folders: Folders, plans: Mapping[int, Mapping[str, Plan]]) -> None:
    """Files that the runs still to come learn from; the comparisons are not there yet."""
    for number, of_round in plans.items():
        for name, plan in of_round.items():
            run = (folders.of(number) if number else folders.root) / name
            if (run / CONFIG).is_file() and read_run(run).state == "finished":
                continue
            data = plan.config.data
            if data.train == str(folders.of(number) / COMPARISONS):
                data = data.model_copy(update={"train": None})
            with _said_of(name):
                refuse_absent_files(plan.config.model_copy(update={"data": data}))


def _refuse_collect(folders: Folders) -> None:
    recipe, ask = folders.recipe, folders.recipe.collect
    if all((folders.of(number) / COMPARISONS).is_file() for number in range(1, recipe.rounds + 1)):
        return
    with _said_of("collect.prompts"):
        records = load_records(ask.prompts, "prompts", seed=recipe.seed + 1).records
    if ask.annotator != PERSON:
        with _said_of("collect.annotator"):
            _try_judge(ask.annotator, ask.form, [each for each in records if isinstance(each, Prompt)])


def _refuse_measure(folders: Folders) -> None:
    recipe, settings = folders.recipe, folders.recipe.measure
    if settings is None or all((folders.of(n) / MEASURED).is_file() for n in range(1, recipe.rounds + 1)):
        return
    with _said_of("measure.prompts"):
        prompts = prompts_of(settings.prompts, None)
    if settings.judge == PERSON:
        raise ValueError(
            "measure.judge is a person, but every round is measured without anybody being asked; name a reward model, "
            "an endpoint, simulated:TASK or file.py:function"
        )
    named = Path(settings.judge.partition("?")[0]).expanduser()
    if recipe.reward_model is not None and named.resolve() == (folders.of(1) / "reward_model").resolve():
        return  # it will be there when the first round is measured
    with _said_of("measure.judge"):
        _try_judge(settings.judge, "pairs", prompts)


def _try_judge(name: str, form: Form, prompts: Sequence[Prompt]) -> None:
    """Make a judge and ask it nothing that costs anything."""
    judge = judge_of(name)
    try:
        list(judge.verdicts([], form, annotator=name))  # refuses a form that it cannot give
        if name.startswith(SIMULATED):
            for prompt in prompts:
                judge.scores(prompt, [""])  # refuses a prompt that has no answer to compare with
    finally:
        judge.close()


@contextmanager
def _said_of(owner: str) -> Iterator[None]:
    """Errors name the part of the recipe that they are about."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError("\n".join(f"{owner}: {line}" for line in str(error).splitlines())) from None


def _collect(folders: Folders, number: int, person: Person | None, say: Say) -> None:
    here, ask = folders.of(number), folders.recipe.collect
    if (here / COMPARISONS).is_file():
        say(f"{here / FEEDBACK} is finished")
        return
    asked = CollectOptions(
        (folders.policy(number - 1),), ask.prompts, form=ask.form, samples=ask.samples, per_prompt=ask.per_prompt,
        max_new_tokens=ask.max_new_tokens, temperature=ask.temperature, seed=folders.recipe.seed + number,
    )  # fmt: skip
    human = ask.annotator == PERSON
    judge = None if human else judge_of(ask.annotator, seed=asked.seed)
    try:
        found = collect(
            asked, here / FEEDBACK, annotator=ask.annotator, judge=judge, person=person if human else None,
            repeat=ask.repeat, say=say,
        )  # fmt: skip
    finally:
        if judge is not None:
            judge.close()
    if found.unjudged:
        raise ValueError(f"{ask.annotator} gave no verdict on {found.unjudged.total()} questions: {found.unjudged}")
    if not found.finished:
        raise StageStopped(f"{found.done} of {found.questions} questions of round {number} are answered")
    say(f"{found.done} verdicts in {here / FEEDBACK}")
    every = [(folders.of(each) / FEEDBACK).read_text(encoding="utf-8") for each in range(1, number + 1)]
    _replace(here / COMPARISONS, "".join(every))


def _measure(folders: Folders, number: int, say: Say) -> Mapping[str, Any] | None:
    settings, file = folders.recipe.measure, folders.of(number) / MEASURED
    if settings is None:
        return None
    if not file.is_file():
        judge = judge_of(settings.judge, seed=folders.recipe.seed)
        try:
            found = compare(
                folders.policy(number), folders.policy(0), settings.prompts, judge, samples=settings.samples,
                max_new_tokens=settings.max_new_tokens, seed=folders.recipe.seed,
            )  # fmt: skip
        finally:
            judge.close()
        _replace(file, json.dumps(found.as_dict(), indent=1) + "\n")
    figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rate = figures["win_rate"]
    say(f"round {number}: win rate over the first policy {rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})")
    return figures


def _same_recipe(file: Path, recipe: IterateConfig, say: Say) -> None:
    """The recipe is written down; a folder that holds another one is refused. Rounds may be added."""
    if file.is_file():
        before = iterate_config(yaml_text.read(file.read_text(encoding="utf-8"), str(file)), str(file))
        if before.model_copy(update={"rounds": recipe.rounds}) != recipe:
            one, other = before.model_dump(), recipe.model_dump()
            key = next(name for name in one if name != "rounds" and one[name] != other[name])
            raise ValueError(
                f"{file} is another recipe: {key} was {one[key]!r} and is {other[key]!r}; use a new folder"
            )
        if recipe.rounds < before.rounds:
            raise ValueError(f"{file} has {before.rounds} rounds, the recipe {recipe.rounds}; rounds can only be added")
        say(f"going on in {file.parent}")
    _replace(file, yaml_text.write(recipe.model_dump(mode="json")))


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.writing")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
