"""Run folders that are written line by line, without training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ascent.runs.folder import RunFolder


def write_run(
    path: Path,
    *,
    steps: int = 3,
    recipe: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
    evaluate_every: int = 0,
    samples: Iterable[tuple[int, Mapping[str, Any]]] = (),
) -> Path:
    content = {
        "format": 2,
        "recipe": {"algorithm": "grpo", "run.steps": 10, **(recipe or {})},
        "inputs": [],
    }
    content |= {"origins": dict(origins or {})}
    text = "# Resolved by ascent 0.1 from grpo; itself a recipe.\nalgorithm: grpo\n"
    with RunFolder.create(
        path, text, {"command": ["ascent"]}, inputs=json.dumps(content), say=lambda line: None
    ) as run:
        for step in range(1, steps + 1):
            heldout = (
                {"eval/reward/correct": step / 10}
                if evaluate_every and step % evaluate_every == 0
                else {}
            )
            run.log(step, {"reward/mean": step / 10, "tokens/run": 100.0, **heldout})
        for step, record in samples:
            run.log_samples(step, [record], of=64)
        run.write(
            "outcome.json",
            json.dumps({"ending": "finished", "step": steps, "message": "", "timestamp": 1.0}),
        )
    return path


def sample(number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": "p",
        "sample": number,
        "prompt": "1+1=",
        "completion": "2",
        "reward": 1.0,
        "parts": {"verifier": 1.0},
        "stop": "eos",
        "advantages": 0.5,
        "tokens": ["2"],
        "logprobs": [-0.25],
        **more,
    }
