"""Loading: what comes in is what was saved, and whatever is wrong is said before training starts."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

from ascent.models.attention import NAME
from ascent.models.load import load
from ascent.models.tiny import create, tiny_tokenizer
from tests.models.packing import batch_of

WANT = frozenset({"logprobs_T"})
NUMBERS = {"hidden": 16, "heads": 2, "key_value_heads": 1, "layers": 1, "initializer_range": 0.3}


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "tiny", **NUMBERS)


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_weights_are_those_of_the_folder(folder):
    model = load(folder)
    stock = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in stock.state_dict().items():
        assert torch.equal(model.module.state_dict()[name], weight)
    assert model.module.config._attn_implementation == NAME
    assert model.notes == ()


def test_threads_may_load_at_the_same_time(tmp_path):
    # Two servers in one process receive new weights together. transformers suspends weight tying while it loads.
    folder, original = (
        create(tmp_path / "tied", **{**NUMBERS, "family": "smollm2"}),
        PreTrainedModel.tie_weights,
    )
    try:
        with ThreadPoolExecutor(4) as threads:
            models = list(threads.map(lambda _: load(folder), range(16)))
        assert PreTrainedModel.tie_weights is original
    finally:
        PreTrainedModel.tie_weights = (
            original  # a failure here must not break the tests that follow
        )
    assert all(
        m.module.get_output_embeddings().weight is m.module.get_input_embeddings().weight
        for m in models
    )


def test_a_run_folder_loads_and_says_which_model_it_took(folder, tmp_path, caplog):
    newest = tmp_path / "run" / "checkpoints" / "7" / "model"
    newest.parent.mkdir(parents=True)
    folder.rename(newest)
    with caplog.at_level(logging.INFO, "ascent.models"):
        model = load(tmp_path / "run")
    assert model.notes == (f"model {tmp_path / 'run'} is {newest}",)
    assert model.notes[0] in caplog.text


def test_bfloat16_weights_give_float32_log_probs(folder):
    model, wide = load(folder, dtype="bfloat16"), load(folder)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    out_T, exact_T = (each.outputs(batch_of(), WANT)["logprobs_T"] for each in (model, wide))
    assert out_T.dtype == torch.float32
    assert 0 < float((out_T - exact_T).detach().abs().max()) < 0.2


@pytest.mark.parametrize(
    ("family", "rates"),
    [
        ("llama", {"attention_dropout": 0.5}),
        ("phi", {"attention_dropout": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("mixtral", {"router_jitter_noise": 0.5}),
    ],
)
def test_dropout_is_off_unless_asked_for(family, rates, tmp_path):
    folder = create(tmp_path, family=family, **NUMBERS, **rates)
    quiet, noisy = load(folder).train(), load(folder, dropout=True)
    first_T, again_T = (quiet.outputs(batch_of(), WANT)["logprobs_T"] for _ in range(2))
    assert torch.equal(first_T, again_T)
    assert torch.equal(quiet.eval().outputs(batch_of(), WANT)["logprobs_T"], first_T)
    assert all(part.p == 0 for part in quiet.module.modules() if isinstance(part, nn.Dropout))
    assert all(getattr(quiet.module.config, name) == 0 for name in rates)
    assert all(f"{name} was 0.5" in quiet.notes[0] for name in rates)
    assert noisy.module.training
    first_T, again_T = (noisy.outputs(batch_of(), WANT)["logprobs_T"] for _ in range(2))
    assert not torch.equal(first_T, again_T)


def test_padding_is_separated_in_tokenizer_and_config(folder):
    edit(folder / "tokenizer_config.json", pad_token="<eos>")
    model = load(folder)
    assert model.notes == ("padding was the end token '<eos>'; padding is now '<pad>' (id 0)",)
    assert model.module.config.pad_token_id == model.tokenizer.pad_token_id == 0
    assert model.tokenizer.eos_token_id == 1


def test_weights_that_are_missing_are_an_error(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file(
        {name: each for name, each in weights.items() if "q_proj" not in name},
        path,
        {"format": "pt"},
    )
    with pytest.raises(
        ValueError,
        match=r"lacks 1 weights of LlamaForCausalLM .* model.layers.0.self_attn.q_proj.weight",
    ):
        load(folder)


def test_weights_of_another_shape_are_an_error(folder):
    edit(folder / "config.json", intermediate_size=7)
    with pytest.raises(ValueError, match="or has them in another shape"):
        load(folder)


def test_a_truncated_file_is_an_error(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"the weights of .* cannot be loaded"):
        load(folder)


def test_a_tokenizer_of_another_model_is_refused(folder):
    tiny_tokenizer(special=["<a>", "<b>"]).save_pretrained(folder)
    with pytest.raises(ValueError, match="the tokenizer has 260 tokens, the model 258 embeddings"):
        load(folder)


def test_a_folder_without_a_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="no tokenizer can be loaded"):
        load(folder)


def test_encoders_and_encoder_decoders_are_refused(tmp_path, folder):
    for model_type, words in (
        ("t5", "encoder-decoder"),
        ("vit", "for which transformers has no causal language model"),
    ):
        other = tmp_path / model_type
        AutoConfig.for_model(model_type).save_pretrained(other)
        (other / "model.safetensors").write_text("")
        with pytest.raises(ValueError, match=words):
            load(other)


def test_code_that_comes_with_a_model_does_not_run_unasked(folder):
    marker = folder / "ran"
    (folder / "theirs.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    edit(
        folder / "config.json",
        model_type="theirs",
        auto_map={"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M"},
    )
    with pytest.raises(
        ValueError, match=r"set model\.trust_remote_code=true if you trust its code"
    ):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float16"}, "dtype='float16' is not supported; use float32 or bfloat16"),
        ({"head": "value"}, "head='value' does not exist; use one of tokens, scalar, both"),
    ],
)
def test_unknown_choices_are_refused(folder, change, words):
    with pytest.raises(ValueError, match=words):
        load(folder, **change)


def test_loading_leaves_the_log_level_and_the_generator_alone(folder):
    from transformers.utils import logging as theirs

    level, state = theirs.get_verbosity(), torch.get_rng_state()
    load(folder, head="scalar")
    assert theirs.get_verbosity() == level
    assert torch.equal(torch.get_rng_state(), state)


def test_a_base_model_without_a_head_is_refused_as_a_policy(folder, tmp_path):
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"lacks 1 weights .*lm_head\.weight"):
        load(tmp_path / "base")


def test_a_reward_model_is_refused_as_a_policy_by_its_name(folder, tmp_path):
    load(folder, head="scalar", seed=1).save(tmp_path / "scored")
    with pytest.raises(
        ValueError,
        match="scored is a reward model or critic, which has no token head; load another",
    ):
        load(tmp_path / "scored")


@pytest.mark.parametrize("head", ["tokens", "scalar"])
@pytest.mark.parametrize("padding", [None, 0, 1])
def test_the_end_tokens_embedding_is_trained_and_paddings_is_not_before_and_after_a_save(
    folder, head, padding, tmp_path
):
    """A model whose config pads with its end token trained that token's embedding only after it had been saved."""
    edit(folder / "config.json", pad_token_id=padding)
    model = load(folder, head=head)
    model.save(tmp_path / "again")
    assert [
        load(each, head=head).module.get_input_embeddings().padding_idx
        for each in (folder, tmp_path / "again")
    ] == [0, 0]
    batch = {**batch_of((4,)), "tokens_T": torch.tensor([5, 1, 6, 7])}
    want = WANT if head == "tokens" else frozenset({"scores_B"})
    sum(each.sum() for each in model.outputs(batch, want).values()).backward()
    gradient = model.module.get_input_embeddings().weight.grad
    assert gradient is not None and bool((gradient[[1, 5]] != 0).any(1).all())
