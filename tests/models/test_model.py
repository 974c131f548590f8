"""The whole model as learners see it: what it offers, what it trains, what it saves, its memory; and SmolLM2."""

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ascent.models import layer_patching
from ascent.models.load import load
from ascent.models.model import LanguageModel, max_sequence_length, output_head
from ascent.models.tiny import create, tiny_tokenizer
from tests.models.packing import FAMILIES, Meter, batch_of, one_by_one, random_model

ALL = frozenset({"logprobs_T", "entropy_T", "log_collision_T", "logits_TV"})
SMOLLM2 = os.environ.get("ASCENT_SMOLLM2", "")


def test_what_a_model_offers_depends_on_its_heads(tmp_path):
    create(tmp_path, hidden=16, heads=2, key_value_heads=1, layers=1)
    policy, critic = load(tmp_path), load(tmp_path, head="scalar")
    assert policy.offers == ALL
    assert critic.offers == {"scores_B", "values_T", "step_logits_TC"}
    with pytest.raises(
        ValueError, match=r"want=\['scores_B'\]: LlamaForCausalLM offers \['entropy_T', 'log_coll"
    ):
        policy.outputs(batch_of(), frozenset({"scores_B"}))
    with pytest.raises(
        ValueError, match=r"LlamaForSequenceClassification offers \['scores_B', 'step_log"
    ):
        critic.outputs(batch_of(), ALL)
    with pytest.raises(ValueError, match=r"want=\[\]"):
        policy.outputs(batch_of(), frozenset())


@pytest.mark.parametrize("want", [ALL, frozenset({"logprobs_T"}), frozenset({"entropy_T"})])
def test_what_is_asked_for_is_what_comes_back(want):
    assert random_model("llama").outputs(batch_of(), want).keys() == want


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_a_plain_folder(family, tmp_path):
    create(tmp_path / "base", family=family, hidden=32, initializer_range=0.25, **FAMILIES[family])
    model = load(tmp_path / "base")
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01
    model.save(tmp_path / "saved")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="eager")
    default = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert default.config._attn_implementation in ("sdpa", "eager")
    for name, weight in model.module.state_dict().items():
        assert torch.equal(stock.state_dict()[name], weight)
    theirs_T, _ = one_by_one(stock, batch_of())
    ours_T = model.outputs(batch_of(), ALL)["logprobs_T"]
    torch.testing.assert_close(ours_T, theirs_T, rtol=0, atol=1e-5)
    assert not any(path.suffix == ".py" for path in (tmp_path / "saved").iterdir())


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 0.6, "do_sample": False},
        {"length_penalty": 2.0},
        {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "repetition_penalty": 1.1},
    ],
)
def test_a_generation_config_is_saved_as_it_was(values, tmp_path):
    """transformers itself refuses to write the first three."""
    file = create(tmp_path / "base", layers=1) / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    load(tmp_path / "base").save(tmp_path / "saved")
    load(tmp_path / "saved").save(tmp_path / "again")
    assert json.loads((tmp_path / "saved" / file.name).read_text()) == json.loads(file.read_text())
    assert (tmp_path / "saved" / file.name).read_bytes() == (
        tmp_path / "again" / file.name
    ).read_bytes()


@pytest.mark.parametrize(("own", "expected"), [(None, [2, 7]), (2, [2, 7]), ([9, 7], [2, 7, 9])])
def test_a_saved_model_stops_at_the_tokens_that_are_added(own, expected, tmp_path):
    model = load(create(tmp_path, layers=1))
    model.module.generation_config.eos_token_id = own
    for _ in range(2):
        model.add_stop_ids({7, 2})
        assert model.module.generation_config.eos_token_id == expected


def test_one_token_to_stop_at_stays_a_number_and_a_model_that_scores_has_none(tmp_path):
    create(tmp_path, layers=1)
    model = load(tmp_path)
    model.module.generation_config.eos_token_id = None
    model.add_stop_ids({7})
    assert model.module.generation_config.eos_token_id == 7
    critic = load(tmp_path, head="scalar")
    critic.add_stop_ids({7})
    critic.save(tmp_path / "critic")
    assert not (tmp_path / "critic/generation_config.json").exists()


