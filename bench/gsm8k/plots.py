"""The plots of docs/results/gsm8k.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from settings import CELLS, DPO_CELLS, PHASES, REMEDIES, RL, SEEDS
from verdict import KINDS, points_of

from ascent.tasks import TASKS

SHOWN = (*RL, "ppo_lam1", "trl_grpo")


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
    """Seeds thin, their mean thick. By step; by time only those that had the GPU to themselves, dashed if they started
    from bfloat16 files."""
    timed = {
        name: record for name, record in found.items() if name.rpartition("-")[0] in PHASES[2]
    } | alone
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 7), sharey="row")
    for axes, kind in zip(grid, KINDS, strict=True):
        for axis, unit, runs in zip(axes, ("step", "seconds"), (found, timed), strict=True):
            for color, stage in enumerate(SHOWN):
                files = unit == "seconds" and stage not in PHASES[2]
                names = [
                    name for seed in SEEDS if (name := f"{stage}{'_files' * files}-{seed}") in runs
                ]
                curves = [points_of(found | runs, name) for name in names]
                xs = [[each[unit] for each in points] for points in curves]
                ys = [[each[kind]["value"] for each in points] for points in curves]
                style = {"color": f"C{color}", "linestyle": "--" if files else "-"}
                for x, y in zip(xs, ys, strict=True):
                    axis.plot(x, y, **style, alpha=0.3, linewidth=0.8)
                label = stage.replace("trl_grpo", "TRL's GRPO")
                x, y = (list(map(fmean, zip(*each, strict=True))) for each in (xs, ys))
                axis.plot(x, y, **style, marker=".", linewidth=2, label=label)
            axis.set_xlabel(unit)
        axes[0].set_ylabel(f"test accuracy, {kind}")
    grid[0][0].legend()
    return figure


def _draw_losses(found: dict[str, Any], pyplot: Any) -> Any:
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    curves = [("sft", "sft", "")]
    curves += [
        ("dpo", f"dpo-{cell}", f", {dtype} from {start}")
        for cell, (dtype, start) in enumerate(DPO_CELLS)
    ]
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
    titles = (
        "score of the reward model",
        "true utility (at most 2)",
        "KL from imitation, nats per token",
    )
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="step of PPO")
    axes[0].legend()
    return figure


def _draw_critic_start(found: dict[str, Any], pyplot: Any) -> Any:
    """The first steps on the reward model from few pairs, by where the critic starts and what it is for; both seeds."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    shown = [
        each
        for each in digest_records(found).values()
        if (each["pairs"], each["beta"]) == ("few", 0.1)
    ]
    for record in shown:
        other = {key: value for key, value in record["other"].items() if key != "seed"}
        color, rows = f"C{[{}, *REMEDIES].index(other)}", record["steps"][:40]
        label = (
            ", ".join(f"{key} {value}" for key, value in other.items())
            or "the critic starts as the reward model"
        )
        for axis, name in zip(axes, ("reward/mean", "completion/length_mean"), strict=True):
            style = {"color": color, "alpha": 0.8} | (
                {} if "seed" in record["other"] else {"label": label}
            )
            axis.plot([row["step"] for row in rows], [row[name] for row in rows], **style)
    for axis, title in zip(
        axes, ("score of the reward model", "tokens per completion"), strict=True
    ):
        axis.set(title=title, xlabel="step of PPO")
    axes[0].legend(fontsize=8)
    return figure


def digest_curves(rows: list[dict[str, Any]]) -> tuple[list[float], list[float], list[float]]:
    """Proxy, truth and KL by step, of the sampled summaries that were trained on. KL is the mean log-ratio where it was
    kept: in k3 a single token can be all of it."""
    weights = TASKS["digest_drafts"].utility.items()
    truth = [
        sum(weight * row[f"reward/verifier/{part}"] for part, weight in weights) for row in rows
    ]
    kl = [row.get("policy/ref_kl_k1", row["policy/ref_kl"]) for row in rows]
    return [row["reward/mean"] for row in rows], truth, kl
