"""Bodies of the OpenAI protocol -> requests of the engine. Whatever would be ignored silently is refused.

Beyond the protocol, as vLLM: `top_k`, `min_p`, `min_tokens`, `stop_token_ids`, `ignore_eos`, `skip_special_tokens`,
`return_token_ids`, `return_tokens_as_token_ids`. Ours alone: `prompt_id` and `sample`, which with `seed` determine the
random numbers, so that a server samples the tokens that the engine would sample in the client's process; and
`return_text`, which may be false for a client that reads token ids and their log-probs alone.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from ascent.data.render import Renderer
from ascent.records import Message, Request
from ascent.records.rollouts import Role

MAX_CHOICES, MAX_REQUESTS, MAX_TOP_LOGPROBS, MAX_STOPS = 128, 1024, 20, 16
COMPLETION_TOKENS = 16  # the protocol's default; a chat runs to the end of the context
MAX_INT = 2**63 - 1
# Accepted and without effect on the answer.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Accepted with the value that changes nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (None, 0)),
    **dict.fromkeys(("logit_bias", "tools", "functions", "stop_sequences"), (None, {}, [])),
    **{
        "repetition_penalty": (None, 1),
        "best_of": (None, 1),
        "suffix": (None, ""),
        "tool_choice": (None, "none"),
    },
    **{"response_format": (None, {"type": "text"}), "spaces_between_special_tokens": (None, True)},
    **{"add_special_tokens": (None, True), "parallel_tool_calls": (None, False, True)},
    **{
        "include_stop_str_in_output": (None, False),
        "length_penalty": (None, 1),
        "use_beam_search": (None, False),
    },
}


@dataclass(frozen=True)
class Generation:
    """One call: its requests, and what the reply holds besides their text."""

    requests: tuple[Request, ...]  # the choices of the first prompt, then of the second
    choices_per_prompt: int
    stream: bool
    include_usage: bool
    echo: bool
    top_logprobs: int | None  # None: no log-probs; 0: of the sampled tokens alone
    return_token_ids: bool
    tokens_as_ids: bool
    skip_special_tokens: bool
    only_prompt: bool = False  # max_tokens 0: nothing is sampled
    return_text: bool = True


class Fields:
    """A JSON object whose keys are taken one by one, each with a rule; `finish` refuses what is left."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = {key: value for key, value in body.items() if key not in IGNORED}

    def take(self, key: str, default: Any, rule: str, is_valid: Callable[[Any], bool]) -> Any:
        value = self._left.pop(key, None)
        if value is None:
            return default
        if not is_valid(value):
            raise ValueError(f"{key}={value!r:.60}, but it must be {rule}")
        return value

    def integer(self, key: str, default: int | None, low: int, high: int) -> Any:
        rule = f"a whole number from {low} to {high}"
        return self.take(
            key, default, rule, lambda value: type(value) is int and low <= value <= high
        )

    def number(self, key: str, default: float, low: float, high: float) -> float:
        def is_valid(value: Any) -> bool:
            return type(value) in (int, float) and math.isfinite(value) and low <= value <= high

        return float(self.take(key, default, f"a number from {low:g} to {high:g}", is_valid))

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.take(key, default, "true or false", lambda value: isinstance(value, bool)))

    def finish(self) -> None:
        for key, value in self._left.items():
            if key not in NEUTRAL:
                raise ValueError(f"{key} is not supported; leave it out")
            if value not in NEUTRAL[key]:
                raise ValueError(f"{key}={value!r:.60} is not supported; leave it out")


def read_completion(
    body: Mapping[str, Any], encode: Callable[[str], Sequence[int]], end_ids: frozenset[int]
) -> Generation:
    """A body of POST /v1/completions."""
    fields = Fields(body)
    prompts = _prompts(
        fields.take("prompt", None, "a text, token ids, or a list of either", lambda _: True),
        encode,
    )
    top = fields.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)
    return _generation(
        fields, prompts, end_ids, top, echo=fields.flag("echo"), max_tokens=COMPLETION_TOKENS
    )


def read_chat(
    body: Mapping[str, Any], renderer: Renderer, end_ids: frozenset[int], max_model_len: int
) -> Generation:
    """A body of POST /v1/chat/completions."""
    fields = Fields(body)
    given = fields.take(
        "messages",
        None,
        "a list of messages",
        lambda value: isinstance(value, list) and len(value) > 0,
    )
    if given is None:
        raise ValueError("there are no messages")
    tokens = renderer.prompt([_message(index, each) for index, each in enumerate(given)])
    top = (
        fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS) if fields.flag("logprobs") else None
    )
    if top is None and fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS):
        raise ValueError("top_logprobs needs logprobs=true")
    newer = fields.integer("max_completion_tokens", max(max_model_len - len(tokens), 1), 1, MAX_INT)
    generation = _generation(fields, [tokens], end_ids, top, echo=False, max_tokens=newer)
    if not generation.return_text:
        raise ValueError("return_text=false is for completions; a chat is text")
    return generation


