"""One JSON, tables and plots from the results of bench/gsm8k/run.py.

    python bench/gsm8k/report.py OUT [--alone OUT2] [--write]

--alone: stages that were repeated with nothing beside them on the GPU, for their time.
--write: bench/results/DATE-gsm8k.json and docs/results/gsm8k*.png.

What the study must show is in `verdict`: our seconds to TRL's final accuracy as a share of TRL's, seed by seed, and of
TRL's until it first had that accuracy; whether accuracies at equal steps agree within the seeds' interval; and which
rows end above SFT beyond the 95% intervals. OUT may also be a JSON that was written before.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from settings import CELLS, DPO_CELLS, PHASES, REMEDIES, RL, SEEDED, SEEDS, Settings

from ascent.tasks import TASKS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KINDS = ("mean@8", "greedy")
BEFORE = "grpo_files"  # grpo from the SFT model's bfloat16 files, as rloo, dapo and ppo
T_95 = {2: 12.706, 3: 4.303}  # Student's t, two-sided, by number of seeds


def gather(out: Path, part: str = "results") -> dict[str, Any]:
    if out.is_file():
        return json.loads(out.read_text()).get(part, {})  # type: ignore[no-any-return]
    return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}


def points_of(found: dict[str, Any], name: str, dtype: str = "bfloat16") -> list[dict[str, Any]]:
    """Tests of a stage's models by step, with the seconds of training up to there; the first is SFT's. Those in the
    other dtype where there are none in this one."""
    tested = found[name].get("points") or found.get(f"test_{name}", {}).get("points", []) if name in found else []
    tested = of_dtype(tested, dtype)
    seconds = {row["step"]: row["seconds"] for row in found.get(name, {}).get("steps", [])}
    start = [{**end_of_sft(found, dtype), "step": 0, "seconds": 0.0}] if tested and "test_sft" in found else []
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
            return float(before[1] + (target - before[0]) / (accuracy - before[0]) * (seconds - before[1]))
        before = (accuracy, seconds)
    return None


def interval(values: list[float]) -> dict[str, Any]:
    """Mean over seeds with its 95% interval."""
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5 if len(values) in T_95 else None
    return {"mean": statistics.fmean(values), "half_width": half, "values": values}


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    start = end_of_sft(found) if "test_sft" in found else None
    result = {"start": start, "sft_tokens_per_second": sft_rates(found), "training_reward": training_rewards(found)}
    result |= compare(found, (*SEEDED, BEFORE), "bfloat16")
    both = [stage for stage in (*SEEDED, BEFORE) if is_tested_in_float32(found, stage)]
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
        (low, high) for name in names
        for low, high in zip(points_of(found, name)[1:], points_of(found, name, "float32")[1:], strict=True)
    ]  # fmt: skip
    largest = {kind: max((abs(low[kind]["value"] - high[kind]["value"]) for low, high in pairs), default=0.0)
               for kind in KINDS}  # fmt: skip
    return {"models": len(pairs), **largest}


def compare(found: dict[str, Any], stages: Iterable[str], dtype: str) -> dict[str, Any]:
    """By greedy tests and by means of samples."""
    curves = {stage: {seed: points_of(found, f"{stage}-{seed}", dtype) for seed in SEEDS} for stage in stages}
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
        by_step = {
            stage: {step: interval(values) for step, values in _by_step(own.values(), kind).items()}
            for stage, own in curves.items()
        }
        above = [
            stage for stage in RL
            if stage in curves and any(curves[stage].values()) and all(
                points[-1][kind]["low"] > points[0][kind]["high"] for points in curves[stage].values() if points
            )
        ]  # fmt: skip
        result[kind] = {
            "seconds_to_trl_of_trl": shares, "seconds_to_trl_of_trls_first": first_shares, "accuracy": by_step,
            "above_sft": above,
        }  # fmt: skip
    return result


TITLES = {
    BEFORE: "GRPO", "rloo": "RLOO", "dapo": "DAPO", "ppo": "PPO, critic of its own, `lam` .95",
    "ppo_lam1": "PPO, `lam` 1", "grpo": "GRPO, from float32 masters",
}  # fmt: skip


def rl_table(found: dict[str, Any]) -> list[str]:
    """Lines of docs/results/gsm8k.md, of the rows that are complete: means over seeds after 24 and 32 steps, and every
    seed at the end."""
    if "test_sft" not in found:
        return []
    start, kind = end_of_sft(found), KINDS[0]
    lines = [f"| SFT | {start[kind]['value']:.2%} | | | {start['tokens']:.1f} |"]
    for stage, title in TITLES.items():
        curves = [points_of(found, f"{stage}-{seed}") for seed in SEEDS]
        if not all(curves):
            continue
        by_step = {step: interval(values) for step, values in _by_step(curves, kind).items()}
        means = [f"{by_step[step]['mean']:.2%} ± {by_step[step]['half_width']:.2%}" for step in (24, 32)]
        ends = ", ".join(f"{points[-1][kind]['value']:.2%}" for points in curves)
        lengths = ", ".join(f"{points[-1]['tokens']:.1f}" for points in curves)
        lines.append(f"| {title} | {' | '.join(means)} | {ends} | {lengths} |")
    return lines


def grpo_table(found: dict[str, Any]) -> list[str]:
    """Lines of docs/results/gsm8k.md: both sides of GRPO, seed by seed and as means over seeds with half of their 95%
    interval."""
    last, words = Settings().trl_steps, {"mean@8": "mean of 8 samples", "greedy": "greedy"}
    sides = [[found.get(f"{stage}-{seed}") for seed in SEEDS] for stage in PHASES[2]]
    curves = [[[each for each in record["steps"] if each["step"] <= last] for record in side if record]
              for side in sides]  # fmt: skip
    if not all(len(side) == len(SEEDS) for side in curves):
        return []

    def listed(values: Iterable[float], end: str) -> str:
        texts = [f"{value:{end}}" for value in values]
        return f"{', '.join(texts[:-1])} and {texts[-1]}"

    def row(title: str, cells: Iterable[str]) -> str:
        return f"| {title} | {' | '.join(cells)} |".replace(" |  |", " | |")

    seconds = [[[each["seconds"] for each in curve] for curve in side] for side in curves]
    rewards = [[statistics.fmean(each["reward/mean"] for each in curve[-8:]) for curve in side] for side in curves]
    peaks = [max(record["peak_gb"] for record in side if record) for side in sides]
    lines = [
        row(f"GRPO, {last} steps of 512 completions, seeds 1, 2, 3",
            (f"{listed((each[-1] for each in side), '.1f')} s" for side in seconds)),
        row("the first of these steps", (f"{listed((each[0] for each in side), '.1f')} s" for side in seconds)),
        row("largest memory of a seed", (f"{peak:.1f} GiB" for peak in peaks)),
        row("reward in training, mean of steps 17 to 24, seeds 1, 2, 3", (listed(side, ".4f") for side in rewards)),
    ]  # fmt: skip
    for kind, steps in ((KINDS[0], (8, 16, 24, 32)), (KINDS[1], (24,))):
        for dtype in ("bfloat16", "float32"):
            by_step = [_by_step((points_of(found, f"{stage}-{seed}", dtype) for seed in SEEDS), kind)
                       for stage in PHASES[2]]  # fmt: skip
            for step in steps:
                means = [interval(side[step]) if step in side else None for side in by_step]
                cells = [f"{each['mean']:.2%} ± {each['half_width']:.2%}" if each else "" for each in means]
                lines.append(row(f"test in {dtype}, {words[kind]}, after {step} steps", cells))
    return lines


def training_rewards(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By stage and seed, the mean reward of the last eight steps that both sides take."""
    last = range(Settings().trl_steps - 7, Settings().trl_steps + 1)
    return {
        name: {"rollouts": 8 * Settings().prompts * Settings().group, "mean": statistics.fmean(rewards)}
        for name, record in found.items()
        if (rewards := [row["reward/mean"] for row in record.get("steps", ()) if row["step"] in last
                        and "reward/mean" in row])
    }  # fmt: skip


