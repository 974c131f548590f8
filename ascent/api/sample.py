"""Sample completions from a model: `ascent.sample`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.models.load import load
from ascent.records import Completion, Message, Request
from ascent.setup.policy import device


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
) -> Iterator[SampledText]:
    """Sample completions of plain-text prompts, with the chat template where the model has one.

    model: a run, a model folder or a hub name.
    prompts: what to complete.
    samples: completions of each prompt.
    max_new_tokens: token budget of a completion.
    temperature, top_p: how to sample.
    greedy: take the likeliest token every time.
    seed: the same seed gives the same completions.

    Returns an iterator of `SampledText`, in the order of the prompts.

        for each in ascent.sample("runs/sft", ["1+1="], samples=4):
            print(each.completion)
    """
    if not prompts:
        raise ValueError("sample needs a prompt; give one as an argument, or lines on standard input")
    policy = load(model, device=device())
    policy.eval()
    renderer = Renderer(policy.tokenizer, train_on="completion")
    requests = [
        Request(str(n), k, renderer.prompt((Message("user", text),)), max_new_tokens, seed, temperature, top_p, greedy)
        for n, text in enumerate(prompts)
        for k in range(samples)
    ]
    longest = max(len(request.tokens) for request in requests) + max_new_tokens
    engine = NativeEngine(policy, renderer.stop_ids, max_model_len=longest)
    keys = iter([(request.prompt_id, request.sample) for request in requests])
    ready: dict[tuple[str, int], Completion] = {}
    key = next(keys, None)
    for completion in engine.sample(requests):
        ready[completion.prompt_id, completion.sample] = completion
        while key in ready:
            done = ready.pop(key)
            text = str(policy.tokenizer.decode(list(done.tokens), skip_special_tokens=True))
            yield SampledText(prompts[int(done.prompt_id)], text, len(done.tokens), done.stop)
            key = next(keys, None)
