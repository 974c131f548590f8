"""Samples of a run on a terminal, each token colored by its advantage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ascent.cli.console import make_console, print_text

Sample = Mapping[str, Any]
DARKEST, BRIGHTEST = 60, 175  # of the background's channel, so that light text stays readable
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
CONTROLS |= {0x7F: "\u2421"} | {code: "\ufffd" for code in range(0x80, 0xA0)}


def print_samples(samples: Sequence[Sample], limit: int) -> None:
    """Print the first `limit`, all on one color scale."""
    console = make_console()
    shown = samples[:limit]
    largest = max((abs(value) for each in shown for value in advantages(each) or ()), default=0.0)
    for each in shown:
        print_sample(console, each, largest)
    if len(samples) > limit:
        print_text(console, f"{limit} of {len(samples)}; --limit shows more")


def omission_note(samples: Sequence[Sample], step: int) -> str:
    """A note where not all samples of a step were kept; empty otherwise."""
    kept = [each for each in samples if each["step"] == step]
    if not kept or len(kept) == kept[0]["of"]:
        return ""
    return f"of step {step}, {len(kept)} of {kept[0]['of']} samples were kept: a step keeps what fits into its budget"


def select_samples(
    samples: Sequence[Sample], *, step: int | None, best: bool, worst: bool, prompt: str | None
) -> list[Sample]:
    """Filter and sort samples; without any option, those of the last step."""
    if best and worst:
        raise ValueError("--best and --worst are two orders; choose one")
    found = list(samples)
    if step is None and not (best or worst or prompt is not None):
        step = found[-1]["step"]
    if step is not None:
        found = [each for each in found if each["step"] == step]
        if not found:
            steps = sorted({each["step"] for each in samples})
            raise ValueError(
                f"no sample of step {step}; there are some of steps {steps[0]} to {steps[-1]}"
            )
    if prompt is not None:
        found = [each for each in found if prompt in each["prompt"]]
        if not found:
            raise ValueError(f"no kept sample has {prompt!r} in its prompt")
    if best or worst:
        scored = [each for each in found if each["reward"] is not None]
        found = sorted(scored, key=lambda each: -each["reward"] if best else each["reward"])
    return found


def advantages(sample: Sample) -> list[float] | None:
    """One for every token; None where the sample was not trained on."""
    found = sample["advantages"]
    if found is None:
        return None
    return list(found) if isinstance(found, list) else [float(found)] * len(sample["tokens"])


def color_tokens(sample: Sample, largest: float) -> Text:
    """The tokens as sampled, special ones included, each on the color of its advantage."""
    text = Text()
    values = advantages(sample)
    for place, token in enumerate(sample["tokens"]):
        style = "dim" if values is None else background(values[place], largest)
        text.append(escape_controls(token).replace("\n", "␊\n"), style=style)
    return text


def escape_controls(text: str) -> str:
    """Control characters as symbols, except newlines and tabs: model output must not control the terminal."""
    return text.translate(CONTROLS)


def background(advantage: float, largest: float) -> str:
    """Green above 0, red below, brighter for larger values; none for 0."""
    if advantage == 0 or largest == 0:
        return ""
    depth = round(DARKEST + (BRIGHTEST - DARKEST) * min(abs(advantage) / largest, 1.0))
    return f"white on rgb(0,{depth},0)" if advantage > 0 else f"white on rgb({depth},0,0)"


def print_sample(console: Console, sample: Sample, largest: float) -> None:
    parts = "  ".join(f"{name} {_number(value)}" for name, value in sample["parts"].items())
    head = f"step {sample['step']}, sample {sample['sample']}: reward {_number(sample['reward'])}"
    tail = [f"({parts})"] if parts else []
    tail += [
        f"ended by {sample['stop']} after {len(sample['tokens'])} tokens",
        _advantage_text(sample),
    ]
    print_text(console, Text.assemble((head, "bold"), f"  {'  '.join(tail)}"))
    print_text(console, escape_controls(sample["prompt"]), "cyan")
    print_text(console, color_tokens(sample, largest))
    print_text(console)


def _advantage_text(sample: Sample) -> str:
    values = advantages(sample)
    if values is None:
        return "not trained on"
    low, high = min(values), max(values)
    return f"advantage {low:.3g}" if low == high else f"advantages {low:.3g} to {high:.3g}"


def _number(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.4g}"
