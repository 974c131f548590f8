"""Iterated learning from feedback as one recipe: `ascent.iterate`.

    FOLDER/rounds.yaml              the recipe
    FOLDER/sft/                     a run: the first policy
    FOLDER/round-1/feedback.jsonl   verdicts on the newest policy's answers (answers in feedback.samples.jsonl)
    FOLDER/round-1/comparisons.jsonl  the verdicts of all rounds so far: the training data
    FOLDER/round-1/reward_model/    a run, from the first policy
    FOLDER/round-1/policy/          a run, from the newest policy; its reference is the first one, where the row has one
    FOLDER/round-1/measured.json    the policy compared with the first one

Every stage is finished, unfinished or absent. The same call again, after a kill at any instant, skips what is finished,
resumes what is not, and ends in the same weights. What a later stage would refuse is refused before the first one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.api.collect import PERSON, Person, collect
from ascent.api.compare import compare
from ascent.api.evaluate import load_prompts
from ascent.api.stages import Say, StageStopped, stage
from ascent.api.train import Overrides, override_strings
from ascent.config import yaml_text
from ascent.config.iterate import IterateConfig, iterate_config
from ascent.config.load import merge_configs, nest_keys, parse_overrides, read_recipe
from ascent.config.validate import validate
from ascent.feedback.comparisons import Form
from ascent.plan.resolve import Plan, resolve
from ascent.records import Prompt
from ascent.runs.folder import CONFIG, read_run
from ascent.runs.jsonl import replace_file
from ascent.runs.lock import Lock
from ascent.setup.data import load_records, refuse_absent_files
from ascent.setup.judges import SIMULATED, judge_of

RECIPE, FEEDBACK, COMPARISONS, MEASURED = (
    "rounds.yaml",
    "feedback.jsonl",
    "comparisons.jsonl",
    "measured.json",
)
# Keys of a stage's recipe that the rounds set.
SET_BY_ROUNDS = ("seed", "model.policy", "model.reward_model", "model.reference")

Tree = dict[str, Any]


@dataclass(frozen=True)
class RoundResult:
    """The run of one round's policy, and its comparison with the first policy (`CompareResult.as_dict`), if any."""

    policy: Path
    comparison: Mapping[str, Any] | None


class Folders:
    """The folders of the stages."""

    def __init__(self, root: Path, recipe: IterateConfig) -> None:
        self.root, self.recipe = root, recipe

    def round(self, number: int) -> Path:
        return self.root / f"round-{number}"

    def policy(self, number: int) -> str:
        """The policy after that many rounds; after none, the first one."""
        if number:
            return str(self.round(number) / "policy")
        return self.recipe.sft if isinstance(self.recipe.sft, str) else str(self.root / "sft")


def iterate(
    recipe: str | Path | Mapping[str, Any] | IterateConfig,
    overrides: Overrides = (),
    *,
    run: str | Path,
    progress: bool = True,
    person: Person | None = None,
    say: Say = print,
) -> list[RoundResult]:
    """Repeat rounds of feedback: collect, train a reward model, train the policy, measure; resumable anywhere.

    recipe: the name of a shipped recipe, a .yaml file, or a mapping with the key `rounds`.
    overrides: keys to set on top, as "KEY=VALUE" strings or as a mapping of dotted keys.
    run: the folder of all stages; the same one again continues.
    progress: show progress on standard error.
    person: asks the questions of annotator "person"; the command asks at the terminal.
    say: receives notes, one line each.

    Returns one `RoundResult` for each round. Raises StageStopped on a signal, or when the person quits.

        results = ascent.iterate("rlhf_iterated", run="runs/iterated")
        results[-1].comparison["win_rate"]["value"]
    """
    recipe, folder = _read(recipe, overrides), Path(run)
    folders = Folders(folder, recipe)
    plans = {
        number: _plans(folders, number) for number in range(recipe.rounds + 1)
    }  # refuses what cannot work
    if recipe.collect.annotator == PERSON and person is None:
        raise ValueError(
            "collect.annotator is a person, but nobody is there to be asked; run ascent iterate, or pass person="
        )
    _refuse_absent_data(folders, plans)
    _refuse_collect(folders)
    _refuse_measure(folders)
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder, say=say):
        _record_recipe(folder / RECIPE, recipe, say)
        for name, plan in plans[0].items():
            stage(plan, folder / name, say, progress=progress)
        results = []
        for number in range(1, recipe.rounds + 1):
            say(f"round {number} of {recipe.rounds}")
            _collect(folders, number, person, say)
            for name, plan in plans[number].items():
                stage(plan, folders.round(number) / name, say, progress=progress)
            results.append(
                RoundResult(Path(folders.policy(number)), _measure(folders, number, say))
            )
        return results


