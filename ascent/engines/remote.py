"""A sampler over an OpenAI-compatible server: POST {url}/completions with token ids in, token ids and log-probs out.

Token ids are never re-tokenized: a server that answers with text alone is refused (vLLM sends ids when asked to, with
`return_token_ids` or `return_tokens_as_token_ids`). Every sampling setting is sent, defaults too, because a server
takes what is missing from the model's generation config, where a top-p or a repetition penalty may hide.

What a server's log-probs mean is a setting of its own, which it does not report: vLLM's `raw_logprobs` (the default)
are at temperature 1 whatever was asked, its `processed_logprobs` after temperature and renormalized over what top-k,
top-p and min-p left. At temperature 1 without truncation the two agree; where they do not, the sampler measures which
it is once, with two requests of one token, and records NaN wherever the log-prob over the full tempered distribution
was not sent.
"""

from __future__ import annotations

import json
import math
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Literal, TypeVar

from ascent.engines.counter_rng import request_key
from ascent.http_client import Client, RequestGroup, RetryPolicy, ServerFailed, checked_token, checked_url, read_object
from ascent.protocols import Weights
from ascent.records import Completion, Request, Stop

T = TypeVar("T")
Mode = Literal["raw", "processed"]
Reload = Callable[[int, Weights], None]

ID = "token_id:"  # how vLLM writes a token in place of its text
NO_CHANCE = -9999.0  # what vLLM sends for minus infinity, which JSON lacks
COLDEST = 0.01  # vLLM samples lower temperatures at this one
PROBE, RANKS = 2.0, 5  # the highest temperature that servers take; how many of the likeliest tokens to compare
NEAR = 0.1  # how far a measured ratio may lie from the expected one
MOST_IDS = 1 << 31


class RemoteError(RuntimeError):
    """A server that stayed down, refused, or sent what is no answer; says which URL and which request."""


