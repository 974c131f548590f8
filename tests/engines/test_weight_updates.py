"""The routes of vLLM that give it weights, against a server that has them and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent import http_server
from ascent.engines.weight_updates import VLLMUpdates
from ascent.http_client import RetryPolicy, ServerFailed
from ascent.http_server import Call, HTTPError, Route


class VLLM:
    """What a vLLM server knows: a version, adapters by name, the calls that changed anything."""

    def __init__(self, device: str = "cuda", *, own_head: bool = True, lora: bool = True) -> None:
        self.device, self.own_head, self.lora = device, own_head, lora
        self.calls: list[Any] = []
        self.restart()
        self.http = http_server.create_server(self.routes())
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def restart(self) -> None:
        self.version, self.adapters = "default", dict[str, str]()

    def routes(self) -> dict[str, Route]:
        posts = {
            "/collective_rpc": self.reload,
            "/reset_prefix_cache": lambda body: {"success": True},
            "/update_weight_version": self.set_version,
            "/weight_checker": lambda body: {"checksums": self.weights()},
        }
        if self.lora:
            posts |= {"/v1/load_lora_adapter": self.load, "/v1/unload_lora_adapter": self.unload}
        gets = {
            "/v1/models": lambda: {"data": [{"id": each} for each in ("policy", *self.adapters)]},
            "/weight_info": lambda: {"weight_version": self.version},
            "/server_info": lambda: {"vllm_config": f"dtype=x, device_config={self.device}, y"},
        }
        found = {
            path: Route("GET", lambda call, reply=reply: reply()) for path, reply in gets.items()
        }
        for path, handle in posts.items():
            found[path] = Route(
                "POST", lambda call, handle=handle: handle(json.loads(call.body)), 1 << 16
            )
        return found

    def weights(self) -> dict[str, str]:
        return dict.fromkeys(
            ("model.embed_tokens.weight", *["lm_head.weight"] * self.own_head), "0"
        )

    def reload(self, body: Any) -> Any:
        self.calls.append(("reload", body["kwargs"]["weights_path"]))
        return {"results": [None]}

    def set_version(self, body: Any) -> Any:
        self.version = body["new_version"]
        return {"success": True}

    def load(self, body: Any) -> Any:
        if not body:
            raise HTTPError(422, "lora_name is missing")
        self.adapters[body["lora_name"]] = body["lora_path"]
        self.calls.append(("load", body["lora_path"]))
        return {}

    def unload(self, body: Any) -> Any:
        self.calls.append(("unload", self.adapters.pop(body["lora_name"])))
        return {}


@pytest.fixture
def vllm(request: pytest.FixtureRequest) -> Iterator[VLLM]:
    found = VLLM(**getattr(request, "param", {}))
    yield found
    found.http.shutdown()
    found.http.server_close()


def updates_of(vllm: VLLM) -> VLLMUpdates:
    return VLLMUpdates(f"{vllm.http.url}/v1", None, RetryPolicy(timeout=10, tries=1))


def adapter_of(folder: Path, base: Path) -> Path:
    for each in (folder, base):
        each.mkdir(parents=True, exist_ok=True)
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").touch()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    return folder


@pytest.mark.parametrize(
    ("vllm", "needs", "keeps", "adapters"),
    [
        ({}, False, False, True),
        ({"lora": False}, False, False, False),
        ({"device": "cpu"}, True, False, True),
        ({"device": "cpu", "own_head": False}, True, True, True),
        (
            {"own_head": False},
            False,
            False,
            True,
        ),  # on a GPU a tied head is the embeddings' own tensor
    ],
    indirect=["vllm"],
)
def test_what_a_server_can_do(vllm: VLLM, needs: bool, keeps: bool, adapters: bool) -> None:
    found = updates_of(vllm).check()
    assert (found.name, found.needs_head, found.keeps_head, found.takes_adapters) == (
        "policy",
        needs,
        keeps,
        adapters,
    )
    assert not vllm.calls


def test_whole_weights_have_a_stamp_of_their_own(vllm: VLLM, tmp_path: Path) -> None:
    updates = updates_of(vllm)
    updates.check()
    first, again = updates.push(3, tmp_path), updates.push(3, tmp_path)
    assert first.model == again.model == "policy" and first.stamp != again.stamp == updates.stamp()
    assert vllm.calls == [("reload", str(tmp_path))] * 2
    vllm.restart()
    assert updates.stamp() != again.stamp


def test_an_adapter_has_a_name_of_its_own_and_its_base_is_loaded_once(
    vllm: VLLM, tmp_path: Path
) -> None:
    updates, base = updates_of(vllm), tmp_path / "base"
    updates.check()
    one, two = (adapter_of(tmp_path / str(n), base) for n in (1, 2))
    first = updates.push(1, one)
    assert first.model in vllm.adapters and updates.stamp() == first.stamp
    again = updates.push(1, one)  # the first may still be asked for
    assert vllm.adapters.keys() == {first.model, again.model} and first.stamp != again.stamp
    second = updates.push(2, two)
    assert vllm.adapters == {second.model: str(two)}
    assert vllm.calls == [
        ("reload", str(base)),
        ("load", str(one)),
        ("load", str(one)),
        ("unload", str(one)),
        ("unload", str(one)),
        ("load", str(two)),
    ]
    assert updates.stamp({}) == updates.stamp() == second.stamp
    vllm.adapters.clear()
    assert updates.stamp() != second.stamp
    vllm.restart()
    third = updates.push(2, two)  # base and all
    assert (
        vllm.calls[-2:] == [("reload", str(base)), ("load", str(two))]
        and updates.stamp() == third.stamp
    )


def test_a_prefix_cache_that_is_not_emptied_is_an_error(vllm: VLLM, tmp_path: Path) -> None:
    updates = updates_of(vllm)
    vllm.http.routes["/reset_prefix_cache"] = Route("POST", lambda call: {"success": False}, 100)

    with pytest.raises(ServerFailed, match="could not empty its prefix cache"):
        updates.push(1, tmp_path)
    assert vllm.version == "default"


def test_a_server_without_the_routes_is_named(vllm: VLLM) -> None:
    def missing(call: Call) -> Any:
        raise HTTPError(404, "Not Found")

    vllm.http.routes["/weight_info"] = Route("GET", missing)
    with pytest.raises(
        ValueError, match=r"has no route /weight_info; start vLLM .* with VLLM_SERVER_DEV_MODE=1"
    ):
        updates_of(vllm).check()
