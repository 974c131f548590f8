"""A sampler over an OpenAI-compatible server: POST {url}/completions with token ids in, token ids and log-probs out.

Text is never tokenized again: a server that sends no token ids is refused (vLLM sends them with `return_token_ids` or
`return_tokens_as_token_ids`). Every sampling parameter is sent, defaults too, because a server takes missing ones from
the model's generation config, which may set a top-p or a repetition penalty.

The meaning of a server's log-probs is a setting that it does not report: vLLM's `raw_logprobs` (the default) are at
temperature 1 whatever was requested, its `processed_logprobs` are after temperature and renormalized after top-k, top-p
and min-p. At temperature 1 without truncation both agree; where they do not, the sampler measures the mode once, with
two requests of one token, and records NaN wherever the log-prob over the full tempered distribution was not sent.
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

from ascent import http_client
from ascent.engines.counter_rng import request_key
from ascent.http_client import Client, RequestGroup, RetryPolicy, ServerFailed
from ascent.open_files import allowed_sockets
from ascent.protocols import Weights
from ascent.records import Completion, Request, Stop

T = TypeVar("T")
Mode = Literal["raw", "processed"]
Reload = Callable[[int, Weights], None]

AT_ONCE = 256
TOKEN_ID_PREFIX = "token_id:"  # vLLM's text of a token with return_tokens_as_token_ids
MIN_LOGPROB = -9999.0  # vLLM's value for minus infinity
MIN_TEMPERATURE = 0.01  # vLLM raises lower temperatures to this
PROBE_TEMPERATURE = 2.0  # the highest that servers accept
PROBE_RANKS = 5  # most likely tokens to compare
RATIO_TOLERANCE = 0.1  # of a measured ratio
MAX_TOKEN_ID = 1 << 31


class RemoteError(RuntimeError):
    """A failed request, with its URL and its prompt. `kind` is that of `http_client`."""

    kind = ""


class RemoteSampler:
    """Implements `protocols.Sampler`. `url` is the server's base, such as http://localhost:8000/v1; `stop_ids` end a
    completion and belong to it, whatever end tokens the server knows of.

    `at_once` requests are in flight; the server batches them. `key` is the server's, in no message and no repr, or
    `key_from` names the environment variable that holds it. The seed sent depends on (seed, prompt id, sample) only;
    the server's random numbers differ from ours.

    The server has its own copy of the weights. `reload(version, tensors)` updates them (in vLLM, it must also reset the
    prefix cache); if it is a URL, {"version": n} is posted, and it must answer 200 once the server has fetched that
    version. Without it the sampler serves one fixed policy.

    `exact` is for `ascent serve`: it draws the tokens that the native engine draws in this process, and its log-probs
    are over the full tempered distribution.
    """

    def __init__(
        self,
        url: str,
        model: str,
        stop_ids: Iterable[int],
        *,
        key_from: str | None = None,
        key: str | None = None,
        at_once: int = AT_ONCE,
        retry: RetryPolicy | None = None,
        reload: Reload | str | None = None,
        exact: bool = False,
    ) -> None:
        key, retry = key or _key(key_from), retry or RetryPolicy()
        self._client = Client(url, token=key, retry=retry)
        self.url, self.model, self.stop_ids = self._client.url, model, frozenset(stop_ids)
        if not self.stop_ids:
            raise ValueError(
                "a sampler without stop ids runs every completion to its budget; give the EOS id"
            )
        if at_once < 1:
            raise ValueError(f"at_once={at_once}, but at least 1 request must be in flight")
        self.at_once, self.version, self.exact = at_once, 0, exact
        self.mode: Mode | None = None  # of the server's log-probs, measured when first needed
        self._reload: Reload | Client | None = None if isinstance(reload, str) else reload
        if isinstance(reload, str):  # the key is for the server's host only
            same = _host(reload) == _host(url)
            self._reload = Client(reload, token=key if same else None, retry=retry)
        self._groups: list[RequestGroup] = []

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield completions as they finish; the first failed request raises RemoteError."""
        all_requests = list(requests)
        _check_unique(all_requests)
        workers = allowed_sockets(max(min(self.at_once, len(all_requests)), 1))
        group, threads = RequestGroup(), ThreadPoolExecutor(workers, thread_name_prefix="remote")
        self._groups.append(group)
        try:
            self.prepare(all_requests, group)
            for done in as_completed(
                [threads.submit(self.complete, request, group) for request in all_requests]
            ):
                yield done.result()[0]
        finally:
            group.cancel()
            threads.shutdown(cancel_futures=True)
            self._groups.remove(group)

    def set_weights(self, version: int, tensors: Weights) -> None:
        """Through `reload`; an error without it, because the old policy would be sampled under a new version."""
        if self._reload is None:
            raise ValueError(
                f"set_weights(version={version}): the server at {self.url} has its own copy of the weights, which "
                "cannot be shared; give reload= (a function or a URL that brings it up to date), or sample natively"
            )
        if self._groups:
            raise RuntimeError(
                "completions are in flight, so their tokens would mix two versions; collect them first"
            )
        if isinstance(self._reload, Client):
            body = json.dumps({"version": version}).encode()
            _post(self._reload, "", body, f"version {version}", RequestGroup(), bytes)
        else:
            self._reload(version, tensors)
        self.version = version

    def close(self) -> None:
        """Cancel the requests in flight."""
        for group in list(self._groups):
            group.cancel()

    def prepare(self, requests: Sequence[Request], group: RequestGroup) -> None:
        """Measure the mode of the server's log-probs, if it is not known and a request depends on it."""
        ambiguous = next((each for each in requests if _depends_on_mode(each)), None)
        if ambiguous is not None and self.mode is None and not self.exact:
            self.mode = self._measure_mode(ambiguous, group)

    def complete(self, request: Request, group: RequestGroup) -> tuple[Completion, dict[str, Any]]:
        """One completion, and the choice of the reply that it was read from."""
        owner = f"request {request.prompt_id!r}/{request.sample}"
        return self._post_completion(
            self._body(request), owner, group, lambda choice: (self._read(request, choice), choice)
        )

    def _post_completion(
        self,
        body: dict[str, Any],
        owner: str,
        group: RequestGroup,
        read: Callable[[dict[str, Any]], T],
    ) -> T:
        """Post a request and parse its single choice with `read`."""
        data = json.dumps(body).encode()
        return _post(
            self._client,
            "/completions",
            data,
            owner,
            group,
            lambda reply: read(_single_choice(reply)),
        )

    def _body(self, request: Request) -> dict[str, Any]:
        low, high = request_key(request.seed, request.prompt_id, request.sample)
        return {
            **{
                "model": self.model,
                "prompt": list(request.tokens),
                "n": 1,
                "max_tokens": request.max_new_tokens,
            },
            **{
                "temperature": 0.0 if request.greedy else request.temperature,
                "top_p": request.top_p,
            },
            **{"top_k": request.top_k or -1, "min_p": request.min_p, "repetition_penalty": 1.0},
            **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": (high << 32 | low) >> 1},
            **{"stop_token_ids": sorted(self.stop_ids.union(request.stop_ids)), "ignore_eos": True},
            **{
                "min_tokens": request.min_new_tokens,
                "stop": list(request.stop),
                "skip_special_tokens": False,
            },
            **{"logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True},
            **({} if not self.exact else {"seed": request.seed, "prompt_id": request.prompt_id}),
            **(
                {}
                if not self.exact
                else {"sample": request.sample, "logprobs": 0, "return_text": False}
            ),
        }

    def _read(self, request: Request, choice: dict[str, Any]) -> Completion:
        _check_prompt(request, choice)
        tokens = _tokens(choice)
        if len(tokens) > request.max_new_tokens:
            raise ValueError(f"{len(tokens)} tokens, but max_new_tokens={request.max_new_tokens}")
        sent_logprobs = _logprobs(choice, len(tokens))
        kept = [
            value if self._is_exact(request, n) else math.nan
            for n, value in enumerate(sent_logprobs)
        ]
        return Completion(
            prompt_id=request.prompt_id,
            sample=request.sample,
            tokens=tokens,
            logprobs=tuple(kept),
            versions=(self.version,) * len(tokens),
            stop=self._stop(request, tokens, choice.get("finish_reason")),
            log_mass=self._log_mass(request, choice, len(tokens)) if request.truncates else None,
        )

    def _is_exact(self, request: Request, position: int) -> bool:
        """Is the log-prob of this position over the full distribution at the request's temperature? While the mode is
        unknown, both modes must agree. A server's greedy sampling is at temperature 1, without truncation."""
        if self.exact:
            return not request.greedy or request.temperature == 1
        raw = request.temperature == 1
        tempered = raw or (not request.greedy and request.temperature >= MIN_TEMPERATURE)
        processed = (
            tempered
            and (request.greedy or not _truncates(request))
            and position >= request.min_new_tokens
        )
        return (
            raw
            if self.mode == "raw"
            else processed
            if self.mode == "processed"
            else raw and processed
        )

    def _log_mass(self, request: Request, choice: dict[str, Any], count: int) -> tuple[float, ...]:
        """Unknown (NaN) with truncation, else 0, unless the server sends it."""
        sent = choice.get("log_mass") if self.exact else None
        if (
            isinstance(sent, list)
            and len(sent) == count
            and all(isinstance(each, int | float) for each in sent)
        ):
            return tuple(float(each) for each in sent)
        return tuple(
            math.nan if _truncates(request) or n < request.min_new_tokens else 0.0
            for n in range(count)
        )

    def _stop(self, request: Request, tokens: Sequence[int], reason: Any) -> Stop:
        if reason == "abort":
            return "abort"
        if reason not in ("stop", "length"):
            raise ValueError(
                f"finish_reason={reason!r}, but a finished completion says stop, length or abort"
            )
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

    def _measure_mode(self, request: Request, group: RequestGroup) -> Mode | None:
        """Raw or processed: do the gaps between likely tokens shrink with the temperature? None if unclear."""
        owner = f"probe with request {request.prompt_id!r}/{request.sample}"
        body = self._body(
            Request(request.prompt_id, request.sample, request.tokens, 1, request.seed)
        )
        hot, cold = (
            self._post_completion(
                body | {"logprobs": PROBE_RANKS, "temperature": temperature}, owner, group, _gap
            )
            for temperature in (PROBE_TEMPERATURE, 1.0)
        )
        if abs(hot - cold) < RATIO_TOLERANCE * cold:
            return "raw"
        return "processed" if abs(hot * PROBE_TEMPERATURE - cold) < RATIO_TOLERANCE * cold else None


def _key(key_from: str | None) -> str | None:
    if key_from is None:
        return None
    # A value of another form may be the key itself.
    shown = f"key_from={key_from!r}" if re.fullmatch("[A-Z][A-Z0-9_]*", key_from) else "key_from"
    return http_client.validate_token(
        os.environ.get(key_from, ""), f"{shown}: what this environment variable holds, the key,"
    )


def _host(url: str) -> str | None:
    return urllib.parse.urlsplit(http_client.validate_url(url)).hostname


def _post(
    client: Client,
    path: str,
    data: bytes,
    owner: str,
    group: RequestGroup,
    read: Callable[[bytes], T],
) -> T:
    try:
        return client.post(path, data, read, group)
    except ServerFailed as failure:
        error = RemoteError(f"{owner}: {failure}")
        error.kind = failure.kind
        raise error from None


def _truncates(request: Request) -> bool:
    return request.top_p < 1 or request.top_k > 0 or request.min_p > 0


def _depends_on_mode(request: Request) -> bool:
    """Do raw and processed log-probs of this request differ?"""
    return request.min_new_tokens > 0 or (
        not request.greedy and (request.temperature != 1 or _truncates(request))
    )


def _single_choice(reply: bytes) -> dict[str, Any]:
    choices = http_client.parse_json_object(reply).get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else "no list of"
        raise ValueError(f"the reply holds {count} choices, but exactly 1 was requested")
    return choices[0]


def _check_prompt(request: Request, choice: dict[str, Any]) -> None:
    read = choice.get("prompt_token_ids")
    if read is not None and read != list(request.tokens):
        raise ValueError(
            "the server read other prompt tokens than were sent; it must neither add nor cut any"
        )


def _tokens(choice: dict[str, Any]) -> tuple[int, ...]:
    """The token ids, in either of the server's two formats; both must agree."""
    ids, written = choice.get("token_ids"), _logprobs_field(choice, "tokens")
    from_text = None
    if isinstance(written, list) and all(
        isinstance(each, str) and _is_id(each) for each in written
    ):
        from_text = [int(each.removeprefix(TOKEN_ID_PREFIX)) for each in written]
    token_ids = ids if ids is not None else from_text
    if token_ids is None or (not token_ids and choice.get("text")):
        raise ValueError(
            "text without token ids, which would have to be tokenized again; use a server that honours "
            "return_token_ids or return_tokens_as_token_ids, as vLLM does"
        )
    if not isinstance(token_ids, list) or not all(
        type(each) is int and 0 <= each < MAX_TOKEN_ID for each in token_ids
    ):
        raise ValueError(
            f"token_ids={str(token_ids)[:60]}, but they are whole numbers below {MAX_TOKEN_ID}"
        )
    if from_text is not None and token_ids != from_text:
        raise ValueError("token_ids and logprobs.tokens name different tokens")
    return tuple(token_ids)


def _is_id(text: str) -> bool:
    return re.fullmatch(f"{TOKEN_ID_PREFIX}[0-9]+", text) is not None


def _logprobs(choice: dict[str, Any], count: int) -> list[float]:
    values = _logprobs_field(choice, "token_logprobs")
    if not isinstance(values, list) or len(values) != count:
        sent = len(values) if isinstance(values, list) else "no"
        raise ValueError(
            f"{count} tokens but {sent} log-probs; the server must send one for each (logprobs=1)"
        )
    bad = next(
        (
            each
            for each in values
            if isinstance(each, bool) or not isinstance(each, int | float | None)
        ),
        None,
    )
    if bad is not None:
        raise ValueError(f"a log-prob is {str(bad)[:60]!r}, no number")
    return [math.nan if each is None or each <= MIN_LOGPROB else float(each) for each in values]


def _gap(choice: dict[str, Any]) -> float:
    """The gap between the log-probs of the most likely first token and of rank PROBE_RANKS; NaN if not sent."""
    tops = _logprobs_field(choice, "top_logprobs")
    first = tops[0] if isinstance(tops, list) and tops else None
    values = list(first.values()) if isinstance(first, dict) else []
    if len(values) < PROBE_RANKS or not all(isinstance(each, int | float) for each in values):
        return math.nan
    descending = sorted(values, reverse=True)
    return float(descending[0] - descending[PROBE_RANKS - 1])


def _logprobs_field(choice: dict[str, Any], name: str) -> Any:
    logprobs = choice.get("logprobs")
    return logprobs.get(name) if isinstance(logprobs, dict) else None


def _check_unique(requests: Sequence[Request]) -> None:
    seen: set[tuple[str, int]] = set()
    for each in requests:
        if (each.prompt_id, each.sample) in seen:
            raise ValueError(
                f"request {each.prompt_id!r}/{each.sample} is given twice; number the samples of a prompt"
            )
        seen.add((each.prompt_id, each.sample))
