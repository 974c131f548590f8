"""Speed of the pure functions on a CPU: GRPO advantages for 65,536 sequences, GAE over 4 million packed tokens.

    python bench/maths.py [--write]

Prints the median and the spread of nine runs after one warm-up; --write keeps them as dated JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ascent.advantages import group_baselines, normalize, returns
from ascent.algorithms import TABLE
from ascent.losses.objective import policy_terms
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

RUNS = 9
LIMITS_MS = {
    "grpo advantages, 65536 sequences in groups of 16": 10.0,
    "gae, 4 million packed tokens": 400.0,
}


def timed(call: Callable[[], object]) -> list[float]:
    call()
    milliseconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return milliseconds


def measure() -> dict[str, list[float]]:
    rng = torch.Generator().manual_seed(0)
    ids = torch.arange(65_536) // 16
    rewards = torch.rand(65_536, generator=rng).round()

    def advantages(groups: Groups) -> torch.Tensor:
        return normalize.group_std(
            group_baselines.group_mean_baseline(rewards, groups).advantages_B, rewards, groups
        )

    known = Groups.from_ids(ids)
    segments = Segments.from_lengths(torch.randint(1, 2048, (3907,), generator=rng))
    trained = torch.ones(segments.total, dtype=torch.bool)
    holes = torch.rand(segments.total, generator=rng) < 0.8
    token_rewards, values, logprobs = torch.randn(3, segments.total, generator=rng)
    row = TABLE["grpo"]
    assert row.rollout_correction and row.ratio and row.policy_loss and row.aggregation
    batch = {
        "segments": segments,
        "loss_mask_T": trained,
        "old_logprobs_T": values,
        "ref_logprobs_T": token_rewards,
    }
    batch |= {"logprobs_T": logprobs.requires_grad_(), "advantages_T": token_rewards}

    def loss() -> None:
        terms = policy_terms(
            batch,
            rollout_correction=row.rollout_correction,
            ratio=row.ratio,
            policy_loss=row.policy_loss,
            aggregation=row.aggregation,
            kl=row.kl,
        )
        (terms["policy"].numerator + terms["kl"].numerator).backward()

    return {
        "grpo advantages, 65536 sequences in groups of 16": timed(lambda: advantages(known)),
        "the same, numbering the groups included": timed(lambda: advantages(Groups.from_ids(ids))),
        "gae, 4 million packed tokens": timed(
            lambda: returns.gae(token_rewards, values, trained, segments)
        ),
        "gae, 4 million tokens, a fifth of them observations": timed(
            lambda: returns.gae(token_rewards, values, holes, segments)
        ),
        "grpo loss with KL, forward and backward, 4 million tokens": timed(loss),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the result in bench/results")
    write = parser.parse_args().write
    found = measure()
    rows = [
        {
            "what": name,
            "median_ms": statistics.median(ms),
            "min_ms": min(ms),
            "max_ms": max(ms),
            "limit_ms": LIMITS_MS.get(name),
        }
        for name, ms in found.items()
    ]
    for row in rows:
        limit = f"   limit {row['limit_ms']:.0f}" if row["limit_ms"] else ""
        print(
            f"{row['what']:<60} median {row['median_ms']:8.2f} ms   {row['min_ms']:.2f} - {row['max_ms']:.2f}{limit}"
        )
    if write:
        record = {
            "date": datetime.date.today().isoformat(),
            "command": "python bench/maths.py --write",
            "runs": RUNS,
            "hardware": f"{platform.machine()} CPU, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "results": rows,
        }
        path = Path(__file__).parent / "results" / f"{record['date']}-maths.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
