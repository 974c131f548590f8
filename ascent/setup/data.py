"""From the names in a recipe's `data` section to prepared items: a built-in task, or whatever `ascent.data` can read.

sort_digits                2048 records of a built-in task, its train split
sort_digits@heldout:256    256 held-out ones
data/train.jsonl, data/folder, owner/name: see `ascent.data.load`
5%                         for data.evaluate: held-out prompts of data.train, which are not trained on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

from ascent.config.heldout import heldout_share
from ascent.config.schema import Config
from ascent.config.validate import validate
from ascent.data.errors import Policy
from ascent.data.heldout import heldout_prompts, split
from ascent.data.load import LoadResult, check_path, from_records, load
from ascent.data.prepare import Limits, PreparedData, prepare
from ascent.data.render import Renderer
from ascent.data.rows import read_lines
from ascent.data.schemas import RecordKind
from ascent.losses import process, ranking
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.plan.resolve import Plan
from ascent.setup.data_names import as_dataset
from ascent.setup.objects import NO_OBJECTS, Objects, is_object
from ascent.tasks.named import from_name, is_task

EPOCHS = "data.epochs"


def refuse_absent_files(config: Config) -> None:
    """A path with a slip in it is told at once, not after a model has been loaded."""
    data = config.data
    named = (
        data.train,
        data.evaluate,
        data.pretraining,
        data.centering_data,
        *(each.use for each in data.mix),
    )
    for name in named:
        if (
            name is not None
            and not is_task(name)
            and not is_object(name)
            and heldout_share(name) is None
        ):
            check_path(name)


def within_context(plan: Plan, renderer: Renderer) -> tuple[Plan, tuple[str, ...]]:
    """The plan with no record longer than the policy holds, and in words what that changed."""
    most, context = plan.config.data.max_tokens, renderer.context
    if context is None or most <= context:
        return plan, ()
    data = plan.config.data.model_copy(update={"max_tokens": context})
    said = (
        f"data.max_tokens={most}, but the policy holds {context} tokens; a longer record is refused"
    )
    return replace(plan, config=plan.config.model_copy(update={"data": data})), (said,)


def refuse_long_answers(config: Config, renderer: Renderer) -> None:
    """One line where no prompt could be answered, and not one for each."""
    answer, context = config.rollouts.max_new_tokens, renderer.context
    if context is not None and answer >= context:
        raise ValueError(
            f"rollouts.max_new_tokens={answer}, but the policy holds {context} tokens, the prompt included; use less "
            f"than {context}, or a model with a longer context"
        )


def refuse_shorter(what: str, model: LanguageModel, policy: LanguageModel, longest: int) -> None:
    """A model that reads what the policy reads, and holds less than a sequence of the run can have."""
    theirs, ours = (
        max_sequence_length(model.module.config),
        max_sequence_length(policy.module.config),
    )
    longest = longest if ours is None else min(longest, ours)
    if theirs is not None and theirs < longest:
        raise ValueError(
            f"{what} holds {theirs} tokens, but a sequence of this run can have {longest}; shorten the data or the "
            "answers, or use a model with a longer context"
        )


def load_records(
    name: str,
    want: RecordKind | None,
    *,
    seed: int,
    invalid_rows: Policy = "fail",
    objects: Objects = NO_OBJECTS,
) -> LoadResult:
    """Records of one name, of the kind an algorithm learns from; None takes a file as it is, and a task's pairs."""
    if name in objects:
        given = objects[name].value
        return load(name, want, invalid_rows=invalid_rows, given=read_lines(given.lines, given.key))
    if not is_task(name):
        with as_dataset(name):
            return load(name, want, invalid_rows=invalid_rows)
    return _made(name, want or "pairs", seed)


def load_part(name: str, plan: Plan, want: RecordKind | None) -> LoadResult:
    """Records of a name in the recipe's data section, with data.evaluate=5% cut from those to train on."""
    data, share = plan.config.data, heldout_share(plan.config.data.evaluate)
    read = partial(
        load_records, seed=plan.config.seed, invalid_rows=data.invalid_rows, objects=plan.objects
    )
    cut = share is not None and name in (
        data.train,
        data.evaluate,
        *(each.use for each in data.mix),
    )
    found = read(data.train if cut else name, want)
    if not cut:
        return found
    assert share is not None
    heldout = heldout_prompts(found, share)
    if name == data.evaluate:
        return replace(split(found, heldout)[1], name=heldout_name(plan.config))
    part = found if name == data.train else read(name, want)
    return split(part, heldout)[0]


def heldout_name(config: Config) -> str:
    """The evaluation data in words: its name, or 5% of data.train."""
    data = config.data
    return (
        f"{data.evaluate} of {data.train}"
        if heldout_share(data.evaluate) is not None
        else str(data.evaluate)
    )


def with_steps(plan: Plan, steps: int) -> Plan:
    """The plan with run.steps in place of data.epochs, whose number is where they came from."""
    epochs = plan.config.data.epochs
    if epochs is None:
        return plan
    values = plan.config.model_dump(mode="json", exclude_unset=True)
    values["data"]["epochs"] = None
    values["run"]["steps"] = steps
    return replace(
        plan, config=validate(values), origins={**plan.origins, "run.steps": f"{EPOCHS}={epochs!r}"}
    )


def epochs_of(origins: Mapping[str, str]) -> float | None:
    """The epochs that a run's steps were computed from."""
    key, _, epochs = origins.get("run.steps", "").partition("=")
    return float(epochs) if key == EPOCHS else None


@lru_cache(maxsize=8)
def _made(name: str, kind: RecordKind, seed: int) -> LoadResult:
    """A task's records: made once, for whoever hashes them and whoever learns from them."""
    return from_records(name, from_name(name, kind, seed=seed), kind)


def prepare_records(
    name: str, plan: Plan, renderer: Renderer, *, want: RecordKind | None = None
) -> PreparedData:
    """Records of one name, rendered and within the recipe's limits; bad rows are told with file and line.

    They are of the kind the row learns from, or of the kind that is wanted.
    """
    row, data = plan.row, plan.config.data
    want = want or row.source  # type: ignore[assignment]
    longest = min(data.max_prompt_tokens, data.max_tokens - 1)
    key = "data.max_prompt_tokens" if longest == data.max_prompt_tokens else "data.max_tokens"
    limits = Limits(data.max_tokens, longest, data.prompt_overflow, prompt_key=key)
    records = load_part(name, plan, want)
    loss = None if row.loss is None else row.loss.function
    needs = {"gold": "gold_answers" in row.needs, "strict_order": loss is ranking.plackett_luce}
    found = prepare(records, renderer, limits, invalid_rows=data.invalid_rows, **needs)
    return _in_classes(found) if loss is process.prm_hard else found


def _in_classes(found: PreparedData) -> PreparedData:
    """Judged steps as `prm_hard` reads them: the number of the class, of which the first is "right"; unknown is -1."""
    labels = {label for item in found.items for label in item.step_labels}
    between = sorted(label for label in labels if label is not None and 0 < label < 1)
    if between:
        raise ValueError(
            f"{found.name}: a step is judged {between[0]:g}, between wrong and right; algorithm prm takes true and "
            "false alone: use prm_soft, which takes probabilities"
        )
    items = [
        replace(
            item,
            step_labels=tuple(-1.0 if label is None else 1.0 - label for label in item.step_labels),
        )
        for item in found.items
    ]
    return found._replace(items=tuple(items))
