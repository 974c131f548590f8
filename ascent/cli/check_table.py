"""The report of `ascent check`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ascent.api.check import CheckResult


def print_check(found: CheckResult) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for note in found.notes:
        console.print(f"- {note}", markup=False)
    line = Text("first sequence, trained tokens in brackets: ")
    for text, trained in found.sample:
        line.append(f"[{text}]" if trained else text, style="bold green" if trained else "dim")
    console.print(line)
    memory, steps = found.memory, found.steps
    minutes = steps * found.seconds / 60
    parts = {each.name: getattr(memory, each.name) for each in fields(memory)}
    rows = {
        "one optimizer step": f"{found.microbatches} micro-batches, {found.tokens} tokens, {found.trained} trained",
        "loss, gradient norm": f"{found.loss:.4g}, {found.grad_norm:.4g}",
        "time per step": f"{found.seconds:.2f} s here: {steps} steps take about {minutes:.1f} minutes",
        "peak memory": f"{_bytes(memory.total)}: " + ", ".join(f"{k} {_bytes(n)}" for k, n in parts.items() if n),
    }
    for name, value in rows.items():
        console.print(f"{name:<20} {value}", markup=False)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
