"""A model behind the OpenAI protocol (`ascent serve`), sampled by the native engine.

    POST /v1/completions, /v1/chat/completions   as OpenAI's, with streams; see `openai_requests` and `openai_replies`
    GET  /v1/models    the model, its context length, the version and an id of its weights, and its numerics
    POST /v1/weights   {"version": 3, "folder": "/shared/3"}
                       -> {"version": 3, "weights_id": "..."} once later requests get these weights. The folder holds
                       a model, or a LoRA adapter that names its base: it is sampled unmerged, as it is trained.
    POST /tokenize     {"prompt": "text"} -> {"tokens": [...]}
    GET  /health

Header `Authorization: Bearer TOKEN`, where the server has a token.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ascent import http_server
from ascent.data.render import Renderer
from ascent.engines.copied import copy_weights
from ascent.engines.engine_thread import EngineThread, Job
from ascent.engines.native.streaming import StreamingEngine
from ascent.engines.openai_replies import Reply
from ascent.engines.openai_requests import Generation, read_chat, read_completion
from ascent.engines.token_logprobs import TokenLogprob, token_logprobs
from ascent.http_client import parse_json_object
from ascent.http_server import Call, HTTPError, Route
from ascent.models import adapters, lora
from ascent.models.load import load
from ascent.models.locate import ADAPTER_CONFIG
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.models.numerics import describe_numerics
from ascent.records import Completion

MAX_BODY_BYTES = 16 << 20
KNOWN_VERSIONS = 8  # whose ids are kept for replies that are on their way
ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    503: "overloaded_error",
}


class ModelServer:
    """The routes of one model. Whoever makes it must `close` it."""

    def __init__(
        self, model: LanguageModel, name: str, *, max_model_len: int | None = None, version: int = 0
    ) -> None:
        self.model, self.name, self._max_model_len = model, name, max_model_len
        context = max_sequence_length(model.module.config)
        self._renderer = Renderer(
            model.tokenizer, train_on="completion", context=context, check_content=False
        )
        self._engine = self._create_engine()
        self._engine.version = version
        self._adapter: object = None  # what `adapters.layout_of` says of the adapter in the model
        self._weights_sample = _sample_of(Path(model.origin)) if model.origin else None
        self._weights_ids = {version: secrets.token_hex(8)}
        self._thread = EngineThread(self._engine)
        self._thread.start()
        self._loading, self._created = threading.Lock(), int(time.time())

    def routes(self) -> dict[str, Route]:
        return {
            "/v1/completions": Route("POST", self._complete, MAX_BODY_BYTES),
            "/v1/chat/completions": Route("POST", self._chat, MAX_BODY_BYTES),
            "/v1/models": Route("GET", self._models),
            "/v1/weights": Route("POST", self._set_weights, MAX_BODY_BYTES),
            "/tokenize": Route("POST", self._tokenize, MAX_BODY_BYTES),
            "/health": Route("GET", lambda _: {"ok": True, "serves": self.name}),
        }

    def close(self) -> None:
        self._thread.close()

    def _create_engine(self) -> StreamingEngine:
        return StreamingEngine(
            self.model.eval(), self._renderer.stop_ids, max_model_len=self._max_model_len
        )

    def _complete(self, call: Call) -> http_server.Reply:
        body = self._read(call)
        generation = read_completion(body, self.model.tokenizer.encode, self._engine.stop_ids)
        return self._generate(generation, call, chat=False)

    def _chat(self, call: Call) -> http_server.Reply:
        body = self._read(call)
        generation = read_chat(
            body, self._renderer, self._engine.stop_ids, self._engine.longest_sequence
        )
        return self._generate(generation, call, chat=True)

    def _read(self, call: Call) -> dict[str, Any]:
        body = parse_json_object(call.body)
        asked = body.get("model", self.name)
        if asked != self.name:
            raise HTTPError(
                404, f"there is no model {asked!r:.100} here; this server has {self.name!r}"
            )
        return body

    def _generate(self, generation: Generation, call: Call, *, chat: bool) -> http_server.Reply:
        for request in generation.requests:
            self._engine.check(request, only_prompt=generation.only_prompt)
        reply = Reply.create(
            generation, self.model.tokenizer, self.name, self._weights_ids, chat=chat
        )
        if generation.only_prompt:
            return reply.prompts_only(self._score(generation, [()] * len(generation.requests)))
        outputs = self._thread.results(
            Job(generation.requests, partial=generation.stream), call.is_gone
        )
        if generation.stream:
            return reply.events(outputs)
        found: dict[int, Completion] = {
            each.index: each.completion for each in outputs if each.completion
        }
        completions = [found[index] for index in range(len(generation.requests))]
        return reply.whole(
            completions, self._score(generation, [each.tokens for each in completions])
        )

    def _score(
        self, generation: Generation, sampled: list[tuple[int, ...]]
    ) -> Mapping[int, list[TokenLogprob | None]]:
        """By choice, where the reply has log-probs of the prompt or of the likeliest tokens."""
        top = generation.top_logprobs
        if top is None or not (top or generation.echo):
            return {}
        found = {}
        for index, (request, tokens) in enumerate(zip(generation.requests, sampled, strict=True)):
            score = partial(
                token_logprobs, self.model, (*request.tokens, *tokens), top, request.temperature
            )
            found[index] = self._thread.call(score)
        return found

    def _models(self, call: Call) -> dict[str, Any]:
        own = {
            "id": self.name,
            "object": "model",
            "created": self._created,
            "owned_by": "ascent",
            "max_model_len": self._engine.longest_sequence,
            "weight_version": self._engine.version,
            "weights_id": self._weights_ids[self._engine.version],
            "numerics": describe_numerics(self.model),
            "takes_adapters": True,
            "weights_sample": self._weights_sample,
        }
        return {"object": "list", "data": [own]}

    def _tokenize(self, call: Call) -> dict[str, Any]:
        text = parse_json_object(call.body).get("prompt")
        if not isinstance(text, str):
            raise ValueError("prompt is no text")
        tokens = list(self.model.tokenizer.encode(text))
        return {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": self._engine.longest_sequence,
        }

    def _set_weights(self, call: Call) -> dict[str, Any]:
        body = parse_json_object(call.body)
        version, folder = body.get("version"), body.get("folder")
        if type(version) is not int or not 0 <= version < 1 << 31 or not isinstance(folder, str):
            raise ValueError(
                'weights are given as {"version": a whole number, "folder": a model folder}'
            )
        with self._loading:  # one after the other
            change = self._weight_change(Path(folder))

            def write() -> None:
                change()
                self._weights_sample = _sample_of(Path(folder))
                self._weights_ids[version] = secrets.token_hex(8)
                for old in list(self._weights_ids)[:-KNOWN_VERSIONS]:
                    del self._weights_ids[old]

            self._thread.set_weights(version, write)
            return {"version": version, "weights_id": self._weights_ids[version]}

    def _weight_change(self, folder: Path) -> Callable[[], None]:
        """What gives the engine the weights of a folder, once it is idle; ValueError if they do not fit."""
        layout = adapters.layout_of(folder) if (folder / ADAPTER_CONFIG).is_file() else None
        if layout is None and not (folder / "config.json").is_file():
            raise ValueError(
                f"folder={str(folder)!r:.200} is no model folder that this machine can read"
            )
        if layout is not None and layout == self._adapter and self.model.adapter is not None:
            return partial(
                adapters.load_weights, self.model.adapter, folder
            )  # the base is here already
        read = load if layout is None else lora.load_unmerged
        new = read(folder, dtype=str(self.model.module.dtype).removeprefix("torch."))
        check_same_shapes(self.model, new)
        in_place = self.model.adapter is None and layout is None

        def change() -> None:
            self._adapter = layout
            if in_place:
                return copy_weights(new, self.model)
            self._engine.close()
            device = self.model.device
            self.model.to_host()  # before the new ones come, so that they need no memory of their own
            nn.Module.to(new.module, device)
            self.model = new
            self._engine = self._thread.engine = self._create_engine()

        return change


def check_same_shapes(model: LanguageModel, new: LanguageModel) -> None:
    """ValueError unless both have the same weights, apart from adapters, and the same vocabulary."""
    own, other = (_base_shapes(of) for of in (model, new))
    different = sorted(
        name for name in own.keys() | other.keys() if own.get(name) != other.get(name)
    )
    if different:
        name = different[0]
        raise ValueError(
            f"these are the weights of another model: {name} has shape {other.get(name)}, here {own.get(name)}; "
            "serve the model that is trained"
        )
    if model.tokenizer.get_vocab() != new.tokenizer.get_vocab():
        raise ValueError(
            "these weights come with another vocabulary; serve the model that is trained"
        )


def _base_shapes(model: LanguageModel) -> dict[str, tuple[int, ...]]:
    """By the name without an adapter."""
    weights = {
        name: each for name, each in model.module.state_dict().items() if ".lora_" not in name
    }
    return {name.replace(".base_layer.", "."): tuple(each.shape) for name, each in weights.items()}


def _sample_of(folder: Path) -> str | None:
    return adapters.sample_hash(folder) if folder.is_dir() else None


def error_body(status: int, why: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(status, "invalid_request_error")
    return {"error": {"message": why, "type": kind, "param": None, "code": status}}