def sft_rates(found: dict[str, Any]) -> dict[str, float]:
    """Trained tokens per second of both sides. The batches are the same, and TRL does not count them."""
    tokens = sum(row["tokens/trained"] for row in found.get("sft", {}).get("steps", ()))
    return {name: tokens / found[name]["seconds"] for name in PHASES[0] if name in found and tokens}


def _by_step(curves: Iterable[list[dict[str, Any]]], kind: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for points in curves:
        for point in points[1:]:
            found.setdefault(point["step"], []).append(point[kind]["value"])
    return found


def plot(found: dict[str, Any], alone: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    accuracy = partial(_draw_accuracy, alone=alone)
    pictures: dict[str, Callable[..., Any]] = {"gsm8k": accuracy, "gsm8k-losses": _draw_losses}
    if "digest_ppo-0" in found:
        pictures |= {"gsm8k-digest": _draw_digest, "gsm8k-critic-start": _draw_critic_start}
    for name, draw in pictures.items():
        figure = draw(found, pyplot)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=120)
        pyplot.close(figure)


def _draw_accuracy(found: dict[str, Any], pyplot: Any, *, alone: dict[str, Any]) -> Any:
    """By step; by time only those that had the GPU to themselves."""
    timed = {name: record for name, record in found.items() if name.rpartition("-")[0] in PHASES[2]} | alone
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 7), sharey="row")
    for axes, kind in zip(grid, KINDS, strict=True):
        for axis, unit, runs in zip(axes, ("step", "seconds"), (found, timed), strict=True):
            for number, stage in enumerate(SEEDED):
                names = [name for seed in SEEDS if (name := f"{stage}-{seed}") in runs]
                for place, name in enumerate(names):
                    points = points_of(found | runs, name)
                    label = stage.replace("trl_grpo", "TRL's GRPO") if place == 0 else None
                    x, y = [each[unit] for each in points], [each[kind]["value"] for each in points]
                    axis.plot(x, y, color=f"C{number}", marker=".", label=label, alpha=0.8)
            axis.set_xlabel(unit)
        axes[0].set_ylabel(f"test accuracy, {kind}")
    grid[0][0].legend()
    return figure


