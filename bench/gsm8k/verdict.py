"""What the study must show, from its results: `verdict`.

Our seconds to TRL's final accuracy as a share of TRL's, seed by seed, and of TRL's until it first had that accuracy;
whether accuracies at equal steps agree within the seeds' interval; and which stages end above SFT beyond the 95%
intervals.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from settings import PHASES, SEEDED, SEEDS, Settings

KINDS = ("mean@8", "greedy")
FILES = (
    "grpo_files",
    "rloo_files",
    "dapo_files",
    "ppo_files",
    "ppo_lam1_files",
)  # of before: settings.py says how
T_95 = {2: 12.706, 3: 4.303}  # Student's t, two-sided, by number of seeds


def points_of(found: dict[str, Any], name: str, dtype: str = "bfloat16") -> list[dict[str, Any]]:
    """Tests of a stage's models by step, with the seconds of training up to there; the first is SFT's. Those in the
    other dtype where there are none in this one."""
    tested = (
        found[name].get("points") or found.get(f"test_{name}", {}).get("points", [])
        if name in found
        else []
    )
    tested = of_dtype(tested, dtype)
    seconds = {row["step"]: row["seconds"] for row in found.get(name, {}).get("steps", [])}
    start = (
        [{**end_of_sft(found, dtype), "step": 0, "seconds": 0.0}]
        if tested and "test_sft" in found
        else []
    )
    return [*start, *({**point, "seconds": seconds[point["step"]]} for point in tested)]


def of_dtype(points: list[dict[str, Any]], dtype: str) -> list[dict[str, Any]]:
    return [each for each in points if each["dtype"] == dtype] or points


def end_of_sft(found: dict[str, Any], dtype: str = "bfloat16") -> dict[str, Any]:
    return of_dtype(found["test_sft"]["points"], dtype)[-1]


def seconds_to(points: list[dict[str, Any]], target: float, kind: str) -> float | None:
    """Seconds of training until the accuracy is first reached, between two points by a straight line."""
    before: tuple[float, float] | None = None
    for point in points:
        accuracy, seconds = point[kind]["value"], point["seconds"]
        if accuracy >= target:
            if before is None or accuracy == before[0]:
                return float(seconds)
            return float(
                before[1] + (target - before[0]) / (accuracy - before[0]) * (seconds - before[1])
            )
        before = (accuracy, seconds)
    return None


def interval(values: list[float]) -> dict[str, Any]:
    """Mean over seeds with its 95% interval."""
    half = (
        T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
        if len(values) in T_95
        else None
    )
    return {"mean": statistics.fmean(values), "half_width": half, "values": values}


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    start = end_of_sft(found) if "test_sft" in found else None
    result = {
        "start": start,
        "sft_tokens_per_second": sft_rates(found),
        "training_reward": training_rewards(found),
    }
    result |= compare(found, (*SEEDED, *FILES), "bfloat16")
    both = [stage for stage in (*SEEDED, *FILES) if is_tested_in_float32(found, stage)]
    if set(PHASES[2]) <= set(both):
        result["float32"] = compare(found, both, "float32")
        result["between_dtypes"] = between_dtypes(found, both)
    return result


def is_tested_in_float32(found: dict[str, Any], stage: str) -> bool:
    """Every seed, or its figures would be those of another dtype in part."""
    curves = [points_of(found, f"{stage}-{seed}", "float32")[1:] for seed in SEEDS]
    return any(curves) and all(point["dtype"] == "float32" for curve in curves for point in curve)


def between_dtypes(found: dict[str, Any], stages: Iterable[str]) -> dict[str, float]:
    """Models that are tested in both dtypes: the largest differences."""
    names = [f"{stage}-{seed}" for stage in stages for seed in SEEDS]
    pairs = [
        (low, high)
        for name in names
        for low, high in zip(
            points_of(found, name)[1:], points_of(found, name, "float32")[1:], strict=True
        )
    ]
    largest = {
        kind: max(
            (abs(low[kind]["value"] - high[kind]["value"]) for low, high in pairs), default=0.0
        )
        for kind in KINDS
    }
    return {"models": len(pairs), **largest}


def compare(found: dict[str, Any], stages: Iterable[str], dtype: str) -> dict[str, Any]:
    """By greedy tests and by means of samples."""
    curves = {
        stage: {seed: points_of(found, f"{stage}-{seed}", dtype) for seed in SEEDS}
        for stage in stages
    }
    result: dict[str, Any] = {}
    for kind in KINDS:
        shares, first_shares = {}, {}
        for seed in SEEDS:
            ours, theirs = curves["grpo"][seed], curves["trl_grpo"][seed]
            if ours and theirs:
                target = theirs[-1][kind]["value"]
                reached, first = seconds_to(ours, target, kind), seconds_to(theirs, target, kind)
                shares[seed] = None if reached is None else reached / theirs[-1]["seconds"]
                first_shares[seed] = reached / first if reached is not None and first else None
        accuracy = {
            stage: {step: interval(values) for step, values in by_step(own.values(), kind).items()}
            for stage, own in curves.items()
        }
        above = [
            stage
            for stage, own in curves.items()
            if any(own.values())
            and all(
                points[-1][kind]["low"] > points[0][kind]["high"]
                for points in own.values()
                if points
            )
        ]
        result[kind] = {
            "seconds_to_trl_of_trl": shares,
            "seconds_to_trl_of_trls_first": first_shares,
            "accuracy": accuracy,
            "above_sft": above,
        }
    return result


def training_rewards(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By stage and seed, the mean reward of the last eight steps that both sides take."""
    last = range(Settings().trl_steps - 7, Settings().trl_steps + 1)
    return {
        name: {
            "rollouts": 8 * Settings().prompts * Settings().group,
            "mean": statistics.fmean(rewards),
        }
        for name, record in found.items()
        if (
            rewards := [
                row["reward/mean"]
                for row in record.get("steps", ())
                if row["step"] in last and "reward/mean" in row
            ]
        )
    }


def sft_rates(found: dict[str, Any]) -> dict[str, float]:
    """Trained tokens per second of both sides. The batches are the same, and TRL does not count them."""
    tokens = sum(row["tokens/trained"] for row in found.get("sft", {}).get("steps", ()))
    return {name: tokens / found[name]["seconds"] for name in PHASES[0] if name in found and tokens}


def by_step(curves: Iterable[list[dict[str, Any]]], kind: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for points in curves:
        for point in points[1:]:
            found.setdefault(point["step"], []).append(point[kind]["value"])
    return found
