"""How new weights reach a server that samples, and how to tell which weights it has: `ascent serve` and vLLM.

Weights are a Hugging Face folder that trainer and server can both read: of a model, or of a LoRA adapter that names its
base. A server's stamp is a text that no other weights have: it changes when the server is restarted, and when somebody
else gives it weights.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from ascent.http_client import Client, RetryPolicy, ServerFailed, parse_json_object
from ascent.models.adapters import base_of

T = TypeVar("T")
# Letters, digits, signs, white space and two scripts: vocabularies that differ seldom agree on all of it.
VOCABULARY_PROBE = (
    'Ascent 0123456789 1+1=2; don\'t {"a": [x_y]}\n\n\tGrüße 你好 <|im_end|> the of and'
)


class ServedModel(NamedTuple):
    """What a server says of its model, where it does: the context length, `describe_numerics`, whether it takes LoRA
    adapters, and `sample_hash` of its weights."""

    name: str
    max_model_len: int | None = None
    numerics: str | None = None
    takes_adapters: bool = False
    weights_sample: str | None = None
    needs_head: bool = (
        False  # a folder must hold the output head, even where it is tied to the embeddings
    )
    keeps_head: bool = False  # a tied output head keeps its old weights


class Pushed(NamedTuple):
    """Weights that a server has taken: their stamp, and the name that requests must ask for."""

    stamp: str
    model: str


class WeightUpdates(Protocol):
    """One server."""

    def check(self) -> ServedModel:
        """ValueError if this is no such server."""

    def push(self, version: int, folder: Path) -> Pushed:
        """Have the server load these weights and forget what it computed with others."""

    def stamp(self, choice: dict[str, Any] | None = None) -> str:
        """The stamp of the weights that sampled a choice just received, or of those of now."""


class AscentUpdates:
    """Implements `WeightUpdates` for `ascent serve`. `url` ends in /v1."""

    def __init__(self, url: str, token: str | None, retry: RetryPolicy) -> None:
        self._client, self._name = Client(url, token=token, retry=retry), ""

    def check(self) -> ServedModel:
        model = self._model()
        if model.get("owned_by") != "ascent" or not isinstance(model.get("weights_id"), str):
            raise ValueError(
                f"{self._client.url} is no ascent serve; for vLLM set rollouts.engine=vllm"
            )
        self._name, adapters = str(model["id"]), model.get("takes_adapters") is True
        sample = model.get("weights_sample")
        return ServedModel(
            self._name, model.get("max_model_len"), model.get("numerics"), adapters, sample
        )

    def push(self, version: int, folder: Path) -> Pushed:
        body = {"version": version, "folder": str(folder)}
        return Pushed(
            _post(self._client, "/weights", body, lambda reply: _text(reply, "weights_id")),
            self._name,
        )

    def stamp(self, choice: dict[str, Any] | None = None) -> str:
        return _text(self._model() if choice is None else choice, "weights_id")

    def _model(self) -> dict[str, Any]:
        return self._client.get("/models", _models)[0]


class VLLMUpdates:
    """Implements `WeightUpdates` for a vLLM server in development mode (VLLM_SERVER_DEV_MODE=1), which has the routes
    for it. `url` ends in /v1; those routes lie beside it.

    An adapter is loaded under a name of its own (with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora), so that no
    request can be answered by another one. Its base is loaded before it, unless the server has it already.

    On a CPU vLLM packs the output head when it starts, and reloading leaves a tied one as it was. There the server must
    have a head of its own, and every folder must hold it.
    """

    def __init__(self, url: str, token: str | None, retry: RetryPolicy) -> None:
        self._client = Client(url, token=token, retry=retry)
        self._root = Client(url.rstrip("/").removesuffix("/v1"), token=token, retry=retry)
        self._own, self._name = secrets.token_hex(6), ""
        self._loaded: list[str] = []  # names of adapters

    def check(self) -> ServedModel:
        try:
            self.stamp()
        except ServerFailed as failure:
            if failure.kind != "server_refused":
                raise
            raise ValueError(
                f"{self._root.url} has no route /weight_info; start vLLM (0.32 or later) with VLLM_SERVER_DEV_MODE=1, "
                "or let Ascent start it (leave out rollouts.servers)"
            ) from failure
        model = self._client.get("/models", _models)[0]
        self._name = str(model["id"])
        length, adapters = model.get("max_model_len"), self._takes_adapters()
        packs = "device_config=cpu" in str(
            self._root.get("/server_info", parse_json_object).get("vllm_config")
        )
        keeps = packs and not self._has_head()
        return ServedModel(
            self._name, length, takes_adapters=adapters, needs_head=packs, keeps_head=keeps
        )

    def _has_head(self) -> bool:
        checksums = _post(
            self._root,
            "/weight_checker",
            {"action": "checksum"},
            lambda reply: reply.get("checksums"),
        )
        return any("lm_head" in name for name in checksums or ())

    def _takes_adapters(self) -> bool:
        try:
            _post(self._client, "/load_lora_adapter", {}, lambda reply: reply)
        except ServerFailed as failure:  # a route that is there says what is missing
            if failure.kind != "server_refused":
                raise
            return "status 404" not in failure.detail
        return True

    def push(self, version: int, folder: Path) -> Pushed:
        base = base_of(folder)
        if base is None:
            stamp = f"{self._own}-{version}-{secrets.token_hex(4)}"
            self._reload(folder, stamp)
            return Pushed(stamp, self._name)
        base_stamp = f"{self._own}-base"
        if self._weight_version() != base_stamp:
            self._reload(base, base_stamp)
        return self._load_adapter(version, folder)

    def _load_adapter(self, version: int, folder: Path) -> Pushed:
        name = f"{self._own}-{version}-{secrets.token_hex(4)}"
        for old in [
            each for each in self._loaded if not each.startswith(f"{self._own}-{version}-")
        ]:
            if old in self._served_names():
                self._client.post(
                    "/unload_lora_adapter", json.dumps({"lora_name": old}).encode(), bytes
                )
            self._loaded.remove(old)
        body = {"lora_name": name, "lora_path": str(folder)}
        self._client.post("/load_lora_adapter", json.dumps(body).encode(), bytes)
        self._loaded.append(name)
        return Pushed(self.stamp(), name)

    def _reload(self, folder: Path | str, stamp: str) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        _post(self._root, "/collective_rpc", reload, lambda reply: reply)
        if (
            _post(self._root, "/reset_prefix_cache", {}, lambda reply: reply).get("success")
            is not True
        ):
            raise ServerFailed("server_error", f"{self._root.url} could not empty its prefix cache")
        _post(self._root, "/update_weight_version", {"new_version": stamp}, lambda reply: reply)

    def stamp(self, choice: dict[str, Any] | None = None) -> str:
        if not self._loaded:
            return self._weight_version()
        name = self._loaded[-1]
        known = (
            choice is not None or name in self._served_names()
        )  # a choice is that of the adapter it was asked of
        return f"{self._weight_version()} {name if known else 'gone'}"

    def _weight_version(self) -> str:
        return str(self._root.get("/weight_info", parse_json_object).get("weight_version"))

    def _served_names(self) -> list[str]:
        return [str(each["id"]) for each in self._client.get("/models", _models)]


def check_vocabulary(
    url: str, token: str | None, retry: RetryPolicy, encode: Callable[[str], list[int]]
) -> None:
    """ValueError if the server tokenizes a text differently."""
    client = Client(url.rstrip("/").removesuffix("/v1"), token=token, retry=retry)
    tokens = _post(
        client, "/tokenize", {"prompt": VOCABULARY_PROBE}, lambda reply: reply.get("tokens")
    )
    if tokens != list(encode(VOCABULARY_PROBE)):
        raise ValueError(
            f"the server at {client.url} has another vocabulary than the policy: it reads a test text as the tokens "
            f"{tokens!r:.60}; serve the model that is trained"
        )


def _post(
    client: Client, path: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]
) -> T:
    return client.post(
        path, json.dumps(body).encode(), lambda reply: read(parse_json_object(reply))
    )


def _models(reply: bytes) -> list[dict[str, Any]]:
    models = parse_json_object(reply).get("data")
    if (
        not isinstance(models, list)
        or not models
        or not all(isinstance(each, dict) and "id" in each for each in models)
    ):
        raise ValueError("the reply names no model")
    return models


def _text(reply: dict[str, Any], name: str) -> str:
    value = reply.get(name)
    if not isinstance(value, str):
        raise ValueError(f"the reply has no {name}")
    return value