def _read(
    recipe: str | Path | Mapping[str, Any] | IterateConfig, overrides: Overrides
) -> IterateConfig:
    if isinstance(recipe, IterateConfig):
        if overrides:
            raise ValueError(
                "overrides apply to a recipe, but this one is read already; override its source"
            )
        return recipe
    tree = nest_keys(recipe) if isinstance(recipe, Mapping) else read_recipe(str(recipe))
    name = "the recipe" if isinstance(recipe, Mapping) else str(recipe)
    return iterate_config(merge_configs(tree, parse_overrides(override_strings(overrides))), name)


def _plans(folders: Folders, number: int) -> dict[str, Plan]:
    """The runs of round `number` by folder name, in order; 0 is before the first round."""
    recipe, here = folders.recipe, folders.round(number)
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
    """A stage's recipe with what the rounds set. Keys that would be overruled are refused."""
    for key in (*SET_BY_ROUNDS, *(["data.train"] if any("data" in each for each in own) else [])):
        section, _, name = key.rpartition(".")
        if name in (tree.get(section) or {} if section else tree):
            raise ValueError(f"{owner}.{key} is set by the rounds; remove it")
    for each in own:
        tree = merge_configs(tree, each)
    with _errors_of(owner):
        return resolve(validate(tree))


def _refuse_absent_data(folders: Folders, plans: Mapping[int, Mapping[str, Plan]]) -> None:
    """Check the data files of all unfinished runs, except the comparisons, which come later."""
    for number, of_round in plans.items():
        for name, plan in of_round.items():
            run = (folders.round(number) if number else folders.root) / name
            if (run / CONFIG).is_file() and read_run(run).state == "finished":
                continue
            data = plan.config.data
            if data.train == str(folders.round(number) / COMPARISONS):
                data = data.model_copy(update={"train": None})
            with _errors_of(name):
                refuse_absent_files(plan.config.model_copy(update={"data": data}))


def _refuse_collect(folders: Folders) -> None:
    recipe, ask = folders.recipe, folders.recipe.collect
    if all(
        (folders.round(number) / COMPARISONS).is_file() for number in range(1, recipe.rounds + 1)
    ):
        return
    with _errors_of("collect.prompts"):
        records = load_records(ask.prompts, "prompts", seed=recipe.seed + 1).records
    if ask.annotator != PERSON:
        with _errors_of("collect.annotator"):
            _try_judge(
                ask.annotator, ask.form, [each for each in records if isinstance(each, Prompt)]
            )


def _refuse_measure(folders: Folders) -> None:
    recipe, settings = folders.recipe, folders.recipe.measure
    if settings is None or all(
        (folders.round(n) / MEASURED).is_file() for n in range(1, recipe.rounds + 1)
    ):
        return
    with _errors_of("measure.prompts"):
        prompts = load_prompts(settings.prompts, None)
    if settings.judge == PERSON:
        raise ValueError(
            "measure.judge is a person, but measuring asks nobody; name a reward model, an endpoint, simulated:TASK or "
            "file.py:function"
        )
    named = Path(settings.judge.partition("?")[0]).expanduser()
    if (
        recipe.reward_model is not None
        and named.resolve() == (folders.round(1) / "reward_model").resolve()
    ):
        return  # it exists once the first round is measured
    with _errors_of("measure.judge"):
        _try_judge(settings.judge, "pairs", prompts)


