"""An adapter on disk: peft loads it, `load` merges it, and without its base it says what is missing."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from ascent.models.adapters import chain
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.models.tiny import create
from tests.models.adapted import logprobs, trained
from tests.models.packing import batch_of, one_by_one

peft = pytest.importorskip("peft")

NUMBERS = {"hidden": 32, "layers": 2, "initializer_range": 0.25}
CLOSE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "run" / "initial" / "base", **NUMBERS)


@pytest.fixture
def saved(tmp_path):
    return tmp_path / "run" / "checkpoints" / "4" / "model"


def scores(model):
    return model.outputs(batch_of(), frozenset({"scores_B"}))["scores_B"].detach().nan_to_num()


def test_the_folder_holds_the_adapter_alone(folder, saved):
    model = trained(folder)
    model.save(saved)
    names = {path.name for path in saved.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    tuned = sum(each.numel() * each.element_size() for each in model.parameters())
    assert (saved / "adapter_model.safetensors").stat().st_size < 1.2 * tuned + 10_000
    again = saved.with_name("again")
    model.save(again)
    assert all((saved / name).read_bytes() == (again / name).read_bytes() for name in names)


def test_peft_and_transformers_load_it(folder, saved):
    model = trained(folder)
    model.save(saved)
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    for theirs in (
        peft.PeftModel.from_pretrained(stock, saved).merge_and_unload(),
        AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager"),
    ):
        theirs_T, _ = one_by_one(theirs.eval(), batch_of())
        torch.testing.assert_close(theirs_T.detach(), logprobs(model), **CLOSE)


def test_peft_loads_a_reward_model_with_its_head(folder, saved):
    model = trained(folder, head="scalar")
    model.save(saved)
    stock = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    merged = peft.PeftModel.from_pretrained(stock, saved).merge_and_unload()
    assert torch.equal(merged.score.weight, model.module.score.weight)
    weight = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(merged.state_dict()[weight], load(folder).module.state_dict()[weight])


def test_a_merged_model_stops_where_the_adapter_was_trained_to_end(folder, saved):
    file = folder / "generation_config.json"
    file.write_text(json.dumps({"temperature": 0.6, "eos_token_id": 2}))
    model = trained(folder)
    model.add_stop_ids({7})
    model.save(saved)
    load(saved).save(saved.with_name("plain"))
    found = json.loads((saved.with_name("plain") / file.name).read_text())
    assert (found["temperature"], found["eos_token_id"]) == (0.6, [2, 7])


def test_load_merges_it(folder, saved):
    model = trained(folder)
    model.save(saved)
    merged = load(saved)
    torch.testing.assert_close(logprobs(merged), logprobs(model), **CLOSE)
    assert merged.adapter is None
    assert len(list(merged.parameters())) == len(list(load(folder).parameters()))
    merged.save(saved.with_name("plain"))
    stock = AutoModelForCausalLM.from_pretrained(
        saved.with_name("plain"), attn_implementation="eager"
    ).eval()
    torch.testing.assert_close(one_by_one(stock, batch_of())[0].detach(), logprobs(model), **CLOSE)
    assert not (saved.with_name("plain") / "adapter_config.json").exists()


def test_heads_and_what_a_reward_model_learnt_come_along(folder, saved):
    rewarding = trained(folder, head="scalar")
    rewarding.module.config.score_normalization = {"mean": 2.0, "std": 1.0, "records": 8}
    rewarding.save(saved)
    merged = load(saved, head="scalar")
    torch.testing.assert_close(scores(merged), scores(rewarding), **CLOSE)
    assert merged.normalization is not None and merged.normalization.mean == 2.0
    assert not any("new" in note for note in merged.notes)
    with pytest.raises(
        ValueError, match="adapter of a reward model or critic, which has no token head"
    ):
        load(saved)
    both = trained(folder, head="both")
    both.save(saved.with_name("both"))
    assert torch.equal(
        load(saved.with_name("both"), head="both").value_head.weight, both.value_head.weight
    )
    # A reward model may start from the adapter of a policy.
    assert any(
        "scalar head is new" in note for note in load(saved.with_name("both"), head="scalar").notes
    )


def test_an_adapter_on_an_adapter(folder, saved, tmp_path):
    trained(folder).save(saved)
    second = trained(saved)
    second.save(tmp_path / "second")
    assert chain(tmp_path / "second") == [tmp_path / "second", saved, folder]
    torch.testing.assert_close(logprobs(load(tmp_path / "second")), logprobs(second), **CLOSE)


def test_a_bare_adapter_takes_config_and_tokenizer_from_its_base(folder, saved):
    model = trained(folder)
    model.adapter.save_pretrained(saved)
    assert not (saved / "tokenizer.json").exists()
    torch.testing.assert_close(logprobs(load(saved)), logprobs(model), **CLOSE)


def test_the_base_moves_along_with_the_run_and_is_missed_when_gone(folder, saved, tmp_path):
    model = trained(folder)
    model.save(saved)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    moved = tmp_path / "moved" / saved.relative_to(tmp_path / "run")
    torch.testing.assert_close(logprobs(load(moved)), logprobs(model), **CLOSE)
    shutil.rmtree(tmp_path / "moved" / "initial")
    with pytest.raises(
        ValueError,
        match=r"is a LoRA adapter, and its base is gone: .*initial/base.* does not exist",
    ):
        load(moved)


def test_a_base_that_was_trained_further_is_refused(folder, saved):
    """As where a run is continued in place; another layer is enough, and a copy of the base is fine."""
    trained(folder).save(saved)
    shutil.copytree(folder, folder.with_name("copy"))
    _edit(saved, base_model_name_or_path=str(folder.with_name("copy")))
    load(saved)
    model = load(folder)
    with torch.no_grad():
        model.module.model.layers[1].mlp.up_proj.weight += 0.01
    model.save(folder.with_name("copy"))
    with pytest.raises(
        ValueError, match=r"copy has other weights than when the adapter .* was trained on it"
    ):
        load(saved)


def test_what_cannot_be_merged_is_refused(folder, saved, tmp_path):
    attach(load(folder), rank=2).save(saved)
    (saved / "adapter_training.json").unlink()
    other = create(tmp_path / "other", hidden=64, layers=2)
    _edit(saved, base_model_name_or_path=str(other))
    with pytest.raises(
        ValueError, match=r"does not fit this adapter in .* use the rank and the model"
    ):
        load(saved)
    _edit(saved, base_model_name_or_path=str(saved))
    with pytest.raises(ValueError, match="is its own base"):
        load(saved)
    _edit(saved, base_model_name_or_path=str(folder), peft_type="IA3")
    with pytest.raises(ValueError, match="only LoRA can be merged"):
        load(saved)


def _edit(saved: Path, **values: str) -> None:
    file = saved / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
