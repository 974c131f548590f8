"""From the names in a recipe's `data` section to prepared items: a built-in task, or whatever `ascent.data` can read.

sort_digits                2048 records of a built-in task, its train split
sort_digits@heldout:256    256 held-out ones
data/train.jsonl, data/folder, owner/name: see `ascent.data.load`
"""

from __future__ import annotations

from dataclasses import replace

from ascent.algorithms import Row
from ascent.config.schema import Config
from ascent.data.errors import Policy
from ascent.data.layouts import Want
from ascent.data.load import Loaded, from_records, load, refuse_absent
from ascent.data.prepare import Limits, Prepared, prepare
from ascent.data.render import Renderer
from ascent.losses import process
from ascent.tasks.named import from_name, is_task


def refuse_absent_files(config: Config) -> None:
    """A path with a slip in it is told at once, not after a model has been loaded."""
    data = config.data
    for name in (data.train, data.evaluate, data.pretraining, *(each.use for each in data.mix)):
        if name is not None and not is_task(name):
            refuse_absent(name)


def loaded(name: str, want: Want | None, *, seed: int, bad_rows: Policy = "fail") -> Loaded:
    """Records of one name, of the kind an algorithm learns from; None takes a file as it is, and a task's pairs."""
    if not is_task(name):
        return load(name, want, bad_rows=bad_rows)
    kind = want or "pairs"
    return from_records(name, from_name(name, kind, seed=seed), kind)


def prepared(name: str, config: Config, row: Row, renderer: Renderer, *, want: Want | None = None) -> Prepared:
    """Records of one name, rendered and within the recipe's limits; bad rows are told with file and line.

    They are of the kind the row learns from, or of the kind that is wanted.
    """
    want = want or row.source  # type: ignore[assignment]
    data = config.data
    limits = Limits(data.max_tokens, min(data.max_prompt_tokens, data.max_tokens - 1), data.long_prompts)
    records = loaded(name, want, seed=config.seed, bad_rows=data.bad_rows)
    found = prepare(records, renderer, limits, bad_rows=data.bad_rows, gold="gold_answers" in row.needs)
    return _in_classes(found) if row.loss is not None and row.loss.function is process.prm_hard else found


def _in_classes(found: Prepared) -> Prepared:
    """Judged steps as `prm_hard` reads them: the number of the class, of which the first is "right"; unknown is -1."""
    labels = {label for item in found.items for label in item.labels}
    between = sorted(label for label in labels if label is not None and 0 < label < 1)
    if between:
        raise ValueError(
            f"{found.name}: a step is judged {between[0]:g}, between wrong and right; algorithm prm takes true and "
            "false alone: use prm_soft, which takes probabilities"
        )
    items = [
        replace(item, labels=tuple(-1.0 if label is None else 1.0 - label for label in item.labels))
        for item in found.items
    ]
    return found._replace(items=tuple(items))
