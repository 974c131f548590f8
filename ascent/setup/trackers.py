"""Where a run's numbers and answers go besides its folder and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ascent.plan.resolve import Plan
from ascent.protocols import Tracker
from ascent.runs import eval_diff
from ascent.runs.folder import ANSWERS, ANSWERS_PAGE, RunFolder
from ascent.runs.sample_log import SampleBatch
from ascent.runs.trackers import TensorBoard, WeightsAndBiases
from ascent.setup.offline import Training


def trackers_of(
    plan: Plan, run: RunFolder, training: Training, *, resumed_at: int | None
) -> Iterator[Tracker]:
    """What the recipe asks for, with samples and held-out completions as tables."""
    settings = plan.config.run
    samples, answers = _records(training.samples), _records(training.answers)
    if "tensorboard" in settings.trackers:
        yield TensorBoard(
            run.path / "tensorboard", resumed_at=resumed_at, samples=samples, answers=answers
        )
    if "wandb" in settings.trackers:
        values = plan.config.model_dump(mode="json", exclude_unset=True)
        yield WeightsAndBiases(
            run.path,
            project=settings.project,
            name=run.path.name,
            config=values,
            samples=samples,
            answers=answers,
        )


def _records(
    batch: Callable[[], SampleBatch] | None,
) -> Callable[[], Iterable[Mapping[str, Any]]] | None:
    return None if batch is None else lambda: batch().records


def compared(run: RunFolder) -> list[str]:
    """Answers to held-out prompts before and after, in words; all of them go to a file of the run folder."""
    found = eval_diff.compare(run.history(ANSWERS))
    if found is None:
        return []
    run.write(ANSWERS_PAGE, eval_diff.markdown(found))
    return eval_diff.table(found)
