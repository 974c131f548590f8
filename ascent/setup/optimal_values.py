"""The optimal value of every prompt under KL to the reference, V* = beta log mean e^(R / beta), estimated beforehand.

The reference answers every prompt a few times before the first step (A*-PO's first stage). What was found is kept in
the run folder: a resumed run reads it, and answers are sampled again, to the same values, only where it is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ascent.advantages.group_baselines import optimal_values
from ascent.checkpoints import disk
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.batch import pack_rollouts
from ascent.rollouts.generate import RenderedPrompt, RolloutStream, SamplingParams, generate_stream

FILE = "optimal_values.json"
SAMPLES = 8  # answers of the reference to each prompt, as in the paper
PROMPTS_PER_CALL = 256  # prompts sampled at once


def add_optimal_values(
    prompts: Sequence[RenderedPrompt],
    folder: Path,
    sampler: Callable[[], Sampler],
    score: Callable[[RolloutStream], list[Rollout]],
    settings: SamplingParams,
    text: Callable[[Sequence[int]], str],
    *,
    of: str = "",
    ranks: Ranks = SINGLE,
) -> tuple[list[RenderedPrompt], str]:
    """The prompts with their optimal values, and in words where these come from. `sampler` makes the reference's.

    `of` says in words what the values depend on besides the prompts; of something else they are estimated again.
    """
    mark = hashlib.sha256(
        repr((of, [(each.prompt.id, each.tokens) for each in prompts])).encode()
    ).hexdigest()
    file = folder / FILE
    # One answer for all ranks: on a shared file system some may not see the file yet, and would sample alone.
    known = json.loads(file.read_text(encoding="utf-8")) if ranks.is_first and file.exists() else {}
    known = ranks.broadcast(known, "the optimal values")
    values: list[float] = known.get("values", [])
    if known.get("prompts") != mark:
        values, reference = [], sampler()
        for start in range(0, len(prompts), PROMPTS_PER_CALL):
            some = prompts[start : start + PROMPTS_PER_CALL]
            stream = generate_stream(
                reference,
                some,
                range(SAMPLES),
                settings,
                noise_key=f"optimum/{start}",
                decode=text,
                ranks=ranks,
            )
            batch = pack_rollouts(score(stream))
            values += optimal_values(batch["rewards_B"], batch["groups"])[::SAMPLES].tolist()
        if ranks.is_first:
            _write(file, json.dumps({"prompts": mark, "samples": SAMPLES, "values": values}) + "\n")
    note = f"optimal values of {len(values)} prompts from {SAMPLES} answers each of the reference"
    return [
        replace(each, optimal_value=value) for each, value in zip(prompts, values, strict=True)
    ], note


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    writing = file.with_name(f".{file.name}.writing")
    disk.write(writing, text)
    disk.sync(writing)
    disk.rename(writing, file)
