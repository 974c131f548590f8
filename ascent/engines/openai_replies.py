"""Completions of the engine -> replies of the OpenAI protocol, whole or as a stream.

Every choice also has `weight_version`, the version of the weights that sampled it, `weights_id`, which no other weights
have, and under truncated sampling `log_mass` (see `records.Completion`). `token_logprobs` are those of the engine:
float32, after temperature, over the full distribution.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.engines.engine_thread import Output
from ascent.engines.openai_requests import Generation
from ascent.engines.token_logprobs import TokenLogprob
from ascent.records import Completion, Request

REPLACEMENT = "\ufffd"  # how an incomplete character is decoded
Scored = Sequence[TokenLogprob | None]


@dataclass(frozen=True)
class Reply:
    """What the choices of a reply have in common."""

    generation: Generation
    tokenizer: Any
    model: str
    weights_ids: Mapping[int, str]  # by version
    chat: bool
    id: str
    created: int

    @classmethod
    def create(
        cls,
        generation: Generation,
        tokenizer: Any,
        model: str,
        weights_ids: Mapping[int, str],
        *,
        chat: bool,
    ) -> Reply:
        name = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        return cls(generation, tokenizer, model, weights_ids, chat, name, int(time.time()))

    def whole(
        self, completions: Sequence[Completion], scored: Mapping[int, Scored]
    ) -> dict[str, Any]:
        """`scored` has the log-probs of prompt and completion by choice, where the call asked for more than the
        sampled tokens' own."""
        choices = [
            self._choice(index, each, scored.get(index)) for index, each in enumerate(completions)
        ]
        kind = "chat.completion" if self.chat else "text_completion"
        return self._envelope(kind, choices) | {
            "usage": self._usage([len(each.tokens) for each in completions])
        }

    def prompts_only(self, scored: Mapping[int, Scored]) -> dict[str, Any]:
        """The reply to max_tokens 0 with echo."""
        choices = []
        for index, request in enumerate(self.generation.requests):
            logprobs = self._logprobs((), (), request, scored.get(index))
            text = self._text(request.tokens)
            choices.append(
                {"index": index, "text": text, "logprobs": logprobs, "finish_reason": "length"}
            )
        return self._envelope("text_completion", choices) | {
            "usage": self._usage([0] * len(choices))
        }

    def events(self, outputs: Iterable[Output]) -> Generator[str]:
        """The data of the events of a stream."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        texts = [_TextStream(self, request) for request in self.generation.requests]
        counts, started = [0] * len(texts), [False] * len(texts)
        for each in outputs:
            text = texts[each.index].add(each.tokens, last=each.completion is not None)
            new = slice(counts[each.index], len(each.tokens))
            if not each.tokens[new] and each.completion is None:
                continue
            counts[each.index] = len(each.tokens)
            choice = self._chunk(each, text, new, first=not started[each.index])
            started[each.index] = True
            yield json.dumps(self._envelope(kind, [choice]))
        if self.generation.include_usage:
            yield json.dumps(self._envelope(kind, []) | {"usage": self._usage(counts)})
        yield "[DONE]"

    def _chunk(self, output: Output, text: str, new: slice, *, first: bool) -> dict[str, Any]:
        request, completion = self.generation.requests[output.index], output.completion
        choice: dict[str, Any] = {
            "index": output.index,
            "finish_reason": None if completion is None else _reason(completion),
        }
        choice |= (
            {"delta": {**({"role": "assistant"} if first else {}), "content": text}}
            if self.chat
            else {"text": text}
        )
        if self.generation.top_logprobs is not None:
            choice["logprobs"] = self._logprobs(
                output.tokens[new], output.logprobs[new], request, None
            )
        if self.generation.return_token_ids:
            choice["token_ids"] = list(output.tokens[new])
        return choice | ({} if completion is None else self._provenance(completion))

    def _choice(self, index: int, completion: Completion, scored: Scored | None) -> dict[str, Any]:
        request, generation = self.generation.requests[index], self.generation
        text = (
            _TextStream(self, request).add(completion.tokens, last=True)
            if generation.return_text
            else ""
        )
        if generation.echo:
            text = self._text(request.tokens) + text
        choice: dict[str, Any] = {"index": index, "finish_reason": _reason(completion)}
        choice |= (
            {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        )
        asked = generation.top_logprobs is not None
        choice["logprobs"] = (
            self._logprobs(completion.tokens, completion.logprobs, request, scored)
            if asked
            else None
        )
        if generation.return_token_ids:
            choice |= {
                "token_ids": list(completion.tokens),
                "prompt_token_ids": list(request.tokens),
            }
        return choice | self._provenance(completion)

    def _provenance(self, completion: Completion) -> dict[str, Any]:
        version, log_mass = completion.versions[-1], completion.log_mass
        found = {"weight_version": version, "weights_id": self.weights_ids.get(version)}
        return found if log_mass is None else found | {"log_mass": list(log_mass)}

    def _logprobs(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        request: Request,
        scored: Scored | None,
    ) -> dict[str, Any]:
        """`scored` covers the prompt and the completion; without it only the sampled tokens' log-probs are known."""
        if not self.generation.return_text:
            return {"token_logprobs": list(logprobs)}
        rows: list[tuple[int, float | None, dict[int, float] | None]] = []
        start = len(request.tokens)
        for index, token in enumerate(request.tokens if self.generation.echo else ()):
            found = scored[index] if scored else None
            rows.append((token, found.logprob, found.top) if found else (token, None, None))
        for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            found = scored[start + index] if scored else None
            top = dict(found.top) if found else {}
            rows.append((token, logprob, {**top, token: logprob}))
        return self._chat_logprobs(rows) if self.chat else self._completion_logprobs(rows)

    def _completion_logprobs(
        self, rows: Sequence[tuple[int, float | None, dict[int, float] | None]]
    ) -> dict[str, Any]:
        names, offsets, at = [self._name(token) for token, _, _ in rows], [], 0
        for name in names:
            offsets.append(at)
            at += len(name)
        tops = [None if top is None else self._by_name(top) for _, _, top in rows]
        return {
            "tokens": names,
            "token_logprobs": [logprob for _, logprob, _ in rows],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _chat_logprobs(
        self, rows: Sequence[tuple[int, float | None, dict[int, float] | None]]
    ) -> dict[str, Any]:
        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            name = self._name(token)
            return {"token": name, "logprob": logprob, "bytes": list(name.encode())}

        count = self.generation.top_logprobs or 0
        return {
            "content": [
                entry(token, logprob)
                | {"top_logprobs": [entry(*each) for each in list((top or {}).items())[:count]]}
                for token, logprob, top in rows
            ]
        }

    def _by_name(self, top: Mapping[int, float]) -> dict[str, float]:
        """Tokens with the same text are one; the likeliest counts."""
        found: dict[str, float] = {}
        for token, value in top.items():
            found.setdefault(self._name(token), value)
        return found

    def _name(self, token: int) -> str:
        return (
            f"token_id:{token}"
            if self.generation.tokens_as_ids
            else str(self.tokenizer.decode([token]))
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(tokens), skip_special_tokens=self.generation.skip_special_tokens
            )
        )

    def _usage(self, counts: Sequence[int]) -> dict[str, int]:
        requests, each = self.generation.requests, self.generation.choices_per_prompt
        prompt, sampled = sum(len(request.tokens) for request in requests[::each]), sum(counts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class _TextStream:
    """The text of one choice, piece by piece. It ends before a stop text; what may become one is held back, and so
    is an incomplete character."""

    def __init__(self, reply: Reply, request: Request) -> None:
        self._reply, self._stops, self._sent = reply, request.stop, 0

    def add(self, tokens: Sequence[int], *, last: bool) -> str:
        text = self._reply._text(tokens)
        # The earliest stop text counts, as in the engine, which reads special tokens too.
        end = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=len(text))
        if not last and end == len(text):
            end = self._hold(text.rstrip(REPLACEMENT))
        piece, self._sent = text[self._sent : end], max(self._sent, end)
        return piece

    def _hold(self, text: str) -> int:
        """Where the longest end of the text begins that is the beginning of a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return len(text) - size
        return len(text)


def _reason(completion: Completion) -> str:
    return "length" if completion.stop == "length" else "stop"