def test_tied_weights_are_trained_once():
    names = [name for name, _ in random_model("smollm2").named_parameters()]
    assert "module.model.embed_tokens.weight" in names
    assert "module.lm_head.weight" not in names
    assert len(list(random_model("smollm2").parameters())) == len(names)


def test_the_gradient_of_tied_weights_counts_both_uses():
    model = random_model("smollm2")
    batch = batch_of() | {"loss_mask_T": torch.arange(25) == 3}
    model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"].sum().backward()
    grad = model.module.get_input_embeddings().weight.grad
    assert bool((grad != 0).any(1).all())  # every token competes in the softmax


def test_recomputing_needs_train_mode():
    model = random_model("llama")
    model = LanguageModel(model.module, model.tokenizer, gradient_checkpointing=True)
    with pytest.raises(
        ValueError, match="gradient_checkpointing=True has no effect on a model in eval mode"
    ):
        model.eval().outputs(batch_of(), ALL)
    with torch.no_grad():
        model.eval().outputs(batch_of(), ALL)
    model.train().outputs(batch_of(), ALL)


def test_memory_above_the_weights_does_not_grow_with_vocabulary_times_tokens():
    """800 tokens, vocabulary 20,000: logits in float32 would take 64 MB. Twenty times the vocabulary adds the larger
    gradients of embedding and head (4.9 MB) and nothing else."""
    budget, tokens, hidden, vocabulary = 4 * 2**20, 800, 32, 20_000
    peaks = {}
    for size in (1_000, vocabulary):
        module = random_model("llama", hidden=hidden, layers=1).module
        module.resize_token_embeddings(size, mean_resizing=False)
        layer_patching.patch_layers(module)
        model = LanguageModel(module, tiny_tokenizer(), budget_bytes=budget)
        with Meter() as meter:
            out = model.outputs(batch_of((100,) * 8), ALL)
            (out["logprobs_T"] + out["entropy_T"]).sum().backward()
        peaks[size] = meter.peak
    assert peaks[vocabulary] - peaks[1_000] <= 2 * (vocabulary - 1_000) * hidden * 4
    assert peaks[vocabulary] < tokens * vocabulary * 4 / 5


def test_rope_that_depends_on_the_batch_limits_the_length():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    config = AutoConfig.for_model(
        "phi3",
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=64,
        original_max_position_embeddings=32,
        rope_parameters={**rope, "original_max_position_embeddings": 32},
        pad_token_id=0,
    )
    assert max_sequence_length(config) == 32
    assert max_sequence_length(AutoConfig.for_model("llama", max_position_embeddings=64)) == 64


def test_the_head_of_each_family():
    gemma2, phi = (
        output_head(random_model("gemma2").module),
        output_head(random_model("phi").module),
    )
    assert gemma2.softcap == 2.0
    assert phi.bias_V is not None


needs_smollm2 = pytest.mark.skipif(
    not SMOLLM2, reason="set ASCENT_SMOLLM2 to a folder with SmolLM2-135M-Instruct"
)
TEXTS = (
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n2 + 2 equals 4.<|im_end|>\n",
    "def add(a, b):\n    return a + b\n",
    "Ja.",
)


@needs_smollm2
def test_smollm2_log_probs_are_its_own():
    model = load(Path(SMOLLM2))
    assert model.tokenizer.eos_token == "<|im_end|>"
    assert model.tokenizer.pad_token_id not in (None, model.tokenizer.eos_token_id)
    pieces = [torch.tensor(model.tokenizer(text).input_ids) for text in TEXTS]
    batch = batch_of(tuple(len(piece) for piece in pieces)) | {"tokens_T": torch.cat(pieces)}
    stock = AutoModelForCausalLM.from_pretrained(
        SMOLLM2, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        ours = model.outputs(batch, ALL)
        logprobs_T, entropy_T = one_by_one(stock, batch)
    off = float((ours["logprobs_T"] - logprobs_T).abs().max())
    print(f"largest difference of a log-prob: {off:.2g}")
    assert off < 1e-4
    assert float((ours["entropy_T"] - entropy_T).abs().max()) < 1e-4
    assert -3.5 < float(logprobs_T.mean()) < -0.5  # a model that knows English, not noise
