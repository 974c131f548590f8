"""Why a run failed, and what to change: `ascent.diagnose_run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.api.compare_runs import differing_settings, expand_runs, format_setting, settings_of
from ascent.config.changes import flatten_mapping
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.data.schemas import Record
from ascent.data.summary import count_duplicates, prompt_text, text_columns
from ascent.diagnose.facts import DataFacts, Facts, correlation, mean
from ascent.diagnose.records import FILE, PLOT, Diagnosis
from ascent.diagnose.table import find_causes
from ascent.plan.resolve import resolve
from ascent.runs.curves import draw_metrics
from ascent.runs.folder import CHANGES, CONFIG, SAMPLES, Run, RunFolder, read_run
from ascent.runs.jsonl import numbers, read_ends, replace_file
from ascent.setup.data import load_part

SEED = "seed"
SAMPLE_BYTES = 4 * 2**20  # read of either end of samples.jsonl when a run ends


def diagnose_run(
    run: str | Path,
    *,
    against: Sequence[str | Path] = (),
    read_data: bool = True,
    write: bool = True,
) -> Diagnosis:
    """Name what went wrong in a run, since when, how sure that is, and which keys to change.

    run: the run folder; the run may still be going on.
    against: other runs, or folders that hold some. Those that differ in their seed only show whether the seed was
        unlucky; for others the settings and scores that differ are listed.
    read_data: load the training and evaluation data, too, and look for copies, leaks and an order.
    write: write diagnosis.json, and diagnosis.png where something was found, into the run folder.

    Returns a `Diagnosis`: `findings`, the most important first, `failed`, `cause`, `line()`.

        found = ascent.diagnose_run("runs/mine")
        found.cause, [each.text() for each in found.findings[0].changes]
    """
    source = read_run(Path(run))
    others = [
        read_run(path) for path in expand_runs(against) if path.resolve() != source.path.resolve()
    ]
    facts = facts_of(source, data=data_facts(source) if read_data else None)
    peers = tuple(
        score for other in others if (score := _peer_score(source, other, facts)) is not None
    )
    findings = find_causes(replace(facts, peers=peers))
    found = Diagnosis(
        str(run),
        facts.steps,
        findings,
        None,
        tuple(_compare(source, each, facts) for each in others),
    )
    if not write:
        return found
    names = [name for name in (findings[0].metrics if findings else ()) if facts.values(name)]
    if names:
        title, began = f"{source.path.name}: {findings[0].cause}", findings[0].began
        draw_metrics(source.metrics, names, source.path / PLOT, title=title, mark=began)
        found = replace(found, plot=str(source.path / PLOT))
    replace_file(source.path / FILE, found.to_json())
    return found


def write_diagnosis(run: RunFolder, state: str, message: str) -> Diagnosis:
    """Diagnose a run at its end, from its metrics and its first and last samples; data is not read again."""
    config = dict(
        flatten_mapping(
            read_yaml((run.path / CONFIG).read_text(encoding="utf-8"), str(run.path / CONFIG))
        )
    )
    samples = read_ends(run.path / SAMPLES, SAMPLE_BYTES)
    metrics, changes = [numbers(each) for each in run.history()], run.history(CHANGES)
    facts = Facts(metrics, samples, config, state, message, changes=changes)
    found = Diagnosis(str(run.path), facts.steps, find_causes(facts))
    run.write(FILE, found.to_json())
    return found


def facts_of(run: Run, *, data: DataFacts | None = None) -> Facts:
    config = dict(flatten_mapping(read_yaml(run.config, str(run.path / CONFIG))))
    return Facts(
        run.metrics, run.samples, config, run.state, run.message, data, changes=run.changes
    )


def data_facts(run: Run) -> DataFacts | None:
    """None where the data cannot be read any more: the rest is diagnosed without it."""
    try:
        plan = resolve(validate(read_yaml(run.config, str(run.path / CONFIG))))
        want: Any = "prompts" if plan.row.samples else plan.row.source
        train = load_part(plan.config.data.train, plan, want).records
        name = plan.config.data.evaluate
        heldout = () if name is None else load_part(name, plan, want).records
    except (ValueError, OSError, ImportError):
        return None
    return count_facts(train, heldout)


def count_facts(train: Sequence[Record], heldout: Sequence[Record]) -> DataFacts:
    prompts = {prompt_text(each) for each in train} - {None}
    held = {prompt_text(each) for each in heldout} - {None}
    lengths = [sum(len(text) for _, text in text_columns(each)) for each in train]
    order = correlation([(float(place), float(length)) for place, length in enumerate(lengths)])
    return DataFacts(len(train), count_duplicates(train)[0], len(held), len(held & prompts), order)


def _peer_score(run: Run, other: Run, facts: Facts) -> float | None:
    """The final score of a run that differs in its seed only."""
    differing = differing_settings([settings_of(run), settings_of(other)])
    values = [] if facts.score is None else facts_of(other).values(facts.score)
    return mean(values[-2:]) if values and set(differing) == {SEED} else None


def _compare(run: Run, other: Run, facts: Facts) -> str:
    """What differs between two runs, in one line."""
    differing = differing_settings([settings_of(run), settings_of(other)])
    keys = ", ".join(
        f"{key} {format_setting(a)} (there {format_setting(b)})"
        for key, (a, b) in differing.items()
    )
    scores = ""
    if facts.score is not None and (values := facts_of(other).values(facts.score)):
        scores = f"; {facts.score} {mean(facts.values(facts.score)[-2:]):.3g} (there {mean(values[-2:]):.3g})"
    return f"{other.path}: {keys or 'the same settings'}{scores}"