def _try_judge(name: str, form: Form, prompts: Sequence[Prompt]) -> None:
    """Open a judge and refuse what it cannot do, without asking it anything."""
    judge = judge_of(name)
    try:
        list(judge.verdicts([], form, annotator=name))  # refuses the form
        if name.startswith(SIMULATED):
            for prompt in prompts:
                judge.scores(prompt, [""])  # refuses a prompt without an answer
    finally:
        judge.close()


@contextmanager
def _errors_of(owner: str) -> Iterator[None]:
    """Prefix errors with the part of the recipe that they are about."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(
            "\n".join(f"{owner}: {line}" for line in str(error).splitlines())
        ) from None


def _collect(folders: Folders, number: int, person: Person | None, say: Say) -> None:
    here, ask = folders.round(number), folders.recipe.collect
    if (here / COMPARISONS).is_file():
        say(f"{here / FEEDBACK} is finished")
        return
    found = collect(
        folders.policy(number - 1),
        ask.prompts,
        out=here / FEEDBACK,
        judge=ask.annotator,
        annotator=ask.annotator,
        form=ask.form,
        samples=ask.samples,
        per_prompt=ask.per_prompt,
        repeat=ask.repeat,
        max_new_tokens=ask.max_new_tokens,
        temperature=ask.temperature,
        seed=folders.recipe.seed + number,
        person=person,
        say=say,
    )
    if found.unjudged:
        raise ValueError(
            f"{ask.annotator} gave no verdict on {found.unjudged.total()} questions: {found.unjudged}"
        )
    if not found.finished:
        raise StageStopped(
            f"{found.done} of {found.questions} questions of round {number} are answered; the same command asks the "
            f"others, and so does a page: {_label_command(folders, number)}"
        )
    say(f"{found.done} verdicts in {here / FEEDBACK}")
    verdicts = [
        (folders.round(each) / FEEDBACK).read_text(encoding="utf-8")
        for each in range(1, number + 1)
    ]
    replace_file(here / COMPARISONS, "".join(verdicts))


def _label_command(folders: Folders, number: int) -> str:
    """The command that asks the questions of a round in a browser."""
    ask = folders.recipe.collect
    options = {
        "prompts": ask.prompts,
        "out": folders.round(number) / FEEDBACK,
        "form": ask.form,
        "samples": ask.samples,
        "per-prompt": ask.per_prompt,
        "max-new-tokens": ask.max_new_tokens,
        "temperature": ask.temperature,
        "seed": folders.recipe.seed + number,
    }
    words = [
        folders.policy(number - 1),
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
    ]
    return shlex.join(["ascent", "label", *words])


def _measure(folders: Folders, number: int, say: Say) -> Mapping[str, Any] | None:
    settings, file = folders.recipe.measure, folders.round(number) / MEASURED
    if settings is None:
        return None
    if not file.is_file():
        found = compare(
            folders.policy(number),
            folders.policy(0),
            settings.prompts,
            settings.judge,
            samples=settings.samples,
            max_new_tokens=settings.max_new_tokens,
            seed=folders.recipe.seed,
        )
        replace_file(file, json.dumps(found.as_dict(), indent=1) + "\n")
    comparison: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rate = comparison["win_rate"]
    say(
        f"round {number}: win rate over the first policy {rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})"
    )
    return comparison


def _record_recipe(file: Path, recipe: IterateConfig, say: Say) -> None:
    """Write the recipe; refuse a folder that holds another one. Rounds may be added."""
    if file.is_file():
        before = iterate_config(
            yaml_text.read(file.read_text(encoding="utf-8"), str(file)), str(file)
        )
        if before.model_copy(update={"rounds": recipe.rounds}) != recipe:
            one, other = before.model_dump(), recipe.model_dump()
            key = next(name for name in one if name != "rounds" and one[name] != other[name])
            raise ValueError(
                f"{file} is another recipe: {key} was {one[key]!r} and is {other[key]!r}; use a new folder"
            )
        if recipe.rounds < before.rounds:
            raise ValueError(
                f"{file} has {before.rounds} rounds, the recipe {recipe.rounds}; rounds can only be added"
            )
        say(f"continuing in {file.parent}")
    replace_file(file, yaml_text.write(recipe.model_dump(mode="json")))
