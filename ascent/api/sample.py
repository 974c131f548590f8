"""Sample completions from a model: `ascent.sample`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascent.records import Message, Prompt
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.setup.generation import Generator


@dataclass(frozen=True)
class SampledText:
    """One completion. `tokens` counts its tokens, `stop` says what ended it."""

    prompt: str
    completion: str
    tokens: int
    stop: str


def sample(
    model: str,
    prompts: Sequence[str],
    *,
    samples: int = 1,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_p: float = 1.0,
    greedy: bool = False,
    seed: int = 0,
    engine: str = "native",
) -> Iterator[SampledText]:
    """Sample completions of plain-text prompts, with the chat template where the model has one.

    model: a run, a model folder or a hub name.
    prompts: what to complete.
    samples: completions of each prompt.
    max_new_tokens: token budget of a completion.
    temperature, top_p: how to sample.
    greedy: take the likeliest token every time.
    seed: the same seed gives the same completions.
    engine: native; vllm or remote (ascent serve), which start a server; or the URLs of servers that have the model.

    Returns an iterator of `SampledText`, in the order of the prompts.

        for each in ascent.sample("runs/sft", ["1+1="], samples=4):
            print(each.completion)
    """
    if isinstance(prompts, str):
        raise ValueError(
            f"prompts is the text {prompts!r:.60}, whose characters would be prompts; give a list of texts"
        )
    prompts = list(prompts)
    if not prompts:
        raise ValueError(
            "sample needs a prompt; give one as an argument, or lines on standard input"
        )
    if samples < 1:
        raise ValueError(f"samples={samples} of each prompt; it must be at least 1")
    asked = [Prompt(str(n), (Message("user", text),)) for n, text in enumerate(prompts)]
    settings = SamplingParams(max_new_tokens, seed, temperature, top_p)
    numbers = [GREEDY] if greedy else range(samples)
    repeats = samples if greedy else 1  # of one greedy completion
    with Generator(model, asked, settings, engine=engine) as generator:
        for rollout, text in zip(
            generator.stream(numbers, noise_key="sample"),
            (text for text in prompts for _ in numbers),
            strict=True,
        ):
            yield from [
                SampledText(text, rollout.text, rollout.length, rollout.turns[-1].completion.stop)
            ] * repeats