def _draw_losses(found: dict[str, Any], pyplot: Any) -> Any:
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    curves = [("sft", "sft", "")]
    curves += [("dpo", f"dpo-{cell}", f", {dtype} from {start}") for cell, (dtype, start) in enumerate(DPO_CELLS)]
    titles = dict(zip(("sft", "dpo"), axes, strict=True))
    for number, (title, stage, what) in enumerate(curves):
        for name, label, style in ((stage, "ours", "-"), (f"trl_{stage}", "TRL", "--")):
            rows = [row for row in found.get(name, {}).get("steps", []) if "loss/total" in row]
            x, y = [row["step"] for row in rows], [row["loss/total"] for row in rows]
            titles[title].plot(x, y, style, label=f"{label}{what}", color=f"C{number}", alpha=0.7)
    for title, axis in titles.items():
        axis.set(title=title, xlabel="step", ylabel="loss")
        axis.legend(fontsize=8)
    return figure


def digest_records(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    cells = range(CELLS["digest_ppo"])
    return {cell: found[name] for cell in cells if (name := f"digest_ppo-{cell}") in found}


def _draw_digest(found: dict[str, Any], pyplot: Any) -> Any:
    """The score that PPO maximizes, the utility that is meant, and how far the policy has moved."""
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
    for cell, record in digest_records(found).items():
        if not record["other"]:
            rows = record["steps"]
            for axis, values in zip(axes, digest_curves(rows), strict=True):
                label = f"{record['pairs']} pairs, beta {record['beta']}"
                axis.plot([row["step"] for row in rows], values, color=f"C{cell}", label=label)
    titles = ("score of the reward model", "true utility (at most 2)", "KL from imitation, nats per token")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="step of PPO")
    axes[0].legend()
    return figure


def _draw_critic_start(found: dict[str, Any], pyplot: Any) -> Any:
    """The first steps on the reward model from few pairs, by where the critic starts and what it is for; both seeds."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    shown = [each for each in digest_records(found).values() if (each["pairs"], each["beta"]) == ("few", 0.1)]
    for record in shown:
        other = {key: value for key, value in record["other"].items() if key != "seed"}
        color, rows = f"C{[{}, *REMEDIES].index(other)}", record["steps"][:40]
        label = ", ".join(f"{key} {value}" for key, value in other.items()) or "the critic starts as the reward model"
        for axis, name in zip(axes, ("reward/mean", "completion/length_mean"), strict=True):
            style = {"color": color, "alpha": 0.8} | ({} if "seed" in record["other"] else {"label": label})
            axis.plot([row["step"] for row in rows], [row[name] for row in rows], **style)
    for axis, title in zip(axes, ("score of the reward model", "tokens per completion"), strict=True):
        axis.set(title=title, xlabel="step of PPO")
    axes[0].legend(fontsize=8)
    return figure


def digest_curves(rows: list[dict[str, Any]]) -> tuple[list[float], list[float], list[float]]:
    """Proxy, truth and KL by step, of the sampled summaries that were trained on. KL is the mean log-ratio where it was
    kept: in k3 a single token can be all of it."""
    weights = TASKS["digest_drafts"].utility.items()
    truth = [sum(weight * row[f"reward/verifier/{part}"] for part, weight in weights) for row in rows]
    kl = [row.get("policy/ref_kl_k1", row["policy/ref_kl"]) for row in rows]
    return [row["reward/mean"] for row in rows], truth, kl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--alone", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found, repeated = gather(given.out), given.out.is_file()
    alone = gather(given.alone) if given.alone else gather(given.out, "alone") if repeated else {}
    result = verdict(found)
    print(json.dumps(result, indent=1))
    print("\n".join([*grpo_table(found), *rl_table(found)]))
    today = datetime.date.today().isoformat()
    if given.write:
        command = "python bench/gsm8k/run.py, then python bench/gsm8k/report.py OUT --write"
        record = {"study": "gsm8k", "date": today, "command": command, **result}
        path = ROOT / "bench/results" / f"{today}-gsm8k.json"
        path.write_text(json.dumps({**record, "results": found, "alone": alone}, indent=1) + "\n")
    plot(found, alone, ROOT / "docs/results" if given.write else given.out.parent if repeated else given.out)


if __name__ == "__main__":
    main()
