"""What is written for servers: a whole model, or an adapter that names its base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ascent.engines.fleet import FleetServer
from ascent.engines.remote import RemoteSampler
from ascent.engines.weight_updates import ServedModel, VLLMUpdates
from ascent.http_client import RetryPolicy
from ascent.models import lora
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.setup.policy_weights import PolicyWeights, write_weights
from tests.engines.served import tiny_folder

pytest.importorskip("peft")


def test_the_weights_of_an_adapter_are_merged(tmp_path: Path) -> None:
    model = lora.attach(load(tiny_folder(tmp_path / "m")), rank=4)
    write_weights(model, tmp_path / "out")
    merged = load(tmp_path / "out")
    assert merged.adapter is None and not (tmp_path / "out" / "adapter_config.json").exists()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_an_adapter_goes_alone_and_its_base_is_written_once(tmp_path: Path) -> None:
    policy = PolicyWeights(lora.attach(load(tiny_folder(tmp_path / "m")), rank=4), tmp_path / "out")
    assert policy.sends_adapter([]) and policy.lora_rank == 4
    folders = policy.folders(adapter=True)
    assert folders.create(1) == tmp_path / "out" / "1"
    written = (tmp_path / "out" / "base" / "model.safetensors").stat().st_mtime_ns
    with_weights = next(iter(policy.model.parameters()))
    with_weights.data.fill_(0.125)
    folders.create(2)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["2", "base"]
    assert (tmp_path / "out" / "base" / "model.safetensors").stat().st_mtime_ns == written
    assert folders.initial(2) == tmp_path / "out" / "base"
    found = lora.load_unmerged(tmp_path / "out" / "2")
    own, other = (dict(each.module.state_dict()) for each in (policy.model, found))
    assert own.keys() == other.keys() and all(own[name].equal(other[name]) for name in own)


def test_who_takes_no_adapter_gets_the_merged_model_or_is_refused(tmp_path: Path) -> None:
    model = lora.attach(load(tiny_folder(tmp_path / "m")), rank=4)
    plain = server(takes_adapters=False)
    assert not PolicyWeights(model, tmp_path, "merged").sends_adapter([])
    assert not PolicyWeights(model, tmp_path, "auto").sends_adapter(
        [server(takes_adapters=True), plain]
    )
    with pytest.raises(
        ValueError,
        match=r"server http://a/v1 takes no adapters; start vLLM with --enable-lora --max",
    ):
        PolicyWeights(model, tmp_path, "adapter").sends_adapter([plain])
    assert not PolicyWeights(load(tmp_path / "m"), tmp_path, "adapter").sends_adapter([])


def server(**facts: Any) -> FleetServer:
    url, retry = "http://a/v1", RetryPolicy()
    return FleetServer(
        RemoteSampler(url, "m", [1]), VLLMUpdates(url, None, retry), ServedModel("m", **facts)
    )


def test_a_tied_head_is_written_for_servers_that_need_it(tmp_path: Path) -> None:
    model = load(tiny_folder(tmp_path / "m"))
    tie(model)
    assert model.module.get_output_embeddings().weight is model.module.get_input_embeddings().weight
    write_weights(model, tmp_path / "tied")
    write_weights(model, tmp_path / "own", own_head=True)
    assert not (tmp_path / "tied" / "lm_head.safetensors").exists()
    head = load_file(tmp_path / "own" / "lm_head.safetensors")["lm_head.weight"]
    assert head.equal(model.module.get_input_embeddings().weight)
    assert (
        json.loads((tmp_path / "own" / "config.json").read_text())["tie_word_embeddings"] is False
    )
    policy = PolicyWeights(model, tmp_path / "w")
    with pytest.raises(
        ValueError,
        match=r"http://a/v1 is vLLM on a CPU, where a tied output head keeps its old weights",
    ):
        policy.sends_adapter([server(keeps_head=True)])
    untied = load(tmp_path / "m")
    assert not PolicyWeights(untied, tmp_path / "w").sends_adapter(
        [server(keeps_head=True)]
    )  # nothing is tied here


def tie(model: LanguageModel) -> None:
    model.module.config.tie_word_embeddings = True
    model.module.lm_head.weight = model.module.get_input_embeddings().weight  # type: ignore[union-attr]
