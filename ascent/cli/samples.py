"""What a policy said in training, on a terminal: its tokens colored by what was learnt from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

Sample = Mapping[str, Any]
DARKEST, BRIGHTEST = 60, 175  # of the background's channel, so that light text stays readable
PIPE_WIDTH = 500


def print_samples(found: Sequence[Sample], limit: int) -> None:
    """The first of them, in colors of one scale."""
    console = Console()
    console = console if console.is_terminal else Console(width=PIPE_WIDTH)
    shown = found[:limit]
    largest = max((abs(value) for each in shown for value in advantages(each) or ()), default=0.0)
    for each in shown:
        print_one(console, each, largest)
    if len(found) > limit:
        console.print(f"{limit} of {len(found)}; --limit shows more", highlight=False)


def left_out(samples: Sequence[Sample], step: int) -> str:
    """A sentence where not all samples of a step were kept."""
    there = [each for each in samples if each["step"] == step]
    if not there or len(there) == there[0]["of"]:
        return ""
    return f"of step {step}, {len(there)} of {there[0]['of']} samples were kept: a step keeps what fits into its budget"


def chosen(samples: Sequence[Sample], *, step: int | None, best: bool, worst: bool, prompt: str | None) -> list[Sample]:
    """The samples asked for, in the order asked for. With no wish, those of the last step."""
    if best and worst:
        raise ValueError("--best and --worst are two orders; choose one")
    found = list(samples)
    if step is None and not (best or worst or prompt is not None):
        step = found[-1]["step"]
    if step is not None:
        found = [each for each in found if each["step"] == step]
        if not found:
            steps = sorted({each["step"] for each in samples})
            raise ValueError(f"no sample of step {step}; there are some of steps {steps[0]} to {steps[-1]}")
    if prompt is not None:
        found = [each for each in found if prompt in each["prompt"]]
        if not found:
            raise ValueError(f"no kept sample has {prompt!r} in its prompt")
    if best or worst:
        scored = [each for each in found if each["reward"] is not None]
        found = sorted(scored, key=lambda each: -each["reward"] if best else each["reward"])
    return found


def advantages(sample: Sample) -> list[float] | None:
    """One for every token; None where nothing was learnt from the sample."""
    found = sample["advantages"]
    if found is None:
        return None
    return list(found) if isinstance(found, list) else [float(found)] * len(sample["tokens"])


def colored(sample: Sample, largest: float) -> Text:
    """The tokens as they were sampled, special ones too, behind each the color of its advantage."""
    text = Text()
    values = advantages(sample)
    for place, token in enumerate(sample["tokens"]):
        style = "dim" if values is None else background(values[place], largest)
        text.append(visible(token), style=style)
    return text


def visible(text: str) -> str:
    """Control characters as pictures, so that no policy can drive a terminal; a new line keeps its effect too."""
    return "".join(chr(0x2400 + ord(each)) if each < " " else each for each in text).replace("␊", "␊\n")


def background(advantage: float, largest: float) -> str:
    """Green above 0, red below, brighter the larger; nothing for exactly 0."""
    if advantage == 0 or largest == 0:
        return ""
    depth = round(DARKEST + (BRIGHTEST - DARKEST) * min(abs(advantage) / largest, 1.0))
    return f"white on rgb(0,{depth},0)" if advantage > 0 else f"white on rgb({depth},0,0)"


def print_one(console: Console, sample: Sample, largest: float) -> None:
    parts = "  ".join(f"{name} {_number(value)}" for name, value in sample["parts"].items())
    head = f"step {sample['step']}, sample {sample['sample']}: reward {_number(sample['reward'])}"
    tail = [f"({parts})"] if parts else []
    tail += [f"ended by {sample['stop']} after {len(sample['tokens'])} tokens", _learnt(sample)]
    console.print(f"[bold]{escape(head)}[/]  {escape('  '.join(tail))}", highlight=False)
    console.print(Text(visible(sample["prompt"]).replace("␊", ""), style="cyan"))
    console.print(colored(sample, largest))
    console.print()


def _learnt(sample: Sample) -> str:
    values = advantages(sample)
    if values is None:
        return "not learnt from"
    low, high = min(values), max(values)
    return f"advantage {low:.3g}" if low == high else f"advantages {low:.3g} to {high:.3g}"


def _number(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.4g}"