class RemoteSampler:
    """Implements `protocols.Sampler`. `url` is the server's base, such as http://localhost:8000/v1; `stop_ids` end a
    completion and belong to it, whatever end tokens the server knows of.

    `at_once` requests are in flight; the server batches them. `key_from` names the environment variable that holds the
    server's key, which is in no message and no repr. The seed sent depends on (seed, prompt id, sample) alone; what a
    server makes of it is its own affair.

    The server has its own copy of the weights. `reload(version, tensors)` must bring it to the given ones before it
    returns (in vLLM, reset the prefix cache as well); a URL instead is sent {"version": n} and answers 200 once the
    server has fetched that version by itself. Without either the sampler serves one fixed policy.
    """

    def __init__(
        self,
        url: str,
        model: str,
        stop_ids: Iterable[int],
        *,
        key_from: str | None = None,
        at_once: int = 64,
        retry: RetryPolicy | None = None,
        reload: Reload | str | None = None,
    ) -> None:
        key, retry = _key(key_from), retry or RetryPolicy()
        self._client = Client(url, token=key, retry=retry)
        self.url, self.model, self.stop_ids = self._client.url, model, frozenset(stop_ids)
        if not self.stop_ids:
            raise ValueError("a sampler without stop ids runs every completion to its budget; give the EOS id")
        if at_once < 1:
            raise ValueError(f"at_once={at_once}, but at least 1 request must be in flight")
        self.at_once, self.version = at_once, 0
        self.mode: Mode | None = None  # what the server's log-probs are, once it mattered and was measured
        self._reload: Reload | Client | None = None if isinstance(reload, str) else reload
        if isinstance(reload, str):  # the key is for the server's host alone
            same = _host(reload) == _host(url)
            self._reload = Client(reload, token=key if same else None, retry=retry)
        self._flights: list[RequestGroup] = []

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """All completions, as they finish; the first request that fails ends it with a RemoteError that names it."""
        asked = list(requests)
        _refuse_twins(asked)
        flight, threads = RequestGroup(), ThreadPoolExecutor(self.at_once, thread_name_prefix="remote")
        self._flights.append(flight)
        try:
            doubtful = next((each for each in asked if _depends_on_mode(each)), None)
            if doubtful is not None and self.mode is None:
                self.mode = self._measured(doubtful, flight)
            for done in as_completed([threads.submit(self._one, request, flight) for request in asked]):
                yield done.result()
        finally:
            flight.cut()
            threads.shutdown(cancel_futures=True)
            self._flights.remove(flight)

    def set_weights(self, version: int, tensors: Weights) -> None:
        """Through `reload`; without it an error, because going on would sample an old policy under a new version."""
        if self._reload is None:
            raise ValueError(
                f"set_weights(version={version}): the server at {self.url} has its own copy of the weights, which "
                "cannot be shared; give reload= (a function or a URL that brings it up to date), or sample natively"
            )
        if self._flights:
            raise RuntimeError("completions are on their way, and nobody could say which weights drew which token")
        if isinstance(self._reload, Client):
            body = json.dumps({"version": version}).encode()
            _post(self._reload, "", body, f"version {version}", RequestGroup(), bytes)
        else:
            self._reload(version, tensors)
        self.version = version

    def close(self) -> None:
        """Cuts whatever is in flight."""
        for flight in list(self._flights):
            flight.cut()

    def _one(self, request: Request, flight: RequestGroup) -> Completion:
        owner = f"request {request.prompt_id!r}/{request.sample}"
        return self._ask(self._body(request), owner, flight, lambda choice: self._read(request, choice))

    def _ask(self, body: dict[str, Any], owner: str, flight: RequestGroup, read: Callable[[dict[str, Any]], T]) -> T:
        """What `read` makes of the server's one choice."""
        data = json.dumps(body).encode()
        return _post(self._client, "/completions", data, owner, flight, lambda said: read(_only_choice(said)))

    def _body(self, request: Request) -> dict[str, Any]:
        low, high = request_key(request.seed, request.prompt_id, request.sample)
        return {
            **{"model": self.model, "prompt": list(request.tokens), "n": 1, "max_tokens": request.max_new_tokens},
            **{"temperature": 0.0 if request.greedy else request.temperature, "top_p": request.top_p},
            **{"top_k": request.top_k or -1, "min_p": request.min_p, "repetition_penalty": 1.0},
            **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": (high << 32 | low) >> 1},
            **{"stop_token_ids": sorted(self.stop_ids.union(request.stop_ids)), "ignore_eos": True},
            **{"min_tokens": request.min_new_tokens, "stop": list(request.stop), "skip_special_tokens": False},
            **{"logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True},
        }

    def _read(self, request: Request, choice: dict[str, Any]) -> Completion:
        _same_prompt(request, choice)
        tokens = _tokens(choice)
        if len(tokens) > request.max_new_tokens:
            raise ValueError(f"{len(tokens)} tokens, but max_new_tokens={request.max_new_tokens}")
        sent = _logprobs(choice, len(tokens))
        kept = [value if self._exact(request, place) else math.nan for place, value in enumerate(sent)]
        return Completion(
            prompt_id=request.prompt_id, sample=request.sample, tokens=tokens, logprobs=tuple(kept),
            versions=(self.version,) * len(tokens), stop=self._stop(request, tokens, choice.get("finish_reason")),
            log_mass=_log_mass(request, len(tokens)) if request.truncates else None,
        )  # fmt: skip

    def _exact(self, request: Request, place: int) -> bool:
        """Whether the log-prob sent for this place is the one over the full distribution at the request's temperature;
        both readings must agree while the mode is unknown. A server's greedy is at temperature 1, and cuts nothing."""
        raw = request.temperature == 1
        tempered = raw or (not request.greedy and request.temperature >= COLDEST)
        processed = tempered and (request.greedy or not _cuts(request)) and place >= request.min_new_tokens
        return raw if self.mode == "raw" else processed if self.mode == "processed" else raw and processed

    def _stop(self, request: Request, tokens: Sequence[int], reason: Any) -> Stop:
        if reason == "abort":
            return "abort"
        if reason not in ("stop", "length"):
            raise ValueError(f"finish_reason={reason!r}, but a finished completion says stop, length or abort")
        if not tokens:
            raise ValueError(f"no tokens, and finish_reason={reason!r}")
        if tokens[-1] in self.stop_ids:
            return "eos"
        if reason == "length":
            return "length"
        if tokens[-1] not in request.stop_ids and not request.stop:
            raise ValueError(
                f"it stopped after token {tokens[-1]}, which is no stop id; add it to stop_ids if it ends a "
                "completion; a server that strips the end token cannot be used"
            )
        return "stop"

    def _measured(self, request: Request, flight: RequestGroup) -> Mode | None:
        """Raw or processed: do the gaps between likely tokens shrink with the temperature? None: it cannot be told."""
        owner = f"probe with request {request.prompt_id!r}/{request.sample}"
        body = self._body(Request(request.prompt_id, request.sample, request.tokens, 1, request.seed))
        hot, cold = (
            self._ask(body | {"logprobs": RANKS, "temperature": temperature}, owner, flight, _gap)
            for temperature in (PROBE, 1.0)
        )
        if abs(hot - cold) < NEAR * cold:
            return "raw"
        return "processed" if abs(hot * PROBE - cold) < NEAR * cold else None


def _key(key_from: str | None) -> str | None:
    if key_from is None:
        return None
    # What is spelled otherwise may be the key itself.
    shown = f"key_from={key_from!r}" if re.fullmatch("[A-Z][A-Z0-9_]*", key_from) else "key_from"
    return checked_token(os.environ.get(key_from, ""), f"{shown}: what this environment variable holds, the key,")


def _host(url: str) -> str | None:
    return urllib.parse.urlsplit(checked_url(url)).hostname


def _post(client: Client, path: str, data: bytes, owner: str, flight: RequestGroup, read: Callable[[bytes], T]) -> T:
    try:
        return client.post(path, data, read, flight)
    except ServerFailed as failure:
        raise RemoteError(f"{owner}: {failure}") from None


def _cuts(request: Request) -> bool:
    return request.top_p < 1 or request.top_k > 0 or request.min_p > 0


def _depends_on_mode(request: Request) -> bool:
    """Whether a raw and a processed log-prob of this request differ."""
    return request.min_new_tokens > 0 or (not request.greedy and (request.temperature != 1 or _cuts(request)))


def _log_mass(request: Request, count: int) -> tuple[float, ...]:
    """Servers do not say how much mass survived; where nothing was cut it was all of it."""
    return tuple(math.nan if _cuts(request) or place < request.min_new_tokens else 0.0 for place in range(count))


def _only_choice(said: bytes) -> dict[str, Any]:
    choices = read_object(said).get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else "no list of"
        raise ValueError(f"the reply holds {count} choices, but exactly 1 was asked for")
    return choices[0]


def _same_prompt(request: Request, choice: dict[str, Any]) -> None:
    read = choice.get("prompt_token_ids")
    if read is not None and read != list(request.tokens):
        raise ValueError("the server read other prompt tokens than were sent; it must neither add nor cut any")


def _tokens(choice: dict[str, Any]) -> tuple[int, ...]:
    """Token ids as the server gives them, in either of its two ways; both ways must agree."""
    ids, written = choice.get("token_ids"), _part(choice, "tokens")
    spelled = None
    if isinstance(written, list) and all(isinstance(each, str) and _is_id(each) for each in written):
        spelled = [int(each.removeprefix(ID)) for each in written]
    found = ids if ids is not None else spelled
    if found is None or (not found and choice.get("text")):
        raise ValueError(
            "text without token ids, which would have to be tokenized again; use a server that honours "
            "return_token_ids or return_tokens_as_token_ids, as vLLM does"
        )
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < MOST_IDS for each in found):
        raise ValueError(f"token_ids={str(found)[:60]}, but they are whole numbers below {MOST_IDS}")
    if spelled is not None and found != spelled:
        raise ValueError("token_ids and logprobs.tokens name different tokens")
    return tuple(found)


