"""What a run keeps besides metrics: within a budget, with one history, without repeating itself after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascent.runs.folder import RunFolder, read_run
from ascent.runs.sample_log import EvalTracker, SampleBatch, SampleTracker, WarningTracker

CUT = {"completion/truncated_frac": 0.9}


def created(path: Path) -> RunFolder:
    return RunFolder.create(path, "algorithm: grpo\n", {"python": "3.11"}, say=lambda text: None)


def reopened(path: Path, step: int) -> RunFolder:
    return RunFolder.reopen(path, step, {"python": "3.11"}, say=lambda text: None)


def test_samples_that_do_not_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    made: list[int] = []

    def records() -> Iterator[dict[str, Any]]:
        for number in range(1000):
            made.append(number)
            yield {"text": "x" * 1000, "number": number}

    with created(tmp_path / "run") as run:
        kept = run.log_samples(3, records(), of=1000, budget=10_000)
    samples = read_run(tmp_path / "run").samples
    assert [each["number"] for each in samples] == list(range(kept))
    assert kept == 9 and len(made) == 10  # nothing was made that could not be kept
    assert {each["of"] for each in samples} == {1000}
    assert (tmp_path / "run/samples.jsonl").stat().st_size <= 10_000


def test_one_sample_is_kept_whatever_its_size(tmp_path: Path) -> None:
    with created(tmp_path / "run") as run:
        assert run.log_samples(1, [{"text": "x" * 100}, {"text": "y"}], of=2, budget=10) == 1


def test_every_step_has_samples_and_every_evaluation_answers(tmp_path: Path) -> None:
    with created(tmp_path / "run") as run:
        samples = SampleTracker(run, lambda: SampleBatch(iter([{"a": 1}]), 1))
        answers = EvalTracker(run, lambda: SampleBatch(iter([{"place": 0}]), 1))
        for step, metrics in enumerate(
            [{"eval/reward/mean": 0.0}, {"reward/mean": 1.0}, {"eval/reward/mean": 1.0}]
        ):
            samples.log(step, metrics)
            answers.log(step, metrics)
    found = read_run(tmp_path / "run")
    assert [each["step"] for each in found.samples] == [0, 1, 2]
    assert found.answers == [{"step": 0, "place": 0, "of": 1}, {"step": 2, "place": 0, "of": 1}]


def test_a_resumed_run_drops_what_came_later_to_the_same_bytes(tmp_path: Path) -> None:
    def work(run: RunFolder, steps: range) -> None:
        for step in steps:
            run.log_samples(step, [{"x": [0.1234, -5.0], "text": "ü"}], of=1)
            run.log_answers(step, [{"place": step}], of=1)
            run.log_warning(step, {"name": "n", "why": "w"})

    for name in ("one", "two"):
        with created(tmp_path / name) as run:
            work(run, range(6) if name == "one" else range(9))
    with reopened(tmp_path / "two", 3) as run:
        work(run, range(4, 6))
    for file in ("samples.jsonl", "answers.jsonl", "warnings.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    with reopened(
        tmp_path / "two", 0
    ):  # from the start again, with what comes before the first step
        pass
    assert read_run(tmp_path / "two").answers == []


def test_warnings_are_told_once_also_across_a_resume(tmp_path: Path) -> None:
    said: list[str] = []

    def work(run: RunFolder, steps: range) -> None:
        warnings = WarningTracker(run, said.append)
        for step in steps:
            run.log(step, CUT)
            warnings.log(step, CUT)

    with created(tmp_path / "run") as run:
        work(run, range(1, 8))
    with reopened(tmp_path / "run", 5) as run:
        work(run, range(6, 12))
    assert len(said) == 1
    (kept,) = read_run(tmp_path / "run").warnings
    assert (kept["step"], kept["name"], kept["value"]) == (3, "truncation", 0.9)
    with reopened(tmp_path / "run", 2) as run:  # before it was told: it is told again
        work(run, range(3, 6))
    assert len(said) == 2 and len(read_run(tmp_path / "run").warnings) == 1


def test_complaints_of_others_are_kept_too(tmp_path: Path) -> None:
    said, waiting = [], [["reward short: unscored (raised)"], []]
    with created(tmp_path / "run") as run:
        warnings = WarningTracker(run, said.append, lambda: waiting.pop(0))
        warnings.log(1, {})
        warnings.log(2, {})
    assert said == ["warning reward_failed (step 1): reward short: unscored (raised)"]
    assert [each["name"] for each in read_run(tmp_path / "run").warnings] == ["reward_failed"]