def _generation(
    fields: Fields,
    prompts: Sequence[tuple[int, ...]],
    end_ids: frozenset[int],
    top_logprobs: int | None,
    *,
    echo: bool,
    max_tokens: int,
) -> Generation:
    fields.take("model", None, "the name of the served model", lambda value: isinstance(value, str))
    count = fields.integer("n", 1, 1, MAX_CHOICES)
    if len(prompts) * count > MAX_REQUESTS:
        raise ValueError(
            f"{len(prompts)} prompts with n={count} are more than {MAX_REQUESTS} completions; send fewer"
        )
    max_tokens = fields.integer("max_tokens", max_tokens, 0 if echo else 1, MAX_INT)
    stream, options = (
        fields.flag("stream"),
        fields.take("stream_options", {}, "an object", _is_object),
    )
    if stream and (echo or top_logprobs):
        raise ValueError(
            "a stream has neither echo nor the likeliest tokens; use stream=false, or logprobs=0"
        )
    return_ids, return_text = (
        fields.flag("return_token_ids"),
        fields.flag("return_text", default=True),
    )
    if not return_text and (stream or echo or top_logprobs or not return_ids):
        raise ValueError(
            "return_text=false needs return_token_ids=true, and neither stream, echo nor likeliest tokens"
        )
    requests = _requests(fields, prompts, count, max(max_tokens, 1), end_ids)
    generation = Generation(
        requests=requests,
        choices_per_prompt=count,
        stream=stream,
        include_usage=options.get("include_usage") is True,
        echo=echo,
        top_logprobs=top_logprobs,
        return_token_ids=return_ids,
        tokens_as_ids=fields.flag("return_tokens_as_token_ids"),
        skip_special_tokens=fields.flag("skip_special_tokens", default=True),
        only_prompt=max_tokens == 0,
        return_text=return_text,
    )
    fields.finish()
    return generation


def _requests(
    fields: Fields,
    prompts: Sequence[tuple[int, ...]],
    count: int,
    max_tokens: int,
    end_ids: frozenset[int],
) -> tuple[Request, ...]:
    seed = fields.integer("seed", None, -MAX_INT, MAX_INT)
    prompt_id = fields.take(
        "prompt_id",
        None,
        "a text of at most 500 characters",
        lambda v: _is_text(v) and len(v) <= 500,
    )
    first = fields.integer("sample", 0, -1, MAX_INT)
    if prompt_id is not None and len(prompts) > 1:
        raise ValueError(f"prompt_id names one prompt, but there are {len(prompts)}")
    temperature = fields.number("temperature", 1.0, 0, 1000)
    top_k = fields.integer("top_k", 0, -1, MAX_INT)
    stop = fields.take(
        "stop", [], "a text or a few texts", lambda v: _is_text(v) or v == [] or _are(v, _is_text)
    )
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise ValueError(f"{len(stops)} stop texts, but at most {MAX_STOPS} are allowed")
    stop_ids = fields.take(
        "stop_token_ids", [], "a list of token ids", lambda v: v == [] or _are(v, _is_id)
    )
    if fields.flag("ignore_eos") and not end_ids <= set(stop_ids):
        raise ValueError("ignore_eos is not supported, unless stop_token_ids names the end tokens")
    shared: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "seed": secrets.randbits(62) if seed is None else seed,
        "temperature": temperature or 1.0,
        "greedy": temperature == 0,
        "top_k": max(top_k, 0),
        "top_p": fields.number("top_p", 1.0, 0, 1),
        "min_p": fields.number("min_p", 0.0, 0, 1),
        "min_new_tokens": fields.integer("min_tokens", 0, 0, MAX_INT),
        "stop": tuple(filter(None, stops)),
        "stop_ids": tuple(stop_ids),
    }
    found = []
    for index, tokens in enumerate(prompts):
        # Two equal prompts of one call differ in their noise, unless a seed asks for equal ones.
        name = (
            prompt_id
            if prompt_id is not None
            else f"{shared['seed']}/{0 if seed is not None else index}/{_digest(tokens)}"
        )
        found += [
            Request(prompt_id=name, sample=first + n, tokens=tokens, **shared) for n in range(count)
        ]
    return tuple(found)


def _prompts(prompt: Any, encode: Callable[[str], Sequence[int]]) -> list[tuple[int, ...]]:
    given = [prompt] if _is_text(prompt) or _are(prompt, _is_id) else prompt
    if (
        not isinstance(given, list)
        or not given
        or not all(_is_text(each) or _are(each, _is_id) for each in given)
    ):
        raise ValueError(
            f"prompt={prompt!r:.60}, but it must be a text, token ids, or a list of either"
        )
    found = [tuple(encode(each)) if isinstance(each, str) else tuple(each) for each in given]
    if not all(found):
        raise ValueError("a prompt has no tokens; give at least one")
    return found


def _message(index: int, message: Any) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    role = "system" if role == "developer" else role
    if role not in get_args(Role):
        raise ValueError(
            f"messages[{index}] has role {role!r:.40}, but it must be one of {', '.join(get_args(Role))}"
        )
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(each, dict) and each.get("type") == "text" for each in content):
            raise ValueError(
                f"messages[{index}] has a part that is no text, which this model cannot read"
            )
        content = "".join(str(each.get("text", "")) for each in content)
    if not _is_text(content):
        raise ValueError(f"messages[{index}] has no text as its content")
    return Message(cast(Role, role), content)


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.blake2b(str(tokens).encode(), digest_size=12).hexdigest()


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    """Text that can be encoded: JSON can hold half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _are(value: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(is_valid, value))
