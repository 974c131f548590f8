"""What `ascent check` found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ascent.build import Plan
    from ascent.build.check import Checked


def print_checked(found: Checked, plan: Plan) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for note in found.notes:
        console.print(f"- {note}", markup=False)
    line = Text("first sequence, trained tokens in brackets: ")
    for text, trained in found.sample:
        line.append(f"[{text}]" if trained else text, style="bold green" if trained else "dim")
    console.print(line)
    table = Table(box=None, show_header=False)
    memory, steps = found.memory, plan.config.run.steps
    parts = ("weights", "gradients", "masters", "moments", "activations", "logits")
    rows = {
        "one optimizer step": f"{found.microbatches} micro-batches, {found.tokens} tokens, {found.trained} trained",
        "loss, gradient norm": f"{found.loss:.4g}, {found.grad_norm:.4g}",
        "time of that step": f"{found.seconds:.2f} s here, the first step included what happens only once",
        "steps": f"{steps}: about {steps * found.seconds / 60:.1f} minutes at that pace",
        "peak memory": f"{_bytes(memory.total)}: " + ", ".join(f"{p} {_bytes(getattr(memory, p))}" for p in parts),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
