"""`ascent diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.completion import run_folders
from ascent.cli.lines import echo
from ascent.cli.options import AsJson, Run, plain_errors

if TYPE_CHECKING:
    from ascent.diagnose.records import Diagnosis, Finding

LONGEST = 100  # characters of a rollout


def diagnose(
    run: Run,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Compare with this run, or the runs of a folder; may be given again.",
            autocompletion=run_folders,
        ),
    ] = None,
    read_data: Annotated[
        bool,
        typer.Option("--read-data/--no-read-data", help="Look for copies and leaks in the data."),
    ] = True,
    write: Annotated[
        bool,
        typer.Option(
            "--write/--no-write", help="Write diagnosis.json and diagnosis.png into the run folder."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Name what went wrong in a run and which keys to change.

    Each finding says since when, how sure it is, and has its evidence: numbers, a plot, three rollouts.
    """
    with plain_errors():
        from ascent.api.diagnose import diagnose_run

        found = diagnose_run(run, against=against or (), read_data=read_data, write=write)
    if as_json:
        typer.echo(found.to_json(), nl=False)
    else:
        print_diagnosis(found)


def print_diagnosis(found: Diagnosis) -> None:
    if not found.failed:
        echo(f"{found.run}: nothing found wrong in {found.step} steps")
    for each in found.findings:
        _print_finding(each)
    for line in found.against:
        echo(f"against {line}", hang=2)
    if found.plot:
        echo(f"plot: {found.plot}")


def _print_finding(each: Finding) -> None:
    since = f", from step {each.began} on" if each.began is not None else ""
    cause = f", follows from {each.follows_from}" if each.follows_from else ""
    echo(f"{each.cause} ({each.certainty}, {each.confidence:.2f}{since}{cause})")
    echo(f"  {each.summary}", hang=2)
    for line in each.evidence:
        echo(f"  - {line}", hang=4)
    for change in each.changes:
        echo(f"  set {change.text()}", hang=4)
    for sample in each.rollouts if each.follows_from is None else ():
        text = f"{sample['prompt']} -> {sample['completion']}"
        echo(f"  step {sample['step']}, reward {sample['reward']}: {text[:LONGEST]!r}", hang=4)
