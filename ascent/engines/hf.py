"""The slow reference sampler: the stock transformers forward with its own cache and attention, left-padded.

It runs on the modules that are trained, with attention switched to transformers' own meanwhile: weights are never
copied. Axes: B requests, L padded positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ascent.engines.counter_rng import gumbel
from ascent.models.model import LanguageModel
from ascent.protocols import Weights
from ascent.records import Completion, Request, Stop


@dataclass
class _Running:
    """The state of one request."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: bool = False


class HFSampler:
    """Implements `protocols.Sampler`. `stop_ids` end a completion and belong to it."""

    def __init__(
        self, model: LanguageModel, stop_ids: Iterable[int], *, batch_size: int = 64
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}, but at least 1 request must run at a time")
        self.model, self.stop_ids, self.batch_size = model, frozenset(stop_ids), batch_size
        if not self.stop_ids:
            raise ValueError(
                "a sampler without stop ids runs every completion to its budget; give the EOS id"
            )
        self.version = 0

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        waiting = iter(requests)
        while chunk := list(islice(waiting, self.batch_size)):
            yield from self._run(chunk)

    def set_weights(self, version: int, tensors: Weights) -> None:
        """The tensors are the model's own; only the version changes."""
        self.version = version

    def close(self) -> None:
        """There is nothing to release."""

    @torch.no_grad()
    def _run(self, requests: Sequence[Request]) -> list[Completion]:
        _check_supported(requests)
        running = [_Running(request) for request in requests]
        tokens_BL, mask_BL = _left_padded(
            requests, self.model.tokenizer.pad_token_id or 0, self.model.device
        )
        cache: Any = None
        with self._attention():
            for position in range(max(request.max_new_tokens for request in requests)):
                logits_BV, cache = self._logits(tokens_BL, mask_BL, cache)
                tokens_BL = self._advance(running, logits_BV.cpu(), position).to(self.model.device)
                if all(each.done for each in running):
                    break
                mask_BL = torch.cat([mask_BL, mask_BL.new_ones(mask_BL.shape[0], 1)], dim=1)
        return [self._completion(each) for each in running]

    def _attention(self) -> AbstractContextManager[None]:
        """The context in which `_logits` runs."""
        return stock_attention(self.model)

    def _logits(self, tokens_BL: Tensor, mask_BL: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits of the next token in float32, and the cache for the next call; None before the first."""
        return next_logits(self.model, tokens_BL, mask_BL, cache)

    def _advance(self, running: Sequence[_Running], logits_BV: Tensor, position: int) -> Tensor:
        """Sample the next token of every request; a finished one repeats its last, which is not used."""
        for each, logits_V in zip(running, logits_BV, strict=True):
            if each.done:
                continue
            logprobs_V = (logits_V / each.request.temperature).log_softmax(-1)
            token = self._choose(each.request, logprobs_V, position)
            each.tokens.append(token)
            each.logprobs.append(float(logprobs_V[token]))
            ends = token in self.stop_ids or token in each.request.stop_ids
            each.done = ends or len(each.tokens) == each.request.max_new_tokens
        return torch.tensor([[each.tokens[-1]] for each in running])

    def _choose(self, request: Request, logprobs_V: Tensor, position: int) -> int:
        if request.greedy:
            return int(logprobs_V.argmax())
        noise_V = gumbel(
            request.seed, request.prompt_id, request.sample, position, logprobs_V.numel()
        )
        return int((logprobs_V + noise_V).argmax())

    def _completion(self, each: _Running) -> Completion:
        return Completion(
            prompt_id=each.request.prompt_id,
            sample=each.request.sample,
            tokens=tuple(each.tokens),
            logprobs=tuple(each.logprobs),
            versions=(self.version,) * len(each.tokens),
            stop=self._stop(each),
        )

    def _stop(self, each: _Running) -> Stop:
        if each.tokens[-1] in self.stop_ids:
            return "eos"
        return "stop" if each.tokens[-1] in each.request.stop_ids else "length"


def next_logits(
    model: LanguageModel, tokens_BL: Tensor, mask_BL: Tensor, cache: Any
) -> tuple[Tensor, Any]:
    """One forward over the tokens that are not in `cache`: logits after the last one, and the new cache."""
    positions_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)[:, -tokens_BL.shape[1] :]
    out = model.module(
        input_ids=tokens_BL,
        attention_mask=mask_BL,
        position_ids=positions_BL,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return out.logits[:, -1].float(), out.past_key_values


@contextmanager
def stock_attention(model: LanguageModel) -> Iterator[None]:
    """Use transformers' own attention inside; ours is restored afterwards."""
    implementation, mode = model.module.config._attn_implementation, model.module.training
    # transformers' SDPA refuses sinks, and silently ignores soft caps.
    capped = (
        getattr(model.module.config.get_text_config(), "attn_logit_softcapping", None) is not None
    )
    model.module.set_attn_implementation(
        "sdpa" if model.module._supports_sdpa and not capped else "eager"
    )
    model.module.eval()
    try:
        yield
    finally:
        model.module.set_attn_implementation(implementation)
        model.module.train(mode)


def _left_padded(
    requests: Sequence[Request], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    longest = max(len(request.tokens) for request in requests)
    rows = [[pad] * (longest - len(r.tokens)) + list(r.tokens) for r in requests]
    seen = [[0] * (longest - len(r.tokens)) + [1] * len(r.tokens) for r in requests]
    return torch.tensor(rows, device=device), torch.tensor(seen, device=device)


def _check_supported(requests: Sequence[Request]) -> None:
    plain = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "min_new_tokens": 0, "stop": ()}
    for request in requests:
        for name, value in plain.items():
            if (given := getattr(request, name)) != value:
                raise ValueError(
                    f"{name}={given!r}: this sampler supports only {value!r}; use the native engine"
                )
