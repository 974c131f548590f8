"""Train or resume in several processes of this machine. The process that starts them imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.parallel.launch import RanksFailed, ascent_command, launch
from ascent.runs.claim import next_folder
from ascent.runs.folder import CONFIG, Run, read_run

Say = Callable[[str], None]


def train_in_processes(
    recipe: str,
    overrides: Sequence[str],
    processes: int,
    *,
    run: str | Path | None,
    layout: str,
    progress: bool,
    say: Say,
) -> Run:
    """`ascent.train` in so many ranks."""
    folder = Path(run) if run is not None else next_folder(Path(recipe).stem)
    words = ["train", recipe, *overrides, "--run", str(folder), "--layout", layout]
    return _run(words, folder, processes, progress=progress, say=say)


def resume_in_processes(
    run: Path, processes: int, *, accept_changes: bool, layout: str, progress: bool, say: Say
) -> Run:
    """`ascent.resume` in so many ranks."""
    words = ["resume", str(run), "--layout", layout, *(["--accept-changes"] if accept_changes else [])]
    return _run(words, run, processes, progress=progress, say=say)


def refuse_objects(processes: int, recipe: Any, given: Mapping[str, Any], tokenizer: Any, callbacks: Any) -> None:
    """ValueError where something that only this process has would have to be in the others."""
    own = [key for key, value in given.items() if value is not None and not isinstance(value, str)]
    own += ["tokenizer"] * (tokenizer is not None) + ["callbacks"] * bool(callbacks)
    if own or not isinstance(recipe, str | Path):
        raise ValueError(
            f"processes={processes} starts new processes, which get names only, not Python objects "
            f"({', '.join(own) or 'the recipe'}); start this script with torchrun --nproc-per-node {processes} instead"
        )


def _run(words: Sequence[str], folder: Path, processes: int, *, progress: bool, say: Say) -> Run:
    status = launch(ascent_command(*words, *([] if progress else ["--no-progress"])), processes, say=say)
    ended = read_run(folder) if (folder / CONFIG).exists() else None
    if ended is None or (status != 0 and ended.state not in ("stopped", "finished")):
        raise RanksFailed(status or 1)
    return ended