def _is_id(text: str) -> bool:
    return text.startswith(ID) and text.removeprefix(ID).isascii() and text.removeprefix(ID).isdigit()


def _logprobs(choice: dict[str, Any], count: int) -> list[float]:
    values = _part(choice, "token_logprobs")
    if not isinstance(values, list) or len(values) != count:
        many = len(values) if isinstance(values, list) else "no"
        raise ValueError(f"{count} tokens but {many} log-probs; the server must send one for each (logprobs=1)")
    bad = next((each for each in values if isinstance(each, bool) or not isinstance(each, int | float | None)), None)
    if bad is not None:
        raise ValueError(f"a log-prob is {str(bad)[:60]!r}, no number")
    return [math.nan if each is None or each <= NO_CHANCE else float(each) for each in values]


def _gap(choice: dict[str, Any]) -> float:
    """Between the log-probs of the likeliest first token and the last of those asked for; NaN if they were not sent."""
    tops = _part(choice, "top_logprobs")
    first = tops[0] if isinstance(tops, list) and tops else None
    values = list(first.values()) if isinstance(first, dict) else []
    if len(values) < RANKS or not all(isinstance(each, int | float) for each in values):
        return math.nan
    falling = sorted(values, reverse=True)
    return float(falling[0] - falling[RANKS - 1])


def _part(choice: dict[str, Any], name: str) -> Any:
    found = choice.get("logprobs")
    return found.get(name) if isinstance(found, dict) else None


def _refuse_twins(requests: Sequence[Request]) -> None:
    seen: set[tuple[str, int]] = set()
    for each in requests:
        if (each.prompt_id, each.sample) in seen:
            raise ValueError(
                f"request {each.prompt_id!r}/{each.sample} is there twice; number samples of a prompt apart"
            )
        seen.add((each.prompt_id, each.sample))
