"""Training in several processes of this machine: what is refused, and that torchrun does the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.api.launch import resume_in_processes
from ascent.cli.main import refuse_ranks
from ascent.parallel.launch import RanksFailed

CHANGES = [
    "model=tiny:llama",
    "data=arithmetic:64",
    "run.steps=2",
    "run.save_every=1",
    "data.batch_size=8",
]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": [{"prompt": "a", "completion": "b"}]}, r"data\.train"),
        ({"callbacks": print}, "callbacks"),
        ({"recipe": {"algorithm": "sft"}}, "the recipe"),
    ],
)
def test_objects_cannot_go_to_new_processes(given: dict[str, Any], words: str) -> None:
    arguments = {"recipe": "sft", **given}
    with pytest.raises(
        ValueError, match=rf"not Python objects \({words}\); start this script with torchrun"
    ):
        ascent.train(arguments.pop("recipe"), processes=2, **arguments)


def test_other_commands_run_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_ranks(["evaluate", "runs/sft"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_ranks(["train", "sft"])
    with pytest.raises(ValueError, match="WORLD_SIZE=2: evaluate runs in one process"):
        refuse_ranks(["evaluate", "runs/sft"])


def test_a_wrong_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layout='tensor'; use one of auto, replicated, sharded"):
        ascent.train("sft", CHANGES, run=tmp_path / "run", layout="tensor", progress=False)  # type: ignore[arg-type]


@pytest.mark.learning
def test_torchrun_and_processes_end_in_the_same_bits(tmp_path: Path) -> None:
    run = ascent.train(
        "sft", CHANGES, run=tmp_path / "own", processes=2, progress=False, say=lambda line: None
    )
    assert run.state == "finished" and run.environment[-1]["hardware"]["ranks"] == 2
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "--",
        "ascent",
    ]
    words = ["train", "sft", *CHANGES, "--run", str(tmp_path / "torchrun"), "--no-progress"]
    subprocess.run([*torchrun, *words], check=True, timeout=300)
    own, other = (
        json.loads((tmp_path / name / "checkpoints/2/manifest.json").read_text())["files"]
        for name in ("own", "torchrun")
    )
    assert own == other
    with pytest.raises(RanksFailed):  # it is finished
        resume_in_processes(
            tmp_path / "own",
            2,
            accept_changes=False,
            layout="auto",
            progress=False,
            say=lambda line: None,
        )
