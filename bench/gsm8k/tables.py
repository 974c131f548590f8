"""The tables of docs/results/gsm8k.md, line by line."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from settings import PHASES, SEEDS, Settings
from verdict import KINDS, by_step, end_of_sft, interval, is_tested_in_float32, points_of, sft_rates

STEPS = {"bfloat16": (24, 32), "float32": (32,)}  # of the table of RL
DTYPES = tuple(STEPS)
WORDS = {"mean@8": "mean of 8 samples", "greedy": "greedy"}
ROWS = {
    "grpo": "GRPO",
    "rloo": "RLOO",
    "dapo": "DAPO",
    "ppo": "PPO, critic of its own, `lam` .95",
    "ppo_lam1": "PPO, `lam` 1",
}
FROM_MASTERS = ROWS | {
    f"{stage}_low_rate": f"{title}, `1e-5`" for stage, title in ROWS.items() if stage != "ppo"
}
FROM_FILES = {f"{stage}_files": title for stage, title in ROWS.items()}


def tables(found: dict[str, Any]) -> list[str]:
    from_files = rl_table(found, FROM_FILES, DTYPES[:1])
    return [*sft_table(found), *grpo_table(found), *rl_table(found, FROM_MASTERS), *from_files]


def sft_table(found: dict[str, Any]) -> list[str]:
    """Both sides of SFT, in time, memory, losses, and what they end in."""
    names = PHASES[0]
    if not {*names, *(f"test_{name}" for name in names)} <= found.keys():
        return []
    records, rates = [found[name] for name in names], sft_rates(found)
    shown = [place for place in (1, 2, 10, 100, 232) if place <= len(records[0]["steps"])]
    losses = [
        [f"{record['steps'][place - 1]['loss/total']:.3f}" for place in shown] for record in records
    ]
    lines = [
        row(
            f"SFT, {len(records[0]['steps'])} steps",
            (f"{each['seconds']:.1f} s, {each['peak_gb']:.1f} GiB" for each in records),
        ),
        row("SFT, trained tokens per second", (f"{rates[name]:,.0f}" for name in names)),
        row(f"SFT, loss of steps {', '.join(map(str, shown))}", map(", ".join, losses)),
    ]
    ends = [{point["dtype"]: point for point in found[f"test_{name}"]["points"]} for name in names]
    for kind in KINDS:
        for dtype in DTYPES:
            tests = [each[dtype][kind] for each in ends]
            cells = (
                f"{each['value']:.2%} ({each['low']:.2%} to {each['high']:.2%})" for each in tests
            )
            lines.append(row(f"after SFT, test in {dtype}, {WORDS[kind]}", cells))
    return lines


def rl_table(
    found: dict[str, Any], titles: Mapping[str, str], dtypes: tuple[str, ...] = DTYPES
) -> list[str]:
    """SFT, and the rows that are complete: in each dtype the mean over seeds after 24 and 32 steps (in float32 32), the
    seeds, and how many of them end above SFT beyond the intervals over questions; then greedily, and tokens."""
    if "test_sft" not in found:
        return []
    ends, cells = {dtype: end_of_sft(found, dtype) for dtype in dtypes}, []
    for dtype, end in ends.items():
        cells += [f"{end[KINDS[0]]['value']:.2%}", *[""] * (len(STEPS[dtype]) + 1)]
    cells += [f"{ends['bfloat16']['greedy']['value']:.2%}", f"{ends['bfloat16']['tokens']:.1f}"]
    complete = [stage for stage in titles if is_complete(found, stage, dtypes)]
    return [
        row("SFT", cells),
        *(row(titles[stage], rl_cells(found, stage, dtypes)) for stage in complete),
    ]


def is_complete(found: dict[str, Any], stage: str, dtypes: tuple[str, ...]) -> bool:
    all_seeds = all(points_of(found, f"{stage}-{seed}") for seed in SEEDS)
    return all_seeds and ("float32" not in dtypes or is_tested_in_float32(found, stage))


def rl_cells(found: dict[str, Any], stage: str, dtypes: tuple[str, ...]) -> list[str]:
    cells, kind = [], KINDS[0]
    for dtype in dtypes:
        curves = [points_of(found, f"{stage}-{seed}", dtype) for seed in SEEDS]
        last, means = [curve[-1] for curve in curves], by_step(curves, kind)
        cells += [mean(means.get(step)) for step in STEPS[dtype]]
        cells.append(", ".join(f"{each[kind]['value']:.2%}" for each in last))
        cells.append(
            f"{sum(curve[-1][kind]['low'] > curve[0][kind]['high'] for curve in curves)} of {len(curves)}"
        )
    curves = [points_of(found, f"{stage}-{seed}") for seed in SEEDS]
    lengths = ", ".join(f"{curve[-1]['tokens']:.1f}" for curve in curves)
    return [*cells, mean([curve[-1]["greedy"]["value"] for curve in curves]), lengths]


def mean(values: list[float] | None) -> str:
    """With half of the 95% interval over seeds."""
    if values is None:
        return ""
    each = interval(values)
    return f"{each['mean']:.2%} ± {each['half_width']:.2%}"


def row(title: str, cells: Iterable[str]) -> str:
    return (
        " | ".join([f"| {title}", *cells, ""])
        .replace(" |  |", " | |")
        .replace(" |  |", " | |")
        .rstrip()
    )


def grpo_table(found: dict[str, Any]) -> list[str]:
    """Both sides of GRPO, seed by seed and as means over seeds with half of their 95% interval."""
    last = Settings().trl_steps
    sides = [[found.get(f"{stage}-{seed}") for seed in SEEDS] for stage in PHASES[2]]
    curves = [
        [[each for each in record["steps"] if each["step"] <= last] for record in side if record]
        for side in sides
    ]
    if not all(len(side) == len(SEEDS) for side in curves):
        return []

    def listed(values: Iterable[float], end: str) -> str:
        texts = [f"{value:{end}}" for value in values]
        return f"{', '.join(texts[:-1])} and {texts[-1]}"

    seconds = [[[each["seconds"] for each in curve] for curve in side] for side in curves]
    rewards = [
        [statistics.fmean(each["reward/mean"] for each in curve[-8:]) for curve in side]
        for side in curves
    ]
    peaks = [max(record["peak_gb"] for record in side if record) for side in sides]
    lines = [
        row(
            f"GRPO, {last} steps of 512 completions, seeds 1, 2, 3",
            (f"{listed((each[-1] for each in side), '.1f')} s" for side in seconds),
        ),
        row(
            "the first of these steps",
            (f"{listed((each[0] for each in side), '.1f')} s" for side in seconds),
        ),
        row("largest memory of a seed", (f"{peak:.1f} GiB" for peak in peaks)),
        row(
            "reward in training, mean of steps 17 to 24, seeds 1, 2, 3",
            (listed(side, ".4f") for side in rewards),
        ),
    ]
    for kind, steps in ((KINDS[0], (8, 16, 24, 32)), (KINDS[1], (24,))):
        for dtype in DTYPES:
            means = [
                by_step((points_of(found, f"{stage}-{seed}", dtype) for seed in SEEDS), kind)
                for stage in PHASES[2]
            ]
            for step in steps:
                cells = (mean(side.get(step)) for side in means)
                lines.append(row(f"test in {dtype}, {WORDS[kind]}, after {step} steps", cells))
    return lines
