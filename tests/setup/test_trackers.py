"""A run's samples and held-out answers reach the trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

import ascent


@pytest.mark.filterwarnings("ignore")  # TensorBoard's reader warns about its own dependencies
def test_tensorboard_has_the_samples_of_a_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "rewards": [{"use": "verifier"}],
        "data": {"train": "sort_digits:8", "evaluate": "sort_digits@heldout:2"},
        "rollouts": {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4},
        "run": {"steps": 1, "evaluate_every": 1, "trackers": ["tensorboard"]},
    }
    run = ascent.train(recipe, run=tmp_path / "run", progress=False, say=lambda text: None)
    reader = EventAccumulator(str(tmp_path / "run/tensorboard"))
    reader.Reload()
    (samples,) = [event.tensor_proto.string_val[0].decode() for event in reader.Tensors("samples")]
    head, _, *rows = samples.splitlines()
    assert len(rows) == 4 == len(run.samples) and "| verifier/digits |" in head
    assert all(each["prompt"] in row for each, row in zip(run.samples, rows, strict=True))
    assert [event.step for event in reader.Tensors("answers")] == [0, 1]
